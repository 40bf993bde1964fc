"""A node's spans for OpenTelemetry, if its process has a tracer provider (started by `opentelemetry-instrument`, say).

HTTP requests and unary calls have spans of their own, which continue the trace that the client names in `traceparent`.
So have those operations of streams whose client says which trace they belong to, if that is sampled: they are followed,
and their span is made when they are answered, with what they waited for below it. Others cost nothing, and have none
unless they are slow: those get one afterwards.

The context stands beside a proposal and never in it, so what is applied is the same whoever traces.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from kvorum._version import __version__
from kvorum.tracing import is_tracing

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

_PHASES: Final = ("waited_ms", "logged_ms", "applied_ms")
"""Fields of a slow operation that are parts of its time, one after the other."""
MAX_FOLLOWED: Final = 4_096
"""Operations of a node that are followed at a time; more go without spans, and are counted."""
_TRACEPARENT: Final = re.compile("([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.{0,200})?", re.ASCII)


NO_TRACES: Final[Mapping[str, float]] = MappingProxyType(
    {"traces_followed": 0, "traces_dropped": 0, "traces_malformed": 0}
)
"""The statistics of a node that does not trace."""


class Phase(NamedTuple):
    """A part of an operation's time, from `begun` to `ended` (`perf_counter`)."""

    name: str
    begun: float
    ended: float


class Traced(NamedTuple):
    """What a traceparent says."""

    trace_id: int
    span_id: int
    sampled: bool


def parse_traceparent(text: str) -> Traced | None:
    """None if it is malformed by the W3C's rules; those of later versions are read as far as this one knows them."""
    match = _TRACEPARENT.fullmatch(text)
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5] is not None):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return Traced(trace_id, span_id, bool(int(match[4], 16) & 1))


def node_tracing() -> "NodeTracing | None":
    """None unless this process traces."""
    return NodeTracing() if is_tracing() else None


class NodeTracing:
    """Made only if `opentelemetry-api` is there."""

    def __init__(self) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._tracer = trace.get_tracer("kvorum.node", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self.followed = 0
        """Operations that have a context and no answer yet; whoever follows them counts."""
        self.dropped = self.malformed = 0
        """Contexts that were left aside: there were too many, or they made no sense."""

    def statistics(self) -> dict[str, float]:
        return {
            "traces_followed": self.followed,
            "traces_dropped": self.dropped,
            "traces_malformed": self.malformed,
        }

    def parent(self, traceparent: str) -> "Context | None":
        """Whose child a span shall be; None: it shall not be."""
        traced = parse_traceparent(traceparent)
        if traced is None:
            self.malformed += 1
            return None
        if not traced.sampled:
            return None
        trace = self._trace
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        context = trace.SpanContext(traced.trace_id, traced.span_id, is_remote=True, trace_flags=flags)
        parent: Context = trace.set_span_in_context(trace.NonRecordingSpan(context))
        return parent

    def operation(
        self,
        name: str,
        parent: "Context | None",
        begun: float,
        attributes: Mapping[str, str | int],
        phases: Sequence[Phase] = (),
        *,
        failed: str = "",
    ) -> None:
        """An operation that began at `begun` (`perf_counter`) and is over just now. `parent`: None is the current span.
        `failed`: why it was not done."""
        offset = time.time_ns() - _nanoseconds(perf_counter() * 1000)

        def at(moment: float) -> int:
            return offset + _nanoseconds(moment * 1000)

        kind = self._trace.SpanKind.SERVER
        told = {"db.system.name": "kvorum", **attributes}
        span = self._tracer.start_span(name, parent, kind=kind, attributes=told, start_time=at(begun))
        if span.is_recording():
            below = self._trace.set_span_in_context(span)
            for phase in phases:
                part = self._tracer.start_span(phase.name, below, start_time=at(phase.begun))
                part.end(at(phase.ended))
            if failed:
                span.set_status(self._trace.StatusCode.ERROR, failed)
        span.end()

    @contextmanager
    def request(self, name: str, carrier: Mapping[str, str], request_id: str) -> "Iterator[Span]":
        """A span of a request whose headers are `carrier`; what is raised is noted in it."""
        named = carrier.get("traceparent")
        if named is not None and parse_traceparent(named) is None:
            self.malformed += 1
        parent = self._propagator.extract(carrier)
        attributes = {"db.system.name": "kvorum", "kvorum.request_id": request_id}
        with self._tracer.start_as_current_span(
            name, parent, kind=self._trace.SpanKind.SERVER, attributes=attributes
        ) as span:
            yield span

    def slow(self, fields: Mapping[str, str | int | float]) -> None:
        """An operation that is over just now: `fields` as they are logged."""
        now = time.time_ns()
        at = begun = now - _nanoseconds(fields["ms"])
        attributes = {f"kvorum.{name}": value for name, value in fields.items() if name != "kind"}
        kind = self._trace.SpanKind.SERVER
        span = self._tracer.start_span(f"kvorum.{fields['kind']}", kind=kind, attributes=attributes, start_time=begun)
        context = self._trace.set_span_in_context(span)
        for phase in _PHASES:
            if phase in fields:
                part = self._tracer.start_span(phase.removesuffix("_ms"), context, start_time=at)
                at = min(now, at + _nanoseconds(fields[phase]))
                part.end(at)
        span.end(now)


def _nanoseconds(milliseconds: str | int | float) -> int:
    return int(float(milliseconds) * 1_000_000)
