"""A small state machine for simulations: a list of what was applied, with checkpoints in the form of JSON files."""

import hashlib
import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from kvorum_raft.copier import write_all
from kvorum_raft.seams import StateFacts
from tests.simulation.links import Broken, poison


class _Image:
    """The state at one entry; also a prepared copy of it."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.open = True

    @property
    def facts(self) -> StateFacts:
        return facts_of(self.content)

    def copy_to(self, fd: int) -> None:
        write_all(fd, self.content)

    def close(self) -> None:
        self.open = False

    def discard(self) -> None:
        self.open = False


def facts_of(content: bytes) -> StateFacts:
    """Raises ValueError."""
    index, times, _ = json.loads(content)
    return StateFacts(index, times[-1] if times else 0, hashlib.blake2b(content, digest_size=16).digest())


class Machine:
    """Keeps what it applied; application errors are results, as in the real store."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, Any]] = []
        self.times: list[int] = []
        self.adopted = 0
        """How many times the whole state was replaced."""
        self.images_to_fail = 0
        """So many of the next images cannot be taken."""
        self._index = 0

    @property
    def applied_index(self) -> int:
        return self._index

    def apply(self, index: int, time_ms: int, payload: bytes) -> Generator[bool | None, None, Any]:
        if index != self._index + 1:
            raise Broken(f"entry {index} is applied after entry {self._index}")
        if index % 7 == 0:
            yield
        yield True
        self._index = index  # with all effects, as one transaction
        self.times.append(time_ms)
        if not payload:
            return None
        self.applied.append((index, payload.decode()))
        try:
            return poison(payload.decode())
        except ValueError as error:
            return error

    def _content(self) -> bytes:
        return json.dumps([self._index, self.times, self.applied]).encode()

    def state_hash(self) -> bytes:
        return facts_of(self._content()).content_hash

    def size(self) -> int:
        return 16 * len(self.applied)

    def image(self) -> _Image:
        if self.images_to_fail:
            self.images_to_fail -= 1
            raise ValueError("the state cannot be held now")
        return _Image(self._content())

    def inspect(self, file: Path) -> StateFacts:
        return facts_of(file.read_bytes())

    def prepare(self, file: Path, pause: Callable[[int], None] | None = None) -> _Image:
        return _Image(file.read_bytes())

    def adopt(self, prepared: Any) -> None:
        if not prepared.open:
            raise Broken("a discarded state is adopted")
        index, times, applied = json.loads(prepared.content)
        if index < self._index:
            raise Broken(f"the state goes back from entry {self._index} to entry {index}")
        self._index, self.times = index, times
        self.applied = [(index, value) for index, value in applied]
        self.adopted += 1


class Jobs:
    """`Background` of a simulation: nothing happens before `run` says so, and a crash forgets what waits."""

    def __init__(self) -> None:
        self._waiting: list[Any] = []
        self._stopped = False

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, job: Any, done: Any) -> None:
        if not self._stopped:
            self._waiting.append((job, done))

    def run(self, count: int | None = None) -> int:
        """Do the next jobs, all by default; returns how many there were."""
        ran = 0
        while self._waiting and (count is None or ran < count):
            job, done = self._waiting.pop(0)
            result, error = None, None
            try:
                result = job()
            except (ValueError, OSError) as problem:
                error = problem
            ran += 1
            done(result, error)
        return ran

    def stop(self) -> None:
        self._stopped = True
        self._waiting.clear()
