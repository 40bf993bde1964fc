"""Formats of rows: what is packed comes back."""

from hypothesis import given
from hypothesis import strategies as st

from kvorum_node.store import records
from kvorum_node.store.records import Message, Payload, Refusal, State, StoredResult

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


@given(st.builds(State, *STATE, st.just(0), st.just(0), st.just(b"")))
def test_a_state_without_history_is_what_older_versions_write(state: State) -> None:
    row = records.pack_state(state)
    assert records.unpack_state(row) == state
    assert records.state_format(row) == records.DATA_FORMAT == 2
    assert len(row) == 66


@given(st.builds(State, *STATE, U64, U64, st.binary(min_size=10, max_size=10)))
def test_state(state: State) -> None:
    row = records.pack_state(state)
    assert records.unpack_state(row) == state
    assert records.state_format(row) == records.HISTORY_FORMAT == 3


KEYS = st.lists(st.binary(max_size=30), max_size=4).map(tuple)


@given(st.builds(Payload, U64, st.lists(U32, max_size=5).map(tuple), KEYS, st.binary(max_size=50)))
def test_payload(payload: Payload) -> None:
    assert records.unpack_payload(records.pack_payload(payload)) == payload


NAMES, LEASE_IDS = st.binary(max_size=256), st.binary(min_size=12, max_size=12)
READY = st.tuples(NAMES, U64, U32).map(lambda parts: Message(*parts))
LEASED = st.tuples(NAMES, U64, U32, LEASE_IDS, U64, st.binary(max_size=10)).map(lambda parts: Message(*parts))


@given(READY | LEASED)
def test_message(message: Message) -> None:
    assert records.unpack_message(records.pack_message(message)) == message
    assert len(records.ready_key(bytes(12), message)) <= 511


@given(U64, U64, st.binary(max_size=20))
def test_session(ack_below: int, opened_at_ms: int, client: bytes) -> None:
    assert records.unpack_session(records.pack_session(ack_below, opened_at_ms, client)) == (
        ack_below,
        opened_at_ms,
        client,
    )


@given(st.binary(min_size=16, max_size=16), U64)
def test_cluster(cluster_id: bytes, base: int) -> None:
    assert records.unpack_cluster(records.pack_cluster(cluster_id, base)) == (cluster_id, base)
