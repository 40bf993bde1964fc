"""How a list reads on: how large its batches are, and which of them are asked for before they are needed."""

import asyncio
import gc

import pytest

import kvorum
import kvorum.sync
from kvorum import Kv
from kvorum._proto import kvorum_pb2 as pb
from kvorum.background import Background
from kvorum.errors import Closed, KvorumError, Unavailable
from kvorum.keys import encode_key
from tests.unit.client.fake_backend import FakeBackend, row


class Remote(FakeBackend):
    """One that answers reads when it is told to, as a cluster that is somewhere else."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = {key: row(key, number, number + 1) for number, key in enumerate(map(_numbered, range(rows)))}
        self.gates: list[asyncio.Event] = []
        self.came = asyncio.Event()
        self.problems: dict[int, KvorumError] = {}
        """Of reads, by their number."""
        self.open = False
        """Whether all are answered at once."""

    remote = True

    def point(self, *_: object, **__: object) -> asyncio.Future[bytes]:
        raise AssertionError("no test reads single keys here")

    async def read(self, read: pb.Read, *, timeout: float) -> pb.ReadResult:
        gate = asyncio.Event()
        if self.open:
            gate.set()
        self.gates.append(gate)
        self.came.set()
        number = len(self.gates)
        answer = await super().read(read, timeout=timeout)
        await gate.wait()
        if number in self.problems:
            raise self.problems[number]
        return answer

    async def asked(self, count: int) -> None:
        """Until so many reads have come; all of them are answered."""
        async with asyncio.timeout(10):
            while len(self.gates) < count:
                self.came.clear()
                await self.came.wait()
        for gate in self.gates:
            gate.set()


def _numbered(number: int) -> bytes:
    return encode_key((number,))


async def take(rows: kvorum.ListIterator, count: int, remote: Remote, batch: int) -> list[int]:
    """The next rows of a list, as many as `count`; batch number `batch` is answered when it is asked for."""
    answering = asyncio.create_task(remote.asked(batch))
    values = [(await anext(rows)).value for _ in range(count)]
    await answering
    return values


async def test_batches_grow_while_they_are_small_and_nothing_else_was_asked_for(kv: Kv, backend: FakeBackend) -> None:
    async def sizes(rows: int, value: bytes, **options: int | None) -> list[int]:
        backend.rows = {key: row(key, value, 1) for key in (encode_key((number,)) for number in range(rows))}
        backend.reads.clear()
        assert len(await kv.list(prefix=(), **options).page()) == min(rows, options.get("limit") or rows)  # type: ignore[arg-type]
        return [read.ranges[0].limit for read in backend.reads]

    assert await sizes(2_600, b"") == [101, 200, 400, 800, 1_000, 1_000]
    assert await sizes(600, b"", limit=600) == [501, 100]
    assert await sizes(350, b"", batch_size=100) == [101, 100, 100, 100]
    large = b"x" * 50_000
    assert await sizes(250, large) == [101, 100, 100]  # 5 MB each


async def test_from_the_second_batch_on_the_next_one_is_read_while_the_program_works() -> None:
    remote = Remote(500)
    rows = Kv(remote, timeout=5.0).list(prefix=(), batch_size=100)
    assert await take(rows, 100, remote, 1) == list(range(100))
    assert len(remote.gates) == 1  # who looks at one batch may want no other
    assert await take(rows, 1, remote, 2) == [100]
    assert len(remote.gates) == 3  # before anything of the second batch is given out
    remote.rows[_numbered(250)] = row(_numbered(250), "later", 1_000)
    assert await take(rows, 199, remote, 3) == list(range(101, 300))
    assert [entry.value for entry in await _rest(rows, remote)] == list(range(300, 500))
    assert len(remote.gates) == 5


async def _rest(rows: kvorum.ListIterator, remote: Remote) -> list[kvorum.Entry]:
    page = asyncio.create_task(rows.page())
    while not page.done():
        await remote.asked(len(remote.gates))
        await asyncio.sleep(0)
    return page.result()


@pytest.mark.parametrize("options", [{"batch_size": 99}, {"batch_size": 1}, {"limit": 99}])
async def test_small_batches_are_read_when_they_are_needed(options: dict[str, int]) -> None:
    remote = Remote(400)
    rows = Kv(remote, timeout=5.0).list(prefix=(), **options)  # type: ignore[arg-type]
    size = min(options.values())
    for batch in range(1, 4) if "batch_size" in options else (1,):
        await take(rows, size, remote, batch)
        assert len(remote.gates) == batch


async def test_large_batches_are_read_when_they_are_needed() -> None:
    remote = Remote(0)
    remote.rows = {key: row(key, b"x" * 50_000, 1) for key in map(_numbered, range(400))}
    rows = Kv(remote, timeout=5.0).list(prefix=(), batch_size=100)
    for batch in (1, 2, 3):
        await take(rows, 100, remote, batch)
        assert len(remote.gates) == batch


async def test_what_fails_ahead_is_told_when_it_is_needed_and_can_be_tried_again() -> None:
    remote = Remote(350)
    remote.problems[3] = Unavailable("nobody leads")
    rows = Kv(remote, timeout=5.0).list(prefix=(), batch_size=100)
    await take(rows, 100, remote, 1)
    await take(rows, 100, remote, 2)
    await remote.asked(3)
    with pytest.raises(Unavailable, match="nobody leads"):
        await anext(rows)
    assert [entry.value for entry in await _rest(rows, remote)] == list(range(200, 350))


async def test_a_cancelled_wait_for_a_batch_that_was_asked_for_ahead_loses_nothing() -> None:
    remote = Remote(350)
    rows = Kv(remote, timeout=5.0).list(prefix=(), batch_size=100)
    await take(rows, 100, remote, 1)
    await take(rows, 100, remote, 2)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(rows), 0.01)
    assert len(remote.gates) == 3
    assert [entry.value for entry in await _rest(rows, remote)] == list(range(200, 350))
    assert len(remote.gates) == 4


async def test_a_closed_client_gives_out_no_batch_that_was_asked_for_before() -> None:
    remote = Remote(350)
    kv = Kv(remote, timeout=5.0)
    rows = kv.list(prefix=(), batch_size=100)
    await take(rows, 100, remote, 1)
    await take(rows, 100, remote, 2)
    await remote.asked(3)
    await kv.close()
    with pytest.raises(Closed):
        await anext(rows)


async def test_a_list_that_is_left_leaves_no_word_behind(caplog: pytest.LogCaptureFixture) -> None:
    remote = Remote(350)
    remote.problems[3] = Unavailable("nobody leads")
    rows = Kv(remote, timeout=5.0).list(prefix=(), batch_size=100)
    await take(rows, 100, remote, 1)
    await take(rows, 1, remote, 2)
    del rows
    gc.collect()
    await remote.asked(3)
    for _ in range(10):
        await asyncio.sleep(0)
    gc.collect()
    assert caplog.text == ""


def test_a_blocking_list_reads_ahead_as_well() -> None:
    background = Background()
    try:
        remote = Remote(350)
        remote.open = True
        remote.problems[4] = Unavailable("nobody leads")

        async def make() -> Kv:
            return Kv(remote, timeout=5.0)

        kv = kvorum.sync.Kv(background.call(make), background)
        rows = kv.list(prefix=(), batch_size=100)
        assert [next(rows).value for _ in range(100)] == list(range(100))
        assert len(remote.gates) == 1
        assert next(rows).value == 100
        while len(remote.gates) < 3:
            background.call(_turn)
        assert [next(rows).value for _ in range(199)] == list(range(101, 300))
        with pytest.raises(Unavailable, match="nobody leads"):
            next(rows)
        assert [entry.value for entry in rows] == list(range(300, 350))
        assert len(remote.gates) == 5
        rows = kv.list(prefix=(), batch_size=100)
        assert [next(rows).value for _ in range(101)] == list(range(101))
        kv.close()
        assert [next(rows).value for _ in range(99)] == list(range(101, 200))
        with pytest.raises(Closed):
            next(rows)
    finally:
        background.stop()


async def _turn() -> None:
    await asyncio.sleep(0)
