"""Which settles make the next message ready in their own entry, as they do in a group.

Nobody says whether a queue is of that kind, and it may change, so it is learned: where a message became ready with a
settle, the next settles are expected to do the same, until a few in a row have done nothing of the kind. A wrong guess
costs a Lease command that finds nothing.
"""

from typing import Final

from kvorum._proto import kvorum_pb2 as pb

MAX_MISSES: Final = 8
"""How often in a row nothing may follow until it is no longer expected."""
_ENDS: Final = (pb.SETTLE_KIND_ACK, pb.SETTLE_KIND_REJECT)


class Followers:
    """Of the queues that have consumers here."""

    def __init__(self) -> None:
        self._left: dict[str, int] = {}
        """Queues where something is expected to follow: how many misses are left."""

    def __bool__(self) -> bool:
        return bool(self._left)

    def seen(self, queue: str) -> None:
        """A settle has made a message ready."""
        self._left[queue] = MAX_MISSES

    def missed(self, queue: str) -> None:
        """Nothing was ready although it was expected."""
        left = self._left.get(queue, 0) - 1
        if left > 0:
            self._left[queue] = left
        else:
            self._left.pop(queue, None)

    def forget(self, queue: str) -> None:
        self._left.pop(queue, None)

    def are_expected(self, queue: str, kind: int) -> bool:
        """Whether a settle of this kind is one of those."""
        return kind in _ENDS and queue in self._left
