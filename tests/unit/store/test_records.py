"""Formats of rows: what is packed comes back."""

from hypothesis import given
from hypothesis import strategies as st

from kvorum_node.store import records
from kvorum_node.store.queues import formats, topic_formats
from kvorum_node.store.queues.formats import Failure, Message, Origin, Payload
from kvorum_node.store.queues.topic_formats import Subscription, Topic
from kvorum_node.store.records import Refusal, State, StoredResult

U16, U32, U64 = st.integers(0, (1 << 16) - 1), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
REFUSALS: st.SearchStrategy[Refusal] = st.tuples(
    st.integers(2, 255), st.lists(U16, max_size=4).map(tuple), st.text(max_size=20)
)
RESULTS: st.SearchStrategy[StoredResult] = st.tuples(U64, U32, U16, st.none() | REFUSALS)


@given(st.lists(RESULTS, min_size=1, max_size=20))
def test_results(results: list[StoredResult]) -> None:
    row = records.pack_results(results)
    done = [result for result in results if result[3] is None]
    assert records.unpack_results(row) == done + [result for result in results if result[3] is not None]
    assert records.highest_seq(row) == max(result[0] for result in results)
    if len(done) == len(results):
        assert len(row) == 12 + 14 * len(results)


STATE = (U64, U64, st.integers(0, records.HASH_MASK), U64, U64, U64, U64)


@given(st.tuples(*STATE).map(lambda parts: State(*parts)))
def test_a_state_without_history_is_what_older_versions_write(state: State) -> None:
    row = records.pack_state(state)
    assert records.unpack_state(row) == state
    assert records.state_format(row) == records.DATA_FORMAT == 2
    assert len(row) == 66


@given(st.tuples(*STATE, U64, U64, st.binary(min_size=10, max_size=10)).map(lambda parts: State(*parts)))
def test_state(state: State) -> None:
    row = records.pack_state(state)
    assert records.unpack_state(row) == state
    assert records.state_format(row) == records.HISTORY_FORMAT == 3


@given(
    st.tuples(*STATE, U64, U64, st.binary(min_size=10, max_size=10), st.just(True), U64, U64, U64).map(
        lambda parts: State(*parts)
    )
)
def test_a_state_with_queues(state: State) -> None:
    row = records.pack_state(state)
    assert records.unpack_state(row) == state
    assert records.state_format(row) == records.QUEUE_FORMAT == 4


@given(st.lists(st.tuples(U16, st.binary(min_size=12, max_size=12)), max_size=5))
def test_duplicates(duplicates: list[tuple[int, bytes]]) -> None:
    assert list(records.unpack_duplicates(records.pack_duplicates(duplicates))) == duplicates


KEYS = st.lists(st.binary(max_size=30), max_size=4).map(tuple)
STEPS = st.lists(U32, max_size=5).map(tuple)
IDS = st.binary(min_size=12, max_size=12)


@given(st.tuples(st.integers(0, (1 << 56) - 1), STEPS, KEYS, st.binary(max_size=50)).map(lambda parts: Payload(*parts)))
def test_a_payload_of_older_versions(payload: Payload) -> None:
    row = formats.pack_old_payload(payload)
    assert formats.unpack_payload(row) == payload
    assert not formats.has_ties(row)
    assert not formats.expires(row)
    assert formats.plain_payload(row) is None


PAYLOADS = st.builds(
    Payload,
    U64,
    st.none() | STEPS,
    KEYS,
    st.binary(max_size=50),
    st.none() | st.binary(max_size=128),
    st.booleans(),
    st.binary(max_size=128),
    st.just(False),
    U64,
    st.binary(max_size=50),
    st.none() | st.builds(Origin, st.binary(max_size=256), IDS, U64, U64, U32),
)


@given(PAYLOADS, st.booleans())
def test_payload(payload: Payload, until_done: bool) -> None:
    payload = payload._replace(until_done=until_done and bool(payload.dedup_id))
    row = formats.pack_payload(payload)
    assert formats.unpack_payload(row) == payload
    assert formats.expires(row) == bool(payload.expires_ms)
    assert formats.has_ties(row) == bool(
        payload.group is not None or payload.own_group or payload.until_done or payload.expires_ms or payload.origin
    )
    plain = formats.plain_payload(row)
    if plain is not None:
        assert payload == Payload(plain[0], None, (), plain[1])


@given(U64, st.binary(max_size=50))
def test_a_plain_payload(enqueued_at_ms: int, data: bytes) -> None:
    row = formats.PLAIN + enqueued_at_ms.to_bytes(8, "big") + data
    assert row == formats.pack_payload(Payload(enqueued_at_ms, None, (), data))
    assert formats.plain_payload(row) == (enqueued_at_ms, data)


NAMES = st.binary(max_size=256)
READY = st.tuples(NAMES, U64, U32).map(lambda parts: Message(*parts))
LEASED = st.tuples(NAMES, U64, U32, IDS, U64, st.binary(max_size=10)).map(
    lambda parts: Message(*parts)._replace(state=formats.LEASED_STATE)
)
OTHER = st.tuples(NAMES, U64, U32, st.sampled_from((formats.WAITING_STATE, formats.DYING_STATE))).map(
    lambda parts: Message(*parts[:3], state=parts[3])
)
DEAD = st.tuples(NAMES, U64, U32, IDS).map(lambda parts: Message(*parts[:3], state=formats.DEAD_STATE, place=parts[3]))


TIMED = st.tuples(LEASED, st.booleans(), st.integers(1, (1 << 64) - 1), U64).map(
    lambda parts: parts[0]._replace(expiring=parts[1], extended_at=parts[2], extended_ms=parts[3])
)
EXPIRING = LEASED.map(lambda message: message._replace(expiring=True))


@given(READY | LEASED | TIMED | EXPIRING | OTHER | DEAD)
def test_message(message: Message) -> None:
    assert formats.unpack_message(formats.pack_message(message)) == message
    assert len(formats.index_key(bytes(12), message) or b"") <= 511
    stored = formats.pack_message(message) + b"seal"
    assert formats.queue_of(stored) == message.queue
    assert formats.lease_of(stored) == message.lease_id


def test_no_key_is_longer_than_lmdb_takes() -> None:
    name, group = bytes(256), b"\x80" + bytes(128)
    assert len(formats.grouped_prefix(name, group)) + 12 <= 511
    dedup = formats.dedup_key(name, bytes(128))
    assert len(formats.timer_key(0, formats.DEDUP_TIMER, dedup[1:])) <= 511
    subscription = topic_formats.subscription_prefix(bytes(10)) + name
    assert len(formats.timer_key(0, formats.FILL_TIMER, subscription[1:])) <= 511


@given(st.lists(st.builds(Failure, U32, U64, st.integers(0, 255), st.binary(max_size=30)), max_size=10))
def test_failures(failures: list[Failure]) -> None:
    assert formats.unpack_failures(formats.pack_failures(failures)) == failures


@given(
    NAMES.map(Subscription)
    | st.tuples(NAMES, st.just(True), U64, st.binary(max_size=31)).map(lambda parts: Subscription(*parts))
)
def test_subscription(subscription: Subscription) -> None:
    assert topic_formats.unpack_subscription(topic_formats.pack_subscription(subscription)) == subscription


@given(st.builds(Topic, st.binary(min_size=10, max_size=10), U64, U64, U64, U64, U32, U32))
def test_topic(topic: Topic) -> None:
    assert topic_formats.unpack_topic(topic_formats.pack_topic(topic)) == topic
