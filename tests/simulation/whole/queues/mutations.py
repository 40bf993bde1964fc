"""Rules of queues, disabled one at a time as `whole.mutations` does it."""

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.queue.releases import Releases
from kvorum_node.store import queues
from kvorum_node.store.queues import dedup, delivery, formats, messages, policies, schedules
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


QUEUE_RULES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "a verdict names the current lease": _obey_any_lease,
    "the head of a group stays its head": _let_others_pass,
    "what never began is no attempt": _count_what_never_began,
    "ids are remembered": _remember_no_ids,
    "a lease ends in the log": _release_in_memory,
    "a tick is compared and set": _take_any_tick,
    "a full queue takes no more": _take_one_more,
}
