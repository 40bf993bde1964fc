"""The gRPC server of a node: the Kv and Admin services, health and reflection."""

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.quiet_log import QuietLog
from kvorum_raft.seams import Administration

from ..backup.saving import Backups
from ..descriptors import at_most
from ..request_ids import UnaryCalls
from ..service import LAG_PATIENCE, NodeService
from .admin import SERVICE as ADMIN
from .admin import Admin
from .endings import NotTaken
from .gate import Gate
from .stream import Stream
from .unary import Unary

logger = logging.getLogger("kvorum.api")

SERVICE = "kvorum.v1.Kv"
MAX_STREAMS = 10_000
LOOK = 1.0
"""Seconds between looks at this node's health."""
MAX_CONNECTIONS = 12_000
MAX_WAITING = 3_000
"""Calls that the loop has not come to yet."""
HANDSHAKE_MS = 10_000
"""Thousands of clients may come back at once, and a handshake takes a millisecond or two."""
GRACE = 1.0
"""Seconds that streams get to send what they have when the node stops."""


class ApiServer:
    """Serves until `stop`. `keepalive` is seconds: a client that is frozen or unplugged is noticed within twice
    that.
    """

    def __init__(
        self,
        service: NodeService,
        node_id: str,
        listen: str,
        *,
        keepalive: float = 5.0,
        administration: Administration | None = None,
        backups: Backups | None = None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """`credentials`: the port speaks TLS only."""
        self._credentials = credentials
        self._service = service
        self._node_id = node_id
        self._listen = listen
        self._streams: dict[Stream, None] = {}
        self._unary = Unary(service)
        self._quiet = QuietLog(logger, time.monotonic)
        self._gate = Gate(service.unread, service.settings.unfinished_requests, self._quiet)
        self._watch: asyncio.Task[None] | None = None
        self._health = health.aio.HealthServicer()
        self._health_task: asyncio.Task[None] | None = None
        self._leader_news = asyncio.Event()
        self._stop_listening = service.on_leader(self._leader_news.set)
        milliseconds = max(100, int(keepalive * 1000))
        self._server = grpc.aio.server(
            options=(
                # Two nodes on one port would otherwise share it silently.
                ("grpc.so_reuseport", 0),
                # A little above the limit, so that the usual offender gets a clear answer instead of a bare status
                # code.
                ("grpc.max_receive_message_length", limits.MAX_FRAME_SIZE + 1_048_576),
                ("grpc.max_send_message_length", limits.MAX_FRAME_SIZE + 1_048_576),
                ("grpc.max_concurrent_streams", 256),
                ("grpc.keepalive_time_ms", milliseconds),
                ("grpc.keepalive_timeout_ms", milliseconds),
                # Without it a ping may go unanswered for a minute, whatever the keepalive's timeout says.
                ("grpc.http2.ping_timeout_ms", milliseconds),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 500),
                ("grpc.http2.max_ping_strikes", 0),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
                # gRPC turns the rest away without a word, and would begin to at random while a third of them wait.
                ("grpc.server.max_pending_requests", MAX_WAITING),
                ("grpc.server.max_pending_requests_hard_limit", MAX_WAITING),
                # Those without a handshake or a call count as well.
                ("grpc.max_allowed_incoming_connections", at_most(MAX_CONNECTIONS, 10)),
            ),
            interceptors=(
                self._gate,
                UnaryCalls(service.slow, service.tracing),
            ),
            maximum_concurrent_rpcs=MAX_STREAMS,
        )
        self._server.add_generic_rpc_handlers((self._handlers(), Admin(service, administration, backups).handlers()))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, ADMIN, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self) -> None:
        """Bind and serve. Raises OSError if the address cannot be had."""
        try:
            if self._credentials is None:
                self.port = self._server.add_insecure_port(self._listen)
            else:
                self.port = self._server.add_secure_port(self._listen, self._credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._listen}: {error}") from error
        self._gate.leaving.port = self.port
        await self._server.start()
        self._health_task = asyncio.create_task(self._report_health())
        self._watch = asyncio.create_task(self._gate.unfinished.watch(self.port))

    async def stop(self) -> None:
        """Tell clients to go elsewhere, and end."""
        self._stop_listening()
        tasks = [task for task in (self._health_task, self._watch) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._health.enter_graceful_shutdown()
        for stream in list(self._streams):
            stream.end("this node stops")
        await self._server.stop(GRACE)

    def statistics(self) -> dict[str, float]:
        return {"streams": len(self._streams), **self._gate.statistics()}

    def _handlers(self) -> grpc.GenericRpcHandler:
        # Requests come as bytes: what cannot be decoded is answered by us, not by an abort inside gRPC.
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Stream": grpc.stream_stream_rpc_method_handler(self._stream),
                "Get": grpc.unary_unary_rpc_method_handler(
                    self._unary.get, response_serializer=pb.ReadResult.SerializeToString
                ),
                "Commit": grpc.unary_unary_rpc_method_handler(
                    self._unary.commit, response_serializer=pb.WriteResponse.SerializeToString
                ),
                "Status": grpc.unary_unary_rpc_method_handler(
                    self._unary.status, response_serializer=pb.StatusResponse.SerializeToString
                ),
            },
        )

    async def _stream(self, _: Any, context: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        greeted = partial(self._gate.heard, task)
        stream = Stream(
            self._service,
            self._node_id,
            context,
            call=self._gate.unfinished.calls[task],
            greeted=greeted,
            quiet=self._quiet,
            owner=context.peer(),
        )
        self._streams[stream] = None
        try:
            await stream.run()
        finally:
            self._streams.pop(stream, None)
        if stream.cut_off:
            raise NotTaken(stream.cut_off)

    def _is_ready(self) -> bool:
        return bool(self._service.leader.node_id) and not self._service.unreadable()

    async def _report_health(self) -> None:
        """Serving while a leader is known, and the state may be read and is not behind: as /readyz. News come with the
        leadership; all else is looked at every second."""
        patience = self._service.settings.max_election_timeout
        while True:
            self._leader_news.clear()
            known = self._is_ready()
            if not known:
                # A short election is no reason to be taken out of a load balancer.
                try:
                    async with asyncio.timeout(patience):
                        await self._leader_news.wait()
                    continue
                except TimeoutError:
                    known = self._is_ready()
            known = known and not await self._service.behind(LAG_PATIENCE)
            status = health_pb2.HealthCheckResponse.SERVING if known else health_pb2.HealthCheckResponse.NOT_SERVING
            for name in ("", SERVICE):
                await self._health.set(name, status)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._leader_news.wait()
