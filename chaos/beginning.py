"""What every trial begins with: a seed, a folder for what it leaves, a voice, and an orderly end by signals."""

import argparse
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def begin(options: argparse.Namespace, name: str) -> tuple[int, Path, Callable[[str], None]]:
    """Of `options.seed` and `options.dir`: the seed, a new folder, and what prints a line with the seconds so far.

    Errors: OSError.
    """
    seed = time.time_ns() % 1_000_000 if options.seed is None else options.seed
    if options.dir is not None:
        options.dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"kvorum-{name}-{seed}-", dir=options.dir))
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.2f}  {line}", flush=True)

    # The nodes are processes of their own: whoever ends this must leave it the time to end them. What asyncio does for
    # SIGINT, cancelling the run in order, is right for SIGTERM as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    return seed, folder, say
