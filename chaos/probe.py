"""Tries out whether faults do what they say: `python -m chaos.probe net|links|disks|shim`.

A fault that does nothing would make every run a success. So this is no look at versions and modules: packets must get
lost, connections must break, and data that nobody synced must be gone. Exit status 0, or a line that says why not.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from .disks import LoopDisk
from .isolation import INSIDE, CannotIsolate, run_inside, settle
from .links import Delayer, lose
from .network import Lab, Seat
from .shim import Shim, build, environment_with

PORT: Final = 7_000
PATIENCE: Final = 5.0
SILENCE: Final = 0.3
"""Seconds without an answer that are taken for a lost one."""

_ECHO: Final = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print("ready", flush=True)
    while True:
        with server.accept()[0] as one:
            while data := one.recv(100):
                one.sendall(data)
"""
_ASK: Final = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as one:
    for line in sys.stdin:
        one.settimeout(float(line))
        try:
            one.sendall(b"?")
            answer = "answered" if one.recv(100) else "closed"
        except TimeoutError:
            answer = "silence"
        except ConnectionResetError:
            answer = "reset"
        print(answer, flush=True)
"""


_SYNC_AND_TELL: Final = """
import os, sys, time
failed = 0
with open(sys.argv[1], "wb") as file:
    for sync in (os.fdatasync, os.fsync):
        try:
            sync(file.fileno())
        except OSError:
            failed += 1
print(time.time(), failed)
"""


class DoesNothing(Exception):
    """A fault had no effect, or another one."""


class _Asking:
    """Two processes that talk over one connection."""

    def __init__(self, here: Seat, there: Seat) -> None:
        self._server = self._run(there, _ECHO, there.address)
        _said(self._server, "ready")
        self._client = self._run(here, _ASK, there.address)

    @staticmethod
    def _run(seat: Seat, program: str, address: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            seat.command(sys.executable, "-c", program, address, str(PORT)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            pass_fds=(seat.namespace,),
        )

    def expect(self, answer: str, seconds: float, when: str) -> None:
        assert self._client.stdin is not None
        self._client.stdin.write(f"{seconds}\n")
        self._client.stdin.flush()
        try:
            _said(self._client, answer)
        except DoesNothing as error:
            raise DoesNothing(f"{when}: {error}") from error

    def end(self) -> None:
        for process in (self._client, self._server):
            process.kill()
            process.communicate()


def _said(process: "subprocess.Popen[str]", expected: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if line != expected:
        raise DoesNothing(f"{line or 'nothing'!r} where {expected!r} was expected")


def try_network() -> None:
    """Errors: DoesNothing, OSError, CalledProcessError."""
    lab = Lab()
    here, there, other = lab.seat(), lab.seat(), lab.seat()
    cuts: list[tuple[Callable[[], None], str]] = [
        (lambda: lab.cut([(here, there)]), "one direction cut"),
        (lambda: lab.cut([(there, here)]), "the other direction cut"),
        (lambda: lab.split([[here], [there]]), "both directions cut"),
        (lambda: lab.unplug(there), "no cable"),
    ]
    for cut, what in cuts:
        asking = _Asking(here, there)
        asking.expect("answered", PATIENCE, f"before {what}")
        cut()
        asking.expect("silence", SILENCE, what)
        lab.heal()
        asking.expect("answered", PATIENCE, f"after {what}")
        lab.cut([(here, other), (other, there)])
        asking.expect("answered", PATIENCE, "other ways cut")
        lab.heal()
        asking.end()
    asking = _Asking(here, there)
    asking.expect("answered", PATIENCE, "before a reset")
    lab.reset(there)
    asking.expect("reset", PATIENCE, "a reset")
    asking.end()
    lab.close()


def try_links() -> None:
    """Errors: DoesNothing, OSError, CalledProcessError."""
    lab = Lab()
    here, there = lab.seat(), lab.seat()
    asking = _Asking(here, there)
    asking.expect("answered", PATIENCE, "before losses")
    lose(lab, there, 1.0, [here])
    asking.expect("silence", SILENCE, "every packet lost")
    if not lab.unfilter(there):
        raise DoesNothing("packets were lost, and the filter has counted none")
    asking.end()
    asking = _Asking(here, there)
    asking.expect("answered", PATIENCE, "before delays")
    delayer = Delayer(lab, there, 1_000 * SILENCE * 2, [here])
    asking.expect("silence", SILENCE, "packets held back")
    asking.end()
    asking = _Asking(here, there)
    asking.expect("answered", PATIENCE, "packets held back, and waited for")
    if not delayer.end():
        raise DoesNothing("packets were late, and the delayer has counted none")
    asking.expect("answered", SILENCE, "after that")
    asking.end()
    lab.close()


def try_shim() -> None:
    """Errors: DoesNothing, OSError, CalledProcessError."""
    with tempfile.TemporaryDirectory() as name:
        shim = Shim(build(Path(name)), Path(name) / "control")
        shim.set_clock(3_600.0)
        shim.delay_syncs(0.01)
        shim.fail_syncs(1)
        command = [sys.executable, "-c", _SYNC_AND_TELL, str(Path(name) / "file")]
        done = subprocess.run(
            command, env=environment_with(shim), check=True, capture_output=True, text=True, timeout=PATIENCE
        )
        told, failed = done.stdout.split()
        if not 3_500.0 < float(told) - time.time() < 3_700.0:
            raise DoesNothing(f"a clock that is an hour off tells {told}, and it is {time.time()}")
        if failed != "1" or not (shim.asked and shim.delayed and shim.failed):
            raise DoesNothing(f"{failed} syncs failed; counted {(shim.asked, shim.delayed, shim.failed)}")


def try_disks() -> None:
    """Errors: DoesNothing, OSError, CalledProcessError."""
    with tempfile.TemporaryDirectory() as name:
        disk = LoopDisk(Path(name) / "image", Path(name) / "mount", megabytes=64)
        try:
            kept, lost = disk.mount / "kept", disk.mount / "lost"
            kept.write_text("synced")
            with kept.open("r+b") as file:
                os.fsync(file.fileno())
            with kept.open("ab") as file:
                file.write(b", and not synced")
            lost.write_text("not synced")
            disk.cut()
            try:
                lost.write_text("after the cut")
            except OSError:
                pass
            else:
                raise DoesNothing("a disk without power takes writes")
            disk.restore()
            if kept.read_text() != "synced":
                raise DoesNothing(f"what was synced reads {kept.read_text()!r} after a power cut")
            if lost.exists() or disk.harmless:
                raise DoesNothing("what was not synced survives a power cut")
        finally:
            disk.close()


def main() -> int:
    """See the module."""
    if INSIDE not in sys.argv and sys.argv[1] != "shim":
        try:
            return run_inside([sys.executable, "-m", "chaos.probe", *sys.argv[1:], INSIDE])
        except CannotIsolate as error:
            print(error)
            return 1
    try:
        if INSIDE in sys.argv:
            settle()
        {"net": try_network, "links": try_links, "disks": try_disks, "shim": try_shim}[sys.argv[1]]()
    except (CannotIsolate, DoesNothing, OSError) as error:
        print(error)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"{' '.join(error.cmd)}: {' '.join(str(error.stderr).split())}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
