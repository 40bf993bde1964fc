"""Group commit with a consensus that is told when to commit."""

from typing import Any

import pytest

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.proposer import Proposal, Proposer, ProposerLimits, outcome_of, proposal, varint, write_proposal
from kvorum_node.store import DATA_VERSION, ApplyResult
from kvorum_raft.errors import Discarded, NotLeader, Overloaded, RaftError, UnknownOutcome
from tests.unit.node.harness import FakeConsensus, VirtualTimers


class Echo:
    """A state machine whose outputs are the commands themselves."""

    def __init__(self) -> None:
        self.applied_index = 0
        self.batches: list[pb.Batch] = []

    def apply_now(self, index: int, time_ms: int, payload: bytes) -> ApplyResult:
        self.applied_index = index
        batch = pb.Batch.FromString(payload)
        self.batches.append(batch)
        return ApplyResult(index, time_ms, outputs=list(batch.commands))


class Bench:
    def __init__(self, bounds: ProposerLimits | None = None, companions: Any = None, common: Any = None) -> None:
        self.timers = VirtualTimers()
        self.machine = Echo()
        self.consensus = FakeConsensus(self.machine, self.timers)
        self.proposer = Proposer(
            self.consensus, self.timers, bounds=bounds, companions=companions, common_data_version=common
        )
        self.done: list[tuple[str, Any, RaftError | None]] = []

    def submit(
        self, name: str, *, weight: int = 1, urgent: bool = False, enqueues: dict[str, int] | None = None
    ) -> None:
        item = self.item(name, weight)
        item.enqueues = enqueues
        self.proposer.submit(item, urgent=urgent)

    def item(self, name: str, weight: int = 1) -> Proposal:
        command = pb.Command(open_session=pb.OpenSession(client=name))
        return proposal(command, lambda output, error: self.done.append((name, output, error)), weight=weight)

    @property
    def entries(self) -> list[list[str]]:
        return [[command.open_session.client for command in batch.commands] for batch in self.machine.batches]


def test_what_arrives_in_one_turn_shares_an_entry_and_each_gets_its_own_output() -> None:
    bench = Bench()
    for name in "abc":
        bench.submit(name)
    bench.timers.settle()
    assert bench.entries == [["a", "b", "c"]]
    assert [(name, output.open_session.client, error) for name, output, error in bench.done] == [
        (name, name, None) for name in "abc"
    ]


def test_batches_grow_while_entries_are_in_flight() -> None:
    bench = Bench(ProposerLimits(in_flight=2))
    bench.consensus.held = True
    for number in range(10):
        bench.submit(str(number))
        bench.timers.settle()
    assert len(bench.consensus.payloads) == 2
    bench.consensus.release()
    bench.timers.settle()
    assert bench.entries == [["0"], ["1"], [str(number) for number in range(2, 10)]]


def warmed(latency: float) -> Bench:
    """One that knows how long its entries take."""
    bench = Bench()
    bench.consensus.latency = latency
    for _ in range(60):
        bench.submit("warm")
        bench.timers.advance(latency + 0.001)
    bench.machine.batches.clear()
    return bench


def test_what_arrives_before_an_entry_is_half_way_rides_together() -> None:
    bench = warmed(0.020)
    bench.submit("first")
    bench.timers.advance(0.002)
    for number in range(3):  # at 2, 4 and 6 ms
        bench.submit(str(number))
        bench.timers.advance(0.002)
    before = len(bench.consensus.payloads)
    bench.timers.advance(0.001)  # 9 ms
    assert len(bench.consensus.payloads) == before
    bench.timers.advance(0.002)
    assert len(bench.consensus.payloads) == before + 1
    bench.submit("later")  # waits until one of the two has come home
    bench.timers.advance(0.008)
    assert len(bench.consensus.payloads) == before + 1
    bench.timers.advance(0.003)
    assert len(bench.consensus.payloads) == before + 2
    bench.timers.advance(0.1)
    assert bench.entries == [["first"], ["0", "1", "2"], ["later"]]


def test_what_arrives_later_leaves_at_once() -> None:
    bench = warmed(0.020)
    bench.submit("first")
    bench.timers.advance(0.015)
    before = len(bench.consensus.payloads)
    bench.submit("second")
    bench.timers.advance(0.0)
    assert len(bench.consensus.payloads) == before + 1


def test_nothing_waits_for_half_of_an_entry_that_has_ended() -> None:
    """Nor does what was to be proposed then leave too early what comes after it."""
    bench = warmed(0.100)
    bench.consensus.latency = 0.004
    bench.submit("quick")
    bench.timers.advance(0.002)
    bench.submit("waits")
    bench.timers.advance(0.002)
    bench.timers.advance(0.0)
    assert bench.entries[0] == ["quick"]
    bench.consensus.latency = 0.100
    bench.timers.advance(0.015)
    assert bench.entries == [["quick"], ["waits"]]
    bench.submit("third")
    bench.timers.advance(0.001)
    before = len(bench.consensus.payloads)
    bench.submit("fourth")
    bench.timers.advance(0.031)  # here the wish of "waits" would have come true
    assert len(bench.consensus.payloads) == before
    bench.timers.advance(0.200)
    assert bench.entries == [["quick"], ["waits"], ["third"], ["fourth"]]


def test_a_single_caller_waits_for_no_timer() -> None:
    bench = warmed(0.020)
    for _ in range(3):
        bench.submit("next")
        before = len(bench.consensus.payloads)
        bench.timers.advance(0.0)
        assert len(bench.consensus.payloads) == before + 1
        bench.timers.advance(0.021)


def test_urgent_commands_go_first() -> None:
    bench = Bench(ProposerLimits(in_flight=1))
    bench.consensus.held = True
    bench.submit("first")
    bench.timers.settle()
    bench.submit("write")
    bench.submit("lease", urgent=True)
    bench.consensus.release()
    bench.timers.settle()
    assert bench.entries == [["first"], ["lease", "write"]]


@pytest.mark.parametrize(
    "bounds",
    [ProposerLimits(entry_weight=4), ProposerLimits(entry_commits=4), ProposerLimits(entry_size=4 * 12)],
    ids=["weight", "commits", "size"],
)
def test_an_entry_is_bounded(bounds: ProposerLimits) -> None:
    bench = Bench(bounds)
    for number in range(10):
        bench.submit(str(number))
    bench.timers.settle()
    assert [name for entry in bench.entries for name in entry] == [str(number) for number in range(10)]
    assert max(map(len, bench.entries)) <= 4 + 2


def test_one_command_larger_than_an_entry_stands_alone() -> None:
    bench = Bench(ProposerLimits(entry_weight=4))
    bench.submit("a")
    bench.submit("large", weight=1000)
    bench.submit("b")
    bench.timers.settle()
    assert bench.entries == [["a"], ["large"], ["b"]]


def test_a_full_queue_refuses_and_recovers() -> None:
    bench = Bench(ProposerLimits(in_flight=1, queued_weight=3))
    bench.consensus.held = True
    bench.submit("in flight")
    bench.timers.settle()
    for name in "abcde":
        bench.submit(name)
    assert [(name, type(error)) for name, _, error in bench.done] == [("d", Overloaded), ("e", Overloaded)]
    bench.consensus.release()
    bench.timers.settle()
    assert [name for name, _, error in bench.done if error is None] == ["in flight", "a", "b", "c"]
    bench.submit("again")
    bench.timers.settle()
    assert bench.done[-1][0::2] == ("again", None)


def test_writes_that_fill_the_queue_do_not_keep_urgent_commands_out() -> None:
    bench = Bench(ProposerLimits(in_flight=1, queued_weight=2))
    bench.consensus.held = True
    for name in ("in flight", "a", "b", "refused"):
        bench.submit(name)
        bench.timers.settle()
    bench.submit("lease", urgent=True)
    bench.consensus.release()
    bench.timers.settle()
    assert bench.entries[1][0] == "lease"


def test_a_follower_refuses_everything_definitely() -> None:
    bench = Bench()
    bench.consensus.leading = False
    for name in "ab":
        bench.submit(name)
    bench.timers.settle()
    assert [(name, type(error)) for name, _, error in bench.done] == [("a", NotLeader), ("b", NotLeader)]


@pytest.mark.parametrize("error", [UnknownOutcome("lost"), Discarded("replaced")])
def test_the_loss_of_an_entry_reaches_every_command_in_it(error: RaftError) -> None:
    bench = Bench()
    bench.consensus.held = True
    bench.submit("a")
    bench.submit("b")
    bench.timers.settle()
    bench.consensus.fail_waiting(error)
    bench.timers.settle()
    assert bench.done == [("a", None, error), ("b", None, error)]


def test_overload_of_the_log_fails_one_batch_only() -> None:
    bench = Bench()
    bench.consensus.refuse_with = Overloaded("full")
    bench.submit("a")
    bench.timers.settle()
    bench.consensus.refuse_with = None
    bench.submit("b")
    bench.timers.settle()
    assert [(name, type(error)) for name, _, error in bench.done] == [("a", Overloaded), ("b", type(None))]


def test_stopping_answers_what_waits_and_what_comes() -> None:
    bench = Bench(ProposerLimits(in_flight=1))
    bench.consensus.held = True
    bench.submit("in flight")
    bench.timers.settle()
    bench.submit("waits")
    bench.proposer.stop()
    bench.submit("comes")
    assert [(name, type(error)) for name, _, error in bench.done] == [("waits", NotLeader), ("comes", NotLeader)]


def test_companions_ride_in_the_entry_that_enqueues() -> None:
    asked: list[dict[str, int]] = []

    def companions(enqueues: dict[str, int]) -> list[Proposal]:
        asked.append(dict(enqueues))
        return [bench.item("lease")]

    bench = Bench(companions=companions)
    bench.submit("a", enqueues={"q": 2})
    bench.submit("b", enqueues={"q": 1, "r": 1})
    bench.submit("c")
    bench.timers.settle()
    assert asked == [{"q": 3, "r": 1}]
    assert bench.entries == [["a", "b", "c", "lease"]]


def test_outcomes_tell_the_truth() -> None:
    assert outcome_of(NotLeader("")) == pb.OUTCOME_NOT_LEADER
    assert outcome_of(Discarded("")) == pb.OUTCOME_NOT_LEADER
    assert outcome_of(Overloaded("")) == pb.OUTCOME_OVERLOADED
    assert outcome_of(UnknownOutcome("")) == pb.OUTCOME_UNKNOWN


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 300_000])
def test_hand_made_bytes_are_what_protobuf_writes(size: int) -> None:
    group = pb.WriteGroup(session=bytes(10), ack_below=7)
    group.writes.add(seq=9, op=bytes(size))
    data = group.SerializeToString()
    item = write_proposal(data, lambda output, error: None, commits=1, weight=1)
    expected = pb.Batch()
    expected.commands.add().writes.CopyFrom(group)
    assert item.data == expected.SerializeToString()
    assert len(varint(size)) == max(1, (size.bit_length() + 6) // 7)


def test_the_default_bounds_are_the_documented_ones() -> None:
    bounds = ProposerLimits()
    assert (bounds.entry_commits, bounds.entry_size) == (limits.MAX_ENTRY_COMMITS, limits.MAX_ENTRY_SIZE)


@pytest.mark.parametrize(("common", "stamped"), [(None, DATA_VERSION), (1, 1), (DATA_VERSION + 5, DATA_VERSION)])
def test_entries_keep_to_what_the_oldest_member_can_apply(common: int | None, stamped: int) -> None:
    bench = Bench(common=None if common is None else lambda: common)
    bench.submit("a")
    bench.timers.settle()
    assert [batch.data_version for batch in bench.machine.batches] == [stamped]


def test_the_version_may_rise_while_it_runs() -> None:
    known = [1]
    bench = Bench(common=lambda: known[0])
    bench.submit("a")
    bench.timers.settle()
    known[0] = DATA_VERSION
    bench.submit("b")
    bench.timers.settle()
    assert [batch.data_version for batch in bench.machine.batches] == [1, DATA_VERSION]


def test_idle_is_told_when_the_last_answer_is_given() -> None:
    bench = Bench()
    told: list[int] = []
    bench.proposer.when_idle(lambda: told.append(len(bench.done)))
    assert told == [0]
    bench.submit("a")
    bench.timers.call_soon(lambda: bench.proposer.when_idle(lambda: told.append(len(bench.done))))
    bench.timers.settle()
    assert told == [0, 1]
    bench.timers.settle()
    assert told == [0, 1]


def test_idle_is_told_also_after_a_failure() -> None:
    bench = Bench()
    bench.consensus.held = True
    bench.submit("a")
    bench.timers.settle()
    told: list[int] = []
    bench.proposer.when_idle(lambda: told.append(len(bench.done)))
    bench.consensus.fail_waiting()
    bench.timers.settle()
    assert told == [1]
