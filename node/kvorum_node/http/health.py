"""Health, for supervisors and load balancers: /livez says that this process runs, /readyz that it is worth asking.

Ready means that a leader is known and the state may be read. A short election is no reason to be taken out of a load
balancer: requests are held meanwhile, so it has a grace of one maximum election timeout.
"""

from collections.abc import Callable

from .message import Response, text


class Health:
    """`problem` says why this node cannot serve (empty: it can), `clock` gives seconds."""

    def __init__(self, problem: Callable[[], str], clock: Callable[[], float], *, grace: float) -> None:
        self._problem = problem
        self._clock = clock
        self._grace = grace
        self._sound_at = float("-inf")
        self.ending = False
        """The node stops."""

    def end(self) -> None:
        """The node stops: nobody shall send anything new."""
        self.ending = True

    def look(self) -> None:
        """Note how things stand; to be called whenever that may have changed."""
        if not self._problem():
            self._sound_at = self._clock()

    def live(self) -> Response:
        """200 while the loop turns."""
        return text(200, "ok\n")

    def ready(self) -> Response:
        """200, or 503 with what is the matter."""
        if self.ending:
            return text(503, "this node stops\n")
        problem = self._problem()
        if not problem:
            self._sound_at = self._clock()
        elif self._clock() - self._sound_at >= self._grace:
            return text(503, f"{problem}\n")
        return text(200, "ok\n")
