"""Every limit that a program can run into: one step inside it is taken, one step beyond is an error that names it."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

import kvorum
from kvorum import Kv, limits
from kvorum.errors import LimitExceeded
from tests.unit.client.fake_backend import FakeBackend

Call = Callable[[Kv, int], object]
SUFFIX = kvorum.commit_versionstamp()


def text(size: int) -> tuple[str]:
    """A key of so many bytes."""
    return ("x" * (size - 2),)


def repeated(count: int, add: Callable[[Any], object]) -> Callable[[Kv], Awaitable[object]]:
    def commit(kv: Kv) -> Awaitable[object]:
        operation = kv.atomic()
        for _ in range(count):
            add(operation)
        return operation.commit()

    return commit


def sized(kv: Kv, size: int) -> Awaitable[object]:
    """An atomic operation of exactly so many bytes."""
    operation = kv.atomic()
    whole, rest = divmod(size, 60_002)
    for value in (*[60_000] * whole, rest - 2):
        operation.set(("",), b"x" * value)
    return operation.commit()


CALLS: list[tuple[str, Call]] = [
    ("MAX_WRITE_KEY_SIZE", lambda kv, n: kv.set(text(n), 1)),
    ("MAX_WRITE_KEY_SIZE", lambda kv, n: kv.set((*text(n - 22), SUFFIX), 1)),
    ("MAX_WRITE_KEY_SIZE", lambda kv, n: kv.set((b"\0" * ((n - 2) // 2) + b"x" * (n % 2),), 1)),
    ("MAX_WRITE_KEY_SIZE", lambda kv, n: kv.delete(text(n))),
    ("MAX_WRITE_KEY_SIZE", lambda kv, n: kv.atomic().check(text(n), None).commit()),
    ("MAX_WRITE_KEY_SIZE", lambda kv, n: kv.atomic().sum(text(n), 1).commit()),
    ("MAX_WRITE_KEY_SIZE", lambda kv, n: kv.atomic().min(text(n), 1).commit()),
    ("MAX_WRITE_KEY_SIZE", lambda kv, n: kv.atomic().max(text(n), 1).commit()),
    ("MAX_WRITE_KEY_SIZE", lambda kv, n: kv.enqueue(1, keys_if_undelivered=[text(n)])),
    ("MAX_READ_KEY_SIZE", lambda kv, n: kv.get(text(n))),
    ("MAX_READ_KEY_SIZE", lambda kv, n: kv.get_many([text(n)])),
    ("MAX_READ_KEY_SIZE", lambda kv, n: kv.watch([text(n)])),
    ("MAX_READ_KEY_SIZE", lambda kv, n: kv.list(text(n - 1))),
    ("MAX_READ_KEY_SIZE", lambda kv, n: kv.list(start=(), end=text(n))),
    ("MAX_VALUE_SIZE", lambda kv, n: kv.set(("k",), b"x" * n)),
    ("MAX_VALUE_SIZE", lambda kv, n: kv.set(("k",), "x" * (n - 6))),
    ("MAX_VALUE_SIZE", lambda kv, n: kv.enqueue("x" * (n - 6))),
    ("MAX_CHECKS", lambda kv, n: repeated(n, lambda operation: operation.check(("k",), None))(kv)),
    ("MAX_MUTATIONS", lambda kv, n: repeated(n, lambda operation: operation.delete(("k",)))(kv)),
    ("MAX_MUTATIONS", lambda kv, n: repeated(n, lambda operation: operation.enqueue(1))(kv)),
    ("MAX_TOTAL_WRITE_SIZE", sized),
    ("MAX_READ_RANGES", lambda kv, n: kv.get_many([("k",)] * n)),
    ("MAX_WATCHED_KEYS", lambda kv, n: kv.watch([("k",)] * n)),
    ("MAX_READ_ENTRIES", lambda kv, n: kv.list(("k",), batch_size=n)),
    ("MAX_EXPIRE_IN", lambda kv, n: kv.set(("k",), 1, expire_in=n)),
    ("MAX_ENQUEUE_DELAY", lambda kv, n: kv.enqueue(1, delay=n)),
    ("MAX_BACKOFF_STEPS", lambda kv, n: kv.enqueue(1, backoff_schedule=[1] * n)),
    ("MAX_BACKOFF_INTERVAL", lambda kv, n: kv.enqueue(1, backoff_schedule=[timedelta(milliseconds=n)])),
    ("MAX_UNDELIVERED_KEYS", lambda kv, n: kv.enqueue(1, keys_if_undelivered=[("k",)] * n)),
    ("MAX_QUEUE_NAME_SIZE", lambda kv, n: kv.enqueue(1, queue="é" * (n // 2) + "x" * (n % 2))),
]


@pytest.mark.parametrize(("name", "call"), CALLS, ids=[f"{at}-{name}" for at, (name, _) in enumerate(CALLS)])
async def test_a_limit_is_exact_and_named(kv: Kv, backend: FakeBackend, name: str, call: Call) -> None:
    allowed = getattr(limits, name)
    outcome = call(kv, allowed)
    if isinstance(outcome, Awaitable):
        await outcome
    backend.writes.clear()
    backend.reads.clear()
    with pytest.raises(LimitExceeded) as error:
        outcome = call(kv, allowed + 1)
        if isinstance(outcome, Awaitable):
            await outcome
    assert (error.value.limit, error.value.allowed, error.value.got) == (name, allowed, allowed + 1)
    assert f"{allowed + 1:,} is above the limit of {allowed:,} ({name})" in str(error.value)
    assert not backend.writes and not backend.reads


def test_p05_a_backoff_limit_names_limit_index_and_value() -> None:
    """P05 · a backoff with 6 entries: bare "Invalid backoffSchedule" → accepted; when a limit is broken the error names
    limit, index and value."""
    from kvorum.queues.outgoing import enqueue_message

    steps = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000]
    assert [*enqueue_message(1, "", None, (), steps).backoff.delays_ms] == steps
    with pytest.raises(
        LimitExceeded, match=r"^backoff_schedule\[1\]: 3,600,001 is above the limit of 3,600,000 \(MAX_B"
    ):
        enqueue_message(1, "", None, (), [1, 3_600_001])
