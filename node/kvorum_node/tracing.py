"""A node's spans for OpenTelemetry, if its process has a tracer provider (started by `opentelemetry-instrument`, say).

Requests have spans of their own: HTTP requests and unary calls, which continue the trace that the client names in
`traceparent`. Operations of streams have none, since hundreds of them share a frame, a log entry and a round of
messages; those that are slow get one afterwards, with its phases below it.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kvorum._version import __version__
from kvorum.tracing import is_tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_PHASES: Final = ("waited_ms", "logged_ms", "applied_ms")
"""Fields of a slow operation that are parts of its time, one after the other."""


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

    @contextmanager
    def request(self, name: str, carrier: Mapping[str, str], request_id: str) -> "Iterator[Span]":
        """A span of a request whose headers are `carrier`; what is raised is noted in it."""
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
