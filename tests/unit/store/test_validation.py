"""What is refused before the log: the error names limit, allowed and got."""

import contextlib

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import InvalidArgument, KvorumError, LimitExceeded
from kvorum_node.store import check_queue_name, validate
from tests.unit.store.harness import (
    BYTES,
    LE64,
    V8,
    add,
    combine,
    delete,
    delete_range,
    enqueue,
    put,
    settle,
    suffixed,
    touch,
    u64,
    write,
)

HELD = pb.Delivery(message_id=bytes(12), lease_id=bytes(12))
LONG_REASON = pb.Settle(message_id=bytes(12), lease_id=bytes(12), kind=pb.SETTLE_KIND_RETRY, reason="x" * 1_025)
Part = pb.Check | pb.Mutation | pb.Enqueue | pb.Settle


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [put(b"k")],
        [put(b"k" * 2_048, bytes(65_536))],
        [put(b"k", u64(1), encoding=LE64)],
        [put(b"k", b"\xff\x0f0", encoding=V8, expire_in_ms=0)],
        [put(b"k", expire_in_ms=limits.MAX_EXPIRE_IN)],
        [delete(b"k")] * 1_000,
        [suffixed(b"k" * 2_026)],
        [add(b"k", -1, low=0, high=5, clamp=True), combine(pb.MUTATION_TYPE_MIN, b"k", u64(1))],
        [combine(pb.MUTATION_TYPE_SUM, b"k", 1.5)],
        [pb.Check(key=b"k")] * 100,
        [pb.Check(key=b"k", versionstamp=bytes(10)), pb.Check(key=b"k", kind=pb.CHECK_KIND_EXISTS)],
        [pb.Check(key=b"k", versionstamp=bytes(10), kind=pb.CHECK_KIND_NOT_NEWER)],
        [
            enqueue(
                bytes(65_536), queue="q" * 256, delay_ms=limits.MAX_ENQUEUE_DELAY, keys=[b"k"] * 10, backoff=[1] * 64
            )
        ],
        [settle(HELD), settle(HELD, pb.SETTLE_KIND_RETRY, 5)],
        [put(b"%d" % at, bytes(65_000)) for at in range(12)],
        [put(b"%2046d" % at, b"") for at in range(400)],
        [touch(b"k", 1), touch(b"k" * 2_048, limits.MAX_EXPIRE_IN), touch(b"k")],
        [delete_range(b"", b"\xff"), delete_range(b"k" * 2_049, b"k" * 2_049), delete_range(b"a", b"b", limit=1_000)],
        [delete_range(b"a", b"b")] * 1_000,
    ],
)
def test_accepts(parts: list[Part]) -> None:
    validate(pb.AtomicWrite.FromString(write(*parts).SerializeToString()))


@pytest.mark.parametrize(
    ("parts", "limit", "got"),
    [
        ([put(b"k" * 2_049)], "MAX_WRITE_KEY_SIZE", 2_049),
        ([delete(b"k" * 2_049)], "MAX_WRITE_KEY_SIZE", 2_049),
        ([suffixed(b"k" * 2_027)], "MAX_WRITE_KEY_SIZE", 2_049),
        ([pb.Check(key=b"k" * 2_049)], "MAX_WRITE_KEY_SIZE", 2_049),
        ([put(b"k", bytes(65_537))], "MAX_VALUE_SIZE", 65_537),
        ([add(b"k", 1 << 8 * 65_536)], "MAX_VALUE_SIZE", 65_544 + 6),
        ([put(b"k", expire_in_ms=limits.MAX_EXPIRE_IN + 1)], "MAX_EXPIRE_IN", limits.MAX_EXPIRE_IN + 1),
        ([touch(b"k" * 2_049, 1)], "MAX_WRITE_KEY_SIZE", 2_049),
        ([touch(b"k", limits.MAX_EXPIRE_IN + 1)], "MAX_EXPIRE_IN", limits.MAX_EXPIRE_IN + 1),
        ([delete_range(b"k" * 2_050, b"l")], "MAX_READ_KEY_SIZE", 2_050),
        ([delete_range(b"k", b"l" * 2_050)], "MAX_READ_KEY_SIZE", 2_050),
        ([delete_range(b"k", b"l", limit=1_001)], "MAX_DELETED_RANGE_KEYS", 1_001),
        ([delete_range(b"k" * 2_049, b"l" * 2_049)] * 200, "MAX_TOTAL_WRITE_SIZE", 200 * 2 * 2_049),
        ([pb.Check(key=b"k")] * 101, "MAX_CHECKS", 101),
        ([put(b"k")] * 999 + [enqueue(), enqueue()], "MAX_MUTATIONS", 1_001),
        ([put(b"%d" % at, bytes(65_000)) for at in range(13)], "MAX_TOTAL_WRITE_SIZE", 13 * 65_000 + 16),
        ([put(b"k" * 2_048)] * 401, "MAX_TOTAL_WRITE_SIZE", 401 * 2_049),
        ([enqueue(bytes(65_537))], "MAX_VALUE_SIZE", 65_537),
        ([enqueue(queue="ä" * 129)], "MAX_QUEUE_NAME_SIZE", 258),
        ([enqueue(delay_ms=limits.MAX_ENQUEUE_DELAY + 1)], "MAX_ENQUEUE_DELAY", limits.MAX_ENQUEUE_DELAY + 1),
        ([enqueue(keys=[b"k"] * 11)], "MAX_UNDELIVERED_KEYS", 11),
        ([enqueue(keys=[b"k" * 2_049])], "MAX_WRITE_KEY_SIZE", 2_049),
        ([enqueue(backoff=[1] * 65)], "MAX_BACKOFF_STEPS", 65),
        ([enqueue(backoff=[1, 3_600_001])], "MAX_BACKOFF_INTERVAL", 3_600_001),
        ([LONG_REASON], "MAX_REASON_SIZE", 1_025),
    ],
)
def test_limits_are_named(parts: list[Part], limit: str, got: int) -> None:
    with pytest.raises(LimitExceeded) as caught:
        validate(write(*parts))
    assert (caught.value.limit, caught.value.allowed, caught.value.got) == (limit, getattr(limits, limit), got)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (put(b""), r"key cannot be empty \(mutation 0\)"),
        (delete(b""), "key cannot be empty"),
        (suffixed(b""), None),
        (pb.Check(), r"key cannot be empty \(check 0\)"),
        (pb.Check(key=b"k", versionstamp=b"short"), "check 0: a versionstamp has 10 bytes, got 5"),
        (pb.Check(key=b"k", kind=pb.CHECK_KIND_NOT_NEWER), "a versionstamp has 10 bytes, got 0"),
        (pb.Check(key=b"k", kind=pb.CHECK_KIND_EXISTS, versionstamp=bytes(10)), "takes no versionstamp"),
        (pb.Check(key=b"k", kind=7), "unknown kind 7"),  # type: ignore[arg-type]
        (pb.Mutation(key=b"k"), "mutation 0: unknown type 0"),
        (pb.Mutation(key=b"k", type=10), "unknown type 10"),  # type: ignore[arg-type]
        (put(b"k", encoding=pb.VALUE_ENCODING_UNSPECIFIED), "unknown value encoding 0"),
        (put(b"k", b"x", encoding=LE64), "a 64-bit value has 8 bytes, got 1"),
        (pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_DELETE, value=b"x"), "a delete takes no value"),
        (pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_DELETE, expire_in_ms=1), "only a set or a touch takes an expiry"),
        (pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_SET, encoding=BYTES, sum_clamp=True), "only a sum takes limits"),
        (combine(pb.MUTATION_TYPE_SUM, b"k", b"short"), "non-U64 operand"),
        (combine(pb.MUTATION_TYPE_MAX, b"k", 1), "Failed to perform 'max' mutation on a non-U64 operand"),
        (combine(pb.MUTATION_TYPE_SUM, b"k", 1, low=0.5), "Min/max parameters have different types than the operand"),
        (
            pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_SUM, value=b"\xff\x0f0", encoding=V8),
            "Some of the parameters are not valid V8 values",
        ),
        (pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_ADD, value=b"x", encoding=BYTES), "not valid V8 values"),
        (touch(b""), "key cannot be empty"),
        (touch(b"k", 0), "expire_in of a touch must be above zero"),
        (pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_TOUCH, value=b"v"), "a touch takes no value"),
        (pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_TOUCH, encoding=BYTES), "a touch takes no value"),
        (pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_TOUCH, sum_clamp=True), "a touch takes no value"),
        (pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_TOUCH, end=b"l"), "a touch takes no end and no limit"),
        (pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_DELETE, limit=1), "a delete takes no end and no limit"),
        (delete_range(b"k", b""), "needs an end"),
        (delete_range(b"l", b"k"), "ends before it begins"),
        (
            pb.Mutation(key=b"k", end=b"l", type=pb.MUTATION_TYPE_DELETE_RANGE, value=b"v"),
            "the deletion of a range takes no value",
        ),
        (
            pb.Mutation(key=b"k", end=b"l", type=pb.MUTATION_TYPE_DELETE_RANGE, expire_in_ms=5),
            "only a set or a touch takes an expiry",
        ),
        (pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_SET, encoding=BYTES, end=b"l"), "takes an end or a limit"),
        (pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_SET, encoding=BYTES, limit=1), "takes an end or a limit"),
        (
            pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_SUM, encoding=LE64, value=u64(1), end=b"l"),
            "takes an end or a limit",
        ),
        (enqueue(keys=[b""]), r"key cannot be empty \(keys_if_undelivered\[0\] of enqueue 0\)"),
        (pb.Settle(message_id=bytes(12), lease_id=bytes(12)), "settle 0: unknown kind 0"),
        (pb.Settle(message_id=b"x", lease_id=bytes(12), kind=pb.SETTLE_KIND_ACK), "a message id has 12 bytes, got 1"),
        (pb.Settle(message_id=bytes(12), kind=pb.SETTLE_KIND_ACK), "a lease id has 12 bytes, got 0"),
        (settle(HELD, pb.SETTLE_KIND_ACK, 5), "only a retry, an extension or a new time takes a delay"),
    ],
)
def test_what_can_never_be_right(part: Part, text: str | None) -> None:
    with pytest.raises(InvalidArgument, match=text):
        validate(write(part))


def test_unknown_fields_are_refused_wherever_they_are() -> None:
    unknown = b"\xfa\x07\x01x"  # field 127
    for spoilt in (
        write(put(b"k")).SerializeToString() + unknown,
        pb.AtomicWrite(
            checks=[pb.Check.FromString(pb.Check(key=b"k").SerializeToString() + unknown)]
        ).SerializeToString(),
    ):
        with pytest.raises(InvalidArgument, match="fields that this version does not know"):
            validate(pb.AtomicWrite.FromString(spoilt))


@given(st.binary(max_size=100))
def test_any_bytes_are_accepted_or_refused_by_a_typed_error(data: bytes) -> None:
    with contextlib.suppress(DecodeError, KvorumError):
        validate(pb.AtomicWrite.FromString(data))


def test_queue_names() -> None:
    check_queue_name("")
    check_queue_name("q" * 256)
    with pytest.raises(LimitExceeded, match="MAX_QUEUE_NAME_SIZE"):
        check_queue_name("q" * 257)


@pytest.mark.parametrize(
    ("parts", "keys"),
    [
        ([put(b"a")], 0),
        ([delete(b"a"), touch(b"a", 1)], 0),
        ([delete_range(b"a", b"b", limit=7), put(b"a")], 7),
        ([delete_range(b"a", b"b")], 1_000),
        ([delete_range(b"a", b"b", limit=7), delete_range(b"a", b"b")], 1_000),
    ],
)
def test_tells_how_many_keys_ranges_may_delete(parts: list[Part], keys: int) -> None:
    assert validate(write(*parts)) == keys
