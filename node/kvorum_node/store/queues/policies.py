"""What a queue's policy says. It is read when it is needed, so that a new one acts at once on what is there already."""

from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import DEFAULT_BACKOFF

from ..records import QUEUE
from . import formats
from .formats import Payload, Settings
from .tallies import is_inbox

if TYPE_CHECKING:
    from ..entry import Entry

KEEP: Final = int(pb.DEAD_LETTERS_KEEP)
DROP: Final = int(pb.DEAD_LETTERS_DROP)
TO_QUEUE: Final = int(pb.DEAD_LETTERS_QUEUE)
EXPONENTIAL_ATTEMPTS: Final = 20
"""Attempts of an exponential backoff, if the policy does not name them."""


class Policy(NamedTuple):
    """A policy with the defaults filled in. Times are milliseconds."""

    lease_ms: int = 0
    """0 = as the node says that leads."""
    max_attempts: int = 0
    """0 = as many as the backoff has steps, and one."""
    backoff: tuple[int, ...] = DEFAULT_BACKOFF
    exponential: tuple[int, int, int, int] | None = None
    """Base, factor and jitter in percent (the last one), cap before it; instead of backoff."""
    dead_letters: int = DROP
    dead_letter_queue: bytes = b""
    retention_ms: int = 0
    """0 = for ever."""
    max_backlog: int | None = None
    max_in_flight: int = 0
    """0 = no bound."""
    ordered: bool = False
    paused: bool = False
    defined: bool = False


def parse(queue: bytes, settings: Settings | None) -> Policy:
    """The effective policy of a queue."""
    dead_letters = DROP if not queue or is_inbox(queue) else KEEP
    if settings is None or settings.policy is None:
        return Policy(dead_letters=dead_letters, paused=settings is not None and settings.paused)
    given = pb.QueuePolicy.FromString(settings.policy)
    exponential = given.exponential
    return Policy(
        lease_ms=given.lease_ms,
        max_attempts=given.max_attempts,
        backoff=tuple(given.backoff.delays_ms) if given.HasField("backoff") else DEFAULT_BACKOFF,
        exponential=(exponential.base_ms, exponential.factor_percent, exponential.cap_ms, exponential.jitter_percent)
        if given.HasField("exponential")
        else None,
        dead_letters=int(given.dead_letters) or dead_letters,
        dead_letter_queue=given.dead_letter_queue.encode(),
        retention_ms=given.retention_ms,
        max_backlog=given.max_backlog if given.HasField("max_backlog") else None,
        max_in_flight=given.max_in_flight,
        ordered=given.ordered,
        paused=settings.paused,
        defined=True,
    )


_OLD: Final = Policy()


def policy_of(entry: "Entry", queue: bytes) -> Policy:
    """The queue's policy at this point of the entry."""
    policy = entry.policies.get(queue)
    if policy is None:
        policy = _OLD if entry.tallies is None else read(entry.rows.get, queue)
        entry.policies[queue] = policy
    return policy


def read(get: Callable[[bytes], bytes | None], queue: bytes) -> Policy:
    """The queue's policy. `get` fetches a row."""
    row = get(QUEUE + queue)
    return parse(queue, None if row is None else formats.unpack_settings(row))


def attempts(policy: Policy, payload: Payload) -> int:
    """How often a message may be attempted. One that brings an empty backoff schedule wants no retry."""
    own = payload.backoff
    if own is not None and not own:
        return 1
    if policy.max_attempts:
        return policy.max_attempts
    if own is None and policy.exponential is not None:
        return EXPONENTIAL_ATTEMPTS
    return len(policy.backoff if own is None else own) + 1


def pause_before(policy: Policy, payload: Payload, message_id: bytes, attempt: int) -> int:
    """Milliseconds before the attempt that follows the `attempt`th one."""
    if payload.backoff is None and policy.exponential is not None:
        return _exponential(policy.exponential, message_id, attempt)
    steps = policy.backoff if payload.backoff is None else payload.backoff
    return steps[min(attempt, len(steps)) - 1] if steps else 0


def _exponential(exponential: tuple[int, int, int, int], message_id: bytes, attempt: int) -> int:
    base, factor, cap, jitter = exponential
    delay = base
    if factor > 100:
        for _ in range(attempt - 1):
            delay = delay * factor // 100
            if delay >= cap:
                break
    delay = min(delay, cap)
    most = delay * min(jitter, 100) // 100
    if most:
        # Jitter keeps messages that failed together apart; it must be the same on every node.
        digest = blake2b(message_id + attempt.to_bytes(4, "big"), digest_size=8).digest()
        delay -= int.from_bytes(digest, "big") % (most + 1)
    return delay
