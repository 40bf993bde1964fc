"""What a machine lacks for an engine to be started on it at all.

Asked before anything else is done, and the only reason for exit status 3: whatever goes wrong later is a failure.
"""

import os
import shutil
import subprocess
from pathlib import Path

CONTROLLERS = ("cpu", "memory", "devices", "freezer", "pids")
NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")


def missing() -> list[str]:
    """One line each; empty if an engine can be started here (or installed, and then started)."""
    found = []
    if os.geteuid() != 0:
        found.append("root: this is user id " + str(os.geteuid()))
    if not shutil.which("unshare"):
        found.append("unshare (Debian: util-linux)")
    elif not found and (reason := _no_namespaces()):
        found.append(f"network, mount and process namespaces: {reason}")
    if reason := _no_cgroups(Path("/sys/fs/cgroup")):
        found.append(f"control groups: {reason}")
    if "overlay" not in Path("/proc/filesystems").read_text().split():
        found.append("the overlay file system: not in /proc/filesystems")
    if not _installed() and not shutil.which("apt-get"):
        found.append("dockerd and iptables, and apt-get to install them")
    return found


def engine_runs() -> bool:
    """An engine answers under $DOCKER_HOST, or where the client looks without it."""
    if not shutil.which("docker"):
        return False
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _installed() -> bool:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return all(shutil.which(program, path=path) for program in ("dockerd", "iptables", "docker"))


def _no_namespaces() -> str:
    done = subprocess.run(["unshare", *NAMESPACES, "true"], capture_output=True, text=True, timeout=20, check=False)
    return "" if done.returncode == 0 else " ".join(done.stderr.split()) or f"unshare ended with {done.returncode}"


def _no_cgroups(root: Path) -> str:
    """Version 2 mounted at `root`, or version 1 with a folder for each controller; and a group can be made."""
    if (root / "cgroup.controllers").exists():
        folders = [root]
    else:
        folders = [root / name for name in CONTROLLERS]
        if absent := [folder.name for folder in folders if not (folder / "tasks").exists()]:
            return f"not mounted under {root}: {', '.join(absent)}"
    for folder in folders:
        trial = folder / f"kvorum-probe-{os.getpid()}"
        try:
            trial.mkdir()
            trial.rmdir()
        except OSError as error:
            return f"no group can be made in {folder}: {error.strerror}"
    return ""
