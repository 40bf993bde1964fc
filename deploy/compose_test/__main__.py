"""`python -m deploy.compose_test`: see `scripts/compose-test`.

Exit status: 0 all is well, 1 something is not, 3 no engine can be started on this machine. Only the probe at the
beginning gives 3: whatever happens after it, also an inner part that ends with 3, is 1.
"""

import argparse
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from . import probe, supplies
from .steps import Failed, say

INSIDE: Final = 2_400.0
"""Seconds that the inner part may take; each of its steps has a limit of its own."""
ROUND: Final = 300.0
"""So many more for each round of faults."""
TIDY: Final = 180.0
"""Seconds in which an interrupted test must have removed what it made in an engine that was there before."""
ENDING: Final = 30.0
"""Seconds in which all that ran in namespaces of their own must be gone."""
EXIT_FAILED: Final = 1
EXIT_IMPOSSIBLE: Final = 3


def main(lacks: Callable[[], list[str]], test: Callable[[], str]) -> int:
    """Print the last line and give the exit status."""
    began = time.monotonic()
    if missing := lacks():
        print("compose-test: NOT RUN, no engine can be started here; missing: " + "; ".join(missing), flush=True)
        return EXIT_IMPOSSIBLE
    try:
        figures = test()
    except Failed as error:
        print(error, flush=True)
        reason = (str(error).splitlines() or ["?"])[0].rstrip(":")
    except KeyboardInterrupt:
        reason = "interrupted"
    except SystemExit as error:
        reason = f"ended ({error.code})"
    except Exception as error:
        logging.exception("a fault of the test")
        reason = f"{type(error).__name__}: {error}"
    else:
        print(f"compose-test: ok in {time.monotonic() - began:.0f} s: {figures}", flush=True)
        return 0
    print(f"compose-test: FAILED after {time.monotonic() - began:.0f} s: {reason}", flush=True)
    return EXIT_FAILED


def lacks() -> list[str]:
    """Nothing where an engine runs already."""
    return [] if probe.engine_runs() else probe.missing()


def test(rounds: int) -> str:
    """The figures of the last line. Errors: Failed."""
    own = not probe.engine_runs()
    if own:
        supplies.install_engine()
    else:
        say("an engine runs already: that one is used")
    with _folder() as folder:
        things = supplies.fetch(folder)
        task = {name: str(getattr(things, name)) for name in ("compose", "prometheus", "base", "python")}
        (folder / "task.json").write_text(json.dumps({**task, "own_engine": own, "cgroup": _group(), "rounds": rounds}))
        words = [sys.executable, "-m", "deploy.compose_test.inside", str(folder)]
        if own:
            # The namespaces end with their first process, and that with us: nothing that runs in them is left.
            words = ["unshare", *probe.NAMESPACES, *words]
        _watch(words, folder / "reason", INSIDE + ROUND * rounds)
        return (folder / "figures").read_text().strip()


def _group() -> str:
    return f"kvorum-compose-test-{os.getpid()}"


def _watch(words: list[str], reason: Path, limit: float) -> None:
    process = subprocess.Popen(words, cwd=supplies.ROOT, stdin=subprocess.DEVNULL)
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        raise Failed(f"the test took longer than {limit:g} s") from None
    finally:
        if process.poll() is None:
            _end(process, sealed=words[0] == "unshare")
        _remove_groups(_group())
    if status:
        why = reason.read_text() if reason.exists() else "see above"
        raise Failed(f"the inner part ended with status {status}: {why}")


def _end(process: "subprocess.Popen[bytes]", *, sealed: bool) -> None:
    """Where it has namespaces of its own these end with it, and all that runs in them; an engine that was there before
    is to be tidied up."""
    if not sealed:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(TIDY)
        except subprocess.TimeoutExpired:
            say(f"the inner part does not end within {TIDY:g} s: something may be left in the engine")
    process.kill()
    process.wait()


@contextmanager
def _folder() -> Iterator[Path]:
    """On a real disk: overlays and syncs must be what they are."""
    folder = Path(tempfile.mkdtemp(prefix="kvorum-compose-test-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        _insist(lambda: shutil.rmtree(folder))


def _remove_groups(name: str) -> None:
    """Control groups of containers that ended with the engine."""
    root = Path("/sys/fs/cgroup")
    for top in [root / name, *(folder / name for folder in root.iterdir() if folder.is_dir())]:
        if top.is_dir() and not top.parent.is_symlink():
            for folder in sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True):
                _insist(folder.rmdir)
            _insist(top.rmdir)


def _insist(remove: Callable[[], None]) -> None:
    """What processes that are just ending still use can be removed a moment later. Errors: Failed."""
    deadline = time.monotonic() + ENDING
    while True:
        try:
            remove()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise Failed(f"left behind: {error}") from None
        time.sleep(0.1)


def _terminated(number: int, _: object) -> None:
    raise SystemExit(f"signal {number}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    parser = argparse.ArgumentParser(prog="scripts/compose-test")
    parser.add_argument("--rounds", type=int, default=1, help="how often each fault of chaos comes (default: 1)")
    sys.exit(main(lacks, partial(test, parser.parse_args().rounds)))
