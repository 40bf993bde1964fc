"""Whether requests are answered once at most, to whoever asked, and in the commit of their effects; and whether nothing
is left of answers that nobody takes.

Each answer's commit counts up a key of its request. Answers are taken at most once, so that the log tells of each that
was told to somebody.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvorum._proto import kvorum_pb2 as pb
from kvorum.queues.outgoing import ERROR_HEADER
from kvorum.values import decode_payload
from kvorum_node.store import Store

if TYPE_CHECKING:
    from tests.simulation.whole.judge import Judge


def key(request: str) -> bytes:
    """Where it is counted how often a request was handled."""
    return f"a/{request}".encode()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and what came of it."""

    name: str
    client: str
    outcome: str = "unknown"
    """`ok`: it was answered; `not applied`: it certainly was not sent."""
    answer: str = ""
    count: int = 0
    """Commits in which it was handled."""
    stamp: str = ""
    """Of the last one."""
    replies: tuple[tuple[str, str], ...] = ()
    """Queue and id of each answer that the log tells of."""


class Answers:
    """Of one schedule."""

    def __init__(self, judge: "Judge") -> None:
        self._judge = judge
        self._asked: dict[str, str] = {}
        self._outcomes: dict[str, tuple[str, str]] = {}
        self._owners: dict[str, str] = {}
        """Client of each inbox; empty = not known."""
        self._replies: dict[str, list[tuple[str, str]]] = defaultdict(list)

    # ---- what clients do

    def asked(self, name: str, client: str) -> None:
        """A client asks."""
        self._asked[name] = client

    def told(self, name: str, outcome: str, answer: str = "") -> None:
        """What it was told in the end."""
        self._outcomes[name] = outcome, answer
        self._judge.counters["requests answered" if outcome == "ok" else "requests without answer"] += 1

    def inbox(self, queue: str, client: str = "") -> None:
        """Answers come to this queue; for this client, if that is known."""
        self._owners[queue] = client or self._owners.get(queue, "")

    # ---- what nodes do

    def granted(self, delivery: pb.Delivery) -> None:
        """An answer was taken."""
        headers = pb.Headers.FromString(delivery.headers)
        name = headers.fields.get(ERROR_HEADER) or decode_payload(delivery.payload)
        self._replies[name].append((delivery.queue, delivery.message_id.hex()))
        self.inbox(delivery.queue)

    # ---- the end

    def judge(self, store: Store) -> None:
        """When nothing goes on any more, and whatever has an end has had it."""
        with store.snapshot() as snapshot:
            for name, client in self._asked.items():
                row = snapshot.get(key(name))
                count = int.from_bytes(row.value, "little") if row.versionstamp else 0
                outcome, answer = self._outcomes.get(name, ("unknown", ""))
                replies = tuple(self._replies.pop(name, ()))
                asked = Asked(name, client, outcome, answer, count, row.versionstamp.hex(), replies)
                for violation in violations(asked, self._owners):
                    self._judge.broken(f"queues: {violation}")
                self._judge.counters["requests handled"] += count
                self._judge.counters["answers that nobody took"] += bool(count and not replies)
            for name in self._replies:
                self._judge.broken(f"queues: {name} was answered, and nobody has asked it")
            for inbox in self._owners:
                infos, _ = snapshot.queue_infos("", b"", 1, one=inbox)
                if infos:
                    self._judge.broken(f"queues: inbox {inbox!r} is left, with {infos[0].messages} messages")


def violations(asked: Asked, owners: dict[str, str]) -> Iterator[str]:
    """`owners`: client of each inbox; empty = not known."""
    name = asked.name
    if asked.count > 1:
        yield f"request {name} was handled {asked.count} times"
    if asked.count and asked.outcome == "not applied":
        yield f"request {name} was handled, and its client told that it was not sent"
    if len(asked.replies) > 1:
        yield f"request {name} was answered {len(asked.replies)} times: {asked.replies}"
    for inbox, message in asked.replies:
        if asked.stamp != message[:20]:
            yield f"request {name} has its effect at {asked.stamp or 'no place'}, and was answered at {message[:20]}"
        if owners.get(inbox, "") not in ("", asked.client):
            yield f"request {name} of {asked.client} was answered to {owners[inbox]}"
    if asked.outcome == "ok" and asked.answer != name:
        yield f"request {name} got the answer to {asked.answer!r}"
    if asked.outcome == "ok" and not asked.replies:
        yield f"request {name} got an answer that no node has handed out"
