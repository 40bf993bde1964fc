"""An opened environment that outlives its time as the live one for as long as somebody reads from it."""

import threading
from collections.abc import Callable

import lmdb

from .environment import Environment
from .errors import DAMAGE, Damaged, StoreFault


class Holder:
    """Counts who reads from an environment. After `retire`, the last one to leave gives it to `dispose`, in whatever
    thread that happens: closing under a reader would kill the process (SIGSEGV)."""

    __slots__ = ("_dispose", "_lock", "_retired", "_users", "environment")

    def __init__(self, environment: Environment, dispose: Callable[[Environment], None]) -> None:
        self.environment = environment
        self._dispose = dispose
        self._lock = threading.Lock()
        self._users = 0
        self._retired = False

    @property
    def env(self) -> lmdb.Environment:
        return self.environment.env

    @property
    def users(self) -> int:
        return self._users

    def enter(self) -> bool:
        """Each one that is True needs a `leave`. False: it is retired, take the environment that came after it."""
        with self._lock:
            if self._retired:
                return False
            self._users += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            ended = self._retired and not self._users
        if ended:
            self._dispose(self.environment)

    def judge(self, error: Exception) -> StoreFault:
        """What to raise in place of an error that came up while this environment was read or written. If it says that
        the data file is damaged, the folder is marked, so that the next start does not trust it."""
        if isinstance(error, (Damaged, *DAMAGE)):
            self.environment.mark_damaged(str(error))
        if isinstance(error, Damaged):
            return Damaged(str(error))
        if isinstance(error, DAMAGE):
            return Damaged(f"the data file is damaged: {error}")
        return StoreFault(f"the state cannot be used: {error}")

    def retire(self) -> None:
        """It is no longer the live one."""
        with self._lock:
            self._retired = True
            ended = not self._users
        if ended:
            self._dispose(self.environment)
