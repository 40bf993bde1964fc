"""Commits that an operator has told this node to skip (rules B3): `<data>/QUARANTINE`, a JSON list of
[index of the entry, number of the commit in it].

An entry that one version cannot apply stops every node at the same place. The file is the way past it; the state
records what was skipped, so that nodes which skipped different things are found out by their hashes.
"""

import fcntl
import json
import os
from pathlib import Path
from typing import Final, NamedTuple

FILE: Final = "QUARANTINE"
MAX_LISTED: Final = 10_000
MAX_FILE: Final = 40 * MAX_LISTED
"""Characters of the list that are read; a longer one ends in its middle, so it is refused."""


class Skipped(NamedTuple):
    """A commit, as its versionstamp counts it."""

    entry: int
    number: int

    def __str__(self) -> str:
        return f"{self.entry}/{self.number}"


class QuarantineError(Exception):
    """The list cannot be read or changed; one line for the operator."""


def read(folder: Path) -> frozenset[tuple[int, int]]:
    """What the folder's list names; empty without a list. Raises QuarantineError, OSError."""
    return frozenset((one.entry, one.number) for one in _read(folder))


def add(folder: Path, entry: int, number: int) -> list[Skipped]:
    """Put a commit on the list, durably. Returns the list. Raises QuarantineError, OSError."""
    lock = folder / "raft" / "LOCK"
    if not lock.exists():
        raise QuarantineError(f"{folder} is not the folder of a node")
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise QuarantineError(f"the node of {folder} is running: stop it first") from None
        listed = sorted({*_read(folder), Skipped(entry, number)})
        if len(listed) > MAX_LISTED:
            raise QuarantineError(f"more than {MAX_LISTED:,} commits are listed in {folder / FILE}")
        _write(folder, listed)
    finally:
        os.close(descriptor)
    return listed


def _read(folder: Path) -> list[Skipped]:
    file = folder / FILE
    try:
        with file.open(encoding="ascii") as source:
            text = source.read(MAX_FILE)
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise QuarantineError(f"{file} is not a JSON list") from None
    try:
        rows = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        raise QuarantineError(f"{file} is not a JSON list") from None
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        raise QuarantineError(f"{file} is not a list of [index, number]")
    return [Skipped(*row) for row in rows]


def _is_row(row: object) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 2
        and all(isinstance(part, int) and not isinstance(part, bool) and part >= 0 for part in row)
    )


def _write(folder: Path, listed: list[Skipped]) -> None:
    """Whole or not at all, durably."""
    draft = folder / (FILE + ".new")
    with draft.open("w", encoding="ascii") as file:
        json.dump([list(one) for one in listed], file)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / FILE)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
