"""A node makes backups of its own state, while it goes on.

The state is first copied into a file without a name beside it, at a bounded pace that has regard to the log, as for a
checkpoint; what is sent to a caller is read from that copy. So a slow caller holds disk space and nothing else: were
the live state read for as long as he takes, LMDB could use no page again meanwhile, and the state would grow.
"""

import asyncio
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum._version import __version__
from kvorum_raft.background import Stopping
from kvorum_raft.copier import HASH_SIZE, PipeCopier, no_latency
from kvorum_raft.seams import StateImage

from ..store import Store
from .frames import BACKUP, FORMAT, MAX_NUMBER, Encoder

AT_ONCE: Final = 2
"""Backups of one node at a time: each takes the room of a copy of the state."""
RATE: Final = 32e6
"""Bytes a second, of copying and of sending: half a checkpoint's, which may be under way as well."""
PIECE: Final = 256 << 10
"""Bytes of a state in one frame."""


class Busy(Exception):
    """Too many backups are being made, or there is no room for one; one line."""


def _keeps_nothing(_: int) -> int:
    return 0


class Spool:
    """A copy of the state, in a file that vanishes when this is closed."""

    def __init__(self, fd: int, header: pb.BackupHeader, copier: PipeCopier) -> None:
        self._fd = fd
        self._copier = copier
        self.header = header

    def parts(self) -> Iterator[bytes]:
        """The bytes of the backup's file, in order, at a bounded pace; not for the event loop. Raises OSError,
        Stopping."""
        encoder, digest, offset = Encoder(BACKUP), hashlib.blake2b(digest_size=HASH_SIZE), 0
        yield encoder.begin(self.header)
        while piece := os.pread(self._fd, PIECE, offset):
            offset += len(piece)
            digest.update(piece)
            self._copier.pause(len(piece))
            yield encoder.data(piece)
        if (offset, digest.digest()) != (self.header.size, self.header.state_hash):
            raise OSError("the copy of the state is not what was written: the disk cannot be trusted")
        yield encoder.end()

    def close(self) -> None:
        """Give the room back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def spool(
    image: StateImage, facts: "StoreFacts", folder: Path, copier: PipeCopier, *, node_id: str = "", term: int = 0
) -> Spool:
    """Copy an image into a nameless file in `folder`. Not for the event loop. Raises OSError, Stopping."""
    folder.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix="spool-", dir=folder)
    try:
        Path(name).unlink()
        size, state_hash = copier.copy(image, fd)
        index, time_ms, content_hash = image.facts
        header = pb.BackupHeader(
            format=FORMAT,
            cluster_id=facts.cluster_id,
            index=index,
            term=term,
            time_ms=time_ms,
            stamp_base=facts.stamp_base,
            bookmark=bookmark(index + facts.stamp_base),
            content_hash=content_hash,
            data_format=facts.data_format,
            size=size,
            state_hash=state_hash,
            node_id=node_id,
            version=__version__,
            made_ms=time.time_ns() // 1_000_000,
        )
        return Spool(fd, header, copier)
    except BaseException:
        os.close(fd)
        raise


class StoreFacts:
    """What a backup says of its state besides the image's facts; taken together with the image."""

    __slots__ = ("cluster_id", "data_format", "stamp_base")

    def __init__(self, store: Store) -> None:
        self.cluster_id, self.stamp_base, self.data_format = store.cluster_id, store.stamp_base, store.data_format


def _close(late: object) -> None:
    if isinstance(late, Spool):
        late.close()


def bookmark(prefix: int) -> bytes:
    """The highest versionstamp that an entry's commits can have; `prefix` is its index + the stamp base."""
    return prefix.to_bytes(8, "big") + MAX_NUMBER.to_bytes(2, "big")


class Backups:
    """Of one node. `folder` is on the disk of the state, `term_at` says the term of an entry (0: not known), `latency`
    for how long the log's write under way has lasted, `least` how many bytes of a disk of that size are kept free."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        *,
        node_id: str,
        term_at: Callable[[int], int],
        latency: Callable[[], float] = no_latency,
        least: Callable[[int], int] = _keeps_nothing,
        rate: float = RATE,
    ) -> None:
        self._store = store
        self._folder = folder
        self._node_id = node_id
        self._term_at = term_at
        self._latency = latency
        self._least = least
        self._rate = rate
        self._pool = ThreadPoolExecutor(AT_ONCE + 1, thread_name_prefix="kvorum-backup")
        self._stopping = False
        self._under_way = 0
        self._made = self._failed = 0
        self._newest_at = 0.0

    @property
    def size(self) -> int:
        """Bytes that the state of a backup would have now, about."""
        return self._store.size()

    def halt(self) -> None:
        """What is under way ends with Stopping, soon."""
        self._stopping = True

    def stop(self) -> None:
        """The same; returns when no thread runs any more."""
        self.halt()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def statistics(self) -> dict[str, float]:
        """Numbers for metrics."""
        return {
            "backups_under_way": float(self._under_way),
            "backups": float(self._made),
            "backup_failures": float(self._failed),
            "backup_time_seconds": self._newest_at,
        }

    @asynccontextmanager
    async def made(self) -> AsyncIterator[Spool]:
        """A backup of what is applied now. Raises Busy, OSError, Stopping, StoreFault."""
        if self._under_way >= AT_ONCE:
            raise Busy(f"{self._under_way} backups of this node are being made or sent: wait, or ask another node")
        self._check_room()
        self._under_way += 1
        done = False
        try:
            made = await self._spool()
            try:
                yield made
                done = True
            finally:
                made.close()
        finally:
            self._under_way -= 1
            self._made += done
            self._failed += not done
            self._newest_at = time.time() if done else self._newest_at

    async def parts(self, made: Spool) -> AsyncIterator[bytes]:
        """The bytes of its file. Raises OSError, Stopping."""
        parts = made.parts()
        while (part := await self._run(next, parts, b"")) != b"":
            yield part

    async def _run(self, call: Callable[..., object], *arguments: object) -> bytes:
        found = await self._in_thread(lambda: call(*arguments), lambda _: None, lambda: None)
        assert isinstance(found, bytes)
        return found

    async def _spool(self) -> Spool:
        image, facts = self._store.image(), StoreFacts(self._store)
        given_up = threading.Event()
        copier = PipeCopier(self._rate, stopping=lambda: self._stopping or given_up.is_set())
        copier.watch(self._latency)
        term = self._term_at(image.facts.index)

        def copy() -> Spool:
            return spool(image, facts, self._folder, copier, node_id=self._node_id, term=term)

        try:
            made = await self._in_thread(copy, _close, given_up.set)
        finally:
            image.close()
        assert isinstance(made, Spool)
        return made

    async def _in_thread(
        self, job: Callable[[], object], drop: Callable[[object], None], give_up: Callable[[], None]
    ) -> object:
        """What the job returns. Returns after it has ended, even if the caller was cancelled; then it is asked to give
        up, and what came of it is dropped."""
        if self._stopping:
            raise Stopping("the node stops")
        work = asyncio.get_running_loop().run_in_executor(self._pool, job)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            give_up()
            await asyncio.wait([work])
            if not work.cancelled() and work.exception() is None:
                drop(work.result())
            raise

    def _check_room(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        disk = os.statvfs(self._folder)
        free, size = disk.f_bavail * disk.f_frsize, self._store.size()
        least = self._least(disk.f_blocks * disk.f_frsize)
        if free < size + least:
            raise Busy(
                f"no room for a copy of the state: {size:,} bytes, and {free:,} are free of which {least:,} are kept:"
                " ask another node"
            )
