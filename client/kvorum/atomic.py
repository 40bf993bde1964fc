"""Atomic operations: checks, mutations, enqueues and acknowledgements that happen together or not at all.

The builder writes straight into the protocol's message, so that nothing is converted at commit, and counts sizes as it
goes. What is wrong with one part is raised where it is added; the limits on the whole, at commit, before anything is
sent.
"""

import warnings
from collections.abc import Sequence
from enum import Enum
from typing import Final, Self, Unpack, overload

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import WriteOutcome
from kvorum.blame import blame
from kvorum.commit import CommitResult, commit_result
from kvorum.durations import Duration
from kvorum.entry import Entry, parse_versionstamp
from kvorum.errors import InvalidArgument, LimitExceeded, OutOfRange, TypeMismatch
from kvorum.keys import KeyPart
from kvorum.link import Link
from kvorum.mutation import (
    SetKey,
    add_set,
    add_sum,
    delete_mutation,
    delete_range_mutation,
    extremum_mutation,
    touch_mutation,
    write_key,
)
from kvorum.queues.delivered import Delivered
from kvorum.queues.outgoing import SendOptions, enqueue_message, outgoing, outgoing_to_topic, size_of
from kvorum.queues.replies import reply_to
from kvorum.queues.verdicts import cancel_settle, reschedule_settle
from kvorum.values import encode_payload

_TOO_MANY: Final = "MAX_DELETED_RANGE_KEYS"
"""In an error: it is about ranges, not about sums."""


class _Unset(Enum):
    """Tells "nothing was given" from None, which means something."""

    UNSET = 0


class AtomicBuilder:
    """Everything of an atomic operation but its commit. Methods return the builder itself.

    All checks come first, against the state before the commit, wherever they stand in the chain; then mutations in the
    order given, then enqueues. One that was filled and is thrown away without a commit gives a ResourceWarning.
    """

    __slots__ = ("_forgotten", "_link", "_parts", "_settled", "_size", "_subject", "_write")

    def __init__(self, link: Link, subject: Delivered | None = None) -> None:
        """`subject`: the message that is meant where none is named."""
        self._link = link
        self._subject = subject
        self._write = pb.AtomicWrite()
        self._size = 0
        self._parts = 0
        """Mutations, messages and settles: asked of the write, they take 0.5 µs to count."""
        self._settled: list[tuple[Delivered, pb.SettleKind]] = []
        self._forgotten = False
        """It has parts, the last of which was accepted, and was never committed."""

    def __del__(self) -> None:
        # Missing after an __init__ that did not end.
        if getattr(self, "_forgotten", False):
            warnings.warn(
                "an atomic operation was filled and never committed: nothing of it happened",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    # ---- checks

    @overload
    def check(self, key: Entry) -> Self: ...
    @overload
    def check(self, key: Sequence[KeyPart], versionstamp: str | Entry | None) -> Self: ...
    @overload
    def check(self, key: Sequence[KeyPart], *, exists: bool) -> Self: ...
    @overload
    def check(self, key: Sequence[KeyPart], *, version_le: str | Entry) -> Self: ...
    def check(
        self,
        key: Sequence[KeyPart] | Entry,
        versionstamp: str | Entry | _Unset | None = _Unset.UNSET,
        *,
        exists: bool | None = None,
        version_le: str | Entry | None = None,
    ) -> Self:
        """Let the commit happen only if a key is as it was seen.

        `check(entry)` and `check(key, versionstamp)`: the key's versionstamp is still that one; None: it is absent.
        `check(key, exists=True)`: it is present, whatever its value; `exists=False`: it is absent.
        `check(key, version_le=versionstamp)`: it is present and was not written after that commit.

        Errors: InvalidKey, InvalidArgument, LimitExceeded.
        """
        self._forgotten = False
        unset = versionstamp is _Unset.UNSET
        if isinstance(key, Entry):
            if unset and exists is None and version_le is None:
                versionstamp, unset = key.versionstamp, False
            key = key.key
        if (not unset) + (exists is not None) + (version_le is not None) != 1:
            raise InvalidArgument(
                "a check takes an Entry, or a key and exactly one of versionstamp, exists and version_le:"
                " check(entry), check(key, entry.versionstamp), check(key, exists=False)"
            )
        encoded, stamp, kind = write_key(key), b"", pb.CHECK_KIND_EQUALS
        if exists is not None:
            kind = pb.CHECK_KIND_EXISTS if exists else kind
        elif version_le is not None:
            kind, stamp = pb.CHECK_KIND_NOT_NEWER, _stamp(version_le)
            if not stamp:
                raise InvalidArgument("version_le needs a versionstamp, got the entry of an absent key")
        elif versionstamp is not None and versionstamp is not _Unset.UNSET:
            stamp = _stamp(versionstamp)
        # In its place, and only what is not the default: a message of its own, appended, takes 0.6 µs more.
        check = self._write.checks.add()
        check.key = encoded
        if stamp:
            check.versionstamp = stamp
        if kind:
            check.kind = kind
        self._size += len(encoded)
        self._forgotten = True
        return self

    # ---- mutations

    def set(self, key: SetKey, value: object, *, expire_in: Duration | None = None) -> Self:
        """Store a value, to be removed after `expire_in`; without it an earlier expiry is dropped.

        Errors: InvalidKey, InvalidValue, InvalidArgument, LimitExceeded.
        """
        self._forgotten = False
        self._size += add_set(self._write, key, value, expire_in)
        self._parts += 1
        self._forgotten = True
        return self

    def delete(self, key: Sequence[KeyPart]) -> Self:
        """Remove a key; fine if it is absent. Errors: InvalidKey, LimitExceeded."""
        self._forgotten = False
        return self._bare(delete_mutation(key))

    def delete_range(self, start: Sequence[KeyPart], end: Sequence[KeyPart]) -> Self:
        """Remove every key from `start` on and before `end`: as all parts, with the others or not at all.

        The ranges of one operation may hold 1,000 keys together; if they hold more the commit raises OutOfRange.
        `CommitResult.deleted` tells how many there were. Without a commit that large: `Kv.delete_range`.

        Errors: InvalidKey, LimitExceeded.
        """
        return self._range(None, start, end)

    def delete_prefix(self, prefix: Sequence[KeyPart]) -> Self:
        """Remove every key below a prefix, but not the prefix itself. See `delete_range`."""
        return self._range(prefix, None, None)

    def touch(self, key: Sequence[KeyPart], *, expire_in: Duration | None) -> Self:
        """Let a key expire `expire_in` (above zero) after the commit instead of when it would have; None: never.

        Value and versionstamp stay as they are: checks still pass, and no watch hears of it. An absent key stays
        absent; add `check(key, exists=True)` where that shall be noticed.

        Errors: InvalidKey, InvalidArgument, LimitExceeded.
        """
        self._forgotten = False
        return self._bare(touch_mutation(key, expire_in))

    def sum(
        self,
        key: Sequence[KeyPart],
        number: int | float,
        *,
        minimum: int | float | None = None,
        maximum: int | float | None = None,
        clamp: bool = False,
    ) -> Self:
        """Add a number, which may be negative, to what is stored.

        An absent key becomes a `KvU64` counter (with a float that is not integral: a number), a stored one keeps its
        kind. A result outside of `minimum` and `maximum`, or below 0 or above 2⁶⁴-1 for a counter, becomes the nearest
        allowed one with `clamp`; without it the commit raises OutOfRange. Adding to what is no number: TypeMismatch.

        Errors: InvalidKey, InvalidValue, LimitExceeded.
        """
        self._forgotten = False
        self._size += add_sum(self._write, key, number, minimum, maximum, clamp)
        self._parts += 1
        self._forgotten = True
        return self

    def min(self, key: Sequence[KeyPart], number: int) -> Self:
        """Store the smaller of a counter and `number` (0 … 2⁶⁴-1); `number` if the key is absent.

        Errors: InvalidKey, InvalidValue, LimitExceeded; at commit TypeMismatch if it is no counter.
        """
        self._forgotten = False
        return self._valued(extremum_mutation(key, number, largest=False))

    def max(self, key: Sequence[KeyPart], number: int) -> Self:
        """Store the larger of a counter and `number`; see `min`."""
        self._forgotten = False
        return self._valued(extremum_mutation(key, number, largest=True))

    # ---- queues

    def enqueue(
        self,
        value: object,
        *,
        queue: str = "",
        delay: Duration | None = None,
        keys_if_undelivered: Sequence[Sequence[KeyPart]] = (),
        backoff_schedule: Sequence[Duration] | None = None,
    ) -> Self:
        """Put a message on a queue; see `Kv.enqueue`."""
        self._forgotten = False
        return self._message(enqueue_message(value, queue, delay, keys_if_undelivered, backoff_schedule))

    def send(self, queue: str, value: object, **options: Unpack[SendOptions]) -> Self:
        """Put a message on a queue; see `Queue.send`. `CommitResult.messages` tells its id.

        Errors: InvalidKey, InvalidValue, InvalidArgument, LimitExceeded; at commit QueueFull.
        """
        self._forgotten = False
        return self._message(outgoing(value, queue, options))

    def send_topic(self, topic: str, value: object, **options: Unpack[SendOptions]) -> Self:
        """Put a copy of a message on the queue of each subscription; see `Topic.send`."""
        self._forgotten = False
        return self._message(outgoing_to_topic(value, topic, options))

    def cancel(self, id: str) -> Self:
        """Delete a message that is in nobody's hands. If there is none such the commit raises MessageGone, and nothing
        happens. Errors: InvalidArgument.
        """
        self._forgotten = False
        return self._settle(cancel_settle(id))

    def reschedule(self, id: str, *, delay: Duration) -> Self:
        """Let a message that is in nobody's hands be due `delay` after the commit. As `cancel`."""
        self._forgotten = False
        return self._settle(reschedule_settle(id, delay))

    def ack(self, message: Delivered | None = None) -> Self:
        """Acknowledge a message that is being handled, in the same commit as the effects of handling it.

        If the message is no longer in this consumer's hands the commit raises StaleLease and nothing happens. Its
        handler should return right after the commit: what it raises then is only logged. No message is needed where
        this is its own operation (`Message.atomic`).

        Errors: InvalidArgument.
        """
        return self._verdict(message, pb.SETTLE_KIND_ACK)

    def retry(self, message: Delivered | None = None, *, delay: Duration | None = None, reason: str = "") -> Self:
        """Say that handling a message failed, with the rest of the commit; see `Message.retry`, and `ack`."""
        return self._verdict(message, pb.SETTLE_KIND_RETRY, delay, reason)

    def reject(self, message: Delivered | None = None, *, reason: str = "") -> Self:
        """Say that handling a message failed for good; see `Message.reject`, and `ack`."""
        return self._verdict(message, pb.SETTLE_KIND_REJECT, None, reason)

    @overload
    def reply(self, message: object, /) -> Self: ...
    @overload
    def reply(self, message: Delivered, value: object, /) -> Self: ...
    def reply(self, message: object, value: object = _Unset.UNSET, /) -> Self:
        """Answer a request: `reply(message, value)`, or `reply(value)` in the message's own operation.

        Errors: InvalidArgument if it asks nothing (`Message.wants_reply`); InvalidValue, LimitExceeded.
        """
        self._forgotten = False
        asked, answer = (None, message) if value is _Unset.UNSET else (message, value)
        return self._reply(self._named(asked, "reply"), encode_payload(answer), None)

    def reply_error(self, reason: str, *, message: Delivered | None = None) -> Self:
        """Answer a request with an error: whoever asked gets RemoteError with this text. As `reply`."""
        self._forgotten = False
        return self._reply(self._named(message, "reply_error"), encode_payload(None), reason)

    # ---- for the commit

    def _message(self, message: pb.Enqueue) -> Self:
        self._write.enqueues.append(message)
        self._parts += 1
        self._size += size_of(message)
        self._forgotten = True
        return self

    def _settle(self, settle: pb.Settle) -> Self:
        self._write.settles.append(settle)
        self._parts += 1
        if settle.reason:
            self._size += len(settle.reason.encode())
        self._forgotten = True
        return self

    def _verdict(
        self,
        message: Delivered | None,
        kind: pb.SettleKind,
        delay: Duration | None = None,
        reason: str = "",
    ) -> Self:
        self._forgotten = False
        named = self._named(message, kind)
        self._settle(named._verdict(kind, delay=delay, reason=reason))
        self._settled.append((named, kind))
        return self

    def _reply(self, message: Delivered, answer: bytes, error: str | None) -> Self:
        if not message.wants_reply:
            raise InvalidArgument(f"message {message.id} asks nothing: nobody waits for an answer")
        return self._message(reply_to(message, answer, error))

    def _named(self, message: object, method: "str | pb.SettleKind") -> Delivered:
        if isinstance(message, Delivered):
            return message
        if message is None and self._subject is not None:
            return self._subject
        if not isinstance(method, str):
            method = pb.SettleKind.Name(method).removeprefix("SETTLE_KIND_").lower()
        what = "none: only in a message's own operation (message.atomic()) it can be left out"
        raise InvalidArgument(f"{method} takes a Message, got {what if message is None else type(message).__name__}")

    def _range(
        self, prefix: Sequence[KeyPart] | None, start: Sequence[KeyPart] | None, end: Sequence[KeyPart] | None
    ) -> Self:
        self._forgotten = False
        return self._bare(delete_range_mutation(prefix, start, end))

    def _bare(self, mutation: pb.Mutation) -> Self:
        """Add a mutation without a value."""
        self._write.mutations.append(mutation)
        self._parts += 1
        self._size += len(mutation.key) + len(mutation.end)
        self._forgotten = True
        return self

    def _valued(self, mutation: pb.Mutation) -> Self:
        self._write.mutations.append(mutation)
        self._parts += 1
        self._size += len(mutation.key) + len(mutation.value) + len(mutation.sum_min) + len(mutation.sum_max)
        self._forgotten = True
        return self

    def _serialise(self) -> bytes:
        """Errors: LimitExceeded."""
        self._forgotten = False
        write = self._write
        checks = len(write.checks)
        if checks > limits.MAX_CHECKS:
            raise LimitExceeded("MAX_CHECKS", limits.MAX_CHECKS, checks, "checks")
        if self._parts > limits.MAX_MUTATIONS:
            what = "mutations, messages and acknowledgements"
            raise LimitExceeded("MAX_MUTATIONS", limits.MAX_MUTATIONS, self._parts, what)
        if self._size > limits.MAX_TOTAL_WRITE_SIZE:
            what = "size of an atomic operation"
            raise LimitExceeded("MAX_TOTAL_WRITE_SIZE", limits.MAX_TOTAL_WRITE_SIZE, self._size, what)
        return write.SerializeToString()

    def _judge(self, outcome: WriteOutcome) -> CommitResult:
        """See `commit_result`; errors of sums name the keys that they can be about."""
        try:
            return commit_result(outcome, self._write.enqueues)
        except (TypeMismatch, OutOfRange) as error:
            told = blame(self._write.mutations, str(error))
            if not told or _TOO_MANY in str(error):
                raise
            raise type(error)(told) from None

    def _result(self, result: CommitResult) -> CommitResult:
        if result.ok:
            for message, kind in self._settled:
                message._end(acknowledged=kind == pb.SETTLE_KIND_ACK)
        return result


class AtomicOperation(AtomicBuilder):
    """An atomic operation. Made by `Kv.atomic`; nothing happens before `commit`."""

    __slots__ = ()

    async def commit(self, *, timeout: Duration | None = None) -> CommitResult:
        """Carry it out: `ok` is False, and `failed_checks` says why, if a check failed. May be called again.

        Errors: OutcomeUnknown; with nothing changed TypeMismatch, OutOfRange, StaleLease, LimitExceeded, Unavailable
        (also Overloaded, DeadlineExceeded, QueueFull), MessageGone, NoSpace, Closed.
        """
        link = self._link
        within = link.timeout if timeout is None else link.within(timeout)
        return self._result(self._judge(await link.backend.write(self._serialise(), timeout=within)))


def _stamp(versionstamp: str | Entry) -> bytes:
    if isinstance(versionstamp, Entry):
        # An absent entry has none: equal to "must be absent", and an error where a versionstamp is needed.
        return b"" if versionstamp.versionstamp is None else parse_versionstamp(versionstamp.versionstamp)
    return parse_versionstamp(versionstamp)
