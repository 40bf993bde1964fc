"""The routes of a node's HTTP port.

    POST /                    KV Connect: metadata exchange
    POST /v2/snapshot_read    KV Connect: reads
    POST /v2/atomic_write     KV Connect: writes
    POST /v2/watch            KV Connect: watches
    GET  /livez /readyz       health
    GET  /metrics             figures for Prometheus

What is answered after trouble (rules H1): 409 `outcome unknown` if a write may have been carried out and nobody can
know; 503 only if it certainly was not, since clients repeat that by themselves. Everything is held for up to 30 s
before, so a change of the leader is a slow answer and no error. Never 429, which is fatal to every client.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Final

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.rights import denied
from kvorum_raft.histogram import Histogram

from .. import request_ids
from ..access import Caller
from ..front import Front
from ..slow import Facts, SlowLog
from ..store.rights import for_keys, for_read
from ..tracing import NodeTracing
from . import datapath, metadata, relabel
from .budget import Budget, Share
from .gate import Gate
from .health import Health
from .message import OCTETS, PROTOBUF, Refusal, Request, Response, text, unavailable
from .metrics import Metrics
from .tokens import Tokens, refusal_of
from .watching import frames

logger = logging.getLogger("kvorum.http")

HELD: Final = 30.0
"""Seconds that a request is held before it is answered with what is known."""
MAX_BODIES: Final = 128 * 1_048_576
"""Bytes of requests that are received or held."""
MAX_ANSWERS: Final = 256 * 1_048_576
"""Bytes of answers that were read and are not sent yet. One read may be 64 MiB."""
MAX_GOING_ON: Final = 8 * 1_048_576
"""Bytes of writes that are on their way to the log; what others send by gRPC stands behind them."""
MAX_LISTS: Final = 16
"""Lists that are being read at a time; others wait."""
SMALL: Final = 65_536
MAX_SMALL_ANSWERS: Final = 64 * 1_048_576
"""The same for those of at most 64 KiB: whoever reads large ones slowly must not be in the way of all others."""
MAX_UNDER_WAY: Final = 8_192
"""Requests of a node, all connections together."""
MAX_WATCHES: Final = 10_000
"""Watches of a node."""
MAX_CONNECTION_WATCHES: Final = 256
"""Watches of one connection: they must leave room for its other requests."""

UNKNOWN: Final = "outcome unknown"
_ANSWERED: Final = (pb.OUTCOME_DONE, pb.OUTCOME_CHECK_FAILED)
"""Outcomes for which KV Connect has a word; all others are refusals."""

_ROUTES: Final = {
    "/": "metadata",
    **{f"{metadata.ENDPOINT}/{name}": name for name in ("snapshot_read", "atomic_write", "watch")},
    **{f"/{name}": name for name in ("livez", "readyz", "metrics")},
}
"""Names of the routes in metrics."""

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """What answers a path, and how large a body may be."""

    method: str
    handler: Handler
    body: int = 0
    secret: bool = False
    """Only for those who have the token."""


class App:
    """`handle` answers every request, whatever happens inside."""

    def __init__(
        self,
        front: Front,
        tokens: Tokens,
        health: Health,
        metrics: Metrics,
        *,
        mode: str = "auto",
        held: float = HELD,
        slow: SlowLog | None = None,
        tracing: NodeTracing | None = None,
    ) -> None:
        self._front = front
        self._tokens = tokens
        self._health = health
        self._metrics = metrics
        self._mode = mode
        self._rng = random.Random()
        self._loop = asyncio.get_running_loop()
        self._lists = asyncio.Semaphore(MAX_LISTS)
        self._gate = Gate(MAX_GOING_ON)
        self._held = held
        self.under_way = 0
        """Requests that are being received, held or answered; endless answers have a bound of their own."""
        self._small = Budget(MAX_SMALL_ANSWERS, "small answers")
        self._bodies = Budget(MAX_BODIES, "requests")
        self._answers = Budget(MAX_ANSWERS, "answers")
        self._watches: Counter[object] = Counter()
        self._ids = request_ids.RequestIds(self._rng)
        self._slow = slow or SlowLog(0.0, self._loop.time)
        self._tracing = tracing
        self._counts: Counter[str] = Counter()
        self._codes: Counter[tuple[str, ...]] = Counter()
        self._seconds = {route: Histogram() for route in (*_ROUTES.values(), "other")}
        data = metadata.ENDPOINT
        self._routes = {
            "/": Route("POST", self._metadata, metadata.MAX_BODY, secret=True),
            f"{data}/snapshot_read": Route("POST", self._read, datapath.MAX_READ_BODY, secret=True),
            f"{data}/atomic_write": Route("POST", self._write, datapath.MAX_WRITE_BODY, secret=True),
            f"{data}/watch": Route("POST", self._watch, datapath.MAX_READ_BODY, secret=True),
            "/livez": Route("GET", self._livez),
            "/readyz": Route("GET", self._readyz),
            "/metrics": Route("GET", self._page),
        }

    @property
    def full(self) -> bool:
        """No more requests can be under way."""
        return self.under_way >= MAX_UNDER_WAY

    def admit(self, head: Request) -> int:
        """Look at a request before its body comes: bytes that this may have. Raises Refusal."""
        route = self._find(head)
        if route.secret:
            # Before anything is held for somebody who may not even ask.
            self._tokens.check(head)
        return route.body

    def share(self) -> Share:
        """What one request may hold of its body."""
        return Share(self._bodies)

    def refused(self, refusal: Refusal, head: Request) -> Response:
        """It was refused before its body had come: the answer."""
        self._counts[f"answers_{refusal.status}"] += 1
        self._codes["other", str(refusal.status)] += 1
        return _named(refusal.response(), self._ids.of(head.headers.get(request_ids.HEADER)))

    async def handle(self, request: Request) -> Response:
        """The answer."""
        since = perf_counter()
        request_id = self._ids.of(request.headers.get(request_ids.HEADER))
        route = _ROUTES.get(request.path, "other")
        if self._tracing is None:
            response = await self._answer(request, request_id)
        else:
            with self._tracing.request(f"kvorum.http.{route}", request.headers, request_id) as span:
                response = await self._answer(request, request_id)
                span.set_attribute("http.response.status_code", response.status)
        seconds = perf_counter() - since
        self._codes[route, str(response.status)] += 1
        self._seconds[route].observe(seconds)
        if seconds >= self._slow.threshold:
            facts: Facts = {
                "route": route,
                "code": response.status,
                "bytes": len(request.body),
                "request_id": request_id,
            }
            self._slow.took("http", seconds, lambda: facts)
        return _named(response, request_id)

    async def _answer(self, request: Request, request_id: str) -> Response:
        try:
            return await self._find(request).handler(request)
        except Refusal as refusal:
            self._counts[f"answers_{refusal.status}"] += 1
            return refusal.response()
        except errors.KvorumError as error:
            told = _refusal_of(error)
            self._counts[f"answers_{told.status}"] += 1
            return told.response()
        except Exception:  # whatever it is, it is this node's fault, and the client hears of it
            logger.exception(
                "a request ended by a fault of this node: %s %s",
                request.method,
                request.path,
                extra={"fields": {"request_id": request_id}},
            )
            self._counts["answers_500"] += 1
            return text(500, "An internal server error occurred.")

    def counts(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Counters that have labels, by family: see `kvorum_node.metrics.table`."""
        return {"api_responses": dict(self._codes)}

    def histograms(self) -> dict[str, dict[tuple[str, ...], Histogram]]:
        """Of seconds, by family."""
        return {"api_request_seconds": {(route,): seconds for route, seconds in self._seconds.items() if seconds.sum}}

    def statistics(self) -> dict[str, float]:
        """Counts since the start."""
        return {
            "kv_connect_unknown_outcomes": self._counts["answers_409"],
            "kv_connect_unavailable": self._counts["answers_503"],
            "kv_connect_faults": self._counts["answers_500"],
            "kv_connect_metadata": self._counts["metadata"],
            "kv_connect_reads": self._counts["reads"],
            "kv_connect_writes": self._counts["writes"],
            "kv_connect_watches": sum(self._watches.values()),
            "kv_connect_request_bytes": self._bodies.held,
            "kv_connect_request_bytes_most": self._bodies.most,
            "kv_connect_writes_waiting": self._gate.waiting,
            "kv_connect_answer_bytes": self._answers.held,
            "kv_connect_answer_bytes_most": self._answers.most,
        }

    def _find(self, head: Request) -> Route:
        route = self._routes.get(head.path)
        if route is None:
            raise Refusal(404, "There is nothing at this path: the database is at /.")
        method = "GET" if head.method == "HEAD" else head.method
        if method != route.method:
            raise Refusal(405, f"This path takes {route.method} only.", allow=route.method)
        return route

    # ---- KV Connect

    async def _metadata(self, request: Request) -> Response:
        token = self._tokens.check(request).text
        if not self._front.cluster_id and not await self._front.leader_known(self._held):
            raise unavailable("this node is in no cluster yet")
        self._counts["metadata"] += 1
        return metadata.answer(request, token, self._front.cluster_id, self._front.now_ms())

    async def _read(self, request: Request) -> Response:
        self._check(request)
        caller = self._tokens.check(request).caller
        wanted = datapath.read_of(request.body)
        self._counts["reads"] += 1
        relabelling = self._relabelling(request)
        points = datapath.points_of(wanted)
        response = None if points is None else await self._points(points, relabelling, caller)
        return response or await self._list(datapath.ranges_of(wanted), relabelling, caller)

    async def _points(
        self, points: datapath.Points, relabelling: Callable[[bytes], bytes] | None, caller: Caller
    ) -> Response | None:
        entries = (await self._front.read(points.read, timeout=self._held)).entries
        self._front.check(caller, partial(for_read, read=points.read))
        if not points.certain and not all(entry.versionstamp for entry in entries):
            return None
        if relabelling is not None:
            _relabel(entries)
        return self._counted((datapath.points_output(entries),))

    def _counted(self, chunks: Sequence[bytes]) -> Response:
        """An answer that counts as held until it is sent."""
        size = sum(map(len, chunks))
        share = Share(self._small if size <= SMALL else self._answers)
        share.take(size)
        return Response(200, PROTOBUF, chunks, on_done=share.release)

    async def _list(self, read: pb.Read, relabelling: Callable[[bytes], bytes] | None, caller: Caller) -> Response:
        """Slices are encoded as they come, so nothing is held twice; and only some lists are read at a time, since
        each has a slice under way that nobody has counted yet."""
        deadline = self._loop.time() + self._held
        share = Share(self._answers)
        ranges: list[list[bytes]] = []

        def take(part: pb.ReadResult | None) -> None:
            if part is None or not ranges:
                share.release()
                ranges[:] = [[] for _ in read.ranges]
            if part is None:
                return
            for pieces, found in zip(ranges, part.ranges, strict=True):
                if relabelling is not None:
                    _relabel(found.entries)
                piece = found.SerializeToString()
                problem = share.try_to_take(len(piece))
                if problem:
                    raise errors.Overloaded(problem)
                pieces.append(piece)

        try:
            async with asyncio.timeout_at(deadline):
                await self._lists.acquire()
        except TimeoutError:
            raise unavailable("too many lists are being read") from None
        try:
            await self._front.read_slices(read, take, timeout=max(0.001, deadline - self._loop.time()))
            self._front.check(caller, partial(for_read, read=read))
        except BaseException:
            share.release()
            raise
        finally:
            self._lists.release()
        return Response(200, PROTOBUF, datapath.ranges_output(ranges), on_done=share.release)

    async def _write(self, request: Request) -> Response:
        self._check(request)
        shown = self._tokens.check(request)
        wanted = datapath.write_of(request.body)
        self._counts["writes"] += 1
        loop = self._loop
        deadline = loop.time() + self._held
        if datapath.has_times(wanted) and not await self._front.leader_known(self._held):
            raise unavailable("no leader is known; not applied")
        op = datapath.operation_of(wanted, self._front.now_ms()).SerializeToString()
        del wanted  # it may be waiting for long
        try:
            async with asyncio.timeout_at(deadline):
                await self._gate.enter(request.connection, len(op))
        except TimeoutError:
            raise unavailable(f"{self._gate.waiting:,} writes are waiting; not applied") from None
        try:
            outcome = await self._front.of(shown.writes_as).write(op, timeout=max(0.001, deadline - loop.time()))
        except errors.KvorumError:
            raise
        except Exception:  # as below, but it may have been carried out, and clients repeat what 500 was said to
            logger.exception("a write ended by a fault of this node")
            self._counts["answers_500"] += 1
            raise Refusal(409, UNKNOWN) from None
        finally:
            self._gate.leave(len(op))
        result = outcome.result
        if result.outcome == pb.OUTCOME_QUEUE_FULL:
            raise unavailable(result.message)  # certainly not done, and clients repeat it
        if result.outcome == pb.OUTCOME_DENIED:
            raise refusal_of(denied(result.message))
        if result.outcome not in _ANSWERED:
            raise Refusal(400, result.message)
        return Response(200, PROTOBUF, (datapath.write_output(result, outcome.versionstamp),))

    async def _watch(self, request: Request) -> Response:
        self._check(request)
        keys = datapath.watch_of(request.body)
        if request.headers.get("x-denokv-version", "3") != "3":
            raise Refusal(400, "Watching needs protocol version 3.")
        if self._health.ending:
            raise unavailable("this node stops")
        if sum(self._watches.values()) >= MAX_WATCHES:
            raise unavailable(f"{MAX_WATCHES:,} watches are open on this node")
        if self._watches[request.connection] >= MAX_CONNECTION_WATCHES:
            # Repeating it would be pointless, and 503 is repeated for ever.
            raise Refusal(400, f"One connection can have {MAX_CONNECTION_WATCHES} watches.")
        caller = self._tokens.check(request).caller
        self._front.check(caller, partial(for_keys, keys=keys))
        return Response(200, OCTETS, stream=self._watching(keys, request, caller))

    async def _watching(self, keys: list[bytes], request: Request, caller: Caller) -> AsyncGenerator[bytes, None]:
        self._watches[request.connection] += 1
        share = Share(self._answers)
        try:
            async with aclosing(
                frames(self._front.watch(keys, caller), self._relabelling(request), self._rng)
            ) as stream:
                async for frame in stream:
                    share.take(len(frame))
                    yield frame
                    share.release()
        except Refusal:
            return  # no room for a frame: the client comes back, and begins with the newest state
        finally:
            share.release()
            self._watches[request.connection] -= 1
            if not self._watches[request.connection]:
                del self._watches[request.connection]

    def _check(self, request: Request) -> None:
        """By which version somebody asks, and of which database."""
        headers = request.headers
        if headers.get("x-denokv-version", "1") not in ("1", "2", "3"):
            raise Refusal(400, metadata.NO_VERSION)
        meant = headers.get("x-denokv-database-id") or headers.get("x-transaction-domain-id")
        if meant is not None and self._front.cluster_id:
            own = metadata.database_id(self._front.cluster_id)
            if meant.lower() != own:
                # After a restore, say. 403 makes Deno ask for the metadata again, and go on.
                raise Refusal(403, f"This is database {own}, not {meant[:64]}.")

    def _relabelling(self, request: Request) -> Callable[[bytes], bytes] | None:
        agent = request.headers.get("user-agent", "")
        return relabel.relabel if relabel.wanted(self._mode, agent) else None

    # ---- health and metrics

    async def _livez(self, _: Request) -> Response:
        return self._health.live()

    async def _readyz(self, _: Request) -> Response:
        return await self._health.ready()

    async def _page(self, _: Request) -> Response:
        return await self._metrics.page()


def _named(response: Response, request_id: str) -> Response:
    return replace(response, headers={**response.headers, request_ids.HEADER: request_id})


def _relabel(entries: Iterable[pb.KvEntry]) -> None:
    for entry in entries:
        if entry.encoding == pb.VALUE_ENCODING_V8 and entry.value[:2] == b"\xff\x10":
            entry.value = relabel.relabel(entry.value)


def _refusal_of(error: errors.KvorumError) -> Refusal:
    """Rules H1."""
    if error.outcome == "unknown":
        return Refusal(409, UNKNOWN)
    if isinstance(error, errors.Unauthenticated | errors.PermissionDenied):
        return refusal_of(error)
    if isinstance(error, errors.InvalidArgument | errors.NoSpace):
        # A full disk is not mended within seconds: a program must hear of it, and 503 would be repeated for ever.
        return Refusal(400, str(error))
    return unavailable(str(error))
