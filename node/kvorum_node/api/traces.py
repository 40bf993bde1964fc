"""The operations of one stream whose client says which trace they belong to: they are followed until they are answered,
and get their spans then.

What follows an operation stands around the call that takes its answer, so others pass nothing of it.
"""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kvorum._proto import kvorum_pb2 as pb

from ..read_jobs import ListJob
from ..reads import PendingRead
from ..service import Answer, NodeService
from ..tracing import MAX_FOLLOWED, NodeTracing, Phase

if TYPE_CHECKING:
    from opentelemetry.context import Context

_NONE: Final[Mapping[str, str | int]] = MappingProxyType({})
_NO_ANSWER: Final = "the stream ended before the answer"


class _Followed:
    """An operation on its way; `admitted` is when it waited for an entry, 0: never."""

    __slots__ = ("admitted", "begun", "name", "parent")

    def __init__(self, name: str, parent: "Context", begun: float) -> None:
        self.name = name
        self.parent = parent
        self.begun = begun
        self.admitted = 0.0


class StreamTraces:
    """See the module. Made only if the node traces."""

    def __init__(self, service: NodeService, tracing: NodeTracing, node_id: str) -> None:
        self._service = service
        self._tracing = tracing
        self._attributes = {"kvorum.node": node_id}
        self._followed: set[_Followed] = set()

    def close(self) -> None:
        """The stream has ended: what is still under way will be answered to nobody."""
        for one in list(self._followed):
            self.end(one, failed=_NO_ANSWER)

    def of(self, frame: pb.ClientFrame) -> "FrameTraces":
        """The contexts that come with a frame."""
        found, now, tracing = FrameTraces(self), perf_counter(), self._tracing
        tables = {"write": found.writes, "read": found.reads, "queue_call": found.calls}
        for trace in frame.traces:
            kind = trace.WhichOneof("operation")
            if kind is None:
                tracing.malformed += 1
            elif (parent := tracing.parent(trace.traceparent)) is not None:
                tables[kind][getattr(trace, kind)] = _Followed(f"kvorum.node.{kind}", parent, now)
        return found

    def follow(self, one: _Followed | None) -> bool:
        """Whether an operation is followed from now on: not if it has no context, or there are too many."""
        if one is None:
            return False
        if self._tracing.followed >= MAX_FOLLOWED:
            self._tracing.dropped += 1
            return False
        self._followed.add(one)
        self._tracing.followed += 1
        return True

    def end_write(self, one: _Followed, group: pb.ResultGroup, result: pb.WriteResult) -> None:
        """A write was answered."""
        attributes: dict[str, str | int] = {"kvorum.term": self._service.leader.term}
        phases: list[Phase] = []
        failed = ""
        if group.stamp_prefix:
            attributes["kvorum.entry"] = int.from_bytes(group.stamp_prefix, "big") - self._service.store.stamp_base
            phases = self._phases(one)
        if result.outcome != pb.OUTCOME_DONE:
            name = pb.Outcome.Name(result.outcome)
            attributes["kvorum.outcome"] = name
            failed = "" if group.stamp_prefix else result.message or name
        self.end(one, attributes, phases, failed=failed)

    def _phases(self, one: _Followed) -> list[Phase]:
        """Of a write that was applied just now, so that the proposer's times are those of its entry."""
        now, proposer = perf_counter(), self._service.proposer
        admitted = one.admitted or one.begun
        proposed = max(admitted, proposer.proposed_at)
        applying = max(proposed, now - proposer.applied_within)
        return [
            Phase("kvorum.node.admit", one.begun, admitted),
            Phase("kvorum.node.wait", admitted, proposed),
            Phase("kvorum.node.log", proposed, applying),
            Phase("kvorum.node.apply", applying, now),
        ]

    def end_asked(self, one: _Followed, status: "pb.ReadStatus", message: str) -> None:
        """A read or a call was answered."""
        if status == pb.READ_STATUS_OK:
            self.end(one)
        else:
            name = pb.ReadStatus.Name(status)
            names_key = status == pb.READ_STATUS_DENIED  # the message does
            self.end(one, {"kvorum.status": name}, failed=name if names_key else message or name)

    def end(
        self,
        one: _Followed,
        attributes: Mapping[str, str | int] = _NONE,
        phases: Sequence[Phase] = (),
        *,
        failed: str = "",
    ) -> None:
        """It is over; does nothing if it was before."""
        if one not in self._followed:
            return
        self._followed.remove(one)
        self._tracing.followed -= 1
        told = {**self._attributes, **attributes}
        self._tracing.operation(one.name, one.parent, one.begun, told, phases, failed=failed)


class FrameTraces:
    """Contexts of one frame. Those that no operation of it claims are forgotten."""

    def __init__(self, stream: StreamTraces) -> None:
        self._stream = stream
        self.writes: dict[int, _Followed] = {}
        self.reads: dict[int, _Followed] = {}
        self.calls: dict[int, _Followed] = {}

    def write(self, group: pb.WriteGroup, answer: Answer, take: Callable[[Answer], None]) -> None:
        """Have `take` take a group, with an answer that also ends the spans of its writes."""
        stream, contexts = self._stream, self.writes
        followed = {write.seq: contexts[write.seq] for write in group.writes if stream.follow(contexts.get(write.seq))}

        def answered(results: pb.ResultGroup) -> None:
            answer(results)
            for result in results.results:
                one = followed.pop(result.seq, None)
                if one is not None:
                    stream.end_write(one, results, result)

        take(answered)
        admitted = perf_counter()
        for one in followed.values():
            one.admitted = admitted

    def read(self, item: PendingRead) -> None:
        """Follow a read to its answer, or the last slice of it."""
        stream, one = self._stream, self.reads.get(item.read.id)
        if not stream.follow(one):
            return
        assert one is not None
        reply, taker = item.reply, item.taker

        def replied(answer: pb.ReadResult) -> None:
            reply(answer)
            stream.end_asked(one, answer.status, answer.message)

        def took(job: ListJob, part: pb.ReadResult) -> None:
            over, status, message = not part.more, part.status, part.message
            taker(job, part)  # may change it, and cancel the job
            if over or job.cancelled:
                stream.end_asked(one, status, message)

        item.reply, item.taker = replied, took

    def call(self, request: pb.QueueCall, answered: Callable[[pb.QueueReply], None]) -> Callable[[pb.QueueReply], None]:
        """Follow a call about queues."""
        stream, one = self._stream, self.calls.get(request.id)
        if not stream.follow(one):
            return answered
        assert one is not None
        one.name = f"kvorum.node.{request.WhichOneof('call') or 'queue_call'}"

        def replied(reply: pb.QueueReply) -> None:
            answered(reply)
            stream.end_asked(one, reply.status, reply.message)

        return replied
