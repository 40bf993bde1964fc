"""Namespaces of a run's own: network, mounts and process ids, so that nothing outside can be harmed or left behind.

The command runs itself once more, as the first process of a new process-id namespace. When that process ends, however
it ends, the kernel ends every process in there; then nobody is left in the network and mount namespaces, and the
kernel takes down cables, rules, mounts and loop devices. So there is nothing to clean after a `kill -9`, and no name of
the machine's own (interfaces, /run/netns, mount points) is ever used.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Final, Literal

from .shim import COMPILER

Kind = Literal["net", "links", "disks", "shim"]

TOOLS: Final[dict[Kind, tuple[str, ...]]] = {
    "net": ("ip", "ss", "nsenter", "unshare"),
    "links": ("ip", "ss", "nsenter", "unshare", "iptables", "iptables-restore"),
    "disks": ("mkfs.ext4", "mount", "umount"),
    "shim": (COMPILER,),
}
INSIDE: Final = "--inside"
"""The flag by which a command knows that it is inside."""
_CLONE_NEWNS: Final = 0x0002_0000
_CLONE_NEWPID: Final = 0x2000_0000
_CLONE_NEWNET: Final = 0x4000_0000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 0x4_0000
_PR_SET_PDEATHSIG: Final = 1
_PATIENCE: Final = 30.0
"""Seconds for a probe."""


class CannotIsolate(Exception):
    """The kernel does not let us; one line that says what."""


def missing(kind: Kind) -> str | None:
    """Why network namespaces (`net`), packet filters in them (`links`), loop-mounted file systems (`disks`) or a
    library loaded into nodes (`shim`) cannot be had here; None if they can.

    They are tried out, not guessed: a container may have root and no rights.
    """
    if kind != "shim" and os.geteuid() != 0:
        return "this needs root"
    absent = [tool for tool in TOOLS[kind] if shutil.which(tool) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    command = [sys.executable, "-m", "chaos.probe", kind]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return f"trying it out took more than {_PATIENCE:g} s"
    if tried.returncode == 0:
        return None
    return (tried.stdout.strip() or tried.stderr.strip() or f"exit status {tried.returncode}").splitlines()[-1]


def run_inside(command: Sequence[str], *, network: bool = True) -> int:
    """Run a command in new namespaces, hand signals on to it, and return its exit status.

    It is process 1 in there and should call `settle` first of all. Errors: CannotIsolate.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS | (_CLONE_NEWNET if network else 0)), "unshare of mounts and network")
    _check(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "private mounts")
    _check(libc.unshare(_CLONE_NEWPID), "unshare of process ids")
    # A session of its own: Ctrl-C reaches it once, through us.
    child = subprocess.Popen(command, start_new_session=True)

    def hand_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hand_on)
    status = child.wait()
    return 128 - status if status < 0 else status


def settle() -> None:
    """Inside: see our own processes in /proc, and do not outlive who started us. Errors: CannotIsolate."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getpid() != 1:
        raise CannotIsolate("not the first process of a namespace")
    _check(libc.mount(b"proc", b"/proc", b"proc", 0, None), "mount of /proc")


def _check(status: int, what: str) -> None:
    if status:
        raise CannotIsolate(f"{what}: {os.strerror(ctypes.get_errno())}")
