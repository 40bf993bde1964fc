"""Health, for supervisors and load balancers: /livez says that this process runs, /readyz that it is worth asking.

Ready means that a leader is known, the state may be read, and everything that this node knew to be committed when it
was asked is in the state within a second: a node that hangs, or has much to catch up with, shows what is old. A short
election is no reason to be taken out of a load balancer: requests are held meanwhile, so it has a grace of one maximum
election timeout.
"""

from collections.abc import Awaitable, Callable

from .message import Response, text


async def _up_to_date() -> str:
    return ""


class Health:
    """`problem` says why this node cannot serve, `behind` what its state lacks, after having waited for it (empty:
    nothing); `clock` gives seconds."""

    def __init__(
        self,
        problem: Callable[[], str],
        clock: Callable[[], float],
        *,
        grace: float,
        behind: Callable[[], Awaitable[str]] = _up_to_date,
    ) -> None:
        self._problem = problem
        self._behind = behind
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

    async def ready(self) -> Response:
        """200, or 503 with what is the matter."""
        if self.ending:
            return text(503, "this node stops\n")
        problem = self._problem()
        if not problem:
            self._sound_at = self._clock()
            problem = await self._behind()
        elif self._clock() - self._sound_at < self._grace:
            problem = ""
        return text(503, f"{problem}\n") if problem else text(200, "ok\n")
