"""Backup files on a disk: written whole or not at all, read back, unpacked, checked."""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, NamedTuple

import lmdb

from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.checkpoints import sync_path
from kvorum_raft.copier import HASH_SIZE, write_all

from ..store.images import FileFacts, describe
from .frames import BACKUP, BadFile, Decoder

READ: Final = 1 << 20
Progress = Callable[[int, int], None]
"""Called now and then with bytes done and bytes in all (0: not known)."""


def no_progress(_: int, __: int) -> None:
    """Nobody wants to know."""


class NewFile:
    """A file that has its name only when it is whole and on the disk: `with NewFile(path) as file: …; file.keep()`.

    Without `keep` nothing is left of it. Raises FileExistsError, unless `replace`; OSError."""

    def __init__(self, path: Path, *, replace: bool = False) -> None:
        self._path = path
        self._replace = replace
        self._draft = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
        self._fd = -1
        self.size = 0

    def __enter__(self) -> "NewFile":
        self._check()
        self._fd = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return self

    def write(self, data: bytes) -> None:
        write_all(self._fd, data)
        self.size += len(data)

    def keep(self) -> None:
        """Sync it, and give it its name."""
        os.fsync(self._fd)
        self._check()
        self._draft.replace(self._path)
        sync_path(self._path.parent)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._fd)
        with contextlib.suppress(FileNotFoundError):
            self._draft.unlink()

    def _check(self) -> None:
        if not self._replace and self._path.exists():
            raise FileExistsError(f"{self._path} is there already")


class Checked(NamedTuple):
    """A backup that is whole."""

    header: pb.BackupHeader
    facts: FileFacts


def payloads(source: BinaryIO, decoder: Decoder[pb.BackupHeader] | Decoder[pb.SegmentHeader]) -> Iterator[bytes]:
    """What is in the data frames of a file, read to its end. Raises BadFile, OSError."""
    while data := source.read(READ):
        yield from decoder.feed(data)
    decoder.finish()


def read_header(source: BinaryIO) -> pb.BackupHeader:
    """The header alone; what comes after it is not looked at. Raises BadFile, OSError."""
    decoder = Decoder(BACKUP, pb.BackupHeader)
    while decoder.header is None:
        data = source.read(READ)
        if not data:
            return decoder.finish()
        for _ in decoder.feed(data):
            break
    return decoder.header


def unpack(source: BinaryIO, target: Path, progress: Progress = no_progress) -> pb.BackupHeader:
    """Write the state that is in a backup to a new file; nothing is left if it is damaged. Raises BadFile, OSError."""
    decoder = Decoder(BACKUP, pb.BackupHeader)
    digest = hashlib.blake2b(digest_size=HASH_SIZE)
    with NewFile(target) as file:
        for piece in payloads(source, decoder):
            digest.update(piece)
            file.write(piece)
            progress(file.size, 0 if decoder.header is None else decoder.header.size)
        header = decoder.finish()
        if (file.size, digest.digest()) != (header.size, header.state_hash):
            raise BadFile("the backup is damaged: what is in it is not the state that was put in")
        file.keep()
    return header


def check(source: BinaryIO, scratch: Path, progress: Progress = no_progress) -> Checked:
    """Read a backup to its end, open the state in it (a copy of which is made in the folder `scratch`, and deleted
    again), and compare all its rows with its content hash and its header. Raises BadFile, ValueError, OSError."""
    copy = scratch / f".verify-{secrets.token_hex(4)}"
    try:
        return check_state(copy, unpack(source, copy, progress))
    finally:
        copy.unlink(missing_ok=True)


def check_state(file: Path, header: pb.BackupHeader) -> Checked:
    """The second half: of an unpacked state."""
    facts = describe(file, lmdb.open, scrub=True)
    found = (*facts.facts, facts.data_format, facts.cluster_id, facts.stamp_base)
    said = (
        header.index,
        header.time_ms,
        header.content_hash,
        header.data_format,
        header.cluster_id,
        header.stamp_base,
    )
    if found != said:
        raise BadFile(
            f"the backup is not what it says: the state in it stands at entry {facts.facts.index} with the hash"
            f" {facts.facts.content_hash.hex()}, its header says {header.index} and {header.content_hash.hex()}"
        )
    return Checked(header, facts)
