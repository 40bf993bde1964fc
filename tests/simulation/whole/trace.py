"""What happened in a schedule, line by line. Lines are made when somebody reads them: most traces nobody does."""

from typing import Any

from chaos.history import Operation


class Trace:
    """In the order of true time."""

    def __init__(self) -> None:
        self._notes: list[tuple[float, str, str | Operation, tuple[Any, ...]]] = []

    def add(self, now: float, who: str, what: str | Operation, arguments: tuple[Any, ...]) -> None:
        """`what` is a text, one with `%` and its arguments, or what a client did. None of it may change."""
        self._notes.append((now, who, what, arguments))

    @property
    def last(self) -> str:
        return self._line(*self._notes[-1])

    def lines(self) -> list[str]:
        return [self._line(*note) for note in self._notes]

    @staticmethod
    def _line(now: float, who: str, what: str | Operation, arguments: tuple[Any, ...]) -> str:
        text = what.to_json() if isinstance(what, Operation) else what % arguments if arguments else what
        return f"{now:12.6f} {who}: {text}"
