"""Calls the database, and writes down what was asked, what was answered, and when."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Sequence, Set
from dataclasses import replace
from typing import Final

import kvorum
from kvorum.errors import NoSpace, OutcomeUnknown, StaleLease, Unavailable

from .history import Operation, Outcome, Seen

ROOT: Final = "chaos"
VALUES: Final = (ROOT, "value")
"""The keys that clients fight over, below this prefix."""
MARKS: Final = (ROOT, "mark")
DONE: Final = (ROOT, "done")
"""One key for each message that was handled; its value is the mark of the commit that recorded it."""
UNDELIVERED: Final = (ROOT, "undelivered")
HANDLED: Final = "handled"
"""A counter among the values: messages handled."""


class SawNonsense(Exception):
    """An answer that has no place in a history at all."""


class Recorder:
    """All clients of a run write to one."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.deliveries: Counter[str] = Counter()
        """By message; more than one is allowed."""
        self.recorded: set[str] = set()
        """Messages whose handling was recorded, as far as the handlers were told."""
        self._more_recorded = asyncio.Event()

    def record(self, message: str) -> None:
        """The handling of a message was recorded."""
        self.recorded.add(message)
        self._more_recorded.set()

    async def all_recorded(self, messages: Set[str]) -> None:
        """Wait until the handling of all these was recorded."""
        while not messages <= self.recorded:
            self._more_recorded.clear()
            await self._more_recorded.wait()

    async def read(self, draft: Operation, call: Awaitable[Sequence[kvorum.Entry]]) -> Operation:
        """Errors: whatever a healthy client does not get from a sound cluster, however it is treated."""
        invoked = time.monotonic_ns()
        try:
            entries = await call
        except Unavailable:
            return self._note(draft, invoked, "not applied")
        done = self._note(draft, invoked, "ok", keep=False)
        found = {str(entry.key[-1]): seen_of(entry) for entry in entries}
        done = replace(done, seen=tuple(found.get(key, Seen(None, None)) for key in draft.reads))
        self.operations.append(done)
        return done

    async def commit(self, draft: Operation, call: Awaitable[kvorum.CommitResult]) -> Operation:
        """Errors: as `read`."""
        invoked = time.monotonic_ns()
        try:
            result = await call
        except OutcomeUnknown:
            return self._note(draft, invoked, "unknown")
        except (Unavailable, StaleLease, NoSpace):
            return self._note(draft, invoked, "not applied")
        except asyncio.CancelledError:
            self._note(draft, invoked, "unknown")
            raise
        done = self._note(draft, invoked, "ok", keep=False)
        done = replace(done, versionstamp=result.versionstamp, failed_checks=result.failed_checks)
        if not result.ok and not draft.checks:
            # Refused by a check that is not part of the history (one key for each message would be too many): then
            # all that can be said is that it had no effect.
            done = replace(done, effects=(), failed_checks=())
        self.operations.append(done)
        return done

    def _note(self, draft: Operation, invoked: int, outcome: Outcome, *, keep: bool = True) -> Operation:
        done = replace(draft, invoked=invoked, returned=time.monotonic_ns(), outcome=outcome)
        if keep:
            self.operations.append(done)
        return done


def seen_of(entry: kvorum.Entry) -> Seen:
    """Errors: SawNonsense if there is something else than a counter."""
    if entry.versionstamp is None:
        return Seen(None, None)
    if not isinstance(entry.value, kvorum.KvU64):
        raise SawNonsense(f"{entry.key} holds {entry.value!r}, but only counters were stored")
    return Seen(int(entry.value), entry.versionstamp)
