"""What can go wrong in the store, apart from what is a result."""

from typing import Final

import lmdb


class StoreFault(Exception):
    """The store cannot go on without risking that this node differs from the others: the process must stop. The message
    is for the operator."""


class Damaged(StoreFault):
    """The data file does not hold what was written to it. A replica's next start will not trust it."""


DAMAGE: Final = (
    lmdb.BadValsizeError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)
"""What LMDB raises where its own structure is damaged; the program makes none of the mistakes that some of them could
also mean."""


class Refused(Exception):
    """A commit ends with an application error. Part of the state machine: the same on every node, and nothing of the
    commit stays.

    `outcome` is a value of `pb.Outcome`; `failed_checks` the indexes of the failing checks.
    """

    def __init__(self, outcome: int, message: str = "", failed_checks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.failed_checks = failed_checks
