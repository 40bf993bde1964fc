"""Changes in chunks."""

from typing import Any

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.proposer import Proposal, Proposer
from kvorum_node.queue_jobs import MAX_RETRIES, MAX_TIME, Job, QueueJobs
from kvorum_node.store import Unfinished
from kvorum_raft.errors import NotLeader, Overloaded, RaftError
from tests.unit.node.harness import VirtualTimers


class Line(Proposer):
    """Takes proposals, and has each answered after 10 ms."""

    def __init__(self, timers: VirtualTimers) -> None:
        self.timers = timers
        self.answers: list[Any] = []
        self.proposed: list[pb.Command] = []
        self.urgent = 0

    def submit(self, item: Proposal, *, urgent: bool = False) -> None:
        batch = pb.Batch.FromString(item.data)
        self.proposed.append(batch.commands[0])
        self.urgent += urgent
        answer = self.answers.pop(0) if self.answers else 0
        error = answer if isinstance(answer, RaftError) else None
        self.timers.call_later(0.01, item.on_done, None if error else answer, error)


class Bench:
    def __init__(self, *answers: Any) -> None:
        self.timers = VirtualTimers()
        self.line = Line(self.timers)
        self.line.answers = list(answers)
        self.jobs = QueueJobs(self.line, self.timers)
        self.ends: list[tuple[str, int, Any, RaftError | None]] = []

    def job(self, queue: str = "q", most: int = 1_000_000) -> Job:
        def chunk(touched: int, progress: bool) -> pb.Command | None:
            return pb.Command(purge=pb.Purge(queue=queue)) if progress and touched < most else None

        job = Job(queue, chunk, lambda touched, output, error: self.ends.append((queue, touched, output, error)))
        self.jobs.run(job)
        return job


def test_chunks_one_after_the_other_until_nothing_is_left() -> None:
    bench = Bench(256, 256, 17, 0)
    bench.job()
    assert len(bench.line.proposed) == 1
    bench.timers.advance(1)
    assert bench.ends == [("q", 529, None, None)]
    assert len(bench.line.proposed) == 4 and not bench.line.urgent
    assert bench.jobs.statistics() == {"queue_jobs": 0, "queue_chunks": 4}


def test_a_job_ends_with_what_there_was_to_do() -> None:
    bench = Bench(*[256] * 100)
    bench.job(most=600)
    bench.timers.advance(1)
    assert bench.ends == [("q", 768, None, None)]


def test_a_walk_goes_on_until_a_whole_one_finds_nothing() -> None:
    bench = Bench(Unfinished(0, b"a"), Unfinished(3, b"b"), 0, Unfinished(0, b"c"), Unfinished(0, b""), 0)
    bench.job()
    bench.timers.advance(1)
    assert bench.ends == [("q", 3, None, None)]
    assert [command.purge.after for command in bench.line.proposed] == [b"", b"a", b"b", b"", b"c", b""]


def test_one_job_a_queue_at_a_time() -> None:
    bench = Bench(5, 5, 0, 7, 0, 0)
    bench.job()
    bench.job("other")
    bench.job()
    assert [command.purge.queue for command in bench.line.proposed] == ["q", "other"]
    bench.timers.advance(1)
    assert [(queue, touched) for queue, touched, _, _ in bench.ends] == [("q", 5), ("other", 12), ("q", 0)]
    assert not bench.jobs._lines


def test_no_room_is_no_end_until_it_lasts() -> None:
    bench = Bench(Overloaded("full"), 3, 0)
    bench.job()
    bench.timers.advance(1)
    assert bench.ends == [("q", 3, None, None)]
    full = [Overloaded("full")] * (MAX_RETRIES + 1)
    bench = Bench(*full)
    bench.job()
    bench.timers.advance(60)
    assert bench.ends == [("q", 0, None, full[-1])]


def test_a_lost_leader_ends_all_jobs_at_once() -> None:
    lost = NotLeader("lost")
    bench = Bench(3, lost, lost)
    bench.job()
    bench.job()
    bench.timers.advance(1)
    assert bench.ends == [("q", 3, None, lost), ("q", 0, None, lost)]


def test_a_job_whose_caller_is_gone_proposes_nothing_more() -> None:
    bench = Bench(*[limits.QUEUE_CHUNK] * 1_000)
    job = bench.job()
    bench.job()
    bench.timers.advance(0.045)
    job.cancel()
    done = len(bench.line.proposed)
    bench.line.answers = [3, 0]
    bench.timers.advance(1)
    assert len(bench.line.proposed) == done + 2, "only the second job's"
    assert [touched for _, touched, _, _ in bench.ends] == [3]


def test_whoever_is_gone_does_not_wait_in_line() -> None:
    bench = Bench(*[limits.QUEUE_CHUNK] * 1_000)
    bench.job()
    for _ in range(50):
        bench.job().cancel()
    assert bench.jobs.statistics()["queue_jobs"] <= 2


def test_an_endless_job_is_ended() -> None:
    bench = Bench(*[1] * 200_000)
    bench.job()
    bench.timers.advance(MAX_TIME + 1)
    ((_, touched, _, error),) = bench.ends
    assert touched > 10_000 and isinstance(error, Overloaded)
