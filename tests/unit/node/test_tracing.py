"""A node's spans, kept in memory."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.http.app import App
from kvorum_node.http.health import Health
from kvorum_node.http.message import Request
from kvorum_node.request_ids import UnaryCalls
from kvorum_node.slow import SlowLog
from kvorum_node.tracing import NodeTracing, node_tracing

from .harness import Node

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """A provider that is set for this test only; the library allows it to be set once in a process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


def follows_parent(span: ReadableSpan) -> bool:
    parent = span.parent
    return parent is not None and (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE, SPAN)


async def test_an_http_request_continues_the_clients_trace(spans: InMemorySpanExporter) -> None:
    loop = asyncio.get_running_loop()
    nothing: Any = SimpleNamespace()
    app = App(nothing, nothing, Health(str, loop.time, grace=1.0), nothing, tracing=NodeTracing())
    await app.handle(Request("GET", "/readyz", {"traceparent": PARENT, "x-request-id": "r1"}))
    await app.handle(Request("GET", "/nothing", {}))
    known, unknown = spans.get_finished_spans()
    assert known.name == "kvorum.http.readyz" and follows_parent(known)
    assert dict(known.attributes or {}) == {
        "db.system.name": "kvorum",
        "kvorum.request_id": "r1",
        "http.response.status_code": 200,
    }
    assert unknown.name == "kvorum.http.other" and unknown.parent is None
    assert (unknown.attributes or {})["http.response.status_code"] == 404


@pytest.mark.parametrize("fails", [False, True])
async def test_so_does_a_unary_call(spans: InMemorySpanExporter, *, fails: bool) -> None:
    sent: list[tuple[tuple[str, str], ...]] = []
    context = SimpleNamespace(
        invocation_metadata=lambda: (("traceparent", PARENT), ("x-request-id", "r2"), ("odd-bin", b"\xff")),
        set_trailing_metadata=sent.append,
    )

    async def run(request: bytes, _: Any) -> bytes:
        assert trace.get_current_span().get_span_context().is_valid
        if fails:
            raise ZeroDivisionError("a bug")
        return request

    calls = UnaryCalls(SlowLog(0.0, float), NodeTracing())
    if fails:
        with pytest.raises(ZeroDivisionError):
            await calls._call("/kvorum.v1.Kv/Get", run, b"x", context)
    else:
        assert await calls._call("/kvorum.v1.Kv/Get", run, b"x", context) == b"x"
    (span,) = spans.get_finished_spans()
    assert span.name == "kvorum.v1.Kv/Get" and follows_parent(span)
    assert span.status.status_code is (trace.StatusCode.ERROR if fails else trace.StatusCode.UNSET)
    assert sent == [(("x-request-id", "r2"),)]


def test_a_slow_write_is_a_span_with_its_phases(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    node = Node(tmp_path, slow_operation=1e-9)
    op = pb.AtomicWrite()
    op.mutations.add(key=b"\x02secret\0", type=pb.MUTATION_TYPE_SET, value=b"v", encoding=pb.VALUE_ENCODING_BYTES)
    node.write(op)
    node.close()
    *parts, whole = spans.get_finished_spans()
    assert whole.name == "kvorum.write" and (whole.attributes or {})["kvorum.writes"] == 1
    assert [part.name for part in parts] == ["waited", "logged", "applied"]
    times = [whole.start_time, *[part.end_time for part in parts]]
    assert [part.start_time for part in parts] == times[:-1]
    assert times == sorted(cast("list[int]", times)) and cast("int", times[-1]) <= cast("int", whole.end_time)
    assert {part.parent.span_id for part in parts if part.parent} == {whole.context.span_id}
    assert "secret" not in str([span.to_json() for span in spans.get_finished_spans()])


def test_a_process_without_a_provider_has_none(tmp_path: Path) -> None:
    assert node_tracing() is None
    node = Node(tmp_path)
    assert node.service.tracing is None
    node.close()
