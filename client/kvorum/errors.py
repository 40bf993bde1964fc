"""What can go wrong, and what to do about it.

There are three questions after an error: shall I call again, shall I mend the call, must I look whether it happened?
Each class answers them by two attributes:

* ``retryable``: the same call may succeed later, and repeating it is safe.
* ``outcome``: ``"not applied"`` (certainly nothing was changed), ``"unknown"`` (a write that may or may not have been
  applied), or ``None`` where nothing was to be changed.
"""

from typing import Any, ClassVar, Final, Literal

Outcome = Literal["not applied", "unknown"]

_LONG_INT: Final = 512
"""Bits of an int that no message writes out; above 4,300 digits Python would refuse to."""


def shown(value: object, longest: int = 60) -> str:
    """How a message shows what a caller gave: its repr, cut; of a huge int its size."""
    if isinstance(value, int) and value.bit_length() > _LONG_INT:
        return f"an int of {value.bit_length():,} bits"
    try:
        text = repr(value)
    except ValueError:
        return f"a {type(value).__name__} with a huge int"
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


class KvorumError(Exception):
    """Base of all errors of this package."""

    retryable: ClassVar[bool] = False
    outcome: Outcome | None = None


# ---- mend the call


class InvalidArgument(KvorumError, ValueError):
    """The call cannot be right, whatever the state of the database. Nothing was sent or applied."""

    outcome = "not applied"


class InvalidKey(InvalidArgument):
    """A key or selector that has no encoding; the message names the part."""


class InvalidValue(InvalidArgument):
    """A value that cannot be represented; `path` leads to the offending part, e.g. ``value["items"][3]``."""

    def __init__(self, problem: str, path: str = "value") -> None:
        super().__init__(f"{path}: {problem}")
        self.problem = problem
        self.path = path

    def __reduce__(self) -> tuple[type["InvalidValue"], tuple[str, str]]:
        return type(self), (self.problem, self.path)


class LimitExceeded(InvalidArgument):
    """A limit of `kvorum.limits` was exceeded: `limit` is its name, `allowed` its value, `got` what was asked for."""

    def __init__(self, limit: str, allowed: int, got: int, what: str = "") -> None:
        number = f"{got:,}" if got.bit_length() <= _LONG_INT else shown(got)
        super().__init__(
            f"{what or limit.lower().replace('_', ' ')}: {number} is above the limit of {allowed:,} ({limit})"
        )
        self.limit = limit
        self.allowed = allowed
        self.got = got
        self._what = what

    def within(self, where: str) -> "LimitExceeded":
        """The same error of a part of something larger, such as one message of a batch."""
        return type(self)(self.limit, self.allowed, self.got, f"{where}: {self._what or self.limit}")

    def __reduce__(self) -> tuple[type["LimitExceeded"], tuple[str, int, int, str]]:
        return type(self), (self.limit, self.allowed, self.got, self._what)


class Closed(KvorumError):
    """The client was closed before or during the call."""

    def __init__(self, message: str = "this client is closed", *, outcome: Outcome | None = "not applied") -> None:
        super().__init__(message)
        self.outcome = outcome


# ---- the database says no; nothing was changed


class TypeMismatch(KvorumError, TypeError):
    """The stored value is of a kind that the mutation cannot work on, e.g. a sum on a string."""

    outcome = "not applied"


class OutOfRange(KvorumError, ArithmeticError):
    """A sum would leave its limits, and clamping was not asked for; or the ranges that an atomic operation deletes hold
    too many keys.
    """

    outcome = "not applied"


class StaleLease(KvorumError):
    """The message is no longer in this consumer's hands: it was delivered again, settled, or its lease lapsed."""

    outcome = "not applied"


class MessageGone(KvorumError):
    """A message that was to be cancelled or rescheduled is done, or in a consumer's hands. Nothing was applied."""

    outcome = "not applied"


class DataError(KvorumError):
    """A stored value cannot be decoded by this version; the raw bytes are still there."""


class Compacted(KvorumError):
    """A watch was to go on from a versionstamp after which changes are not kept any more. What was missed cannot be had
    as changes: list what there is, and watch from there (`Kv.follow` does both).

    `oldest` is the oldest versionstamp to go on from now, 20 hex digits.
    """

    def __init__(self, oldest: str) -> None:
        super().__init__(
            f"changes are kept from versionstamp {oldest} on only: list what there is, and watch from there"
            " (kv.follow does both)"
        )
        self.oldest = oldest

    def __reduce__(self) -> tuple[type["Compacted"], tuple[str]]:
        return type(self), (self.oldest,)


class NoSpace(KvorumError):
    """A voter's disk is nearly full: writes that grow the database are refused, deletes are taken."""

    outcome = "not applied"


# ---- call again


class Unavailable(KvorumError):
    """No answer in time, and certainly nothing was applied: no leader, no connection, or an overloaded node. Safe to
    repeat.
    """

    retryable = True
    outcome = "not applied"


class Overloaded(Unavailable):
    """A queue of the client or the node is full. Wait a little, then repeat."""


class QueueFull(Unavailable):
    """A queue holds as many messages as its policy allows, or there are too many queues. Wait until some are done."""


class DeadlineExceeded(Unavailable, TimeoutError):
    """The call's timeout passed before anything could have been applied. For writes that may have been applied see
    `OutcomeUnknown`.
    """


class Conflict(KvorumError):
    """A transaction was tried as often as it may be, and each time something that it had read was changed by others
    before it could commit.
    """

    retryable = True
    outcome = "not applied"


# ---- look whether it happened


class OutcomeUnknown(KvorumError):
    """A write that may or may not have been applied, now or later: its timeout passed, it was cut off, or the leader
    was lost.

    Read the keys that it would have changed, or repeat it with a check on a versionstamp, so that it cannot apply
    twice.
    """

    outcome = "unknown"


class RequestTimeout(OutcomeUnknown, TimeoutError):
    """No answer to a request came in time. The work may be done, or may still be done until the same time: nobody else
    will get the answer."""


class RemoteError(KvorumError):
    """Whoever handled a request answered that it could not be done; the message is its text."""


# ---- the token is wrong


class Unauthenticated(KvorumError):
    """The cluster asks for a token, and there is none, or it is unknown, disabled or past its time. Certainly nothing
    was applied."""

    outcome = "not applied"


class PermissionDenied(KvorumError):
    """The token lacks a right; the message names it, and the key or queue. Certainly nothing was applied.

    `right`: read, write, send, receive, manage or admin.
    """

    outcome = "not applied"

    def __init__(self, message: str, *, right: str = "") -> None:
        super().__init__(message)
        self.right = right

    def __reduce__(self) -> tuple[Any, ...]:
        return _denied, (str(self), self.right)


def _denied(message: str, right: str) -> PermissionDenied:
    return PermissionDenied(message, right=right)


# ---- the place is wrong


class ConnectFailed(Unavailable):
    """None of the addresses answered in time."""


class WrongCluster(KvorumError):
    """The node belongs to another cluster than this client has been talking to, speaks another protocol version, or is
    none: the address is that of another port. Or one of the two speaks TLS and the other does not, or does not accept
    the other's certificate."""

    outcome = "not applied"


class DatabaseLocked(KvorumError):
    """The folder is open in another process (or already in this one): an embedded database has one owner."""


class DatabaseCorrupt(KvorumError):
    """The folder holds data that cannot be trusted or was written by a newer version; nothing was changed."""
