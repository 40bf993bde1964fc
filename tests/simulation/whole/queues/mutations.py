"""Rules of queues, disabled one at a time as `whole.mutations` does it."""

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from kvorum._proto import kvorum_pb2 as pb
from kvorum.queues.requests import Requester
from kvorum_node.queue.releases import Releases
from kvorum_node.store import queues
from kvorum_node.store.errors import Refused
from kvorum_node.store.queues import (
    clearing,
    dedup,
    delivery,
    formats,
    messages,
    policies,
    schedules,
    sending,
    tallies,
    topics,
    walks,
)
from kvorum_node.store.records import MESSAGE, MESSAGE_ID_SIZE, SCHEDULE


@contextmanager
def _obey_any_lease() -> Iterator[None]:
    """A verdict on a message that somebody holds is carried out, whoever holds it."""

    def current(entry: Any, verdict: pb.Settle) -> pb.Settle:
        message = messages.load(entry.rows.txn, verdict.message_id) if verdict.lease_id else None
        if message is None or not message.lease_id:
            return verdict
        renamed = pb.Settle()
        renamed.CopyFrom(verdict)
        renamed.lease_id = message.lease_id
        return renamed

    settle, acknowledge = delivery.settle, delivery.acknowledge

    def any_settle(entry: Any, verdict: pb.Settle, stamp: bytes) -> None:
        settle(entry, current(entry, verdict), stamp)

    def any_ack(entry: Any, verdict: pb.Settle) -> None:
        acknowledge(entry, current(entry, verdict))

    with mock.patch.object(queues, "settle", any_settle), mock.patch.object(queues, "acknowledge", any_ack):
        yield


@contextmanager
def _let_others_pass() -> Iterator[None]:
    """The head of a group whose holder was lost goes behind the next one."""
    release, made = delivery.release, messages.make_ready
    releasing: list[bool] = []

    def replaced(entry: Any, command: pb.Release, stamp: bytes) -> Generator[None, None, None]:
        for step in release(entry, command, stamp):
            releasing.clear()
            yield step
            releasing.append(True)
        releasing.clear()

    def begin(entry: Any, command: pb.Release, stamp: bytes) -> Generator[None, None, None]:
        releasing.append(True)
        yield from replaced(entry, command, stamp)

    def make_ready(entry: Any, message_id: bytes, message: Any) -> None:
        follower = _follower(entry, message_id, message.queue) if releasing else None
        if follower is None:
            made(entry, message_id, message)
            return
        waiting = message._replace(state=formats.WAITING_STATE, lease_id=b"")
        entry.rows.put(MESSAGE + message_id, formats.pack_message(waiting))
        next_one = messages.load(entry.rows.txn, follower)
        assert next_one is not None
        made(entry, follower, formats.Message(next_one.queue, next_one.due_ms, next_one.attempt))

    with (
        mock.patch.object(queues, "release", begin),
        mock.patch.object(delivery, "messages", SimpleNamespace(**{**vars(messages), "make_ready": make_ready})),
    ):
        yield


def _follower(entry: Any, message_id: bytes, queue: bytes) -> bytes | None:
    """The message behind this one in its group."""
    group = formats.group_of(messages.load_payload(entry.rows.txn, message_id))
    if group is None:
        return None
    prefix = formats.grouped_prefix(queue, group)
    with entry.rows.txn.cursor() as cursor:
        if cursor.set_range(prefix + message_id) and cursor.next():
            name: bytes = cursor.key()
            if name.startswith(prefix) and len(name) == len(prefix) + MESSAGE_ID_SIZE:
                return name[-MESSAGE_ID_SIZE:]
    return None


@contextmanager
def _count_what_never_began() -> Iterator[None]:
    """Who gives a message back has used up an attempt of it."""
    give_back = delivery._give_back

    def replaced(entry: Any, message_id: bytes, message: Any, stamp: bytes) -> None:
        give_back(entry, message_id, message._replace(attempt=message.attempt + 1), stamp)

    with mock.patch.object(delivery, "_give_back", replaced):
        yield


@contextmanager
def _remember_no_ids() -> Iterator[None]:
    """Each message is taken, whatever its deduplication id."""
    with mock.patch.object(dedup, "holder", lambda entry, queue, dedup_id: None):
        yield


@contextmanager
def _release_in_memory() -> Iterator[None]:
    """The leader hands on what a lost consumer held, lease and all, and nothing of that stands in the log."""
    release = Releases.release

    def replaced(self: Any, leases: Any, due: bool = False) -> None:
        leader = self._submit.__self__
        for lease, counts in leases:
            line = leader._asking.lines.get(lease.queue)
            message = leader._store.delivery(lease.message_id, lease.lease_id)
            others = [one for one in line.consumers if one.holder != lease.holder] if line is not None else []
            if not others or message is None:
                release(self, [(lease, counts)], due)
                continue
            message.consumer = others[0].holder[1]
            others[0].sink(message)

    with mock.patch.object(Releases, "release", replaced):
        yield


@contextmanager
def _take_any_tick() -> Iterator[None]:
    """A tick has its message, whether it is the next one of its schedule or not, and came before or not."""
    tick = schedules.tick

    def replaced(entry: Any, command: pb.Tick, stamp: bytes) -> Generator[None, None, bool]:
        name = SCHEDULE + command.schedule.encode()
        row = entry.rows.get(name)
        if row is not None:
            recurring = formats.unpack_recurring(row)._replace(next_ms=command.tick_ms, last_ms=0)
            entry.rows.put(name, formats.pack_recurring(recurring))
        return (yield from tick(entry, command, stamp))

    with mock.patch.object(schedules, "tick", replaced):
        yield


@contextmanager
def _take_one_more() -> Iterator[None]:
    """A queue that is full takes another message."""
    parse = policies.parse

    def replaced(queue: bytes, settings: Any) -> policies.Policy:
        policy = parse(queue, settings)
        return policy if policy.max_backlog is None else policy._replace(max_backlog=policy.max_backlog + 1)

    with mock.patch.object(policies, "parse", replaced):
        yield


@contextmanager
def _copy_out_of_turn() -> Iterator[None]:
    """What is published comes at once to a subscription that still gets its past."""
    with mock.patch.object(topics, "_is_filling", lambda entry, key: False):
        yield


@contextmanager
def _begin_at_the_beginning() -> Iterator[None]:
    """A subscription that asks for some of the past gets all of it."""
    subscribe = topics.subscribe

    def replaced(entry: Any, command: pb.Subscribe, stamp: bytes) -> Generator[None, None, Any]:
        if command.HasField("since_ms"):
            command = pb.Subscribe(topic=command.topic, queue=command.queue, since_ms=entry.time_ms)
        return (yield from subscribe(entry, command, stamp))

    with mock.patch.object(topics, "subscribe", replaced):
        yield


@contextmanager
def _leave_ids() -> Iterator[None]:
    """A queue is removed, and its deduplication ids stay."""
    blind = SimpleNamespace(**{**vars(walks), "keys_below": lambda txn, prefix, after=b"": iter(())})
    with mock.patch.object(clearing, "walks", blind):
        yield


@contextmanager
def _leave_timers() -> Iterator[None]:
    """A deduplication id that is removed with its queue leaves its timer behind."""
    with mock.patch.object(dedup, "drop", lambda entry, name: entry.rows.remove(name)):
        yield


@contextmanager
def _leave_dead_letters() -> Iterator[None]:
    """A queue is removed, and its dead letters stay."""

    def living(walk: Any, queue: bytes, limit: int, *, with_leased: bool) -> Generator[None, None, list[bytes]]:
        found = yield from walks.everything(walk, queue, walks.MAX_WALK, with_leased=with_leased)
        alive = [one for one in found if not _is_dead(messages.load(walk.entry.rows.txn, one))]
        return alive[:limit]

    with mock.patch.object(clearing, "walks", SimpleNamespace(**{**vars(walks), "everything": living})):
        yield


def _is_dead(message: formats.Message | None) -> bool:
    return message is not None and message.state == formats.DEAD_STATE


@contextmanager
def _go_on_without_lease() -> Iterator[None]:
    """What else is in a commit happens although its acknowledgement names a lease that is over."""
    settle, acknowledge = queues.settle, queues.acknowledge

    def any_settle(entry: Any, verdict: pb.Settle, stamp: bytes) -> None:
        try:
            settle(entry, verdict, stamp)
        except Refused as refused:
            if refused.outcome != pb.OUTCOME_STALE_LEASE or verdict.kind != pb.SETTLE_KIND_ACK:
                raise

    def any_ack(entry: Any, verdict: pb.Settle) -> None:
        try:
            acknowledge(entry, verdict)
        except Refused as refused:
            if refused.outcome != pb.OUTCOME_STALE_LEASE:
                raise

    with mock.patch.object(queues, "settle", any_settle), mock.patch.object(queues, "acknowledge", any_ack):
        yield


@contextmanager
def _answer_whoever_waits() -> Iterator[None]:
    """A client takes an answer for that to its oldest request."""
    take = Requester._take

    def replaced(self: Any, delivery: pb.Delivery) -> None:
        headers = pb.Headers.FromString(delivery.headers)
        headers.correlation = next(iter(self._waiting), b"")
        delivery.headers = headers.SerializeToString(deterministic=True)
        take(self, delivery)

    with mock.patch.object(Requester, "_take", replaced):
        yield


@contextmanager
def _keep_for_ever() -> Iterator[None]:
    """No message has an end of its time."""
    payload = sending._payload

    def replaced(entry: Any, message: pb.Enqueue, policy: policies.Policy, headers: bytes) -> formats.Payload:
        return payload(entry, message, policy, headers)._replace(expires_ms=0)

    with mock.patch.object(sending, "_payload", replaced):
        yield


@contextmanager
def _keep_inboxes() -> Iterator[None]:
    """An inbox that is empty stays, like any queue."""
    with mock.patch.object(tallies, "is_inbox", lambda queue: False):
        yield


QUEUE_RULES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "a verdict names the current lease": _obey_any_lease,
    "the head of a group stays its head": _let_others_pass,
    "what never began is no attempt": _count_what_never_began,
    "ids are remembered": _remember_no_ids,
    "a lease ends in the log": _release_in_memory,
    "a tick is compared and set": _take_any_tick,
    "a full queue takes no more": _take_one_more,
    "a past is copied in its turn": _copy_out_of_turn,
    "a past has a beginning": _begin_at_the_beginning,
    "ids go with their queue": _leave_ids,
    "timers go with their queue": _leave_timers,
    "dead letters go with their queue": _leave_dead_letters,
    "a commit falls with its lease": _go_on_without_lease,
    "an answer is for its request": _answer_whoever_waits,
    "what nobody takes in time is dropped": _keep_for_ever,
    "an empty inbox is forgotten": _keep_inboxes,
}
