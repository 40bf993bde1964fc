"""Range watches and followers as programs see them, over a backend in memory."""

import asyncio

import pytest

import kvorum
from kvorum._proto import kvorum_pb2 as pb
from kvorum.changes import MAX_LISTINGS
from kvorum.errors import Compacted, DataError
from kvorum.keys import encode_key
from tests.unit.client.fake_backend import FakeBackend, row, stamp

PATIENCE = 60.0


def changed(through: int | None, *changes: tuple[int, str, object]) -> pb.WatchEvent:
    """Changes: number of the versionstamp, last part of the key, value (None: deleted)."""
    event = pb.WatchEvent(through=b"" if through is None else stamp(through))
    for number, name, value in changes:
        entry = row(encode_key(("p", name)), value, number)
        kind = pb.CHANGE_KIND_DELETE if value is None else pb.CHANGE_KIND_SET
        event.changes.add(kind=kind, entry=entry)
    return event


def text(number: int) -> str:
    return stamp(number).hex()


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def kv(backend: FakeBackend) -> kvorum.Kv:
    return kvorum.Kv(backend)


async def test_events_become_commits_and_the_place_follows_what_was_handed_out(
    kv: kvorum.Kv, backend: FakeBackend
) -> None:
    watch = kv.watch_prefix(("p",), since=text(1))
    assert watch.resume == await watch.ready() == text(1)
    backend.events.put_nowait(changed(9, (2, "a", 1), (2, "b", 2), (4, "a", None)))
    first = await anext(watch)
    assert [(change.kind, change.key, change.value) for change in first.changes] == [
        ("set", ("p", "a"), 1),
        ("set", ("p", "b"), 2),
    ]
    assert (first.versionstamp, watch.resume) == (text(2), text(2))
    second = await anext(watch)
    assert (second.versionstamp, second.changes[0].kind, watch.resume) == (text(4), "delete", text(4))
    backend.events.put_nowait(changed(12))
    backend.events.put_nowait(changed(13, (13, "a", "x")))
    assert (await anext(watch)).versionstamp == text(13)
    start = backend.watched[0]
    assert (start.start, start.end) == (encode_key(("p",)) + b"\0", encode_key(("p",)) + b"\xff")
    await watch.aclose()
    assert backend.watches_ended == 1


async def test_parts_of_a_large_commit_say_that_more_follows(kv: kvorum.Kv, backend: FakeBackend) -> None:
    watch = kv.watch_prefix(("p",), since=text(1))
    for event in (changed(None, (2, "a", 1)), changed(None, (2, "b", 2)), changed(5, (2, "c", 3), (5, "d", 4))):
        backend.events.put_nowait(event)
    seen = []
    for _ in range(4):
        event = await anext(watch)
        seen.append((event.versionstamp, len(event.changes), event.complete, watch.resume))
    assert seen == [
        (text(2), 1, False, text(1)),
        (text(2), 1, False, text(1)),
        (text(2), 1, True, text(2)),
        (text(5), 1, True, text(5)),
    ]


async def test_a_part_that_turns_out_to_be_the_last_is_followed_by_an_empty_one(
    kv: kvorum.Kv, backend: FakeBackend
) -> None:
    watch = kv.watch_prefix(("p",), since=text(1))
    for event in (changed(None, (2, "a", 1)), changed(2), changed(None, (3, "b", 2)), changed(4), changed(5)):
        backend.events.put_nowait(event)
    seen = []
    for _ in range(4):
        event = await anext(watch)
        seen.append((event.versionstamp, len(event.changes), event.complete, watch.resume))
    assert seen == [
        (text(2), 1, False, text(1)),
        (text(2), 0, True, text(2)),
        (text(3), 1, False, text(2)),
        (text(3), 0, True, text(4)),
    ]
    backend.events.put_nowait(changed(6, (6, "c", 3)))
    assert len((await anext(watch)).changes) == 1


async def test_marks_move_the_place_and_are_given_if_they_were_asked_for(kv: kvorum.Kv, backend: FakeBackend) -> None:
    watch = kv.watch_prefix(("p",), progress=True)
    assert watch.resume is None
    backend.events.put_nowait(changed(3))
    assert await watch.ready() == text(3)
    backend.events.put_nowait(changed(7, (5, "a", 1)))
    seen = [await anext(watch) for _ in range(3)]
    assert [(event.versionstamp, len(event.changes)) for event in seen] == [(text(3), 0), (text(5), 1), (text(7), 0)]
    assert watch.resume == text(7)


async def test_a_wait_that_is_cancelled_loses_nothing(kv: kvorum.Kv, backend: FakeBackend) -> None:
    watch = kv.watch_prefix(("p",), since=text(1))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(watch)
    backend.events.put_nowait(changed(2, (2, "a", 1)))
    assert (await asyncio.wait_for(anext(watch), PATIENCE)).versionstamp == text(2)


async def test_a_value_that_cannot_be_read_is_named_and_passed_over(kv: kvorum.Kv, backend: FakeBackend) -> None:
    watch = kv.watch_prefix(("p",), since=text(1))
    event = changed(3, (2, "a", 1), (3, "b", 2))
    event.changes[0].entry.value = b"\xff"
    backend.events.put_nowait(event)
    with pytest.raises(DataError, match="'p', 'a'"):
        await anext(watch)
    assert (await anext(watch)).versionstamp == text(3)


async def test_the_end(kv: kvorum.Kv, backend: FakeBackend) -> None:
    watch = kv.watch_prefix(("p",), since=text(1))
    backend.events.put_nowait(Compacted(text(4)))
    with pytest.raises(Compacted) as caught:
        await anext(watch)
    assert caught.value.oldest == text(4)
    assert not caught.value.retryable
    other = kv.watch_prefix(("p",))
    waiting = asyncio.ensure_future(other.next_event())
    await asyncio.sleep(0)
    await kv.close()
    assert await asyncio.wait_for(waiting, PATIENCE) is None


class Pages(FakeBackend):
    """Pages of a list that are read at versionstamps of their own; between two of them `between` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 10

    async def read(self, read: pb.Read, *, timeout: float) -> pb.ReadResult:
        answer = await super().read(read, timeout=timeout)
        answer.read_versionstamp = stamp(self.now)
        self.now += 10
        self.between()
        return answer

    def put(self, number: int, name: str, value: object) -> None:
        key = encode_key(("p", name))
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row(key, value, number)

    def between(self) -> None:
        """Nothing happens."""


async def test_p54_a_listing_is_exact_although_its_pages_are_not_read_at_once() -> None:
    """P54: changes of the first page that came before the second one was read are made up for; those that the second
    one holds already are not told again."""

    class Busy(Pages):
        def between(self) -> None:
            if self.now == 20:  # the first page was read at 10
                for name, value in (("0001", "new"), ("0002", None), ("1500", "new"), ("1600", None)):
                    self.put(15, name, value)

    backend = Busy()
    for number in range(1_700):
        backend.put(1, f"{number:04}", number)
    kv = kvorum.Kv(backend)
    follower = kv.follow(("p",))
    happened = [(15, "0001", "new"), (15, "0002", None), (15, "1500", "new"), (15, "1600", None)]
    backend.events.put_nowait(changed(10))
    backend.events.put_nowait(changed(16, *happened))
    backend.events.put_nowait(changed(30, (25, "1500", "newer")))
    backend.events.put_nowait(changed(31, (31, "0003", "later")))
    listing = await asyncio.wait_for(anext(follower), PATIENCE)
    assert isinstance(listing, kvorum.Listing)
    assert listing.versionstamp == text(30)
    expected: dict[str, object] = {f"{number:04}": number for number in range(1_700)}
    expected |= {"0001": "new", "1500": "newer"}
    del expected["0002"], expected["1600"]
    assert {entry.key[1]: entry.value for entry in listing.entries} == expected
    assert [entry.key for entry in listing.entries] == sorted(entry.key for entry in listing.entries)
    assert backend.watched[0].since == stamp(10)
    change = await anext(follower)
    assert (change.versionstamp, isinstance(change, kvorum.Changes)) == (text(31), True)


async def test_p54_a_follower_lists_anew_and_does_not_loop_for_ever() -> None:
    backend = Pages()
    backend.put(1, "a", 1)
    follower = kvorum.Kv(backend).follow(("p",), keys_only=True)
    backend.events.put_nowait(changed(10))
    first = await anext(follower)
    assert isinstance(first, kvorum.Listing)
    backend.put(15, "b", 2)
    backend.events.put_nowait(Compacted(text(12)))
    backend.events.put_nowait(changed(20))
    second = await asyncio.wait_for(anext(follower), PATIENCE)
    assert isinstance(second, kvorum.Listing)
    assert [entry.key[1] for entry in second.entries] == ["a", "b"]
    reads = len(backend.reads)
    for _ in range(MAX_LISTINGS + 1):
        backend.events.put_nowait(Compacted(text(99)))
    with pytest.raises(Compacted):
        await asyncio.wait_for(anext(follower), PATIENCE)
    assert len(backend.reads) - reads == MAX_LISTINGS
    await follower.aclose()
    assert await follower.next_event() is None


async def test_a_listing_that_cannot_be_read_is_not_passed_over() -> None:
    """Changes without the listing before them would be a copy with most of it missing."""
    backend = Pages()
    backend.put(1, "a", 1)
    backend.rows[encode_key(("p", "a"))].value = b"\xff"
    follower = kvorum.Kv(backend).follow(("p",))
    for _ in range(2):
        backend.events.put_nowait(changed(backend.now))
        with pytest.raises(DataError, match="'p', 'a'"):
            await asyncio.wait_for(anext(follower), PATIENCE)
    assert backend.watches_ended == 2
    backend.put(2, "a", 2)
    backend.events.put_nowait(changed(backend.now))
    assert isinstance(await asyncio.wait_for(anext(follower), PATIENCE), kvorum.Listing)


@pytest.mark.parametrize("where", ["page", "changes"])
@pytest.mark.parametrize("what", ["follower", "client"])
async def test_a_follower_that_is_closed_while_it_lists_ends(where: str, what: str) -> None:
    class Held(Pages):
        async def read(self, read: pb.Read, *, timeout: float) -> pb.ReadResult:
            if where == "page":
                await leave.wait()
                if self.closed:
                    raise kvorum.errors.Closed(outcome=None)
            return await super().read(read, timeout=timeout)

        async def close(self) -> None:
            await super().close()
            leave.set()

    leave = asyncio.Event()
    backend = Held()
    kv = kvorum.Kv(backend)
    follower = kv.follow(("p",))
    waiting = asyncio.ensure_future(follower.next_event())
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(backend.watched) == (where == "changes")
    await (follower.aclose() if what == "follower" else kv.close())
    leave.set()
    assert await asyncio.wait_for(waiting, PATIENCE) is None
    assert backend.watches_ended == len(backend.watched)
    await kv.close()
