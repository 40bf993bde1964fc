"""How queues stand, for Prometheus."""

from collections.abc import Sequence

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.metrics.collector import MAX_QUEUES, NodeCollector, Sources, written
from kvorum_raft.seams import Status

STATUS = Status("n1", b"", "leader", 1, None, 1, 1, 1, 1)


def page(*queues: pb.QueueInfo, now_ms: int = 100_000) -> list[str]:
    sources = Sources(lambda: STATUS, queues=lambda: queues, now_ms=lambda: now_ms)
    return lines(sources)


def lines(sources: Sources) -> list[str]:
    text = written(list(NodeCollector(sources).collect())).decode()
    return [line for line in text.splitlines() if "queue" in line and not line.startswith("#")]


def test_a_queue_in_figures() -> None:
    info = pb.QueueInfo(
        name="mail", messages=7, leased=2, dead=3, oldest_ms=97_500, sent=40, done=30, failed=5, lost=2, died=3,
        consumers=4,
    )  # fmt: skip
    lines = page(info, pb.QueueInfo(name="", messages=1, sent=1))
    for expected in (
        'kvorum_queue_leased{queue="mail"} 2.0',
        'kvorum_queue_queued{queue="mail"} 5.0',
        'kvorum_queue_dead{queue="mail"} 3.0',
        'kvorum_queue_oldest_age_seconds{queue="mail"} 2.5',
        'kvorum_queue_consumers{queue="mail"} 4.0',
        'kvorum_queue_enqueued_total{queue="mail"} 40.0',
        'kvorum_queue_acked_total{queue="mail"} 30.0',
        'kvorum_queue_retried_total{queue="mail"} 5.0',
        'kvorum_queue_redeliveries_total{queue="mail"} 2.0',
        'kvorum_queue_died_total{queue="mail"} 3.0',
        'kvorum_queue_queued{queue=""} 1.0',
        'kvorum_queue_oldest_age_seconds{queue=""} 0.0',
        "kvorum_queue_all_messages 8.0",
        "kvorum_queue_all_dead 3.0",
        "kvorum_queue_all_enqueued_total 41.0",
    ):
        assert expected in lines, expected


def test_names_are_escaped() -> None:
    lines = page(pb.QueueInfo(name='a"b\\c\nd', dead=1))
    assert 'kvorum_queue_dead{queue="a\\"b\\\\c\\nd"} 1.0' in lines


def test_the_largest_are_shown_each_and_all_of_them_in_sums() -> None:
    queues: Sequence[pb.QueueInfo] = [
        pb.QueueInfo(name=f"q{number:03}", messages=number % 7, dead=number % 3) for number in range(300)
    ]
    lines = page(*queues)
    shown = [line for line in lines if line.startswith("kvorum_queue_dead{")]
    assert len(shown) == MAX_QUEUES
    least = min(info.messages + info.dead for info in queues if f'{{queue="{info.name}"}}' in "".join(shown))
    assert sum(info.messages + info.dead > least for info in queues) <= MAX_QUEUES
    assert f"kvorum_queue_all_messages {sum(info.messages for info in queues)}.0" in lines


def test_a_node_that_does_not_lead_shows_none() -> None:
    assert page() == []


def test_something_due_later_has_no_age() -> None:
    assert 'kvorum_queue_oldest_age_seconds{queue="q"} 0.0' in page(pb.QueueInfo(name="q", oldest_ms=100_001))
