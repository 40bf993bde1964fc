"""A state machine whose state is a few bytes, a background that runs when it is told to, and what they need."""

import errno
import hashlib
import os
import struct
from collections import deque
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar, cast

from kvorum_raft import configuration as cf
from kvorum_raft.background import Caught
from kvorum_raft.base import Base
from kvorum_raft.checkpoints import Checkpoints, Manifest, PlainCopier, sync_path
from kvorum_raft.entry import Kind, make
from kvorum_raft.errors import Overloaded
from kvorum_raft.seams import Member, PreparedState, StateFacts

T = TypeVar("T")
_HEADER = struct.Struct(">QQ16s")
CONFIGURATION = make(
    Kind.CONFIGURATION,
    1,
    1,
    1,
    cf.make(b"c" * 16, [cf.Voter(Member(one, f"{one}:1", f"{one}:2"), one.encode() * 16) for one in "abc"]).encode(),
).record


def content_hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def describe(facts: StateFacts) -> Base:
    return Base(facts.index, 1 + facts.index // 100, facts.time_ms, CONFIGURATION)


class FakeImage:
    def __init__(self, machine: "FakeMachine") -> None:
        self._machine = machine
        self._data = machine.data
        self.facts = StateFacts(machine.applied_index, machine.time_ms, content_hash(machine.data))
        self.closed = False
        machine.images.append(self)

    def copy_to(self, fd: int) -> None:
        assert not self.closed
        if self._machine.copy_errors:
            os.write(fd, b"half")
            raise self._machine.copy_errors.popleft()
        rest = memoryview(_HEADER.pack(*self.facts) + self._data)
        while rest:
            rest = rest[os.write(fd, rest[:100_000]) :]

    def close(self) -> None:
        self.closed = True


class FakeMachine:
    """Its state is `data`. `copy_errors` are raised by the next copies, one each."""

    def __init__(self, data: bytes = b"", index: int = 0) -> None:
        self.data = data
        self.applied_index = index
        self.time_ms = index * 10
        self.copy_errors: deque[BaseException] = deque()
        self.images: list[FakeImage] = []

    def put(self, data: bytes) -> None:
        self.applied_index += 1
        self.time_ms += 10
        self.data = data

    def apply(self, index: int, time_ms: int, payload: bytes) -> Generator[bool | None, None, Any]:
        yield True
        self.applied_index, self.time_ms, self.data = index, time_ms, self.data + payload

    def state_hash(self) -> bytes:
        return content_hash(self.data)

    def size(self) -> int:
        return len(self.data) + _HEADER.size

    def image(self) -> FakeImage:
        return FakeImage(self)

    def inspect(self, file: Path) -> StateFacts:
        raw = file.read_bytes()
        if len(raw) < _HEADER.size:
            raise ValueError("not a state")
        facts = StateFacts(*_HEADER.unpack_from(raw))
        if content_hash(raw[_HEADER.size :]) != facts.content_hash:
            raise ValueError("a damaged state")
        return facts

    def prepare(self, file: Path, pause: Callable[[int], None] | None = None) -> PreparedState:
        raise NotImplementedError

    def adopt(self, prepared: PreparedState) -> None:
        raise NotImplementedError


class StepBackground:
    """Jobs run, one by one, when the test says so."""

    def __init__(self, limit: int = 64) -> None:
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any, Exception | None], None]]] = deque()
        self.limit = limit

    def submit(self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        if len(self.waiting) >= self.limit:
            raise Overloaded("too many jobs")
        self.waiting.append((job, cast("Callable[[Any, Exception | None], None]", done)))

    def run_one(self) -> bool:
        if not self.waiting:
            return False
        job, done = self.waiting.popleft()
        result = None
        with Caught() as caught:
            result = job()
        done(result, caught.error)
        return True

    def run_all(self) -> int:
        steps = 0
        while self.run_one():
            steps += 1
        return steps

    def stop(self) -> None:
        self.waiting.clear()


def checkpoints_in(folder: Path, sync: Callable[[Path], None] = sync_path) -> Checkpoints:
    """Opened, as after a start."""
    found = Checkpoints(folder, sync=sync, copier=PlainCopier())
    found.load()
    return found


def write(checkpoints: Checkpoints, machine: FakeMachine) -> Manifest:
    image = machine.image()
    try:
        return checkpoints.write(image, describe, machine.inspect)
    finally:
        image.close()


def assert_all_whole(checkpoints: Checkpoints, machine: FakeMachine) -> None:
    """Every one that is listed is what its manifest says."""
    for manifest in checkpoints.manifests:
        checkpoints.verify(manifest)
        found = machine.inspect(checkpoints.path(manifest))
        assert (found.index, found.content_hash) == (manifest.base.index, manifest.content_hash)


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken_disk() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))
