"""What a client does to queues: it sends, takes back what it sent, and changes how queues work."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from chaos.queues.history import Change, Outcome, Send
from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import WriteOutcome
from tests.simulation.whole.queues import plan
from tests.simulation.whole.queues.commands import removing, subscribing
from tests.simulation.whole.queues.fullness import Refusal
from tests.simulation.whole.queues.hands import WRITE_TIMEOUT

if TYPE_CHECKING:
    from tests.simulation.whole.clients import Client

CALL_TIMEOUT = 2.0
REMEMBERED = 20
"""Messages that a client may take back."""


class Moves:
    """Of one client."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._judge = client.judge
        self._ledger = client.judge.ledger
        self._rng = client.rng
        self._next = 0
        self._sent: list[str] = []
        """Ids of messages that may be in nobody's hands."""
        self._under_way: dict[str, list[Send | Change]] = {}

    def die(self) -> None:
        """Nobody will ever know."""
        if self._ledger.maker == self._client.name and not self._ledger.ready:
            self._ledger.maker = ""
        for mark, records in self._under_way.items():
            for record in records:
                self._ledger.marked(mark, record)

    async def prepare(self) -> None:
        """Define everything, however often it takes, and begin the recurring message, unless somebody else does."""
        if self._ledger.maker:
            return
        self._ledger.maker = self._client.name
        for call in plan.definitions():
            await self._insist(call)
        self._ledger.ready = True
        reply = await self._ask(plan.schedule(begin=True))
        if reply is not None:  # else nobody knows whether it is there
            self._ledger.first_ms = reply.time_ms

    async def wind_up(self) -> None:
        """Let all messages come to an end."""
        reply = await self._insist(pb.QueueCall(schedules=pb.ListSchedules(limit=10)))
        for info in reply.schedules:
            self._ledger.last_ms = max(self._ledger.last_ms, info.last_ms)
        await self._insist(plan.schedule(begin=False))
        for queue in plan.PAUSED:
            await self._insist(pb.QueueCall(pause=pb.PauseQueue(name=queue, paused=False)))

    async def act(self) -> None:
        """One of them."""
        if not self._ledger.ready:
            return
        kinds = ("send", "spread", "crowd", "cancel", "reschedule", "manage", "tell", "follow", "brief", "remove")
        kind = self._rng.choices((*kinds, "ask"), (8, 2, 2, 1, 1, 1, 2, 2, 2, 1, 2))[0]
        if kind == "ask":
            await self._client.questions.ask()
        else:
            await getattr(self, f"_{kind}")()

    # ---- sending

    async def _send(self) -> None:
        """One message or some, in one commit."""
        op, sends = pb.AtomicWrite(), []
        for _ in range(self._rng.choice((1, 1, 2, 3))):
            sends.append(self._add(op, self._rng.choice(plan.SENT_TO)))
        await self._write(op, sends)

    async def _spread(self) -> None:
        """To all subscriptions."""
        op = pb.AtomicWrite()
        await self._write(op, [self._add(op, plan.TOPIC, topic=True)])

    async def _crowd(self) -> None:
        """Some messages that stay for a while, to where there is room for few."""
        op, invoked = pb.AtomicWrite(), self._client.now()
        sends = [self._add(op, plan.TIGHT, delays=(0, 500, 1_500)) for _ in range(self._rng.choice((1, 2, 3)))]
        answer = await self._write(op, sends)
        if answer is not None and answer.result.outcome == pb.OUTCOME_QUEUE_FULL:
            self._ledger.fullness.refused(Refusal(invoked, self._client.now(), len(sends)))

    def _add(
        self,
        op: pb.AtomicWrite,
        queue: str,
        *,
        topic: bool = False,
        delays: Sequence[int] = (0, 0, 0, 40, 300),
        once: bool = False,
    ) -> Send:
        """`once`: unless the queue that is removed at times remembers it."""
        rng = self._rng
        self._next += 1
        name = f"{self._client.name}.{self._next}"
        delay = rng.choice(delays)
        message = op.enqueues.add(payload=f"{name} {delay}".encode(), delay_ms=delay)
        if topic:
            message.topic = queue
        else:
            message.queue = queue
        group = rng.choice((None, *plan.GROUPS)) if queue in ("work", "rows", plan.TOPIC, plan.BRIEF) else None
        if group is not None:
            message.group = group
        dedup, window = "", 0
        if queue == "work" and rng.random() < 0.3:
            dedup, window = rng.choice(plan.DEDUP_IDS), rng.choice((0, 400, 1_500))
            # An id is remembered in one way only, so that what comes of it is certain.
            dedup = f"{dedup}-{window}"
        elif queue == plan.BRIEF and (once or rng.random() < 0.3):
            window = plan.WINDOW if once else rng.choice((0, plan.WINDOW))
            dedup = f"brief-{window}"
        message.dedup_id, message.dedup_window_ms = dedup.encode(), window
        if queue == plan.BRIEF:
            message.backoff.delays_ms.extend([20] * (plan.OWN_ATTEMPTS - 1))
        ttl = rng.choice((0, 0, 0, 500)) if queue in ("spare", plan.BRIEF) and not once else 0
        message.ttl_ms = ttl
        return Send(
            name, queue, 0, None, "unknown", topic=topic, group=group, dedup=dedup, window=window, delay=delay, ttl=ttl
        )

    async def _write(self, op: pb.AtomicWrite, sends: list[Send]) -> WriteOutcome | None:
        answer, mark, records = await self._commit(op, [replace(send, invoked=self._client.now()) for send in sends])
        if answer is not None and answer.versionstamp:
            stamp = answer.versionstamp.hex()
            earlier = {one.enqueue: one.message_id.hex() for one in answer.result.duplicates}
            for number, record in enumerate(records):
                assert isinstance(record, Send)
                message = "" if record.topic else f"{stamp}{number:04x}"
                records[number] = replace(
                    record, stamp=stamp, message=earlier.get(number, message), duplicate=number in earlier
                )
                if record.queue == "work" and not record.topic and number not in earlier:
                    self._sent.append(message)
            del self._sent[:-REMEMBERED]
        self._over(mark, records)
        return answer

    async def _commit(
        self, op: pb.AtomicWrite, drafts: list[Send] | list[Change]
    ) -> tuple[WriteOutcome | None, str, list[Send | Change]]:
        """The answer, if there was one; the mark; and the records with their outcome. `_over` ends it."""
        self._next += 1
        mark = f"q/{self._client.name}.{self._next}"
        op.mutations.add(
            key=mark.encode(),
            type=pb.MUTATION_TYPE_SUM,
            value=(1).to_bytes(8, "little"),
            encoding=pb.VALUE_ENCODING_LE64,
        )
        self._under_way[mark] = list(drafts)
        try:
            answer = await self._client.backend.write(op.SerializeToString(), timeout=WRITE_TIMEOUT)  # type: ignore[union-attr]
        except errors.KvorumError as error:
            self._judge.note(self._client.name, f"{mark} {error.outcome}: {error}")
            return None, mark, [replace(one, outcome=error.outcome) for one in drafts]
        outcome: Outcome = "ok" if answer.result.outcome == pb.OUTCOME_DONE else "not applied"
        if answer.result.outcome not in (pb.OUTCOME_DONE, self._refusal(drafts)):
            self._judge.broken(f"{mark} was answered with outcome {answer.result.outcome}: {answer.result.message}")
        self._judge.note(self._client.name, f"{mark} {outcome}")
        returned = self._client.now()
        return answer, mark, [replace(one, outcome=outcome, returned=returned) for one in drafts]

    @staticmethod
    def _refusal(drafts: list[Send] | list[Change]) -> "pb.Outcome":
        """Why such a commit may do nothing."""
        full = any(isinstance(one, Send) and one.queue == plan.TIGHT for one in drafts)
        return pb.OUTCOME_QUEUE_FULL if full else pb.OUTCOME_MESSAGE_GONE

    def _over(self, mark: str, records: list[Send | Change]) -> None:
        del self._under_way[mark]
        for record in records:
            self._ledger.marked(mark, record)

    # ---- what comes and goes

    async def _tell(self) -> None:
        """To the subscriptions of today, and to those that will ask for it."""
        op = pb.AtomicWrite()
        count = self._rng.choice((1, 2, 4))
        await self._write(op, [self._add(op, plan.STORY, topic=True, delays=(0, 0, 0, 150)) for _ in range(count)])

    async def _follow(self) -> None:
        """Begin or end a subscription, while something is told; or remove the whole topic, and make it again."""
        rng = self._rng
        kind = rng.choices(("subscribe", "unsubscribe", "topic"), (6, 3, 1))[0]
        if kind == "topic":
            await self._ask(plan.story(remove=True))
            await self._ask(plan.story())
            return
        since = rng.choice((None, 0, 700, 2_000, 60_000)) if kind == "subscribe" else None
        call = pb.Subscribe(topic=plan.STORY, queue=rng.choice(plan.LATE), since_ms=since, remove=kind == "unsubscribe")
        asking = self._told(subscribing(call), pb.QueueCall(subscribe=call))
        await asyncio.gather(asking, self._soon(), self._soon())

    async def _soon(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, 0.05))
        await self._tell()

    async def _brief(self, *, once: bool = False) -> None:
        """To the queue that is removed at times; `once`: the first message has an id that is remembered for a while."""
        op = pb.AtomicWrite()
        count = self._rng.choice((1, 2, 3))
        delays = (0, 0, 0, 300, 1_200)
        await self._write(
            op, [self._add(op, plan.BRIEF, delays=delays, once=once and not number) for number in range(count)]
        )

    async def _remove(self) -> None:
        """Remove a queue that holds something, and go on with it; at last when what it remembered before would be
        forgotten, and what it remembers since would not."""
        rng = self._rng
        await self._brief(once=True)
        await asyncio.sleep(rng.uniform(0.0, 0.5))
        call = pb.RemoveQueue(name=plan.BRIEF)
        reply = await self._told(removing(call), pb.QueueCall(remove=call))
        if reply is not None:
            self._judge.counters["rows removed"] += reply.count
        if rng.random() < 0.5:
            await self._ask(plan.define(plan.BRIEF))
        await self._brief(once=True)
        await asyncio.sleep(plan.WINDOW / 1000 * rng.uniform(0.5, 1.0))
        await self._brief(once=True)

    async def _told(self, what: str, call: pb.QueueCall) -> pb.QueueReply | None:
        """What is done when it is answered."""
        invoked = self._client.now()
        reply = await self._ask(call)
        if reply is not None:
            self._ledger.calls.told(what, invoked, self._client.now())
        return reply

    # ---- changing one's mind

    async def _cancel(self) -> None:
        await self._change("cancel", 0)

    async def _reschedule(self) -> None:
        await self._change("reschedule", self._rng.choice((0, 50, 300)))

    async def _change(self, kind: str, delay: int) -> None:
        if not self._sent:
            return
        message = self._rng.choice(self._sent)
        op = pb.AtomicWrite()
        settle = op.settles.add(message_id=bytes.fromhex(message), kind=pb.SETTLE_KIND_CANCEL)
        if kind == "reschedule":
            settle.kind, settle.delay_ms = pb.SETTLE_KIND_RESCHEDULE, delay
        draft = Change(message, kind, self._client.now(), None, "unknown", "", delay)  # type: ignore[arg-type]
        answer, mark, records = await self._commit(op, [draft])
        if answer is not None:
            records = [replace(one, stamp=answer.versionstamp.hex()) for one in records]
        self._over(mark, records)

    # ---- changing how queues work

    async def _manage(self) -> None:
        rng = self._rng
        kind = rng.choice(("policy", "pause", "pause", "resume", "purge", "requeue", "back", "back"))
        if kind == "policy":
            attempts, lease = rng.choice(plan.WORK_ATTEMPTS), rng.choice((plan.LEASE, plan.LONGEST_LEASE))
            policy = plan.policy("work", attempts, lease).SerializeToString()
            call = pb.QueueCall(define=pb.DefineQueue(name="work", policy=policy))
        elif kind in ("pause", "resume"):
            call = pb.QueueCall(pause=pb.PauseQueue(name=rng.choice((*plan.PAUSED, "letters")), paused=kind == "pause"))
        elif kind == "purge":
            await self._gather()
            call = pb.QueueCall(purge=pb.Purge(queue="spare", dead=rng.random() < 0.3))
        elif kind == "requeue":
            call = pb.QueueCall(requeue=pb.Requeue(queue="work"))
        else:
            call = pb.QueueCall(requeue=pb.Requeue(queue="letters", to_origin=True))
        reply = await self._ask(call)
        if reply is None:
            return
        if kind == "back" and not reply.count:
            # They are soon taken: next time some may have gathered.
            await self._ask(pb.QueueCall(pause=pb.PauseQueue(name="letters", paused=True)))
        self._judge.counters[f"queue {kind}"] += 1
        self._judge.counters[f"messages by {kind}"] += reply.count

    async def _gather(self) -> None:
        """Something to purge: what is sent is soon taken, unless the queue is paused."""
        await self._ask(pb.QueueCall(pause=pb.PauseQueue(name="spare", paused=True)))
        op = pb.AtomicWrite()
        await self._write(op, [self._add(op, "spare") for _ in range(self._rng.choice((1, 2, 3)))])

    async def _insist(self, call: pb.QueueCall) -> pb.QueueReply:
        """However often it takes."""
        while True:
            reply = await self._ask(call)
            if reply is not None:
                return reply
            await asyncio.sleep(0.1)

    async def _ask(self, call: pb.QueueCall) -> pb.QueueReply | None:
        """None: perhaps. Whatever may be asked again is."""
        what = call.WhichOneof("call")
        try:
            reply = await self._client.backend.queue_call(call, timeout=CALL_TIMEOUT)  # type: ignore[union-attr]
        except errors.InvalidArgument as error:
            self._judge.broken(f"client {self._client.name}: {what} was refused: {error}")
            return None
        except errors.KvorumError as error:
            self._judge.note(self._client.name, f"{what}: {error}")
            self._judge.counters["queue calls that failed"] += 1
            return None
        self._judge.counters["queue calls"] += 1
        return reply
