"""/metrics, in Prometheus' text format."""

import asyncio
from typing import Final

from ..metrics.collector import NodeCollector, Sources, written
from .message import Response

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The page."""

    def __init__(self, sources: Sources) -> None:
        self._collector = NodeCollector(sources)
        self._writing = asyncio.Lock()
        """One page at a time, however many are asked for: it is one thread's work."""

    async def page(self) -> Response:
        """All of it: taken in the loop, written in a thread."""
        async with self._writing:
            metrics = list(self._collector.collect())
            return Response(200, CONTENT_TYPE, (await asyncio.to_thread(written, metrics),))
