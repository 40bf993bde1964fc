"""The queues that clients share, and what each is for."""

from dataclasses import dataclass
from typing import Final

from chaos.queues.history import Queue, Record, Topic
from kvorum._proto import kvorum_pb2 as pb

LEASE: Final = 700
"""Milliseconds."""
LONGEST_LEASE: Final = 2 * LEASE
"""To which somebody changes it."""
TOPIC: Final = "news"
SCHEDULE: Final = "bell"
TIGHT: Final = "tight"
"""The queue that may hold few messages."""
BACKLOG: Final = 2
STORY: Final = "story"
"""The topic that retains what it was sent, for subscriptions that start in the past."""
RETENTION: Final = 2_500
"""Milliseconds."""
LATE: Final = ("late-a", "late-b")
"""The queues that subscribe to it, and stop, again and again."""
BRIEF: Final = "brief"
"""The queue that is removed again and again."""
BRIEF_ATTEMPTS: Final = 3
"""Of its policy. Without one, since it was removed with the queue, its messages have as many as they bring:"""
OWN_ATTEMPTS: Final = 6
WINDOW: Final = 900
"""Milliseconds for which it remembers a deduplication id."""
ASKED: Final = "asked"
"""The queue of requests."""
REPLY_TTL: Final = 1_500
"""Milliseconds for which an answer waits: less than usual, so that schedules need not wait for its end."""
CHUNK: Final = 2
"""Messages that one command of a removal deletes, or copies to a subscription: few, so that much is in between."""
PERIOD: Final = 2_000
"""Milliseconds between two ticks."""
GROUPS: Final = ("g0", "g1", "g2")
DEDUP_IDS: Final = ("d0", "d1", "d2", "d3")
WORK_ATTEMPTS: Final = (3, 6)
"""The fewest and the most that somebody allows."""


@dataclass(frozen=True)
class Line:
    """One queue, as a client consumes it."""

    queue: str
    credits: int = 3
    concurrency: int = 2
    take: bool = False
    expiring: bool = False


LINES: Final = (
    Line("work"),
    Line("work", credits=2, expiring=True),
    Line("rows", credits=4, concurrency=3),
    Line("letters"),
    Line("taken", take=True),
    Line("news-a"),
    Line("news-b", credits=4, concurrency=3),
    Line("bells"),
    Line("spare"),
    Line(TIGHT, credits=2, take=True),
    Line(BRIEF),
    *(Line(queue, take=True) for queue in LATE),
)
PAUSED: Final = ("spare", "letters")
"""Queues that somebody pauses at times."""
SENT_TO: Final = ("work", "work", "work", "rows", "rows", "taken", "spare")
"""Who sends to one queue chooses among these."""

RECORDS: Final[tuple[Record, ...]] = (
    Queue("work", LEASE, WORK_ATTEMPTS[1], WORK_ATTEMPTS[0], requeued=True),
    Queue("rows", LEASE, 3, dead="letters", ordered=True, requeued=True),
    Queue("letters", LEASE, 6, requeued=True),
    Queue("taken", LEASE, taken=True),
    Queue("news-a", LEASE, 8),
    Queue("news-b", LEASE, 8, ordered=True),
    Queue("bells", LEASE, 8),
    Queue("spare", LEASE, 8, purged=True),
    Queue(TIGHT, LEASE, taken=True),
    Queue(BRIEF, LEASE, OWN_ATTEMPTS, BRIEF_ATTEMPTS, purged=True),
    Topic(TOPIC, ("news-a", "news-b")),
)
NAMES: Final = tuple(record.name for record in RECORDS if isinstance(record, Queue))


def policy(queue: str, attempts: int = 0, lease: int = LEASE) -> pb.QueuePolicy:
    """What is defined of a queue; `attempts` is for the one whose policy changes."""
    made = pb.QueuePolicy(lease_ms=lease, backoff=pb.Backoff(delays_ms=[20, 40, 80]))
    made.max_attempts = attempts or next(
        one.max_attempts for one in RECORDS if isinstance(one, Queue) and one.name == queue
    )
    if queue in ("rows", "news-b"):
        made.ordered = True
    if queue == "rows":
        made.dead_letters, made.dead_letter_queue = pb.DEAD_LETTERS_QUEUE, "letters"
    if queue == "spare":
        made.max_in_flight = 2
    if queue == TIGHT:
        made.max_backlog = BACKLOG
    if queue == BRIEF:
        made.max_attempts = BRIEF_ATTEMPTS
    return made


def definitions() -> list[pb.QueueCall]:
    """All that has to be said once. May be said again."""
    calls = [define(name) for name in NAMES]
    calls.append(pb.QueueCall(topic=pb.DefineTopic(name=TOPIC)))
    calls += [pb.QueueCall(subscribe=pb.Subscribe(topic=TOPIC, queue=queue)) for queue in ("news-a", "news-b")]
    return [*calls, story()]


def define(queue: str) -> pb.QueueCall:
    """Its policy, as it is at first."""
    return pb.QueueCall(define=pb.DefineQueue(name=queue, policy=policy(queue).SerializeToString()))


def story(*, remove: bool = False) -> pb.QueueCall:
    """Make the topic that retains, or remove it."""
    return pb.QueueCall(topic=pb.DefineTopic(name=STORY, retention_ms=0 if remove else RETENTION, remove=remove))


def schedule(*, begin: bool) -> pb.QueueCall:
    """Begin or end the recurring message."""
    definition = pb.Schedule(cron="* * * * * */2", message=pb.Enqueue(queue="bells", payload=b"bell 0"))
    data = definition.SerializeToString() if begin else b""
    return pb.QueueCall(schedule=pb.DefineSchedule(name=SCHEDULE, definition=data))
