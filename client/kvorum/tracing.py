"""Spans for OpenTelemetry, if the program traces: `pip install kvorum[otel]`, and a tracer provider that is set before
the database is opened. Otherwise nothing of this is called, nor imported.

Each call to the database is a client span `kvorum.get`, `kvorum.set`, `kvorum.commit` …, sends are producer spans, and
the call of a queue's handler is a consumer span `kvorum.process`; what was received is handed out in a span
`kvorum.receive`. A message carries the W3C trace context of whoever sent it in its headers (`traceparent`,
`tracestate`), unless it has one, and these spans link to that; they are no children of it, since a message may be
handled hours later, and again. A request is handled while its sender waits, so its handler's span is. Keys and values
do not appear in spans.

Spans are made around the backend, so there is one place that all calls of both clients pass. A backend that can
(`kvorum.backend.Carrier`) tells nodes which trace a call belongs to.
"""

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum._version import __version__
from kvorum.backend import Backend, Carrier, Consumer, WriteOutcome
from kvorum.entry import packed
from kvorum.errors import KvorumError, PermissionDenied

if TYPE_CHECKING:
    from opentelemetry.trace import Link as OtelLink
    from opentelemetry.trace import Span

    from kvorum.queues.delivered import Delivered

Attributes = dict[str, str | int]

_CHOSEN: Final = "OTEL_PYTHON_TRACER_PROVIDER"
"""Variable that makes the library set a provider by itself."""
_CONTEXT: Final = ("traceparent", "tracestate")
_SYSTEM: Final = "kvorum"
_MAX_LINKS: Final = 128
"""Of one span: as many as OpenTelemetry keeps by default."""
_ROOM: Final = 1_024
"""Bytes that the context adds to a message, at most."""


def tracing() -> "Tracing | None":
    """None unless the program traces."""
    return Tracing() if is_tracing() else None


def is_tracing() -> bool:
    """Whether a tracer provider is set. A program that has not imported OpenTelemetry has none."""
    if "opentelemetry.trace" not in sys.modules and _CHOSEN not in os.environ:
        return False
    try:
        from opentelemetry import trace
    except ImportError:
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)


def current_traceparent() -> str:
    """The W3C traceparent of the current span; empty if it is not sampled, or there is none."""
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    if not (context.is_valid and context.trace_flags.sampled):
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


class Tracing:
    """Made only if `opentelemetry-api` is there."""

    def __init__(self) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._tracer = trace.get_tracer("kvorum", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def around(self, backend: Backend) -> Backend:
        """The same backend, with spans."""
        return TracedBackend(backend, self)

    @contextmanager
    def call(self, name: str, attributes: "Attributes | None" = None, *, sends: bool = False) -> "Iterator[Span]":
        """A span of a call; what is raised is noted in it."""
        kind = self._trace.SpanKind.PRODUCER if sends else self._trace.SpanKind.CLIENT
        told = {"db.system.name": _SYSTEM, **(attributes or {})}
        with self._tracer.start_as_current_span(
            f"kvorum.{name}", kind=kind, attributes=told, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except Exception as error:
                self._note(span, error)
                raise

    def _note(self, span: "Span", error: Exception) -> None:
        """What ended a call. The text of a refusal is left out, since it names the key."""
        names_key = isinstance(error, PermissionDenied)
        if isinstance(error, KvorumError):
            span.set_attribute("kvorum.outcome", str(error.outcome))
        span.record_exception(error, {"exception.message": "", "exception.stacktrace": ""} if names_key else None)
        name = type(error).__name__
        span.set_status(self._trace.StatusCode.ERROR, name if names_key else f"{name}: {error}")

    @contextmanager
    def handling(self, queue: str, messages: "Sequence[Delivered]") -> "Iterator[Span]":
        """The span of a handler's call, linked to those in which its messages were sent. Of a request it is a child."""
        links, told = self._links(messages), _delivered("process", queue, messages)
        first = messages[0]
        asked = self._propagator.extract(dict(first.headers)) if len(messages) == 1 and first.wants_reply else None
        parent = asked if links else None
        kind = self._trace.SpanKind.CONSUMER
        with self._tracer.start_as_current_span(
            "kvorum.process", parent, kind=kind, attributes=told, links=links
        ) as span:
            yield span

    def settling(self, handled: "Span") -> AbstractContextManager[object]:
        """What came of a handler's call is told in the name of its span, which is over."""
        return self._trace.use_span(handled, record_exception=False, set_status_on_exception=False)

    def received(self, queue: str, messages: "Sequence[Delivered]") -> None:
        """Messages are handed out just now: a span that links to those in which they were sent."""
        kind, told = self._trace.SpanKind.CONSUMER, _delivered("receive", queue, messages)
        self._tracer.start_span("kvorum.receive", kind=kind, attributes=told, links=self._links(messages)).end()

    def _links(self, messages: "Sequence[Delivered]") -> "list[OtelLink]":
        links = []
        for message in messages[:_MAX_LINKS]:
            sent = self._trace.get_current_span(self._propagator.extract(dict(message.headers))).get_span_context()
            if sent.is_valid:
                links.append(self._trace.Link(sent))
        return links

    def inject(self, message: pb.Enqueue) -> None:
        """Put the current context into a message's headers, unless there is one or no room."""
        headers = pb.Headers.FromString(message.headers)
        if any(name in headers.fields for name in _CONTEXT):
            return
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        for name, text in carrier.items():
            headers.fields[name] = text
        data = headers.SerializeToString(deterministic=True)
        if len(data) <= limits.MAX_HEADERS_SIZE and len(data) - len(message.headers) <= _ROOM:
            message.headers = data


class TracedBackend:
    """`kvorum.backend.Backend` around another one."""

    def __init__(self, inner: Backend, spans: Tracing) -> None:
        self._inner = inner
        self._spans = spans
        self._carrier: Carrier | None = None
        """The inner one, if it tells nodes who traces."""
        if hasattr(inner, "carry"):
            self._carrier = cast("Carrier", inner)
            self._carrier.carry(current_traceparent)
        point = getattr(inner, "point", None)
        if point is not None:
            self._inner_point: Callable[..., Awaitable[bytes]] = point
            self.point = self._point
        """As the inner one has it, or not."""
        self.remote: bool = getattr(inner, "remote", False)

    async def _point(self, key: bytes, consistency: "pb.Consistency", max_age_ms: int, *, timeout: float) -> bytes:
        with self._spans.call("get") as span:
            carrier = self._carrier
            if carrier is not None and carrier.carries and span.get_span_context().trace_flags.sampled:
                # What travels together has no span of its own: this one travels for itself.
                read = pb.Read(keys=(key,), consistency=consistency, max_age_ms=max_age_ms)
                return packed((await self._inner.read(read, timeout=timeout)).entries[0])
            return await self._inner_point(key, consistency, max_age_ms, timeout=timeout)

    async def read(self, read: pb.Read, *, timeout: float) -> pb.ReadResult:
        with self._spans.call(_name_of_read(read)):
            return await self._inner.read(read, timeout=timeout)

    async def write(self, op: bytes, *, timeout: float) -> WriteOutcome:
        write = pb.AtomicWrite.FromString(op)
        name = _name_of_write(write)
        with self._spans.call(name, _facts(write), sends=name == "send") as span:
            if write.enqueues and len(op) + _ROOM * len(write.enqueues) <= limits.MAX_TOTAL_WRITE_SIZE:
                for message in write.enqueues:
                    self._spans.inject(message)
                op = write.SerializeToString()
            outcome = await self._inner.write(op, timeout=timeout)
            if outcome.result.outcome != pb.OUTCOME_DONE:
                span.set_attribute("kvorum.outcome", pb.Outcome.Name(outcome.result.outcome))
            return outcome

    def watch(self, keys: Sequence[bytes]) -> AsyncIterator[Sequence[pb.KvEntry]]:
        """No span: it lasts."""
        return self._inner.watch(keys)

    def watch_range(self, start: bytes, end: bytes, *, since: bytes, keys_only: bool) -> AsyncIterator[pb.WatchEvent]:
        """No span: it lasts."""
        return self._inner.watch_range(start, end, since=since, keys_only=keys_only)

    async def consume(
        self, queue: str, *, credits: int, concurrency: int, deliver: Callable[[pb.Delivery], None], **more: Any
    ) -> Consumer:
        """No span: it lasts."""
        return await self._inner.consume(queue, credits=credits, concurrency=concurrency, deliver=deliver, **more)

    async def queue_call(self, call: pb.QueueCall, *, timeout: float) -> pb.QueueReply:
        with self._spans.call(call.WhichOneof("call") or "queue_call"):
            return await self._inner.queue_call(call, timeout=timeout)

    async def status(self, *, timeout: float) -> pb.StatusResponse:
        with self._spans.call("status"):
            return await self._inner.status(timeout=timeout)

    def statistics(self) -> Mapping[str, float]:
        """Of the inner one."""
        figures: Callable[[], Mapping[str, float]] = getattr(self._inner, "statistics", dict)
        return figures()

    async def close(self) -> None:
        await self._inner.close()


def _name_of_read(read: pb.Read) -> str:
    if read.ranges:
        return "count" if all(selected.count_only for selected in read.ranges) else "list"
    if read.with_expiry:
        return "expires_in"
    return "get" if len(read.keys) == 1 else "get_many"


def _name_of_write(write: pb.AtomicWrite) -> str:
    mutations, messages, settles = len(write.mutations), len(write.enqueues), len(write.settles)
    if write.checks or bool(mutations) + bool(messages) + bool(settles) != 1:
        return "commit"
    if messages:
        return "send"
    if settles:
        return "settle"
    if mutations > 1:
        return "commit"
    name = pb.MutationType.Name(write.mutations[0].type).removeprefix("MUTATION_TYPE_").lower()
    return "sum" if name == "add" else name  # the wire's name of what `sum` asks for


def _facts(write: pb.AtomicWrite) -> Attributes:
    counts = {"checks": len(write.checks), "mutations": len(write.mutations), "settles": len(write.settles)}
    found: Attributes = {f"kvorum.{name}": count for name, count in counts.items() if count}
    if write.enqueues:
        places = {message.topic or message.queue for message in write.enqueues}
        if len(places) == 1:
            found |= _messaging("send", places.pop())
        found["messaging.batch.message_count"] = len(write.enqueues)
    return found


def _messaging(operation: str, place: str) -> Attributes:
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": place,
    }


def _delivered(operation: str, queue: str, messages: "Sequence[Delivered]") -> Attributes:
    told = _messaging(operation, queue)
    if len(messages) == 1:
        return told | {"messaging.message.id": messages[0].id, "kvorum.attempt": messages[0].attempt}
    return told | {"messaging.batch.message_count": len(messages)}
