"""A whole node service in this process, over a consensus of one, for targets that need a loop. Its Raft and its sockets
are missing; all that stands between a client's bytes and the state is there.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from kvorum_node.embedded import EmbeddedBackend, open_embedded
from kvorum_node.front import Front
from kvorum_node.http.app import App
from kvorum_node.http.health import Health
from kvorum_node.http.metrics import Metrics
from kvorum_node.http.tokens import Tokens
from kvorum_node.metrics import service as of_service
from kvorum_node.metrics.collector import Sources
from kvorum_node.service import NodeService
from kvorum_raft.seams import Status

PATIENCE = 60.0
"""Seconds that any input may take."""


class LocalNode:
    """`run` runs a coroutine in its loop, and raises if the node noticed a fault of its own meanwhile."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._faults = _Faults()
        logging.getLogger("kvorum").addHandler(self._faults)
        self._loop.set_exception_handler(lambda _, context: self._faults.seen.append(str(context)))
        self.backend: EmbeddedBackend = self._loop.run_until_complete(open_embedded(None))
        self._resting = asyncio.all_tasks(self._loop)

    @property
    def service(self) -> NodeService:
        return self.backend._service

    def now(self) -> float:
        """The loop's time, seconds."""
        return self._loop.time()

    @property
    def tasks(self) -> int:
        """Tasks in the loop while nothing is under way, that of `run` included."""
        return 1 + len(self._resting)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.run_until_complete(_bounded(work))
        assert self.backend._consensus.fault is None, "an entry could not be applied"
        faults, self._faults.seen = self._faults.seen, []
        assert not faults, faults

    @contextmanager
    def app(self, token: str = "") -> Iterator[App]:
        """The routes of its HTTP port."""

        async def make() -> tuple[App, Front]:
            front = Front(self.service, [], connect=cast("Any", lambda _: _Direct(self.backend)))
            health = Health(str, self._loop.time, grace=1.0)
            figures = Metrics(
                Sources(
                    self._status,
                    self.service.statistics,
                    histograms=lambda: of_service.histograms(self.service),
                    counts=lambda: of_service.counts(self.service),
                )
            )
            return App(front, Tokens(token), health, figures, held=5.0), front

        app, front = self._loop.run_until_complete(make())
        try:
            yield app
        finally:
            self.run(front.close())

    def _status(self) -> Status:
        index = self.service.store.applied_index
        return Status("n1", b"", "leader", 1, None, index, index, index, index)

    def close(self) -> None:
        self._loop.run_until_complete(self.backend.close())
        self._loop.close()
        logging.getLogger("kvorum").removeHandler(self._faults)


async def _bounded(work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(PATIENCE):
        await work


class _Faults(logging.Handler):
    """What a node logs as an error is its own fault, never a client's."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(logging.Formatter().format(record))


@contextmanager
def local_node() -> Iterator[LocalNode]:
    """Open until the end."""
    node = LocalNode()
    try:
        yield node
    finally:
        node.close()


class _Direct:
    """In the place of the session client: writes go to the same process. See `kvorum.cluster.ClusterBackend`."""

    def __init__(self, backend: EmbeddedBackend) -> None:
        self._backend = backend

    async def open(self, timeout: float) -> None:
        """There already."""

    async def write(self, op: bytes, *, timeout: float) -> Any:
        return await self._backend.write(op, timeout=timeout)

    async def watch(self, keys: Sequence[bytes]) -> AsyncIterator[Any]:
        async for entries in self._backend.watch(keys):
            yield entries

    def statistics(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        """The node's own."""
