"""Transactions: a function that reads and writes as if nobody else were there.

It is optimistic. What the function reads is noted with its versionstamp, also that a key is absent; what it writes is
kept back, and its own reads see it. Its commit is one atomic operation: checks that everything read still is as it was,
and all writes. So a transaction that commits ran, in effect, in one moment, that of its commit. If others were quicker
the function runs again, after a pause that grows and is random, so that those who fight for a key come apart.

A run that is going to fail may see keys of different moments, and be misled into raising something. So an exception of
the function is passed on only if what it has read belongs together; otherwise it counts as a conflict.

Ranges cannot be checked, so there are no lists inside: a key that somebody adds would go unnoticed. What depends on a
range should also read, and its writers change, one key that stands for it.

`TransactionBuilder` does no I/O, so that the async and the blocking transaction share it.
"""

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NoReturn, TypeVar

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.atomic import AtomicBuilder
from kvorum.durations import Duration, shown_seconds
from kvorum.entry import Entry, answered, own_key
from kvorum.errors import (
    Closed,
    Conflict,
    DeadlineExceeded,
    InvalidArgument,
    LimitExceeded,
    OutcomeUnknown,
    Unavailable,
)
from kvorum.keys import KeyPart
from kvorum.link import Link
from kvorum.mutation import check_keys, check_list, write_key

T = TypeVar("T")

DEFAULT_ATTEMPTS: Final = 32
UNCOMMITTED: Final = "f" * 20
"""Versionstamp of what the transaction has set itself: the real one will be that of its commit."""
_UNCOMMITTED: Final = bytes.fromhex(UNCOMMITTED)
_FIRST_PAUSE: Final = 0.004
_LONGEST_PAUSE: Final = 0.25
"""Seconds; half of it on average."""
FINAL: Final = (Unavailable, OutcomeUnknown, Closed, Conflict)
"""Errors that have nothing to do with what was read."""

_now = time.monotonic


class _Ended:
    """In place of what a transaction writes, when it is over."""

    def __getattr__(self, name: str) -> NoReturn:
        raise InvalidArgument("this transaction is over: use it only inside its function, and await what it starts")


class Attempts:
    """How often, and until when, a transaction is tried. Times are seconds."""

    def __init__(self, attempts: int, timeout: float) -> None:
        """Errors: InvalidArgument."""
        if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts <= 0:
            raise InvalidArgument(f"attempts must be a positive integer: received {attempts!r}")
        self._allowed = attempts
        self._made = 0
        self._timeout = timeout
        self._deadline = _now() + timeout

    def left(self) -> float:
        """Until the deadline. Errors: DeadlineExceeded; Conflict if there was one before."""
        left = self._deadline - _now()
        if left <= 0:
            if self._made:
                raise self._conflict()
            raise DeadlineExceeded(
                f"the transaction did not end within {shown_seconds(self._timeout)}; nothing was applied"
            )
        return left

    def pause(self) -> float:
        """After a conflict: how long to wait before the next attempt. Errors: Conflict."""
        self._made += 1
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._made, 10))
        pause = random.Random().uniform(0, longest)
        if self._made >= self._allowed or _now() + pause >= self._deadline:
            raise self._conflict()
        return pause

    def _conflict(self) -> Conflict:
        times = "attempt" if self._made == 1 else "attempts"
        return Conflict(f"what the transaction had read was changed by others, in {self._made} {times}")


class TransactionBuilder(AtomicBuilder):
    """One run of a transaction's function, without its I/O."""

    __slots__ = ("_reads", "_seen")

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._seen: dict[bytes, pb.KvEntry] = {}
        """What was read, as it was read first."""
        self._reads = 0
        """Snapshots that it came from."""

    def check(self, *_: object, **__: object) -> NoReturn:
        """Not in a transaction: whatever it reads is checked. Errors: InvalidArgument, always."""
        raise InvalidArgument("a transaction checks what it has read: get the key and look at the entry")

    def list(self, *_: object, **__: object) -> NoReturn:
        """Not in a transaction: nothing would notice a key that is added meanwhile. Errors: InvalidArgument, always."""
        raise InvalidArgument(
            "a transaction cannot list: keys added meanwhile would go unnoticed; list outside of it and get the keys"
            " in it, and let it read one key that all writers of the range change"
        )

    # ---- reading

    def _wanted(self, keys: Sequence[Sequence[KeyPart]]) -> pb.Read | None:
        """What has to be read so that `_entry` can tell of these keys; None: nothing. Errors: InvalidKey,
        LimitExceeded, InvalidArgument."""
        names = dict.fromkeys(map(write_key, keys))
        missing = [name for name in names if self._own(name) is None and name not in self._seen]
        if len(self._seen) + len(missing) > limits.MAX_CHECKS:
            got = len(self._seen) + len(missing)
            raise LimitExceeded("MAX_CHECKS", limits.MAX_CHECKS, got, "keys that a transaction reads")
        return pb.Read(keys=missing) if missing else None

    def _take(self, read: pb.Read, answer: pb.ReadResult) -> None:
        """The answer to a read of `_wanted`. Where a key is read twice at a time the first answer counts."""
        self._reads += 1
        for name, row in zip(read.keys, answer.entries, strict=True):
            self._seen.setdefault(name, row)

    def _entry(self, key: Sequence[KeyPart]) -> Entry:
        """Errors: DataError."""
        name = write_key(key)
        own = self._own(name)
        return answered(own_key(key), self._seen[name] if own is None else own)

    def _own(self, name: bytes) -> pb.KvEntry | None:
        """What the transaction itself has made of a key so far; None: nothing. Errors: InvalidArgument."""
        for mutation in reversed(self._write.mutations):
            kind = mutation.type
            if kind == pb.MUTATION_TYPE_DELETE_RANGE:
                if mutation.key <= name < mutation.end:
                    return pb.KvEntry(key=name)
            elif mutation.key != name or kind in _INVISIBLE:
                continue
            elif kind == pb.MUTATION_TYPE_SET:
                return pb.KvEntry(key=name, value=mutation.value, encoding=mutation.encoding, versionstamp=_UNCOMMITTED)
            elif kind == pb.MUTATION_TYPE_DELETE:
                return pb.KvEntry(key=name)
            else:
                raise InvalidArgument(
                    "a key that the transaction has changed by sum, min or max has no value before the commit:"
                    " read it first, or set it"
                )
        return None

    # ---- ending

    @property
    def _changes_something(self) -> bool:
        write = self._write
        return bool(write.mutations or write.enqueues or write.settles)

    @property
    def _belongs_together(self) -> bool:
        """All that it read is of one moment."""
        return self._reads <= 1

    def _reread(self) -> pb.Read | None:
        """A read that shows whether what was read still is as it was; None: it is too much for one snapshot."""
        return pb.Read(keys=self._seen) if len(self._seen) <= limits.MAX_READ_RANGES else None

    def _unchanged(self, answer: pb.ReadResult) -> bool:
        """Judge the answer to `_reread`."""
        seen = [row.versionstamp for row in self._seen.values()]
        return [row.versionstamp for row in answer.entries] == seen

    def _checks_alone(self) -> bytes:
        """An atomic operation that asks the same, of any number of keys."""
        write = pb.AtomicWrite()
        for name, row in self._seen.items():
            write.checks.add(key=name, versionstamp=row.versionstamp)
        return write.SerializeToString()

    def _whole(self) -> bytes:
        """The atomic operation that commits it. Errors: LimitExceeded."""
        for name, row in self._seen.items():
            self._write.checks.add(key=name, versionstamp=row.versionstamp)
            self._size += len(name)
        return self._serialise()

    def _end(self) -> None:
        self._forgotten = False
        self._write = _Ended()  # type: ignore[assignment]


_INVISIBLE: Final = frozenset((pb.MUTATION_TYPE_TOUCH, pb.MUTATION_TYPE_SET_SUFFIX_VERSIONSTAMPED_KEY))
"""What a touch changes and the key that a suffixed set makes cannot be read here."""


class Transaction(TransactionBuilder):
    """What the function of `Kv.transaction` reads and writes through.

    Reads are strong, and repeatable. They see what the transaction has written itself: such entries have the
    versionstamp `UNCOMMITTED`. Writes are those of an `AtomicOperation`.
    """

    __slots__ = ("_attempts",)

    def __init__(self, link: Link, attempts: Attempts) -> None:
        super().__init__(link)
        self._attempts = attempts

    async def get(self, key: Sequence[KeyPart]) -> Entry:
        """The entry of a key. The transaction commits only if it has not been written, made or deleted meanwhile.

        Errors: InvalidKey, LimitExceeded (a transaction reads at most 100 keys), DataError, Unavailable, Closed.
        """
        await self._read((key,))
        return self._entry(key)

    async def get_many(self, keys: Sequence[Sequence[KeyPart]]) -> list[Entry]:
        """The entries of up to 10 keys, in their order; those that were not read before from one snapshot. See
        `get`."""
        check_many(keys)
        await self._read(keys)
        return [self._entry(key) for key in keys]

    async def _read(self, keys: Sequence[Sequence[KeyPart]]) -> None:
        read = self._wanted(keys)
        if read is not None:
            self._take(read, await self._link.backend.read(read, timeout=self._attempts.left()))

    async def _commit(self) -> bool:
        """False: a conflict."""
        if not self._changes_something:
            return await self._holds()
        outcome = await self._link.backend.write(self._whole(), timeout=self._attempts.left())
        return self._result(self._judge(outcome)).ok

    async def _holds(self) -> bool:
        """Whether what was read is of one moment."""
        if self._belongs_together:
            return True
        backend, left = self._link.backend, self._attempts.left()
        read = self._reread()
        if read is not None:
            return self._unchanged(await backend.read(read, timeout=left))
        try:
            outcome = await backend.write(self._checks_alone(), timeout=left)
        except OutcomeUnknown as error:
            raise nothing_written(error) from error
        return self._judge(outcome).ok


def check_many(keys: Sequence[Sequence[KeyPart]]) -> None:
    """Errors: InvalidArgument, LimitExceeded."""
    check_list(keys, "keys")
    if len(keys) > limits.MAX_READ_RANGES:
        raise LimitExceeded("MAX_READ_RANGES", limits.MAX_READ_RANGES, len(keys), "keys of a read")
    check_keys(keys)


def check_function(function: object) -> None:
    """Errors: InvalidArgument."""
    if not callable(function):
        raise InvalidArgument(f"a transaction takes a function, got {type(function).__name__}")


def nothing_written(error: OutcomeUnknown) -> DeadlineExceeded:
    """The error of a transaction that only reads: nothing of it could have been applied."""
    return DeadlineExceeded(f"{error} (the transaction was to change nothing)")


async def run(
    link: Link, function: Callable[[Transaction], Awaitable[T]], attempts: int, timeout: Duration | None
) -> T:
    """See `Kv.transaction`."""
    check_function(function)
    tries = Attempts(attempts, link.within(timeout))
    while True:
        transaction = Transaction(link, tries)
        try:
            outcome = function(transaction)
            if not inspect.isawaitable(outcome):
                raise InvalidArgument("the function of a transaction must be a coroutine function (async def)")
            result = await outcome
            if await transaction._commit():
                return result
        except FINAL:
            raise
        except Exception:
            if await transaction._holds():
                raise
        finally:
            transaction._end()
        await asyncio.sleep(tries.pause())
