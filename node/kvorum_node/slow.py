"""The log of slow operations: one line for each that took longer than `slow_operation_ms`, with what it was and where
its time went. Of keys and values it tells the size, never what they are.

What is slow comes in crowds (a disk that stalls makes everything slow), so few lines are written in a second, and the
next one says how many were left out.
"""

import logging
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

from kvorum._proto import kvorum_pb2 as pb

logger = logging.getLogger("kvorum.slow")

LINES: Final = 10
"""In a second."""
LOOKED_AT: Final = 64
"""Writes, or keys, of one operation that a line is about."""

Facts = Mapping[str, str | int | float]


class SlowLog:
    """`threshold` is seconds; 0: no operation is slow. `clock` gives seconds."""

    def __init__(self, threshold: float, clock: Callable[[], float], traced: Callable[[Facts], None] | None = None):
        """`traced` gets the fields of each line as well."""
        self._traced = traced
        self.threshold: Final = threshold or float("inf")
        """Whoever has measured something compares with it first."""
        self.count = 0
        """Operations that were slow."""
        self._clock = clock
        self._second = float("-inf")
        self._lines = self._left_out = 0

    def took(self, kind: str, seconds: float, facts: Callable[[], Facts], times: int = 1) -> None:
        """An operation, or so many that came together, took at least `threshold` seconds; `facts` are made only if
        there is a line."""
        self.count += times
        now = self._clock()
        if now - self._second >= 1.0:
            self._second, self._lines = now, 0
        if self._lines == LINES:
            self._left_out += 1
            return
        self._lines += 1
        fields: dict[str, str | int | float] = {"kind": kind, "ms": milliseconds(seconds), **facts()}
        if self._left_out:
            fields["left_out"], self._left_out = self._left_out, 0
        logger.warning("slow operation", extra={"fields": fields})
        if self._traced is not None:
            self._traced(fields)

    def statistics(self) -> dict[str, float]:
        return {"slow_operations": self.count}


def milliseconds(seconds: float) -> float:
    """Rounded to tenths."""
    return round(seconds * 1000, 1)


def of_writes(group: pb.WriteGroup) -> Facts:
    """What a group of writes does, as far as it is looked at."""
    keys: list[bytes] = []
    mutations = messages = settles = 0
    for write in islice(group.writes, LOOKED_AT):
        op = pb.AtomicWrite.FromString(write.op)  # it was admitted, so it can be decoded
        mutations += len(op.mutations)
        messages += len(op.enqueues)
        settles += len(op.settles)
        keys += [mutation.key for mutation in islice(op.mutations, LOOKED_AT)]
    return {
        "writes": len(group.writes),
        "bytes": sum(len(write.op) for write in group.writes),
        "mutations": mutations,
        "messages": messages,
        "settles": settles,
        **of_keys(keys),
    }


def of_keys(keys: list[bytes]) -> Facts:
    """Sizes: of the longest key, and of what they all begin with."""
    if not keys:
        return {}
    return {"key_bytes": max(map(len, keys)), "prefix_bytes": _common(min(keys), max(keys))}


def _common(first: bytes, last: bytes) -> int:
    """Bytes that two keys, and so all between them, begin with."""
    at = 0
    while at < len(first) and at < len(last) and first[at] == last[at]:
        at += 1
    return at
