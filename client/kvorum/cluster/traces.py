"""Which operations under way belong to a sampled trace, and the fields of frames that tell a node so. No I/O, no clock.

The context stands beside an operation and not in it: what a client writes is what stands in the log, and applying it
must not depend on who traces. Only nodes that trace themselves are told, again with each attempt, so that the nodes'
spans of all attempts have the same parent.

A program that does not trace has none of this: what is noted here is noted by a way in that takes the place of the
plain one (`noting`).
"""

from collections.abc import Callable
from typing import Any, TypeVar

from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.writes import PendingWrite

P = TypeVar("P")
Submit = Callable[[Any, Any, float], P]


class Traces:
    """`current` gives the W3C traceparent of whoever calls; empty: it is not sampled, or there is none."""

    def __init__(self, current: Callable[[], str]) -> None:
        self._current = current
        self.wanted = False
        """The connected node takes them."""
        self._writes: dict[object, str] = {}
        self._reads: dict[object, str] = {}
        self._calls: dict[object, str] = {}

    def noting_writes(self, submit: Submit[PendingWrite]) -> Submit[PendingWrite]:
        """As `submit`, and the caller's context is noted until the write is answered."""
        return self._noting(submit, self._writes, lambda pending: pending)  # its number changes with its session

    def noting_reads(self, submit: Submit[P]) -> Submit[P]:
        """The same of reads."""
        return self._noting(submit, self._reads, _id_of)

    def noting_calls(self, submit: Submit[P]) -> Submit[P]:
        """The same of calls about queues."""
        return self._noting(submit, self._calls, _id_of)

    def _noting(self, submit: Submit[P], noted: dict[object, str], name: Callable[[P], object]) -> Submit[P]:
        def submit_noted(what: Any, promise: Any, timeout: float) -> P:
            pending = submit(what, promise, timeout)
            context = self._current()
            if context:
                key = name(pending)
                noted[key] = context
                promise.add_done_callback(lambda _: noted.pop(key, None))
            return pending

        return submit_noted

    def fill(self, frame: pb.ClientFrame, live: Callable[[int], PendingWrite | None]) -> None:
        """Tell the node what of a frame belongs to which trace. `live`: the write that has a number."""
        if not self.wanted:
            return
        add = frame.traces.add
        if self._writes:
            for write in frame.writes.writes:
                if (context := self._writes.get(live(write.seq))) is not None:
                    add(traceparent=context, write=write.seq)
        if self._reads:
            for read in frame.reads:
                if (context := self._reads.get(read.id)) is not None:
                    add(traceparent=context, read=read.id)
        if self._calls:
            for call in frame.queue_calls:
                if (context := self._calls.get(call.id)) is not None:
                    add(traceparent=context, queue_call=call.id)


def _id_of(pending: Any) -> object:
    return pending.id
