"""A range of an older state put back into a database that goes on."""

import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import Backend, WriteOutcome
from kvorum.keys import encode_key
from kvorum.selector import select
from kvorum_node.backup.prefixes import PASSES, PutBack
from kvorum_node.embedded import EmbeddedBackend, open_embedded
from kvorum_node.store import Snapshot, Store
from tests.unit.store.harness import BYTES, START_MS, Replica, put

WITHIN = 30.0
BELOW = select(("app",), None, None)


@pytest.fixture
async def live() -> AsyncIterator[EmbeddedBackend]:
    backend = await open_embedded(None)
    yield backend
    await backend.close()


class Meddling:
    """A backend whose user writes, between a look at the range and the next batch, what `meddle` says."""

    def __init__(self, backend: EmbeddedBackend, meddle: Sequence[list[pb.Mutation]]) -> None:
        self._backend = backend
        self._meddle = [*meddle]

    async def read(self, read: pb.Read, *, timeout: float) -> pb.ReadResult:
        return await self._backend.read(read, timeout=timeout)

    async def write(self, op: bytes, *, timeout: float) -> WriteOutcome:
        if self._meddle:
            await write(self._backend, *self._meddle.pop(0))
        return await self._backend.write(op, timeout=timeout)


async def write(backend: Backend, *mutations: pb.Mutation) -> None:
    for at in range(0, len(mutations), 500):
        op = pb.AtomicWrite(mutations=mutations[at : at + 500]).SerializeToString()
        outcome = await backend.write(op, timeout=WITHIN)
        assert outcome.result.outcome == pb.OUTCOME_DONE


async def contents(backend: Backend) -> dict[bytes, tuple[bytes, int]]:
    """All keys and values."""
    found: dict[bytes, tuple[bytes, int]] = {}
    start = b""
    while True:
        read = pb.Read()
        read.ranges.add(start=start, end=b"\xff", limit=1_000)
        rows = (await backend.read(read, timeout=WITHIN)).ranges[0].entries
        found |= {row.key: (row.value, row.encoding) for row in rows}
        if len(rows) < 1_000:
            return found
        start = rows[-1].key + b"\0"


def key(*parts: str | int) -> bytes:
    return encode_key(parts)


def old_state(folder: Path, rows: dict[bytes, bytes], expiring: dict[bytes, int] | None = None) -> Store:
    replica = Replica(folder / "old")
    for name, value in rows.items():
        replica.commit(put(name, value, expire_in_ms=(expiring or {}).get(name)))
    return replica.store


def work_of(snapshot: Snapshot, backend: Backend) -> PutBack:
    return PutBack(snapshot, backend, BELOW.start, BELOW.end, timeout=WITHIN)


async def test_the_range_becomes_what_it_was_and_nothing_else_changes(live: EmbeddedBackend, tmp_path: Path) -> None:
    rng = random.Random(1)
    old = {key("app", number): b"old %d" % number for number in range(1_500) if rng.random() < 0.7}
    old |= {key("app"): b"the prefix itself", key("apq"): b"beside it", key("app", "x" * 2_000): b"long"}
    new = {key("app", number): b"new %d" % number for number in range(1_500) if rng.random() < 0.5}
    new |= {name: old[name] for name in rng.sample(sorted(old), 300)}
    elsewhere = {key("ap"): b"1", key("app"): b"2", key("apq", 1): b"3", key("z"): b"4"}
    new |= elsewhere
    await write(live, *(put(name, value) for name, value in new.items()))
    store = old_state(tmp_path, old)
    inside = {name: value for name, value in old.items() if BELOW.start <= name < BELOW.end}
    before = await contents(live)
    with store.snapshot() as snapshot:
        planned = await work_of(snapshot, live).compare()
        assert await contents(live) == before
        done = await work_of(snapshot, live).run()
        again = await work_of(snapshot, live).run()
    assert (planned.set, planned.deleted, planned.same) == (done.set, done.deleted, done.same)
    assert done.set == sum(new.get(name) != value for name, value in inside.items())
    assert done.deleted == sum(BELOW.start <= name < BELOW.end and name not in inside for name in new)
    assert (again.set, again.deleted, again.same, again.passes) == (0, 0, len(inside), 1)
    kept = {name: value for name, value in before.items() if not BELOW.start <= name < BELOW.end}
    assert await contents(live) == {**kept, **{name: (value, BYTES) for name, value in inside.items()}}
    store.close()


async def test_what_others_write_meanwhile_is_looked_at_again(live: EmbeddedBackend, tmp_path: Path) -> None:
    old = {key("app", number): b"old" for number in range(250)}
    store = old_state(tmp_path, old)
    await write(live, *(put(key("app", number), b"new") for number in range(100, 400)))
    meddle = [
        [put(key("app", 5), b"theirs"), put(key("app", 120), b"theirs")],
        [put(key("app", 399), b"theirs"), pb.Mutation(key=key("app", 398), type=pb.MUTATION_TYPE_DELETE)],
    ]
    with store.snapshot() as snapshot:
        work = PutBack(snapshot, Meddling(live, meddle), BELOW.start, BELOW.end, timeout=WITHIN)  # type: ignore[arg-type]
        done = await work.run()
    assert done.passes > 1
    assert {name: value for name, (value, _) in (await contents(live)).items()} == old
    store.close()


async def test_others_who_never_stop(live: EmbeddedBackend, tmp_path: Path) -> None:
    store = old_state(tmp_path, {key("app", 1): b"old"})
    meddle = [[put(key("app", 1), b"%d" % number)] for number in range(PASSES + 1)]
    with store.snapshot() as snapshot, pytest.raises(errors.Unavailable, match="others go on writing"):
        await PutBack(snapshot, Meddling(live, meddle), BELOW.start, BELOW.end, timeout=WITHIN).run()  # type: ignore[arg-type]
    store.close()


async def test_expiry_is_kept_and_what_has_expired_stays_away(
    live: EmbeddedBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old state's clock is that of 2023; its keys expire in a minute, or in a century."""
    century = 100 * 365 * 86_400_000
    soon, late, gone = key("app", "soon"), key("app", "late"), key("app", "gone")
    store = old_state(tmp_path, dict.fromkeys((soon, late, gone), b"v"), {soon: 60_000, gone: 60_000, late: century})
    await write(live, put(soon, b"v"))
    with store.snapshot() as snapshot:
        counts = await work_of(snapshot, live).run()
        assert (counts.set, counts.deleted, counts.expired) == (1, 1, 2)
        again = await work_of(snapshot, live).run()
        assert (again.set, again.deleted, again.same) == (0, 0, 1)
    read = pb.Read(keys=[soon, late, gone], with_expiry=True)
    answer = await live.read(read, timeout=WITHIN)
    assert [bool(row.versionstamp) for row in answer.entries] == [False, True, False]
    assert abs(answer.entries[1].expire_at_ms - (START_MS + century)) < 60_000
    store.close()
