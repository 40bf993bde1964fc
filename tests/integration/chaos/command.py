"""Runs `python -m chaos` as people do, and reads its last line."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
LAST: Final = re.compile(
    r"chaos: (?P<verdict>ok|FAILED) kills (?P<kills>\d+) pauses (?P<pauses>\d+) cuts (?P<cuts>\d+)"
    r" links (?P<links>\d+) power-cuts (?P<power_cuts>\d+) bad-disks (?P<bad_disks>\d+) syncs (?P<syncs>\d+)"
    r" clocks (?P<clocks>\d+) restarts (?P<restarts>\d+) versions (?P<versions>\d+) changes (?P<changes>\d+)"
    r" operations (?P<operations>\d+) lost (?P<lost>\d+) doubled (?P<doubled>\d+)"
    r" undecided (?P<undecided>\d+) problems (?P<problems>\d+)"
    r" \(ok (?P<ok>\d+), not applied (?P<denied>\d+), unknown (?P<unknown>\d+)\)"
    r" retries \d+ messages (?P<messages>\d+) deliveries (?P<deliveries>\d+)"
)
HITS: Final = re.compile(r"  (?P<kind>[a-z-]+) +(?P<count>\d+) +(?P<hits>[\d,]+) [a-z]")
"""A line of the table of faults."""


def start(*arguments: str, folder: Path) -> "subprocess.Popen[str]":
    """The command, whose folder of the run is made in `folder` and kept."""
    return subprocess.Popen(
        [sys.executable, "-m", "chaos", "--dir", str(folder), "--keep", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str, folder: Path, timeout: float) -> dict[str, int]:
    """Run it to a good end; the numbers of its last line."""
    process = start(*arguments, folder=folder)
    try:
        out, error = process.communicate(timeout=timeout)
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate()
    assert process.returncode == 0, out + error
    assert error == ""
    found = LAST.fullmatch(out.splitlines()[-1])
    assert found is not None, out.splitlines()[-1]
    assert found["verdict"] == "ok"
    numbers = {name: int(text) for name, text in found.groupdict().items() if name != "verdict"}
    assert numbers["lost"] == numbers["doubled"] == numbers["undecided"] == numbers["problems"] == 0
    assert numbers["operations"] == numbers["ok"] + numbers["denied"] + numbers["unknown"]
    assert numbers["ok"] > 200
    assert numbers["deliveries"] >= numbers["messages"] > 0
    for line in out.splitlines():
        row = HITS.match(line)
        if row is not None:
            assert int(row["hits"].replace(",", "")) > 0, line
            numbers[row["kind"]] = int(row["count"])
    return numbers
