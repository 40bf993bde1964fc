"""The commands of an entry about queues and topics as a whole, and whether what clients were told of them is true."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from kvorum._proto import kvorum_pb2 as pb


def commands(index: int, payload: bytes, outputs: Sequence[Any]) -> Iterator[tuple[str, pb.Command, Any]]:
    """Place, command and output of those that are no writes. Places are as versionstamps are: 20 hex digits, in the
    order of the log."""
    number = 0
    for command, output in zip(pb.Batch.FromString(payload).commands, outputs, strict=True):
        if command.HasField("writes"):
            number += len(command.writes.writes)
        else:
            yield f"{index:016x}{number:04x}", command, output
            number += 1


class Calls:
    """Of all clients. Times are nanoseconds of true time."""

    def __init__(self) -> None:
        self._done: dict[str, list[int]] = defaultdict(list)
        self._told: list[tuple[str, int, int]] = []

    def applied(self, command: pb.Command, output: Any, now: int) -> None:
        """A command, for the first time. Removing takes many, of which the last one counts."""
        if command.HasField("subscribe"):
            self._done[subscribing(command.subscribe)].append(now)
        elif command.HasField("remove_queue") and output == 0:
            self._done[removing(command.remove_queue)].append(now)

    def told(self, what: str, invoked: int, returned: int) -> None:
        """A client was told that this is done."""
        self._told.append((what, invoked, returned))

    def violations(self) -> Iterator[str]:
        """What was told, and was not done meanwhile."""
        for what, invoked, returned in self._told:
            done = self._done[what]
            at = bisect_left(done, invoked)
            if at == len(done) or done[at] > returned:
                yield f"{what} was answered at {returned / 1e9:.3f}, and was not done since {invoked / 1e9:.3f}"


def subscribing(call: pb.Subscribe) -> str:
    """What it does."""
    return f"{'unsubscribing' if call.remove else 'subscribing'} {call.queue}"


def removing(call: pb.RemoveQueue) -> str:
    """What it does."""
    return f"removing {call.name}"
