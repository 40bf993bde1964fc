"""A short run of queues on real processes, by the command that people use."""

import re
import subprocess
import sys
from pathlib import Path

from chaos.queues import checker
from chaos.queues.case import Terms
from chaos.queues.history import Effect, History, Record, load

ROOT = Path(__file__).parents[3]
LAST = re.compile(
    r"queues: messages (\d+) redeliveries (\d+) consumer kills (\d+) leader kills (\d+) violations (\d+)"
    r" problems (\d+) (ok|FAILED)"
)


def test_killed_consumers_and_leaders_lose_and_double_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "chaos.queues", "--dir", str(tmp_path), "--keep", "--seed", "3"]
    command += ["--seconds", "12", "--messages", "1500", "--consumer-kills", "4", "--leader-kills", "1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert ended.stderr == ""
    found = LAST.fullmatch(ended.stdout.splitlines()[-1])
    assert found is not None, ended.stdout
    messages, redeliveries, kills, leaders, violations, problems = map(int, found.groups()[:-1])
    assert messages > 1_000
    assert redeliveries > 20
    assert (kills, leaders, violations, problems) == (4, 1, 0, 0)

    # The same history would not pass if one effect had happened twice, or a message were missing.
    (folder,) = tmp_path.iterdir()
    records = list(load(folder / "history.jsonl"))
    effect = next(record for record in records if isinstance(record, Effect))
    without: list[Record] = [record for record in records if record is not effect]
    for changed, kind in (
        ([*without, Effect(effect.message, 2, effect.stamp)], "effect doubled"),
        (without, "effect missing"),
    ):
        assert kind in {violation.kind for violation in checker.check(History.of(changed), Terms(late=None))}
