"""Seeds on several cores: worker processes that are told a seed a line and answer with a line.

They are started anew (never forked), each with the same fixed hash seed, so a seed is the same schedule in whichever
of them it is played.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.simulation.whole import mutations, schedule

ROOT = Path(__file__).parents[3]
_LONGEST_FINDING = 4000


@dataclass(slots=True)
class Summary:
    """What is kept of a seed."""

    seed: int
    findings: list[str]
    unconverged: bool
    undecided: bool
    last: str
    """The last line of the trace: where it stood if it came to no rest."""
    operations: int
    converged_in: float
    counters: Counter[str]

    @property
    def ok(self) -> bool:
        return not (self.findings or self.unconverged or self.undecided)

    @property
    def what(self) -> str:
        """What was wrong, in one text."""
        return self.findings[0] if self.findings else "undecided history" if self.undecided else self.last


def summary(result: schedule.Result) -> Summary:
    return Summary(
        result.seed,
        [finding[:_LONGEST_FINDING] for finding in result.findings],
        result.unconverged,
        result.undecided,
        result.trace.last[:_LONGEST_FINDING],
        len(result.history),
        result.converged_in,
        result.counters,
    )


def play(seed: int, settings: schedule.Settings, mutation: str = "") -> schedule.Result:
    """One seed, with a rule disabled if one is named."""
    with mutations.disabled(mutation):
        return schedule.run(seed, settings)


def play_all(
    seeds: Iterable[int], settings: schedule.Settings, jobs: int, mutation: str = ""
) -> Generator[Summary, None, None]:
    """All seeds, as they are done. Ends its workers when it is closed. RuntimeError if a worker dies."""
    if jobs == 1:
        yield from (summary(play(seed, settings, mutation)) for seed in seeds)
        return
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seed in seeds:
        waiting.put(seed)
    count = waiting.qsize()
    done: queue.SimpleQueue[Summary | int] = queue.SimpleQueue()
    workers = [_start(settings, mutation) for _ in range(min(jobs, count))]
    threads = [threading.Thread(target=_drive, args=(worker, waiting, done), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        for _ in range(count):
            found = done.get()
            if isinstance(found, int):
                raise RuntimeError(f"a worker died while it played seed {found}")
            yield found
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        for thread in threads:
            thread.join()
        for worker in workers:
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # a seed that it was not told any more
                        pipe.close()


def _start(settings: schedule.Settings, mutation: str) -> "subprocess.Popen[str]":
    given = json.dumps({"settings": asdict(settings), "mutation": mutation})
    return subprocess.Popen(
        [sys.executable, "-m", "tests.simulation.whole", "--worker", given],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def _drive(
    worker: "subprocess.Popen[str]", waiting: "queue.SimpleQueue[int]", done: "queue.SimpleQueue[Summary | int]"
) -> None:
    assert worker.stdin is not None and worker.stdout is not None
    while True:
        try:
            seed = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            print(seed, file=worker.stdin, flush=True)
            line = worker.stdout.readline()
        except (OSError, ValueError):
            line = ""
        if not line:
            done.put(seed)
            return
        fields = json.loads(line)
        done.put(Summary(**{**fields, "counters": Counter(fields["counters"])}))


def work(given: str) -> int:
    """A worker's life."""
    fields = json.loads(given)
    settings = schedule.Settings(**fields["settings"])
    for line in sys.stdin:
        found = summary(play(int(line), settings, fields["mutation"]))
        print(json.dumps({name: getattr(found, name) for name in Summary.__slots__}), flush=True)
    return 0
