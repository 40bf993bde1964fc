"""Calls about queues, over the real state machine in virtual time."""

from collections.abc import Callable

import pytest

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.queue_calls import MAX_UNDER_WAY
from kvorum_node.queue_reads import PAGE_BYTES
from kvorum_node.store.queues import reads, walks
from kvorum_raft.errors import NoSpace, NotLeader, Overloaded
from tests.unit.node.harness import Node, Receiver

OK = pb.READ_STATUS_OK
DEAD = pb.PEEK_KIND_DEAD


def send(node: Node, count: int, *, queue: str = "q", **more: object) -> None:
    for number in range(count):
        node.enqueue(b"%d" % number, queue=queue, settle=False, **more)
    node.timers.settle()


def bury(node: Node, count: int, *, queue: str = "q") -> None:
    """Send messages and reject them in order."""
    receiver = Receiver(node, node.open_session(), number=99, queue=queue, credits=1_000)
    send(node, count, queue=queue)
    node.timers.advance(1)
    op = pb.AtomicWrite(each=True)
    for delivery in receiver.got:
        op.settles.add(message_id=delivery.message_id, lease_id=delivery.lease_id, kind=pb.SETTLE_KIND_REJECT)
    if receiver.got:
        assert node.write(op)[0].outcome == pb.OUTCOME_DONE
    receiver.die()


def peek(node: Node, queue: str = "q", kind: int = 0, limit: int = 0, after: bytes = b"") -> pb.QueueReply:
    reply = node.call(peek=pb.Peek(queue=queue, kind=kind, limit=limit, after=after))  # type: ignore[arg-type]
    assert reply.status == OK
    return reply


def purge(node: Node, *, dead: bool = False, limit: int = 0) -> int:
    reply = node.call(purge=pb.Purge(queue="q", dead=dead, limit=limit))
    assert reply.status == OK
    return reply.count


# ---- questions


def test_a_queue_and_its_counters(node: Node) -> None:
    session = node.open_session()
    node.define(max_attempts=3)
    receiver = Receiver(node, session, credits=2)
    send(node, 5)
    node.enqueue(b"later", delay_ms=60_000)
    node.settle_message(receiver.got[0])
    node.timers.advance(2)
    info = node.queue(counts=True)
    assert (info.name, info.defined, info.paused, info.consumers) == ("q", True, False, 1)
    assert (info.messages, info.leased, info.dead, info.ready, info.scheduled) == (5, 2, 0, 2, 1)
    assert (info.sent, info.delivered, info.done) == (6, 3, 1)
    assert node.consensus.now_ms() - info.oldest_ms >= 2_000
    assert pb.QueuePolicy.FromString(info.policy).max_attempts == 3
    reply = node.call(queues=pb.ListQueues(name="unknown", one=True))
    assert reply.status == OK and not reply.queues and reply.time_ms == node.consensus.now_ms() - 50


def test_a_queue_that_nothing_was_sent_to_has_its_consumers_told(node: Node) -> None:
    receiver = Receiver(node, node.open_session(), queue="new", credits=2)
    reply = node.call(queues=pb.ListQueues(name="new", one=True, counts=True))
    assert [(info.name, info.consumers, info.sent) for info in reply.queues] == [("new", 1, 0)]
    receiver.die()
    assert not node.call(queues=pb.ListQueues(name="new", one=True, counts=True)).queues


def test_queues_are_listed_by_pages(node: Node) -> None:
    names = [f"q{number:03}" for number in range(150)]
    for name in names:
        node.enqueue(queue=name, settle=False)
    node.enqueue(queue="other")
    found, after, pages = [], b"", 0
    while True:
        reply = node.call(queues=pb.ListQueues(prefix="q", limit=70, after=after, counts=True))
        found += [info.name for info in reply.queues]
        assert all(info.ready == 1 for info in reply.queues)
        pages, after = pages + 1, reply.after
        if not after:
            break
    assert found == names and pages == 3


def test_counting_a_long_queue_takes_many_slices(node: Node) -> None:
    for _ in range(40):
        op = pb.AtomicWrite()
        for number in range(500):
            op.enqueues.add(queue="q", payload=b"x", delay_ms=3_600_000 if number % 2 else 0)
        node.write(op)
    before = node.lists.slices
    info = node.queue(counts=True)
    assert (info.ready, info.scheduled) == (10_000, 10_000)
    assert node.lists.slices - before > 3


def test_a_page_of_large_messages_fits_into_a_frame(node: Node) -> None:
    for _ in range(60):
        node.enqueue(bytes(limits.MAX_VALUE_SIZE))
    found, after = 0, b""
    while True:
        reply = peek(node, limit=1_000, after=after)
        assert reply.ByteSize() < 2 * PAGE_BYTES + 400_000 < limits.MAX_FRAME_SIZE
        found, after = found + len(reply.messages), reply.after
        if not after:
            break
    assert found == 60


def test_a_page_ends_where_much_had_to_be_passed_by(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "SCANNED", 10)
    send(node, 200, queue="other")
    send(node, 3)
    found, after, pages, slices = [], b"", 0, node.lists.slices
    while True:
        reply = peek(node, limit=5, after=after)
        found += [info.payload for info in reply.messages]
        pages, after = pages + 1, reply.after
        if not after:
            break
    assert found == [b"0", b"1", b"2"] and pages == 6 and node.lists.slices - slices < 30


def test_walks_that_are_cut_come_to_their_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "MAX_WALK", 10)
    node.define(dead_letters=pb.DEAD_LETTERS_QUEUE, dead_letter_queue="dlq")
    send(node, 35, queue="dlq")
    bury(node, 3)
    send(node, 35, queue="dlq")
    reply = node.call(requeue=pb.Requeue(queue="dlq", to_origin=True, after=b"\xff"))
    assert (reply.status, reply.count) == (OK, 3)
    assert (node.queue().messages, node.queue("dlq").messages) == (3, 70)
    Receiver(node, node.open_session(), queue="dlq", credits=70)
    node.timers.advance(1)
    Receiver(node, node.open_session(), number=2, credits=2)
    node.timers.advance(1)
    assert node.call(remove=pb.RemoveQueue(name="q", after=b"\xff")).count == 3
    assert not node.queue().name and node.queue("dlq").leased == 70


def test_one_message_by_its_id(node: Node) -> None:
    node.enqueue(b"x", delay_ms=1_000, headers=pb.Headers(fields={"a": "b"}).SerializeToString(), group="g")
    (info,) = peek(node).messages
    reply = node.call(peek=pb.Peek(message_id=info.message_id))
    (again,) = reply.messages
    assert again == info and again.group == "g" and again.state == pb.MESSAGE_STATE_SCHEDULED
    assert not node.call(peek=pb.Peek(message_id=bytes(12))).messages
    assert node.call(peek=pb.Peek(message_id=b"short")).status == pb.READ_STATUS_INVALID


def test_p86_dead_letters_stand_in_the_order_of_their_deaths(node: Node) -> None:
    """P86: reject 1…20 → DLQ 1…20."""
    bury(node, 20)
    assert [info.payload for info in peek(node, kind=DEAD).messages] == [b"%d" % number for number in range(20)]
    node.define(dead_letters=pb.DEAD_LETTERS_QUEUE, dead_letter_queue="dlq")
    receiver = Receiver(node, node.open_session(), credits=20)
    send(node, 20)
    for delivery in reversed(receiver.got):
        node.settle_message(delivery, pb.SETTLE_KIND_REJECT, reason="no")
    dlq = Receiver(node, node.open_session(), queue="dlq", credits=20)
    assert dlq.payloads == [b"%d" % number for number in reversed(range(20))]
    assert {(delivery.origin.queue, delivery.failures[0].reason) for delivery in dlq.got} == {("q", "no")}


# ---- changes


def test_a_purge_of_many_is_done_in_chunks_between_writes(node: Node) -> None:
    send(node, 1_000)
    replies: list[pb.QueueReply] = []
    node.service.calls.submit(pb.QueueCall(id=1, purge=pb.Purge(queue="q")), replies.append)
    results = node.write(pb.AtomicWrite(checks=[pb.Check(key=b"\x02k\x00")]), settle=False)
    node.timers.advance(0.002)
    assert results and not replies, "a write does not wait for the end of the purge"
    node.timers.advance(1)
    assert (replies[0].status, replies[0].count) == (OK, 1_000)
    assert node.queue().messages == 0


def test_a_purge_takes_what_is_in_nobodys_hands_and_ends_with_what_there_was(node: Node) -> None:
    receiver = Receiver(node, node.open_session(), credits=3)
    send(node, 10)
    assert purge(node, limit=2) == 2
    assert purge(node) == 5
    assert node.queue().messages == 3
    assert [node.settle_message(delivery) for delivery in receiver.got] == [pb.OUTCOME_DONE] * 3
    assert purge(node) == 0


def test_a_purge_is_not_kept_going_by_those_who_send(node: Node) -> None:
    send(node, 600)
    replies: list[pb.QueueReply] = []
    node.service.calls.submit(pb.QueueCall(id=1, purge=pb.Purge(queue="q")), replies.append)
    for _ in range(200):
        send(node, 30)
        if replies:
            break
    assert replies[0].count < 600 + 2 * limits.QUEUE_CHUNK


def test_dead_letters_are_requeued_by_number_by_id_and_all(node: Node) -> None:
    bury(node, 300)
    dead = peek(node, kind=DEAD, limit=1_000).messages
    assert node.call(requeue=pb.Requeue(queue="q", limit=10)).count == 10
    ids = [info.message_id for info in dead[10:290:2]]
    assert node.call(requeue=pb.Requeue(queue="q", message_ids=[*ids, bytes(12), *ids])).count == len(ids)
    assert node.call(requeue=pb.Requeue(queue="q")).count == 300 - 10 - len(ids)
    info = node.queue()
    assert (info.messages, info.dead) == (300, 0)


def test_dead_letters_go_back_to_where_they_came_from(node: Node) -> None:
    node.define(dead_letters=pb.DEAD_LETTERS_QUEUE, dead_letter_queue="dlq")
    bury(node, 10)
    assert node.queue("dlq").messages == 10
    assert node.call(requeue=pb.Requeue(queue="dlq", to_origin=True)).count == 10
    assert (node.queue("dlq").messages, node.queue().messages) == (0, 10)


def test_dead_letters_are_purged(node: Node) -> None:
    bury(node, 300)
    send(node, 1)
    assert purge(node, dead=True, limit=5) == 5
    assert purge(node, dead=True) == 295
    assert (node.queue().dead, node.queue().messages) == (0, 1)


def test_a_queue_is_removed_with_all_that_is_in_it(node: Node) -> None:
    node.define(max_attempts=2)
    bury(node, 20)
    receiver = Receiver(node, node.open_session(), credits=5)
    send(node, 400, dedup_id=b"")
    reply = node.call(remove=pb.RemoveQueue(name="q"))
    assert reply.status == OK and reply.count >= 420
    assert not node.call(queues=pb.ListQueues()).queues
    assert node.settle_message(receiver.got[0]) == pb.OUTCOME_STALE_LEASE
    assert node.service.delivery.statistics()["queue_leases"] == 0
    node.enqueue(b"new")
    assert receiver.payloads[-1] == b"new"


def test_topics_and_subscriptions(node: Node) -> None:
    assert node.call(topic=pb.DefineTopic(name="t", retention_ms=3_600_000)).status == OK
    op = pb.AtomicWrite()
    for number in range(600):
        op.enqueues.add(topic="t", payload=b"%d" % number)
    node.write(op)
    assert node.call(subscribe=pb.Subscribe(topic="t", queue="late")).count == 0
    reply = node.call(subscribe=pb.Subscribe(topic="t", queue="early", since_ms=60_000))
    node.timers.advance(2)
    assert reply.status == OK
    assert (node.queue("early").messages, node.queue("late").messages) == (600, 0)
    (info,) = node.call(topics=pb.ListTopics()).topics
    assert (info.name, sorted(info.queues), info.retained) == ("t", ["early", "late"], 600)
    assert node.call(topic=pb.DefineTopic(name="t", remove=True)).status == OK
    assert not node.call(topics=pb.ListTopics()).topics


def test_schedules_are_listed(node: Node) -> None:
    for number in range(40):
        schedule = pb.Schedule(cron="0 6 * * *", message=pb.Enqueue(queue="q", payload=b"x"))
        define = pb.DefineSchedule(name=f"s{number:02}", definition=schedule.SerializeToString(), next_ms=5)
        assert node.call(schedule=define).status == OK
    reply = node.call(schedules=pb.ListSchedules())
    assert [info.name for info in reply.schedules] == [f"s{number:02}" for number in range(40)]
    assert all(info.next_ms > node.consensus.now_ms() for info in reply.schedules), "never the caller's to say"


# ---- what is refused


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ({"define": pb.DefineQueue(name="x" * 257)}, "MAX_QUEUE_NAME_SIZE"),
        ({"define": pb.DefineQueue(name="q", policy=b"\xff")}, "decoded"),
        ({"define": pb.DefineQueue(name="q", policy=pb.QueuePolicy(lease_ms=1).SerializeToString())}, "lease_ms"),
        ({"requeue": pb.Requeue(queue="q", message_ids=[bytes(12)] * 1_001)}, "MAX_PEEK"),
        ({"requeue": pb.Requeue(queue="q", message_ids=[*[bytes(12)] * 300, b"short"])}, "12 bytes"),
        ({"peek": pb.Peek(queue="x" * 257)}, "MAX_QUEUE_NAME_SIZE"),
        ({"peek": pb.Peek(queue="q", limit=1_001)}, "MAX_PEEK"),
        ({"queues": pb.ListQueues(limit=1_001)}, "MAX_PEEK"),
        ({"schedules": pb.ListSchedules(limit=1_001)}, "MAX_PEEK"),
        ({"schedule": pb.DefineSchedule(name="s", definition=b"\xff")}, "decoded"),
        ({}, "does not know"),
    ],
)
def test_what_cannot_be_right_is_refused_before_the_log(node: Node, call: dict[str, object], why: str) -> None:
    entries = len(node.consensus.payloads)
    reply = node.call(**call)
    assert reply.status == pb.READ_STATUS_INVALID and why in reply.message, reply
    assert len(node.consensus.payloads) == entries


def test_only_the_leader_answers(node: Node) -> None:
    node.consensus.depose()
    for call in ({"peek": pb.Peek(queue="q")}, {"purge": pb.Purge(queue="q")}, {"define": pb.DefineQueue(name="q")}):
        assert node.call(**call).status == pb.READ_STATUS_NO_LEADER


def test_a_leader_that_is_lost_midway_says_so(node: Node) -> None:
    send(node, 1_000)
    replies: list[pb.QueueReply] = []
    for call in (pb.QueueCall(purge=pb.Purge(queue="q")), pb.QueueCall(define=pb.DefineQueue(name="d"))):
        node.service.calls.submit(call, replies.append)
    node.timers.advance(0.0025)
    node.consensus.depose()
    node.timers.advance(5)
    assert pb.READ_STATUS_NO_LEADER in [reply.status for reply in replies] and len(replies) == 2
    node.consensus.elect()
    assert purge(node) < 1_000
    assert node.queue().messages == 0


def test_no_space_refuses_what_grows_and_takes_what_frees(node: Node) -> None:
    send(node, 3)
    node.service.calls._no_space = lambda: "node n1: its disk is nearly full"
    reply = node.call(define=pb.DefineQueue(name="q"))
    assert reply.status == pb.READ_STATUS_OVERLOADED and "nearly full" in reply.message
    assert purge(node) == 3
    assert node.call(pause=pb.PauseQueue(name="q", paused=True)).status == OK


def test_calls_under_way_are_bounded(node: Node) -> None:
    node.consensus.held = True
    replies: list[pb.QueueReply] = []
    for _ in range(MAX_UNDER_WAY + 1):
        node.service.calls.submit(pb.QueueCall(pause=pb.PauseQueue(name="q")), replies.append)
    assert [reply.status for reply in replies] == [pb.READ_STATUS_OVERLOADED]
    node.consensus.release()
    node.timers.advance(1)
    assert [reply.status for reply in replies[1:]] == [OK] * MAX_UNDER_WAY


@pytest.mark.parametrize(
    ("error", "status"), [(Overloaded("full"), pb.READ_STATUS_OVERLOADED), (NotLeader("no"), pb.READ_STATUS_NO_LEADER)]
)
def test_what_the_proposer_says_is_told(node: Node, error: Exception, status: int) -> None:
    node.consensus.refuse_with = error  # type: ignore[assignment]
    assert node.call(pause=pb.PauseQueue(name="q", paused=True)).status == status


def test_what_was_done_before_it_was_refused_is_told(node: Node) -> None:
    send(node, 1_000)
    replies: list[pb.QueueReply] = []
    node.service.calls.submit(pb.QueueCall(purge=pb.Purge(queue="q")), replies.append)
    node.timers.advance(0.0025)
    node.consensus.refuse_with = NoSpace("full")
    node.timers.advance(5)
    ((status, done, message),) = ((reply.status, reply.count, reply.message) for reply in replies)
    assert status == pb.READ_STATUS_OVERLOADED and 0 < done < 1_000
    assert message == f"full; {done:,} messages were done before"
    node.consensus.refuse_with = None
    assert node.queue().messages == 1_000 - done


def test_a_caller_that_is_gone_hears_nothing_and_its_work_stops(node: Node) -> None:
    send(node, 5_000)
    replies: list[pb.QueueReply] = []
    call = node.service.calls.submit(pb.QueueCall(purge=pb.Purge(queue="q")), replies.append)
    node.timers.advance(0.005)
    call.cancel()
    node.timers.advance(5)
    assert not replies and node.queue().messages > 2_000
    assert node.service.calls.statistics()["queue_calls_under_way"] == 0


# ---- rates


def test_rates_are_those_of_the_last_minute(make_node: Callable[..., Node]) -> None:
    node = make_node()
    receiver = Receiver(node, node.open_session(), credits=1_000)
    assert node.queue().sent_per_s == 0
    for _ in range(120):
        send(node, 10)
        for delivery in receiver.got[:5]:
            node.settle_message(delivery)
        del receiver.got[:5]
        node.timers.advance(1.0 - node.timers.time() % 1.0)
    info = node.queue()
    assert 9 <= info.sent_per_s <= 11 and 4 <= info.done_per_s <= 6
    node.timers.advance(70)
    info = node.queue()
    assert info.sent_per_s == 0 and info.sent == 1_200
    assert [(seen.name, seen.messages) for seen in node.service.rates.newest] == [("q", 600)]
    node.consensus.depose()
    assert node.service.rates.newest == []
