"""The systems beside which kvorum is measured, installed into a folder outside the repository.

etcd and the NATS server are Debian's, unpacked and not installed: nothing is started and nothing in the system changes.
Their Python clients come from PyPI as `bench/peers.txt` says, into an environment of their own; Deno from npm, as the
lock file of the acceptance tests says. What cannot be had is told with the reason, and what would have been measured
beside it is marked as missing.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kvorum-bench"
NAMES: Final = ("etcd", "nats", "deno", "clients")
"""`clients` is the interpreter that has aetcd and nats-py."""
LIMIT: Final = 300
"""Seconds that one command may take."""


class NotToBeHad(Exception):
    """Why a peer is not there."""


@dataclass(slots=True)
class Peers:
    """What there is, by its name in `NAMES`."""

    found: dict[str, Path] = field(default_factory=dict)
    """Programs."""
    missing: dict[str, str] = field(default_factory=dict)
    """Why not."""

    def wanting(self, *names: str) -> str:
        """Why these cannot all be used; empty if they can."""
        return "; ".join(
            f"{name}: {self.missing.get(name, 'not asked for')}" for name in names if name not in self.found
        )


def _run(command: Sequence[str | Path], folder: Path) -> None:
    """Errors: NotToBeHad."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotToBeHad(f"{' '.join(words[:3])}: {error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        raise NotToBeHad(f"{' '.join(words[:3])} has ended with status {done.returncode}: {said}")


def debian_program(name: str, package: str, place: str, folder: Path) -> Path:
    """A server of Debian's: the one that is installed, else unpacked from its package."""
    installed = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if installed:
        return Path(installed)
    own = folder / "debian"
    program = own / place
    if not program.exists():
        own.mkdir(parents=True, exist_ok=True)
        try:
            _run(["apt-get", "download", package], own)
        except NotToBeHad:  # the list of packages may be missing or old
            _run(["apt-get", "update"], own)
            _run(["apt-get", "download", package], own)
        for archive in own.glob(f"{package}_*.deb"):
            _run(["dpkg", "--extract", archive, own], own)
            archive.unlink()
    if not program.exists():
        raise NotToBeHad(f"Debian's package {package} has no {place}")
    return program


def _etcd(folder: Path) -> Path:
    return debian_program("etcd", "etcd-server", "usr/bin/etcd", folder)


def _nats(folder: Path) -> Path:
    return debian_program("nats-server", "nats-server", "usr/sbin/nats-server", folder)


def _as_locked(
    place: Path, locks: Sequence[Path], program: Callable[[], Path | None], make: Callable[[], None]
) -> Path:
    """What a lock file describes, made anew when that has changed."""
    wanted = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()
    mark = place / "made-from"
    there = program()
    if there is None or not mark.exists() or mark.read_text() != wanted:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        make()
        there = program()
        if there is None:
            raise NotToBeHad(f"the packages that {locks[-1].name} names have no such program")
        mark.write_text(wanted)
    return there


def _clients(folder: Path) -> Path:
    place, lock = folder / "clients", ROOT / "bench" / "peers.txt"
    python = place / "bin" / "python"

    def make() -> None:
        _run([sys.executable, "-m", "venv", place], folder)
        quiet = ["--quiet", "--disable-pip-version-check", "--require-hashes"]
        _run([python, "-m", "pip", "install", *quiet, "-r", lock], folder)

    return _as_locked(place, [lock], lambda: python if python.exists() else None, make)


def _deno(folder: Path) -> Path:
    place, clients = folder / "deno", ROOT / "tests" / "acceptance" / "clients"
    locks = [clients / name for name in (".npmrc", "package.json", "package-lock.json")]

    def make() -> None:
        for lock in locks:
            shutil.copy(lock, place)
        _run(["npm", "ci", "--silent"], place)

    return _as_locked(place, locks, lambda: next(place.glob("node_modules/@deno/*/deno"), None), make)


_MAKERS: Final[dict[str, Callable[[Path], Path]]] = {"etcd": _etcd, "nats": _nats, "deno": _deno, "clients": _clients}


def install(names: Sequence[str] = NAMES, folder: Path = CACHE) -> Peers:
    """Install what is not there yet. Never fails: see `Peers.missing`."""
    peers = Peers()
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        try:
            peers.found[name] = _MAKERS[name](folder)
        except (NotToBeHad, OSError) as error:
            peers.missing[name] = str(error)
    return peers


def versions(peers: Peers) -> dict[str, str]:
    """Of everything that is there."""
    found: dict[str, str] = {}
    for name, program in peers.found.items():
        if name == "clients":
            said = subprocess.run(
                [program, "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True
            )
            listed = {row["name"]: row["version"] for row in json.loads(said.stdout)}
            found |= {package: listed[package] for package in ("aetcd", "nats-py", "grpcio", "uvloop")}
        else:
            said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
            found[name] = said.stdout.strip().splitlines()[0]
    return found
