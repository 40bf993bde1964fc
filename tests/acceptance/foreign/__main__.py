"""The long runs with foreign clients: `scripts/acceptance counter --seconds 60 --kills 20` and `… figures`."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.acceptance.foreign import figures
from tests.acceptance.foreign.counter import Fate, Trial
from tests.acceptance.foreign.process import KINDS, install


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/acceptance", description="Long runs with foreign clients.")
    commands = parser.add_subparsers(dest="command", required=True)
    counting = commands.add_parser("counter", help="count while leaders are killed, and judge every step")
    counting.add_argument("--seconds", type=float, default=60, help="least duration of each trial")
    counting.add_argument("--kills", type=int, default=20, help="least kills in each trial")
    counting.add_argument("--clients", default=",".join(KINDS), help="which, with commas between (default: all)")
    commands.add_parser("figures", help="print how fast they are")
    options = parser.parse_args(arguments)
    install()
    with tempfile.TemporaryDirectory(prefix="kvorum-acceptance-") as folder:
        if options.command == "figures":
            figures.show(Path(folder))
            return 0
        return count(Path(folder), options.clients.split(","), options.seconds, options.kills)


def count(folder: Path, kinds: Sequence[str], seconds: float, kills: int) -> int:
    faults = 0
    for fate in Fate:
        place = folder / fate.name
        place.mkdir()
        trial = Trial(place, kinds, fate)
        counts = trial.run(seconds, 1) if fate is Fate.ALONE else trial.run(seconds, kills)
        print(f"the serving node {fate.value}: {trial.kills} times the leader was killed or stopped")
        for found in counts:
            numbers = ", ".join(f"{name} {number:,}" for name, number in found.numbers().items())
            print(f"  {found.kind:14} {numbers}", flush=True)
            for fault in found.faults():
                faults += 1
                print(f"    FAULT: {fault}")
    print("FAULTS" if faults else "every answer was true")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
