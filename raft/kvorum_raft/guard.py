"""What stands around every entry into the core."""

from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from kvorum_raft.background import Background
from kvorum_raft.errors import ProtocolError

T = TypeVar("T")


def _never() -> bool:
    return False


class Guard:
    """Around every entry into the core: whatever it raises ends the node, except what only says that a peer talks
    nonsense."""

    def __init__(self, fault: Callable[[Exception], None]) -> None:
        self._fault = fault

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, Exception) or isinstance(error, ProtocolError):
            return False
        self._fault(error)
        return True


class GuardedBackground:
    """A `Background` whose results enter the core under the node's guard, and are followed by a step."""

    def __init__(self, background: Background, guard: Guard, ask_step: Callable[[], None]) -> None:
        self._background = background
        self._guard = guard
        self._ask_step = ask_step

    def submit(self, job: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        def guarded(result: T | None, error: Exception | None) -> None:
            with self._guard:
                done(result, error)
            self._ask_step()

        self._background.submit(job, guarded)

    def stop(self) -> None:
        self._background.stop()

    def stopping(self) -> bool:
        stopping: Callable[[], bool] = getattr(self._background, "stopping", _never)
        return stopping()
