"""Backups of a store that goes on: what a node gives out, and to whom it does not."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc
import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.api import backups as api
from kvorum_node.api.backups import BackupCall
from kvorum_node.api.endings import NotTaken
from kvorum_node.backup.files import NewFile, check, unpack
from kvorum_node.backup.restoring import from_backup, restore_node
from kvorum_node.backup.saving import AT_ONCE, Backups, Busy
from kvorum_raft.background import Stopping
from kvorum_raft.errors import NotLeader
from tests.unit.backup.conftest import stream
from tests.unit.backup.test_restoring import MEMBER, NOW_MS
from tests.unit.store.harness import Replica, put

TERM = 7


@pytest.fixture
async def backups(busy: Replica, tmp_path: Path) -> AsyncIterator[Backups]:
    made = Backups(busy.store, tmp_path / "spool", node_id="n1", term_at=lambda _: TERM, rate=1e12)
    yield made
    made.halt()
    made.stop()


async def whole(backups: Backups) -> bytes:
    async with backups.made() as made:
        return b"".join([part async for part in backups.parts(made)])


async def test_a_state_that_goes_on_is_saved_as_it_was(busy: Replica, backups: Backups, tmp_path: Path) -> None:
    index, content_hash = busy.store.applied_index, busy.store.state_hash()
    async with backups.made() as made:
        for number in range(50):
            busy.commit(put(b"later %d" % number, bytes(3_000)))
        data = b"".join([part async for part in backups.parts(made)])
    checked = check(stream(data), tmp_path)
    assert (checked.header.index, checked.header.content_hash, checked.header.term) == (index, content_hash, TERM)
    assert backups.statistics()["backups"] == 1
    assert backups.statistics()["backups_under_way"] == 0
    assert list((tmp_path / "spool").iterdir()) == []


async def test_a_snapshot_that_becomes_the_state_meanwhile(busy: Replica, backups: Backups, tmp_path: Path) -> None:
    """The state is replaced by another one while it is being copied and sent."""
    index = busy.store.applied_index
    (tmp_path / "other").write_bytes(b"")
    image = busy.store.image()
    with (tmp_path / "other").open("r+b") as target:
        image.copy_to(target.fileno())
    image.close()
    busy.commit(put(b"later"))
    newer = busy.store.applied_index
    async with backups.made() as made:
        busy.store.adopt(busy.store.prepare(tmp_path / "other"))
        assert busy.store.applied_index == index
        data = b"".join([part async for part in backups.parts(made)])
    assert check(stream(data), tmp_path).header.index == newer
    assert check(stream(await whole(backups)), tmp_path).header.index == index


async def test_so_many_at_once(backups: Backups) -> None:
    async with backups.made(), backups.made():
        assert AT_ONCE == 2
        with pytest.raises(Busy, match="2 backups of this node"):
            await whole(backups)
    assert await whole(backups)


async def test_no_room(busy: Replica, tmp_path: Path) -> None:
    made = Backups(busy.store, tmp_path / "spool", node_id="n1", term_at=lambda _: 0, least=lambda size: size)
    with pytest.raises(Busy, match="no room for a copy of the state"):
        await whole(made)
    made.stop()


async def test_a_disk_that_becomes_full_midway(
    busy: Replica, backups: Backups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("kvorum_raft.direct.DirectWriter.write", full)
        with pytest.raises(OSError, match="No space"):
            await whole(backups)
    assert backups.statistics()["backup_failures"] == 1
    assert list((tmp_path / "spool").iterdir()) == []
    assert await whole(backups)


def test_a_disk_that_becomes_full_while_something_is_restored(
    backup: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    data = backup
    names = sorted(path.name for path in tmp_path.iterdir())
    with monkeypatch.context() as patched:
        patched.setattr("kvorum_node.backup.files.write_all", full)
        with pytest.raises(OSError, match="No space"):
            unpack(stream(data), tmp_path / "state")
        with pytest.raises(OSError, match="No space"), NewFile(tmp_path / "a.bak") as file:
            file.write(data)
        with pytest.raises(OSError, match="No space"):
            restore_node(from_backup(stream(data)), tmp_path / "n1", MEMBER, NOW_MS)
    assert list((tmp_path / "n1").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "n1"])
    with monkeypatch.context() as patched:
        patched.setattr("kvorum_raft.direct.DirectWriter.write", full)
        with pytest.raises(OSError, match="No space"):
            restore_node(from_backup(stream(data)), tmp_path / "n1", MEMBER, NOW_MS)
    assert list((tmp_path / "n1").iterdir()) == []
    restore_node(from_backup(stream(data)), tmp_path / "n1", MEMBER, NOW_MS)


async def test_a_copy_that_cannot_be_read_back_is_not_sent_to_its_end(backups: Backups, tmp_path: Path) -> None:
    async with backups.made() as made:
        os.pwrite(made._fd, b"\xff" * 64, 8_192)
        with pytest.raises(OSError, match="cannot be trusted"):
            assert [part async for part in backups.parts(made)]


async def test_the_end_of_the_node_and_of_a_caller(busy: Replica, tmp_path: Path) -> None:
    """Both are noticed in the middle of a copy, which holds the state until then."""
    copying, going_on = threading.Event(), threading.Event()

    def wait() -> float:
        copying.set()
        assert going_on.wait(30)
        return 0.0

    made = Backups(busy.store, tmp_path / "spool", node_id="n1", term_at=lambda _: 0, latency=wait, rate=1e12)
    caller = asyncio.create_task(whole(made))
    await asyncio.to_thread(copying.wait, 30)
    caller.cancel()
    going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert busy.store.statistics()["snapshots"] == 0
    made.halt()
    with pytest.raises(Stopping):
        await whole(made)
    made.stop()
    assert list((tmp_path / "spool").iterdir()) == []


# ---- the call


class Ended(Exception):
    """A call was aborted."""


class Context:
    """As much of a gRPC context as the call looks at; `take` is awaited with each part."""

    def __init__(self, take: Callable[[], Any]) -> None:
        self.parts: list[pb.BackupPart] = []
        self.code: grpc.StatusCode | None = None
        self._take = take

    async def write(self, part: pb.BackupPart) -> None:
        self.parts.append(part)
        await self._take()

    async def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        self.code = code
        raise Ended(text)


async def at_once() -> None:
    """The caller takes everything."""


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A node whose leader confirms at once."""

    async def allowed(*_: object) -> None:
        """What tokens may do is tested with them."""

    async def confirmed() -> int:
        return 1

    monkeypatch.setattr(api, "require", allowed)
    return SimpleNamespace(unreadable=lambda: "", consensus=SimpleNamespace(read_index=confirmed))


def request(**fields: bool) -> bytes:
    return pb.BackupRequest(**fields).SerializeToString()


async def test_the_parts_of_a_call_are_the_file(
    service: SimpleNamespace, backups: Backups, busy: Replica, tmp_path: Path
) -> None:
    context = Context(at_once)
    await BackupCall(service, backups).backup(request(), context)  # type: ignore[arg-type]
    data = b"".join(part.data for part in context.parts)
    header = check(stream(data), tmp_path).header
    assert header.content_hash == busy.store.state_hash()
    assert context.parts[-1].size == header.size
    assert max(part.ByteSize() for part in context.parts) < 1 << 20


async def test_a_caller_who_takes_nothing_is_given_up(
    service: SimpleNamespace, backups: Backups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "PATIENCE", 0.01)
    never = asyncio.Event()
    context = Context(never.wait)
    with pytest.raises(NotTaken, match="took nothing") as caught:
        await BackupCall(service, backups).backup(request(), context)  # type: ignore[arg-type]
    assert caught.value.code == grpc.StatusCode.ABORTED
    assert backups.statistics()["backups_under_way"] == 0


async def test_what_cannot_be_confirmed_is_taken_only_as_it_is(service: SimpleNamespace, backups: Backups) -> None:
    async def nobody() -> int:
        raise NotLeader("no leader is known")

    service.consensus.read_index = nobody
    context = Context(at_once)
    with pytest.raises(Ended, match=r"no leader is known.*--stale"):
        await BackupCall(service, backups).backup(request(), context)  # type: ignore[arg-type]
    assert context.code == grpc.StatusCode.UNAVAILABLE
    assert context.parts == []
    await BackupCall(service, backups).backup(request(stale=True), context)  # type: ignore[arg-type]
    assert len(context.parts) > 2
    service.unreadable = lambda: "this node's state was lost"
    with pytest.raises(Ended, match="was lost"):
        await BackupCall(service, backups).backup(request(stale=True), context)  # type: ignore[arg-type]
    with pytest.raises(Ended, match="makes no backups"):
        await BackupCall(service, None).backup(request(), context)  # type: ignore[arg-type]
    assert context.code == grpc.StatusCode.UNIMPLEMENTED


async def test_busy_is_said(service: SimpleNamespace, backups: Backups) -> None:
    context = Context(at_once)
    async with backups.made(), backups.made():
        with pytest.raises(Ended, match="2 backups"):
            await BackupCall(service, backups).backup(request(), context)  # type: ignore[arg-type]
    assert context.code == grpc.StatusCode.RESOURCE_EXHAUSTED
