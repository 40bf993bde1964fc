"""Linearizable reads on a leader: a round of heartbeats that a quorum answers proves that the leader still led when the
round began.

A read is tied to the *next* round, so one round serves all reads that arrived before it began; a round begins at once
when none is running. The commit index is noted when the read arrives; before the leader has committed an entry of its
own term it cannot know it, and the reads wait for that.
"""

from collections import deque
from collections.abc import Callable, Iterable

from kvorum_raft.errors import NotLeader, Overloaded, RaftError

ReadCallback = Callable[[int, RaftError | None], None]


class ReadRounds:
    """One term of one leader. Node ids name who answered; the leader itself counts once."""

    def __init__(self, *, limit: int) -> None:
        self.round = 0
        self._limit = limit
        self._answers: dict[str, int] = {}
        self._early: list[ReadCallback] = []
        self._waiting: deque[tuple[int, int, ReadCallback]] = deque()
        self.served = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._early)

    def start_term(self) -> None:
        """Rounds go on counting over terms, so that no answer of an earlier term can be taken for one of this."""
        self._answers.clear()

    def begin(self) -> int:
        """A new round; its number goes with every message from now on."""
        self.round += 1
        return self.round

    def forget(self, node_id: str) -> None:
        """What it answered does not count any more."""
        self._answers.pop(node_id, None)

    def answered(self, node_id: str, number: int) -> None:
        if number <= self.round and number > self._answers.get(node_id, 0):
            self._answers[node_id] = number

    def confirmed(self, voters: Iterable[str], quorum: int, own_id: str) -> int:
        """The newest round that a quorum of the voters has answered."""
        answers = [self.round if node_id == own_id else self._answers.get(node_id, 0) for node_id in voters]
        answers.sort(reverse=True)
        return answers[quorum - 1]

    def ask(self, commit_index: int | None, callback: ReadCallback) -> None:
        """`commit_index` is None while the leader has not committed in its term. Raises Overloaded."""
        if len(self) >= self._limit:
            raise Overloaded(f"{self._limit} linearizable reads wait already")
        if commit_index is None:
            self._early.append(callback)
        else:
            self._waiting.append((self.round + 1, commit_index, callback))

    def term_committed(self, commit_index: int) -> None:
        """The leader has committed an entry of its term."""
        early, self._early = self._early, []
        self._waiting.extend((self.round + 1, commit_index, callback) for callback in early)

    def wants_round(self, confirmed: int) -> bool:
        """True if reads wait for a round that has not begun and no other one is running."""
        return bool(self._waiting) and self._waiting[-1][0] > self.round and confirmed >= self.round

    def serve(self, confirmed: int) -> None:
        while self._waiting and self._waiting[0][0] <= confirmed:
            _, index, callback = self._waiting.popleft()
            self.served += 1
            callback(index, None)

    def fail(self, reason: str) -> None:
        """Leadership is lost."""
        callbacks = [*self._early, *(callback for _, _, callback in self._waiting)]
        self._early.clear()
        self._waiting.clear()
        for callback in callbacks:
            callback(0, NotLeader(reason))
