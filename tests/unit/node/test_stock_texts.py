"""The texts of the stock server: what each limit and operand gives."""

import pytest

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import InvalidValue, LimitExceeded
from kvorum_node import stock_texts
from kvorum_node.store import validate
from tests.unit.store.harness import V8, combine, delete, enqueue, put, write

Part = pb.Check | pb.Mutation | pb.Enqueue


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([put(b"k" * 2_049)], "A key exceeds the key size limit."),
        ([put(b"k", bytes(65_537))], "A value exceeds the value size limit."),
        ([enqueue(bytes(65_537))], "A value exceeds the value size limit."),
        ([pb.Check(key=b"k")] * 101, "Too many checks included in atomic write."),
        ([delete(b"k")] * 1_001, "Too many mutations / enqueues included in atomic write."),
        ([put(b"%d" % at, bytes(65_000)) for at in range(13)], "The total size of the atomic write is too large."),
        ([enqueue(delay_ms=limits.MAX_ENQUEUE_DELAY + 1)], "Invalid mutation enqueue deadline."),
        ([enqueue(backoff=[1] * 65)], "Too many backoff intervals for a single queue message."),
        ([enqueue(backoff=[3_600_001])], "A backoff interval exceeds the maximum allowed backoff interval."),
        ([enqueue(keys=[b"k"] * 11)], "Too many dead letter keys for a single queue message."),
        ([put(b"k", expire_in_ms=limits.MAX_EXPIRE_IN + 1)], "Invalid mutation expire at."),
    ],
)
def test_what_exceeds_a_limit_has_the_stock_text(parts: list[Part], text: str) -> None:
    with pytest.raises(LimitExceeded) as caught:
        validate(write(*parts))
    assert stock_texts.LIMITS[caught.value.limit] == text


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (
            [combine(pb.MUTATION_TYPE_MIN, b"k", 1)],
            "Failed to perform 'min' mutation on a non-U64 operand",
        ),
        (
            [combine(pb.MUTATION_TYPE_MAX, b"k", 1)],
            "Failed to perform 'max' mutation on a non-U64 operand",
        ),
        (
            [pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_SUM, value=b"\xff\x0f0", encoding=V8)],
            "Some of the parameters are not valid V8 values",
        ),
        (
            [combine(pb.MUTATION_TYPE_SUM, b"k", 1, low=0.5)],
            "Min/max parameters have different types than the operand",
        ),
    ],
)
def test_an_operand_that_is_none_has_the_stock_text(parts: list[Part], text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        validate(write(*parts))
    assert caught.value.problem == text


def test_the_texts_are_keyed_by_names_of_limits() -> None:
    assert all(isinstance(getattr(limits, name), int) for name in stock_texts.LIMITS)
