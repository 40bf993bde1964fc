"""Writes, watches, reads, expiry and sessions of a service, in virtual time over the real state machine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.entry import packed
from kvorum_node.admission import MAX_WEIGHT, admit
from kvorum_node.lag import LoopLag
from kvorum_node.reads import SLICE_BYTES, Pending, PendingPoints, PendingRead, check_points, check_read
from kvorum_node.store import Snapshot, StoreFault
from kvorum_node.watches import Watch
from kvorum_raft.seams import Member
from tests.unit.node.harness import Node

KEY, OTHER = b"\x02a\x00", b"\x02b\x00"


def set_op(key: bytes = KEY, value: bytes = b"v", **more: object) -> pb.AtomicWrite:
    op = pb.AtomicWrite()
    op.mutations.add(key=key, type=pb.MUTATION_TYPE_SET, value=value, encoding=pb.VALUE_ENCODING_BYTES, **more)
    return op


def delete_op(key: bytes = KEY) -> pb.AtomicWrite:
    op = pb.AtomicWrite()
    op.mutations.add(key=key, type=pb.MUTATION_TYPE_DELETE)
    return op


def touch_op(key: bytes = KEY, expire_in_ms: int | None = None) -> pb.AtomicWrite:
    op = pb.AtomicWrite()
    op.mutations.add(key=key, type=pb.MUTATION_TYPE_TOUCH, expire_in_ms=expire_in_ms)
    return op


def group_of(*ops: bytes) -> pb.WriteGroup:
    group = pb.WriteGroup()
    for seq, op in enumerate(ops, 1):
        group.writes.add(seq=seq, op=op)
    return group


# ---- admission


def test_a_usual_group_goes_through_unchanged() -> None:
    group = group_of(*[set_op(value=b"%d" % number).SerializeToString() for number in range(100)])
    parts, refused = admit(group)
    assert refused == []
    assert [part.data for part in parts] == [group.SerializeToString()]
    assert (parts[0].commits, parts[0].weight, parts[0].enqueues) == (100, 100, None)


def test_what_is_wrong_is_answered_and_the_rest_proposed() -> None:
    group = group_of(
        set_op().SerializeToString(),
        b"\xff\xff\xff",
        set_op(key=b"").SerializeToString(),
        set_op(OTHER).SerializeToString(),
    )
    parts, refused = admit(group)
    assert [(result.seq, result.outcome) for result in refused] == [(2, pb.OUTCOME_INVALID), (3, pb.OUTCOME_INVALID)]
    assert all(result.message for result in refused)
    assert [write.seq for part in parts for write in part.group.writes] == [1, 4]


def test_a_large_group_is_cut_in_order() -> None:
    op = pb.AtomicWrite()
    for number in range(200):
        op.mutations.add(key=b"\x02%d\x00" % number, type=pb.MUTATION_TYPE_DELETE)
    parts, refused = admit(group_of(*[op.SerializeToString()] * 7))
    assert refused == []
    assert [write.seq for part in parts for write in part.group.writes] == list(range(1, 8))
    assert all(part.weight <= MAX_WEIGHT for part in parts)
    values = group_of(*[set_op(value=bytes(limits.MAX_VALUE_SIZE)).SerializeToString()] * 40)
    parts, refused = admit(values)
    assert sum(part.commits for part in parts) == 40
    assert all(len(part.data) <= limits.MAX_ENTRY_SIZE for part in parts)


def test_ready_messages_are_counted_by_queue_and_delayed_ones_not() -> None:
    op = pb.AtomicWrite()
    for queue, delay in (("a", 0), ("a", 0), ("b", 0), ("c", 5)):
        op.enqueues.add(queue=queue, payload=b"x", delay_ms=delay)
    parts, _ = admit(group_of(op.SerializeToString()))
    assert parts[0].enqueues == {"a": 2, "b": 1}


# ---- writes


def test_every_write_of_a_group_is_answered_once(node: Node) -> None:
    answers: list[pb.WriteResult] = []
    ops = [set_op(value=b"%d" % number).SerializeToString() for number in range(600)]
    ops[5] = b"\xff"
    node.service.write(group_of(*ops), lambda answer: answers.extend(answer.results))
    node.timers.settle()
    assert sorted(result.seq for result in answers) == list(range(1, 601))
    assert {result.seq: result.outcome for result in answers if result.outcome != pb.OUTCOME_DONE} == {
        6: pb.OUTCOME_INVALID
    }


def test_a_lost_leader_answers_unknown_for_what_is_in_its_log_and_not_leader_for_the_rest(node: Node) -> None:
    node.consensus.held = True
    in_log = [node.write(set_op(), settle=False) for _ in range(2)]
    node.timers.settle()
    node.write(set_op(), settle=False)
    node.timers.settle()
    waiting = node.write(set_op(), settle=False)
    node.consensus.depose(Member("n2", "n2:7403", "n2:7401"))
    node.timers.settle()
    assert [results[0].outcome for results in in_log] == [pb.OUTCOME_UNKNOWN] * 2
    assert waiting[0].outcome == pb.OUTCOME_NOT_LEADER
    assert node.service.leader == pb.Leader(node_id="n2", address="n2:7401", term=1)


# ---- watches


class Watcher:
    def __init__(self, node: Node, *keys: bytes) -> None:
        self.node = node
        self.notified: list[Watch] = []
        self.watch = node.service.hub.add(keys, self.notified.append)
        self.watch.begin()

    def take(self) -> list[bytes]:
        return [entry.value for entry in self.node.service.hub.take(self.watch)[0]]


def test_the_first_snapshot_comes_at_once_also_of_absent_keys(node: Node) -> None:
    watcher = Watcher(node, KEY, OTHER, KEY)
    assert watcher.notified == [watcher.watch]
    assert watcher.take() == [b"", b"", b""]


def test_changes_are_aligned_and_coalesced_to_the_newest(node: Node) -> None:
    watcher = Watcher(node, KEY, OTHER)
    watcher.take()
    for number in range(20):
        op = set_op(KEY, b"%d" % number)
        op.MergeFrom(set_op(OTHER, b"%d" % -number))
        node.write(op)
    assert len(watcher.notified) == 2
    assert watcher.take() == [b"19", b"-19"]


def test_only_touched_keys_notify_and_deleting_a_deleted_key_touches(node: Node) -> None:
    watcher = Watcher(node, KEY)
    watcher.take()
    node.write(set_op(OTHER))
    assert len(watcher.notified) == 1
    node.write(delete_op(KEY))
    assert len(watcher.notified) == 2


def test_nothing_comes_before_the_state_is_known_to_be_new_enough(node: Node) -> None:
    notified: list[Watch] = []
    watch = node.service.hub.add([KEY], notified.append)
    node.write(set_op())
    assert notified == []
    watch.begin()
    assert notified == [watch]


def test_many_watchers_of_one_key_share_a_read(node: Node) -> None:
    node.write(set_op(KEY, b"shared"))
    watchers = [Watcher(node, KEY) for _ in range(100)]
    rows = {id(node.service.hub.take(watcher.watch)[0][0]) for watcher in watchers}
    assert len(rows) == 1
    node.write(set_op(KEY, b"new"))
    assert [watcher.take() for watcher in watchers] == [[b"new"]] * 100


def test_watches_end_after_three_election_timeouts_without_a_leader(make_node: Callable[..., Node]) -> None:
    node = make_node(max_election_timeout=1.0)
    watcher = Watcher(node, KEY)
    node.consensus.depose(None)
    node.timers.advance(2.9)
    assert not watcher.watch.ended
    node.timers.advance(0.2)
    assert watcher.watch.ended
    assert node.service.hub.statistics()["watches"] == 0


def test_a_failover_within_that_time_keeps_watches(make_node: Callable[..., Node]) -> None:
    node = make_node(max_election_timeout=1.0)
    watcher = Watcher(node, KEY)
    node.consensus.depose(None)
    node.timers.advance(2)
    node.consensus.depose(Member("n2", "", ""))
    node.timers.advance(60)
    assert not watcher.watch.ended


# ---- expiry


def test_p18_expired_keys_are_swept_in_time_and_never_early(node: Node) -> None:
    """P18: set 2 s, gone at 2.1 s."""
    begun = node.timers.time()
    node.write(set_op(KEY, expire_in_ms=2_000), settle=False)
    node.timers.advance(1.5)
    with node.store.snapshot() as snapshot:
        assert snapshot.get(KEY).versionstamp
    watcher = Watcher(node, KEY)
    watcher.take()
    node.timers.advance(2.06 + begun - node.timers.time())
    with node.store.snapshot() as snapshot:
        assert not snapshot.get(KEY).versionstamp
    assert len(watcher.notified) == 2


def test_a_sweep_is_repeated_while_more_has_expired(node: Node) -> None:
    for number in range(2_500):
        node.write(set_op(b"\x02%d\x00" % number, expire_in_ms=1_000), settle=False)
    node.timers.advance(1.5)
    assert node.store.next_expiry_ms() is None
    assert node.service.sweeper.statistics() == {"sweeps": 3, "swept_keys": 2_500}


def test_a_new_leader_sweeps_what_expired_before(node: Node) -> None:
    node.write(set_op(KEY, expire_in_ms=1_000))
    node.consensus.depose()
    node.timers.advance(10)
    assert node.store.next_expiry_ms() is not None
    node.consensus.elect()
    node.timers.settle()
    assert node.store.next_expiry_ms() is None


def test_an_earlier_expiry_moves_the_alarm(node: Node) -> None:
    node.write(set_op(KEY, expire_in_ms=60_000))
    node.write(set_op(OTHER, expire_in_ms=100))
    node.timers.advance(0.2)
    with node.store.snapshot() as snapshot:
        assert not snapshot.get(OTHER).versionstamp
        assert snapshot.get(KEY).versionstamp


def test_a_key_that_is_touched_in_time_costs_no_sweeps_until_it_is_not(node: Node) -> None:
    node.write(set_op(KEY, expire_in_ms=2_000))
    for _ in range(20):
        node.timers.advance(1.0)
        node.write(touch_op(KEY, 2_000))
    assert node.service.sweeper.statistics() == {"sweeps": 0, "swept_keys": 0}
    node.timers.advance(1.5)
    assert read_now(node, KEY).entries[0].versionstamp
    node.timers.advance(0.6)
    assert not read_now(node, KEY).entries[0].versionstamp
    assert node.service.sweeper.statistics() == {"sweeps": 1, "swept_keys": 1}


def test_what_is_due_in_every_millisecond_does_not_take_a_sweep_each(node: Node) -> None:
    for number in range(500):
        node.write(set_op(b"\x02%03d\x00" % number, expire_in_ms=2_000 - number), settle=False)
        node.timers.advance(0.001)
    node.timers.advance(3)
    statistics = node.service.sweeper.statistics()
    assert statistics["swept_keys"] == 500 and statistics["sweeps"] <= 55
    late = []
    for number in range(10):
        node.write(set_op(b"\x02%03d\x00" % number, expire_in_ms=100 + 7 * number), settle=False)
    due = node.consensus.now_ms() + 100
    for _ in range(400):
        node.timers.advance(0.001)
        gone = sum(
            not entry.versionstamp
            for entry in read_now(node, *[b"\x02%03d\x00" % number for number in range(10)]).entries
        )
        expected = min(10, max(0, (node.consensus.now_ms() - due) // 7 + 1))
        late.append(expected - gone)
    assert late[-1] == 0 and max(late) <= 5, "up to 30 ms"


def test_what_a_sweep_leaves_over_is_not_kept_waiting(node: Node) -> None:
    node.consensus.held = True
    for begin in range(0, 3_000, 500):
        op = pb.AtomicWrite()
        for number in range(begin, begin + 500):
            op.mutations.add(
                key=b"\x02%05d\x00" % number, type=pb.MUTATION_TYPE_SET, value=b"v", encoding=3, expire_in_ms=2_000
            )
        node.write(op, settle=False)
    node.timers.advance(0.01)
    node.consensus.release()
    node.timers.advance(2.03)
    assert node.service.sweeper.statistics() == {"sweeps": 3, "swept_keys": 3_000}


def test_a_touch_to_an_earlier_time_moves_the_alarm(node: Node) -> None:
    node.write(set_op(KEY, expire_in_ms=60_000))
    node.write(set_op(OTHER))
    node.write(touch_op(KEY, 100))
    node.write(touch_op(OTHER, 100))
    node.timers.advance(0.2)
    assert [entry.versionstamp for entry in read_now(node, KEY, OTHER).entries] == [b"", b""]


def test_an_older_member_holds_back_what_it_cannot_apply(node: Node) -> None:
    common = 1
    node.service.proposer._common_data_version = lambda: common
    node.write(set_op())
    refused = node.write(touch_op(KEY, 100))
    assert refused[0].outcome == pb.OUTCOME_OVERLOADED, "to be repeated: the member may be upgraded next"
    assert "need data version 2" in refused[0].message
    assert node.write(set_op(OTHER))[0].outcome == pb.OUTCOME_DONE
    common = 2
    assert node.write(touch_op(KEY, 100))[0].outcome == pb.OUTCOME_DONE
    grouped = pb.AtomicWrite()
    grouped.enqueues.add(queue="q", payload=b"m", group="g")
    refused = node.write(grouped)
    assert refused[0].outcome == pb.OUTCOME_OVERLOADED and "version 3" in refused[0].message
    define = pb.DefineQueue(name="q", policy=pb.QueuePolicy(lease_ms=1_000).SerializeToString())
    reply = node.call(define=define)
    assert reply.status == pb.READ_STATUS_OVERLOADED and "version 3" in reply.message
    common = 3
    assert node.write(grouped)[0].outcome == pb.OUTCOME_DONE
    assert node.call(define=define).status == pb.READ_STATUS_OK


def test_a_leader_that_has_not_met_a_member_yet_goes_by_what_the_state_proves(node: Node) -> None:
    node.define(lease_ms=1_000)
    node.service.proposer._common_data_version = lambda: 1
    assert node.write(touch_op(KEY, 100))[0].outcome == pb.OUTCOME_DONE
    assert node.call(pause=pb.PauseQueue(name="q", paused=True)).status == pb.READ_STATUS_OK


# ---- sessions


def test_an_idle_session_is_closed_and_a_connected_one_is_not(make_node: Callable[..., Node]) -> None:
    node = make_node(session_idle=100.0)
    gone, there = node.open_session(), node.open_session()
    node.timers.advance(50)
    node.service.disconnected(gone)
    node.timers.advance(99)
    assert node.store.session_ids() == [gone, there]
    node.timers.advance(12)
    assert node.store.session_ids() == [there]
    node.timers.advance(1_000)
    assert node.store.session_ids() == [there]


def test_a_new_leader_gives_sessions_a_full_period(make_node: Callable[..., Node]) -> None:
    node = make_node(session_idle=100.0)
    session = node.open_session()
    node.service.disconnected(session)
    node.timers.advance(90)
    node.consensus.depose()
    node.consensus.elect()
    node.timers.advance(99)
    assert node.store.session_ids() == [session]
    node.timers.advance(12)
    assert node.store.session_ids() == []


# ---- reads


def read(node: Node, **fields: object) -> list[pb.ReadResult]:
    answers: list[pb.ReadResult] = []
    request = pb.Read(consistency=pb.CONSISTENCY_EVENTUAL, **fields)
    node.service.reads.submit([PendingRead(request, answers.append, lambda job, part: None)])
    return answers


def read_now(node: Node, *keys: bytes, **fields: object) -> pb.ReadResult:
    answers = read(node, keys=keys, **fields)
    node.service.reads.serve()
    return answers[0]


def test_a_read_waits_for_the_versionstamp_its_client_has_seen(node: Node) -> None:
    node.write(set_op())
    ahead = (node.store.applied_index + 1).to_bytes(8, "big") + b"\0\0"
    answers = read(node, keys=[KEY], min_versionstamp=ahead)
    node.timers.settle()
    assert answers == []
    node.write(set_op(value=b"new"))
    assert answers[0].entries[0].value == b"new"


def test_a_read_does_not_wait_for_ever(node: Node) -> None:
    answers = read(node, keys=[KEY], min_versionstamp=b"\0\1" + bytes(8))
    node.timers.advance(4)
    assert answers == []
    node.timers.advance(2)
    assert answers[0].status == pb.READ_STATUS_NO_LEADER
    assert set(node.service.reads.statistics().values()) == {0}


def test_a_read_tells_of_expiry_only_if_it_is_asked_for(node: Node) -> None:
    node.write(set_op(KEY, expire_in_ms=5_000))
    node.write(set_op(OTHER))
    due = node.store.next_expiry_ms()
    node.timers.advance(2.0)
    plain, told = read_now(node, KEY), read_now(node, KEY, OTHER, b"\x02c\x00", with_expiry=True)
    assert (plain.time_ms, plain.entries[0].expire_at_ms) == (0, 0)
    assert [entry.expire_at_ms for entry in told.entries] == [due, 0, 0]
    assert told.time_ms == node.consensus.now_ms()
    assert told.entries[0].value == b"v"


def test_many_point_reads_are_served_in_slices(node: Node) -> None:
    answers: list[pb.ReadResult] = []
    requests = [pb.Read(id=number, keys=[KEY], consistency=pb.CONSISTENCY_EVENTUAL) for number in range(1_000)]
    node.service.reads.submit([PendingRead(request, answers.append, lambda job, part: None) for request in requests])
    node.service.reads.serve()
    assert len(answers) == 256
    node.timers.settle()
    assert [answer.id for answer in answers] == list(range(1_000))


def test_reads_that_wait_for_their_turn_are_answered_when_the_node_stops(node: Node) -> None:
    answers, reads = read(node, keys=[KEY]), node.service.reads
    reads.stop()
    assert [answer.status for answer in answers] == [pb.READ_STATUS_NO_LEADER]
    assert "the node stops" in answers[0].message
    node.timers.settle()
    assert len(answers) == 1  # nothing is served any more: the store is closed by then
    assert reads.statistics()["reads_under_way"] == 0


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (pb.Read(keys=[b"k"] * 11), "MAX_READ_RANGES"),
        (pb.Read(keys=[bytes(2_050)]), "MAX_READ_KEY_SIZE"),
        (pb.Read(ranges=[pb.ReadRange(end=bytes(2_050), limit=1)]), "MAX_READ_KEY_SIZE"),
        (pb.Read(ranges=[pb.ReadRange(end=b"\xff")]), "limit"),
        (pb.Read(ranges=[pb.ReadRange(end=b"\xff", limit=501)] * 2), "MAX_READ_ENTRIES"),
        (pb.Read(keys=[b"k"], min_versionstamp=b"short"), "versionstamp"),
    ],
)
def test_bad_reads_are_refused_by_name(request_: pb.Read, named: str) -> None:
    assert named in check_read(request_)


def test_a_read_at_the_limits_is_fine() -> None:
    assert check_read(pb.Read(keys=[bytes(2_049)] * 9, ranges=[pb.ReadRange(end=bytes(2_049), limit=991)])) == ""


def test_the_service_lists_its_figures(node: Node, tmp_path: Path) -> None:
    figures = node.service.statistics()
    assert figures["applied_index"] == node.store.applied_index
    assert all(isinstance(value, int | float) for value in figures.values())


def test_a_read_without_room_is_served_when_it_is_resumed(node: Node) -> None:
    answers: list[pb.ReadResult] = []
    kept: list[Pending] = []
    room = False

    def has_room(item: Pending) -> int:
        if not room:
            kept.append(item)
        return SLICE_BYTES if room else 0

    request = pb.Read(keys=[KEY], consistency=pb.CONSISTENCY_EVENTUAL)
    node.service.reads.submit([PendingRead(request, answers.append, lambda job, part: None, has_room)])
    node.timers.settle()
    assert (answers, len(kept)) == ([], 1)
    node.write(set_op(value=b"newer"))
    room = True
    node.service.reads.resume(kept)
    node.timers.settle()
    assert answers[0].entries[0].value == b"newer"
    assert node.service.reads.statistics()["reads_under_way"] == 0


# ---- reads of one key each, together


class Points:
    """Reads of many keys, and their answers."""

    def __init__(self, node: Node, *keys: bytes, **fields: object) -> None:
        self.answers: list[pb.PointAnswers] = []
        self.kept: list[Pending] = []
        self.room = True
        request = pb.PointReads(id=7, keys=keys, **{"consistency": pb.CONSISTENCY_EVENTUAL, **fields})  # type: ignore[arg-type]
        node.service.reads.submit([PendingPoints(request, self.answers.append, self._has_room)])

    def _has_room(self, item: Pending) -> int:
        if not self.room:
            self.kept.append(item)
        return SLICE_BYTES if self.room else 0

    @property
    def rows(self) -> list[bytes]:
        return [row for answer in self.answers for row in answer.rows]


def number_key(number: int) -> bytes:
    return b"\x02n%04d\x00" % number


def test_points_are_answered_in_order_and_in_slices(node: Node) -> None:
    for begin in range(0, 600, 200):
        op = pb.AtomicWrite()
        for number in range(begin, begin + 200):
            op.MergeFrom(set_op(number_key(number), b"%d" % number))
        node.write(op)
    single = [packed(read_now(node, number_key(number)).entries[0]) for number in range(700)]
    points = Points(node, *(number_key(number) for number in range(700)))
    node.service.reads.serve()
    before = len(points.rows)
    node.timers.settle()
    assert (before, [len(answer.rows) for answer in points.answers]) == (256, [256, 256, 188])
    assert points.rows == single
    assert single.count(b"") == 100
    assert {(answer.id, answer.status) for answer in points.answers} == {(7, pb.READ_STATUS_OK)}
    assert points.answers[0].read_versionstamp == read_now(node, KEY).read_versionstamp
    figures = node.service.reads.statistics()
    assert (figures["reads_under_way"], figures["reads_served"]) == (0, 1_401)


def test_points_do_not_hold_up_others_for_longer_than_a_slice(node: Node) -> None:
    points = Points(node, *[KEY] * 1_000)
    answer = read(node, keys=[KEY])
    node.service.reads.serve()
    node.service.reads.serve()
    assert (len(points.rows), answer) == (512, [])
    node.timers.settle()
    assert (len(points.rows), len(answer)) == (1_000, 1)


def test_points_of_large_values_come_in_pieces_and_wait_for_room_between_them(node: Node) -> None:
    node.write(set_op(value=bytes(60_000)))
    points = Points(node, *[KEY] * 50)
    node.service.reads.serve()
    assert len(points.rows) == 18, "the first that goes beyond 1 MiB ends a piece"
    points.room = False
    node.timers.settle()
    assert (len(points.rows), len(points.kept)) == (18, 1)
    assert node.service.reads.statistics()["reads_under_way"] == 50
    node.write(set_op(value=b"newer"))
    points.room = True
    node.service.reads.resume(points.kept)
    node.timers.settle()
    assert [row[11:] for row in points.rows] == [bytes(60_000)] * 18 + [b"newer"] * 32
    assert node.service.reads.statistics()["reads_under_way"] == 0


def test_points_whose_owner_is_gone_are_forgotten(node: Node) -> None:
    points = Points(node, *[KEY] * 300)
    points.room = False
    node.timers.settle()
    assert node.service.reads.statistics()["reads_under_way"] == 300
    node.service.reads.forget(points.kept)
    assert node.service.reads.statistics()["reads_under_way"] == 0


def test_points_wait_for_the_versionstamp_their_client_has_seen_but_not_for_ever(node: Node) -> None:
    node.write(set_op())
    ahead = (node.store.applied_index + 1).to_bytes(8, "big") + b"\0\0"
    points, never = Points(node, KEY, min_versionstamp=ahead), Points(node, KEY, min_versionstamp=b"\0\1" + bytes(8))
    node.timers.settle()
    assert points.answers == []
    node.write(set_op(value=b"new"))
    assert points.rows[0][11:] == b"new"
    node.timers.advance(6)
    assert [(answer.id, answer.status) for answer in never.answers] == [(7, pb.READ_STATUS_NO_LEADER)]


async def test_strong_points_wait_for_the_leader_to_confirm_itself(node: Node) -> None:
    node.write(set_op())
    points = Points(node, KEY, OTHER, consistency=pb.CONSISTENCY_STRONG)
    node.timers.settle()
    assert points.answers == []
    barrier = node.service.barrier
    assert barrier._task is not None
    await barrier._task
    assert [row[11:] for row in points.rows] == [b"v", b""]
    bounded = Points(node, KEY, consistency=pb.CONSISTENCY_BOUNDED, max_age_ms=60_000)
    node.timers.settle()
    assert len(bounded.rows) == 1, "the state was the newest a moment ago"


def test_more_points_than_may_be_under_way_are_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvorum_node.reads.MAX_WAITING", 100)
    points, late = Points(node, *[KEY] * 100), Points(node, KEY)
    node.timers.settle()
    assert len(points.rows) == 100
    assert [answer.status for answer in late.answers] == [pb.READ_STATUS_OVERLOADED]


def test_points_of_a_damaged_file_go_to_another_node(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(snapshot: Snapshot, keys: list[bytes], room: int) -> list[bytes]:
        raise StoreFault("the data file is damaged")

    monkeypatch.setattr(Snapshot, "packed", damaged)
    points = Points(node, KEY, OTHER)
    node.timers.settle()
    assert [(answer.status, answer.message) for answer in points.answers] == [
        (pb.READ_STATUS_NO_LEADER, "the data file is damaged")
    ]
    assert node.service.reads.statistics()["reads_under_way"] == 0


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (pb.PointReads(), "no key"),
        (pb.PointReads(keys=[b"k", bytes(2_050)]), "MAX_READ_KEY_SIZE"),
        (pb.PointReads(keys=[b"k"], min_versionstamp=b"short"), "versionstamp"),
        (pb.PointReads(keys=[b"", bytes(2_049)]), ""),
    ],
)
def test_bad_points_are_refused_by_name(node: Node, request_: pb.PointReads, named: str) -> None:
    answers: list[pb.PointAnswers] = []
    item = PendingPoints(request_, answers.append)
    problem = check_points(item)
    if not named:
        assert problem == ""
    else:
        assert named in problem
        node.service.reads.submit([item])
        assert [answer.status for answer in answers] == [pb.READ_STATUS_INVALID]


def test_loop_lag_is_measured(node: Node) -> None:
    lag = LoopLag(node.timers)
    lag.start()
    node.timers.advance(0.2)
    assert lag.statistics()["loop_lag_worst"] < 0.001
    node.timers._now += 0.7  # the loop is blocked
    node.timers.advance(0.0)
    assert 0.59 <= lag.statistics()["loop_lag_worst"] <= 0.7
    node.timers.advance(1.0)
    lag.statistics()
    figures = lag.statistics()
    assert (figures["loop_lag_worst"] < 0.001, figures["loop_lag_worst_ever"] > 0.5) == (True, True)
    lag.stop()
