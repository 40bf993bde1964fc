"""Operations of clients, counted by kind and by what they were answered.

What is done together is counted together: a group of writes, the reads of a frame. So an operation costs nothing by
itself.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.histogram import Histogram

OK: Final = "ok"


class Meter:
    """Of one kind of operation."""

    __slots__ = ("done", "others", "seconds")

    def __init__(self) -> None:
        self.done = 0
        """Answered, with whatever; those in `others` are among them."""
        self.others: Counter[str] = Counter()
        """What was answered instead of `ok`, by its name."""
        self.seconds = Histogram()

    def answered(self, seconds: float, times: int = 1) -> None:
        """So many, which came together, were answered after so many seconds."""
        self.done += times
        self.seconds.observe(seconds, times)

    def refused(self, code: str, times: int = 1) -> None:
        """So many were refused before anything was done for them."""
        self.done += times
        self.others[code] += times

    def codes(self, more: Mapping[str, int] | None = None) -> dict[str, int]:
        """How often which answer was given; `more` of those that count as `answered`."""
        others = self.others + Counter(more or {})
        return {OK: max(0, self.done - others.total()), **others}


def code_of_write(outcome: int) -> str:
    """`check_failed` for OUTCOME_CHECK_FAILED; of a number that this version does not know, the number."""
    return _code(pb.Outcome, outcome, "OUTCOME_", pb.OUTCOME_DONE)


def code_of_read(status: int) -> str:
    """The same of a read's status."""
    return _code(pb.ReadStatus, status, "READ_STATUS_", pb.READ_STATUS_OK)


def _code(kind: "type[pb.Outcome] | type[pb.ReadStatus]", number: int, prefix: str, fine: int) -> str:
    if number == fine:
        return OK
    names = kind.keys(), kind.values()
    return dict(zip(names[1], names[0], strict=True)).get(number, str(number)).removeprefix(prefix).lower()
