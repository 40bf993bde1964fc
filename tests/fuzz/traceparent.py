"""A W3C traceparent: what is taken means the same to OpenTelemetry, and the rest is left aside."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvorum_node.tracing import parse_traceparent

_TRACE, _SPAN = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
SEEDS = [
    b"00-" + _TRACE + b"-" + _SPAN + b"-01",
    b"00-" + _TRACE + b"-" + _SPAN + b"-00",
    b"01-" + _TRACE + b"-" + _SPAN + b"-ff-more",
    b"ff-" + _TRACE + b"-" + _SPAN + b"-01",
    b"00-" + b"0" * 32 + b"-" + _SPAN + b"-01",
    b"",
]


@contextmanager
def opened() -> Iterator[Callable[[bytes], None]]:
    yield check


def check(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    found = parse_traceparent(text)
    if found is None:
        return
    context = TraceContextTextMapPropagator().extract({"traceparent": text})
    theirs = trace.get_current_span(context).get_span_context()
    assert (found.trace_id, found.span_id) == (theirs.trace_id, theirs.span_id), text
    assert found.sampled == theirs.trace_flags.sampled
