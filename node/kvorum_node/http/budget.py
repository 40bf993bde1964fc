"""Bytes that may be held at a time, whoever holds them."""

from .message import unavailable


class Budget:
    """Never above `limit`, but for one part that is larger on its own."""

    def __init__(self, limit: int, what: str) -> None:
        self._limit = limit
        self._what = what
        self.held = 0
        self.most = 0
        self.refused = 0

    def take(self, size: int) -> str:
        """Empty; or why it is not taken."""
        if self.held and self.held + size > self._limit:
            self.refused += 1
            return f"{self.held:,} bytes of {self._what} are held already"
        self.held += size
        self.most = max(self.most, self.held)
        return ""

    def give(self, size: int) -> None:
        """What was taken is free again."""
        self.held -= size


class Share:
    """What one request holds of a budget; a context manager, so that it is given back whatever happens."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._size = 0

    def take(self, size: int) -> None:
        """Hold that much more. Raises Refusal with 503 if there is no room."""
        problem = self.try_to_take(size)
        if problem:
            raise unavailable(problem)

    def try_to_take(self, size: int) -> str:
        """Hold that much more; or why there is no room."""
        problem = self._budget.take(size)
        if not problem:
            self._size += size
        return problem

    def release(self) -> None:
        """Hold nothing any more. May be called twice."""
        self._budget.give(self._size)
        self._size = 0
