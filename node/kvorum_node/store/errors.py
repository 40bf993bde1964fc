"""What can go wrong in the store, apart from what is a result."""


class StoreFault(Exception):
    """The store cannot go on without risking that this node differs from the others: the process must stop. The message
    is for the operator."""


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
