"""Calls about queues: what they are, what is in them, and changes of them. Answered by the leader only.

Questions wait at the barrier, so that they see everything that was acknowledged before, and are read aside the loop.
Changes are judged before the log (rules B3), as writes are, and every one of them may be repeated. Whatever may have
come to nothing because the leader was lost is answered as "no leader": the client asks the next one.
"""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import InvalidArgument, Unauthenticated
from kvorum_raft.errors import NoSpace, Overloaded, RaftError
from kvorum_raft.seams import Consensus

from . import queue_reads
from .access import INSIDER, Access, Caller, Refusal
from .aside import Problem, Work, aside
from .barrier import Barrier
from .lists import ListReader
from .metrics.operations import OK, Meter, code_of_read
from .proposer import Proposer, proposal
from .queue_changes import ById, check_by_id, command_of, first_tick, repeated, stamped, up_to
from .queue_jobs import Chunk, Job, QueueJobs
from .queue_rates import QueueRates
from .slow import SlowLog
from .store import Denied, validate_command
from .store.rights import MANAGE, RECEIVE, SEND, Rights, for_admin, for_queue, for_schedule
from .timers import Timers

MAX_UNDER_WAY: Final = 256
"""Calls of all connections."""
VERSION: Final = 3
"""Data version with which all this begins."""
TOO_OLD: Final = (
    "named queues, topics and recurring messages need data version 3, and a member of this cluster does not know it, or"
    " has not said yet what it knows: upgrade all nodes, and have each of them running once"
)
AUTH_VERSION: Final = 4
AUTH_TOO_OLD: Final = (
    "tokens need data version 4, and a member of this cluster does not know it, or has not said yet what it knows:"
    " upgrade all nodes, and have each of them running once"
)
LOCKED_OUT: Final = (
    "nobody could switch it off again: make a token with the admin right that does not end, or set root_token_file on"
    " all nodes, first"
)
_AUTH: Final = frozenset(("put_token", "remove_token", "switch_auth"))
_ANY: Final = SEND | RECEIVE | MANAGE
_STATUSES: Final = {
    int(pb.OUTCOME_DENIED): pb.READ_STATUS_DENIED,
    int(pb.OUTCOME_UNAUTHENTICATED): pb.READ_STATUS_UNAUTHENTICATED,
}
_NO_RIGHTS: Final = Rights(pb.Scopes())
"""Of whoever is not known."""
_GROWS: Final = frozenset(("define", "topic", "subscribe", "schedule", "requeue", "put_token"))
"""Changes that make the state grow."""

Reply = Callable[[pb.QueueReply], None]


class Call:
    """A call under way. After `cancel` its answer goes nowhere, and what can be stopped is."""

    __slots__ = (
        "_calls",
        "_reply",
        "begun_at",
        "caller",
        "ended",
        "kind",
        "number",
        "principal",
        "request",
        "rights",
        "stop",
    )

    def __init__(self, calls: "QueueCalls", request: pb.QueueCall, reply: Reply, caller: Caller) -> None:
        self._calls = calls
        self._reply: Reply | None = reply
        self.number = request.id
        self.request = request
        self.caller = caller
        self.principal = b""
        """In whose name something is changed."""
        self.rights: Rights | None = None
        """By which a list leaves out what it does not show."""
        self.begun_at = perf_counter()
        self.kind = ""
        self.ended = False
        self.stop: Callable[[], None] | None = None
        """How to stop what works for it."""

    @property
    def is_gone(self) -> bool:
        """Nobody waits for the answer any more."""
        return self._reply is None

    def cancel(self) -> None:
        """From now on that is so."""
        self._reply = None
        if not self.ended and self.stop is not None:
            self.stop()
            self.end(pb.QueueReply())

    def end(self, answer: pb.QueueReply) -> None:
        if self.ended:
            return
        self.ended = True
        self.stop = None
        self._calls.left(self, answer)
        if self._reply is not None:
            answer.id = self.number
            self._reply(answer)

    def fail(self, status: "pb.ReadStatus", message: str, count: int = 0) -> None:
        """`count`: messages that a change has touched before."""
        if count:
            message = f"{message}; {count:,} messages were done before"
        self.end(pb.QueueReply(status=status, message=message, count=count))


class QueueCalls:
    """See the module. `no_space` says why nothing may grow; empty: it may."""

    def __init__(
        self,
        consensus: Consensus,
        proposer: Proposer,
        barrier: Barrier,
        lists: ListReader,
        rates: QueueRates,
        timers: Timers,
        access: Access,
        *,
        no_space: Callable[[], str] = str,
        slow: SlowLog | None = None,
    ) -> None:
        self._consensus = consensus
        self._proposer = proposer
        self._barrier = barrier
        self._lists = lists
        self._rates = rates
        self._access = access
        self._no_space = no_space
        self._slow = slow or SlowLog(0.0, timers.time)
        self._jobs = QueueJobs(proposer, timers)
        self._under_way: set[Call] = set()
        self._served = 0
        self.meter = Meter()

    def submit(self, request: pb.QueueCall, reply: Reply, caller: Caller = INSIDER) -> Call:
        """Take a call; `reply` is called once, possibly before this returns."""
        call = Call(self, request, reply, caller)
        if len(self._under_way) >= MAX_UNDER_WAY:
            call.fail(pb.READ_STATUS_OVERLOADED, "too many calls about queues are under way")
            return call
        self._under_way.add(call)
        kind = request.WhichOneof("call")
        call.kind = kind or ""
        if kind is None:
            call.fail(pb.READ_STATUS_INVALID, "a call about queues of a kind that this node does not know")
        elif not self._consensus.is_leader:
            call.fail(pb.READ_STATUS_NO_LEADER, "this node does not lead")
        elif over := self._access.over(caller, 1):
            call.fail(pb.READ_STATUS_OVERLOADED, over)
        else:
            try:
                self._begin(call, kind, request)
            except InvalidArgument as error:
                call.fail(pb.READ_STATUS_INVALID, str(error))
            except Unauthenticated as error:
                call.fail(pb.READ_STATUS_UNAUTHENTICATED, str(error))
        return call

    def left(self, call: Call, answer: pb.QueueReply) -> None:
        """A call has ended."""
        self._under_way.discard(call)
        self._served += 1
        seconds, code = perf_counter() - call.begun_at, code_of_read(answer.status) if answer.status else "cancelled"
        self.meter.answered(seconds)
        if code != OK:
            self.meter.others[code] += 1
        if seconds >= self._slow.threshold:
            self._slow.took("queue_call", seconds, lambda: {"code": code, "call": call.kind})

    def statistics(self) -> dict[str, float]:
        return {
            "queue_calls_under_way": len(self._under_way),
            "queue_calls_served": self._served,
            **self._jobs.statistics(),
        }

    def _begin(self, call: Call, kind: str, request: pb.QueueCall) -> None:
        now_ms = self._consensus.now_ms()
        if kind == "who_am_i":
            reply = pb.QueueReply(status=pb.READ_STATUS_OK, identity=self._access.who(call.caller))
            self._barrier.wait(partial(self._answer, call, reply))
        elif kind == "tokens":
            queue_reads.page_size(request.tokens.limit)
            self._barrier.wait(partial(self._list_tokens, call, request.tokens))
        elif kind == "peek":
            queue_reads.check_peek(request.peek)
            self._read(call, queue_reads.peek(request.peek, now_ms), partial(self._tell, call, now_ms))
        elif kind == "queues":
            queue_reads.page_size(request.queues.limit)
            work = queue_reads.queues(request.queues, now_ms, partial(self._seen(call), _ANY))
            self._read(call, work, partial(self._tell, call, now_ms))
        elif kind == "topics":
            queue_reads.page_size(request.topics.limit)
            work = queue_reads.topics(request.topics, partial(self._seen(call), _ANY))
            self._read(call, work, partial(self._tell, call, now_ms))
        elif kind == "schedules":
            queue_reads.page_size(request.schedules.limit)
            sees = self._seen(call)
            work = queue_reads.schedules(request.schedules, lambda info: sees(MANAGE, _target(info)))
            self._read(call, work, partial(self._tell, call, now_ms))
        else:
            self._change(call, kind, request)

    # ---- questions

    def _read(self, call: Call, work: Work[Any], found: Callable[[Any], None]) -> None:
        """Read something once everything is here that was acknowledged before."""
        self._barrier.wait(partial(self._passed, call, work, found))

    def _passed(self, call: Call, work: Work[Any], found: Callable[[Any], None], error: RaftError | None) -> None:
        if error is not None:
            self._failed(call, error)
            return
        if call.is_gone:
            call.end(pb.QueueReply())
            return
        job = aside(self._lists, work, partial(self._read_done, call, found))
        if job is None:
            call.fail(pb.READ_STATUS_OVERLOADED, "too many lists wait")
        else:
            call.stop = job.cancel

    def _read_done(self, call: Call, found: Callable[[Any], None], result: Any, problem: Problem | None) -> None:
        call.stop = None
        if problem is not None:
            call.fail(problem.status, problem.message)
        else:
            found(result)

    def _answer(self, call: Call, reply: pb.QueueReply, error: RaftError | None) -> None:
        if error is not None:
            self._failed(call, error)
        else:
            call.end(reply)

    def _list_tokens(self, call: Call, request: pb.ListTokens, error: RaftError | None) -> None:
        reply = pb.QueueReply(status=pb.READ_STATUS_OK, time_ms=self._consensus.now_ms())
        refusal = self._access.refusal(call.caller, for_admin)
        if refusal is not None:
            call.fail(*refusal)
            return
        page = queue_reads.page_size(request.limit)
        found = self._access.tokens(request.after, page + 1)
        reply.tokens.extend(found[:page])
        reply.after = found[page - 1].id if len(found) > page else b""
        self._answer(call, reply, error)

    def _seen(self, call: Call) -> Callable[[int, str], bool]:
        """What a list shows to the caller, by the rights that are known here when it begins; see `_judge`."""
        call.rights = self._rights_of(call.caller)
        return call.rights.may_see

    def _rights_of(self, caller: Caller) -> Rights:
        try:
            return self._access.rights(caller)
        except Unauthenticated:
            return _NO_RIGHTS

    def _judge(self, call: Call, reply: pb.QueueReply) -> Refusal | None:
        """What the caller may not see, by a state at least as new as the one that was read."""
        if call.rights is not None and self._rights_of(call.caller) is not call.rights:
            # Rows were left out, and the next page begins, by rights that are others now.
            return pb.READ_STATUS_OVERLOADED, "what the token may see has changed meanwhile: ask again"
        if not self._access.on:
            return None
        request, refusal = call.request, self._access.refusal
        caller = call.caller
        if request.HasField("peek"):
            if not request.peek.message_id:
                return refusal(caller, partial(for_queue, right=RECEIVE, name=request.peek.queue))
            found = refusal(caller, _nothing)
            if found is None:  # an id can be guessed: of what is another's not even the queue is told
                rights = self._access.rights(caller)
                kept = [info for info in reply.messages if rights.may_see(RECEIVE, info.queue)]
                reply.ClearField("messages")
                reply.messages.extend(kept)
            return found
        if request.HasField("queues") and request.queues.one:
            return refusal(caller, partial(for_queue, right=_ANY, name=request.queues.name))
        return refusal(caller, _nothing)

    def _tell(self, call: Call, now_ms: int, reply: pb.QueueReply) -> None:
        refusal = self._judge(call, reply)
        if refusal is not None:
            call.fail(*refusal)
            return
        asked = call.request.queues
        if asked.one and asked.counts and not reply.queues and self._rates.consumers_of(asked.name):
            reply.queues.add(name=asked.name)  # nothing was ever sent to it, and somebody waits for that
        for info in reply.queues:
            self._rates.fill(info)
        reply.status = pb.READ_STATUS_OK
        reply.time_ms = now_ms
        call.end(reply)

    # ---- changes

    def _change(self, call: Call, kind: str, request: pb.QueueCall) -> None:
        command = command_of(kind, request)
        if kind == "requeue" and request.requeue.message_ids:
            check_by_id(request.requeue)
        else:
            validate_command(command)
        call.principal = self._access.stamp(call.caller)
        no_space = self._no_space() if kind in _GROWS else ""
        if no_space:
            call.fail(pb.READ_STATUS_OVERLOADED, no_space)
        elif kind in _AUTH:
            self._change_auth(call, kind, command)
        elif self._proposer.data_version < VERSION:
            call.fail(pb.READ_STATUS_OVERLOADED, TOO_OLD)
        elif kind == "schedule" and request.schedule.definition:
            first = first_tick(request.schedule, self._consensus.now_ms())
            self._read(call, first, partial(self._schedule, call, request.schedule))
        elif kind in ("define", "pause", "topic", "schedule"):
            self._propose(call, command)
        elif kind == "subscribe":
            self._run(call, request.subscribe.topic, repeated(command))
        elif kind == "purge":
            queue, limit = request.purge.queue, request.purge.limit
            self._sized(call, queue, "dead" if request.purge.dead else "messages", command, limit)
        elif kind == "requeue" and request.requeue.message_ids:
            self._run(call, request.requeue.queue, ById(request.requeue))
        elif kind == "requeue":
            moved = "messages" if request.requeue.to_origin else "dead"
            self._sized(call, request.requeue.queue, moved, command, request.requeue.limit)
        else:
            self._sized(call, request.remove.name, "all", command, 0)

    def _change_auth(self, call: Call, kind: str, command: pb.Command) -> None:
        if self._proposer.data_version < AUTH_VERSION:
            call.fail(pb.READ_STATUS_OVERLOADED, AUTH_TOO_OLD)
        elif kind == "switch_auth" and command.switch_auth.on and not self._access.has_key:
            call.fail(pb.READ_STATUS_INVALID, LOCKED_OUT)
        else:
            self._propose(call, command)

    def _propose(self, call: Call, command: pb.Command) -> None:
        command.principal = call.principal
        self._proposer.submit(proposal(command, partial(self._proposed, call)))

    def _proposed(self, call: Call, output: Any, error: RaftError | None, touched: int = 0) -> None:
        if error is not None:
            self._failed(call, error, touched)
        elif isinstance(output, Denied):
            call.fail(_STATUSES.get(output.outcome, pb.READ_STATUS_INVALID), output.message, touched)
        else:
            self._access.note_change(call.caller, _told(call.request), call.principal)
            count = output if isinstance(output, int) else touched
            call.end(pb.QueueReply(status=pb.READ_STATUS_OK, count=count, time_ms=self._consensus.now_ms()))

    def _schedule(self, call: Call, definition: pb.DefineSchedule, next_ms: int | None) -> None:
        """`next_ms`: the first tick; None: it is defined like that already, and stays as it is."""
        if next_ms is None:
            # Nothing goes into the log, so it is judged here: who may not define it could guess what it is.
            refusal = self._access.refusal(call.caller, partial(for_schedule, definition=definition.definition))
            if refusal is not None:
                call.fail(*refusal)
            else:
                self._proposed(call, None, None)
            return
        command = pb.DefineSchedule(name=definition.name, definition=definition.definition, next_ms=next_ms)
        self._propose(call, pb.Command(define_schedule=command))

    def _sized(self, call: Call, queue: str, rows: str, command: pb.Command, limit: int) -> None:
        """A change of up to `limit` messages, or of as many as there are now."""
        if limit:
            self._run(call, queue, up_to(command, limit))
        else:
            self._read(call, queue_reads.size_of(queue, rows), partial(self._sized_up, call, queue, rows, command))

    def _sized_up(self, call: Call, queue: str, rows: str, command: pb.Command, size: int) -> None:
        # If there is nothing, nothing goes into the log: so it is judged here, or that would be told to everybody.
        refusal = self._access.refusal(call.caller, partial(for_queue, right=MANAGE, name=queue))
        if refusal is not None:
            call.fail(*refusal)
        else:
            self._run(call, queue, repeated(command) if rows == "all" else up_to(command, size))

    def _run(self, call: Call, queue: str, chunk: Chunk) -> None:
        if call.is_gone:
            call.end(pb.QueueReply())
            return
        job = Job(queue, stamped(chunk, call.principal), partial(self._ran, call))
        call.stop = job.cancel
        self._jobs.run(job)

    def _ran(self, call: Call, touched: int, output: Any, error: RaftError | None) -> None:
        call.stop = None
        self._proposed(call, output if isinstance(output, Denied) else None, error, touched)

    def _failed(self, call: Call, error: RaftError, touched: int = 0) -> None:
        busy = isinstance(error, Overloaded | NoSpace)
        call.fail(pb.READ_STATUS_OVERLOADED if busy else pb.READ_STATUS_NO_LEADER, str(error), touched)


def _told(request: pb.QueueCall) -> str:
    """A change, for the audit log: without what is secret or large."""
    kind = request.WhichOneof("call") or ""
    made = getattr(request, kind)
    if kind in ("put_token", "remove_token"):
        return f"{kind} {made.id.hex()}"
    if kind == "switch_auth":
        return f"auth {'on' if made.on else 'off'}"
    return f"{kind} {made.topic if kind == 'subscribe' else getattr(made, 'name', '') or getattr(made, 'queue', '')}"


def _nothing(_: Rights) -> str:
    """What is missing to somebody who need only be known."""
    return ""


def _target(info: pb.ScheduleInfo) -> str:
    message = pb.Schedule.FromString(info.definition).message
    return message.topic or message.queue
