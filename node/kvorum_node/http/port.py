"""The HTTP port of a node, put together."""

import asyncio

from kvorum_raft.config import split_address
from kvorum_raft.seams import Consensus

from ..config import NodeConfig
from ..descriptors import at_most
from ..front import Front
from ..metrics import service as of_service
from ..metrics.collector import Sources
from ..port_tls import PortTls
from ..service import LAG_PATIENCE, NodeService
from .app import App
from .health import Health
from .metrics import Metrics
from .server import MAX_CONNECTIONS, HttpServer
from .tokens import Tokens


class HttpPort:
    """`start`, then `drain` before an orderly end, then `stop`. `grace` is seconds, see `Health`."""

    def __init__(
        self, service: NodeService, front: Front, config: NodeConfig, *, grace: float, tls: PortTls | None = None
    ) -> None:
        self._service = service
        self._front = front
        self._health = Health(
            self._problem,
            asyncio.get_running_loop().time,
            grace=grace,
            behind=lambda: service.behind(LAG_PATIENCE),
        )
        self._stop_listening = service.on_leader(self._health.look)
        consensus: Consensus = service.consensus
        self._app = App(
            front,
            Tokens(config.kv_connect_token, open_to_all=config.kv_connect_open, access=service.access),
            self._health,
            Metrics(
                Sources(
                    consensus.status,
                    self._figures,
                    histograms=lambda: {**of_service.histograms(service), **self._app.histograms()},
                    counts=lambda: {**of_service.counts(service), **self._app.counts()},
                    queues=lambda: service.rates.newest,
                    now_ms=consensus.now_ms,
                )
            ),
            mode=config.kv_connect_relabel,
            held=config.kv_connect_held_ms / 1000,
            slow=service.slow,
            tracing=service.tracing,
        )
        self._server = HttpServer(
            self._app,
            *split_address(config.http_listen),
            max_connections=at_most(MAX_CONNECTIONS, 2),
            tls=None if tls is None else tls.context,
        )

    async def start(self) -> None:
        """Bind and serve. Raises OSError if the address cannot be had."""
        await self._server.start()

    async def drain(self, patience: float) -> None:
        """Not ready any more; let what is under way be answered, at most `patience` seconds."""
        self._health.end()
        await self._server.drain(patience)

    async def stop(self) -> None:
        """End everything that is left."""
        self._stop_listening()
        await self._front.close()
        await self._server.stop()

    def statistics(self) -> dict[str, float]:
        """Of the routes, the server and the session client."""
        return {**self._app.statistics(), **self._server.statistics(), **self._front.statistics()}

    def _figures(self) -> dict[str, float]:
        return {**self._service.statistics(), **self.statistics()}

    def _problem(self) -> str:
        unreadable = self._service.unreadable()
        return unreadable or ("" if self._service.leader.node_id else "no leader is known")
