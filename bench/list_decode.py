"""What it costs Python to make entries of a list's rows: `python -m bench.list_decode [--rows 40000]`.

The rows are as a node sends them (batches of 1,000, serialised), with keys of three parts and values of several kinds;
no node and no network, so that the figure is the client's own. The aim: 40,000 entries in 0.6 s.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.entry import found
from kvorum.keys import encode_key
from kvorum.values import encode_value

BATCH: Final = 1_000
KINDS: Final[dict[str, Callable[[int], Any]]] = {
    "int": lambda at: at,
    "str": lambda at: f"the value of row {at}",
    "dict": lambda at: {"id": at, "name": f"user {at}", "tags": ["a", "b"], "score": at / 7, "active": True},
    "bytes": lambda at: b"x" * 200,
}


def batches(rows: int, value: Callable[[int], Any]) -> Iterator[bytes]:
    """Answers as they come from a node."""
    for begin in range(0, rows, BATCH):
        answer = pb.ReadResult(status=pb.READ_STATUS_OK)
        entries = answer.ranges.add().entries
        for at in range(begin, min(rows, begin + BATCH)):
            data, encoding = encode_value(value(at))
            entries.add(
                key=encode_key(("users", at, "profile")),
                value=data,
                encoding=encoding,
                versionstamp=at.to_bytes(10, "big"),
            )
        yield answer.SerializeToString()


def decode(answers: list[bytes]) -> tuple[float, int]:
    """Seconds of CPU, and the number of entries."""
    gc.collect()
    began = time.process_time()
    entries = [found(row) for data in answers for row in pb.ReadResult.FromString(data).ranges[0].entries]
    return time.process_time() - began, len(entries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    for name, value in KINDS.items():
        answers = list(batches(options.rows, value))
        times = [decode(answers)[0] for _ in range(options.repeat)]
        best, median = min(times), statistics.median(times)
        each = best / options.rows * 1e6
        print(f"{options.rows:,} rows of {name}: best {best:.3f} s of CPU, median {median:.3f} s, {each:.1f} µs each")


if __name__ == "__main__":
    main()
