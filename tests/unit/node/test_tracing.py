"""A node's spans, kept in memory."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.api import traces as api_traces
from kvorum_node.api.stream import Stream
from kvorum_node.http.app import App
from kvorum_node.http.health import Health
from kvorum_node.http.message import Request
from kvorum_node.request_ids import UnaryCalls
from kvorum_node.slow import SlowLog
from kvorum_node.store.rights import Rights, for_keys
from kvorum_node.tracing import NodeTracing, node_tracing, parse_traceparent
from tests.spans import kept_spans

from .harness import Node

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return kept_spans(monkeypatch)


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


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (PARENT, True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-ff", True),
        (f"01-{TRACE}-{SPAN}-01", True),
        (f"01-{TRACE}-{SPAN}-01-what-comes-later", True),
        (f"{PARENT}-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        (f"{PARENT}\n", None),
        (f"00-{TRACE[:-1]}٣-{SPAN}-01", None),  # a digit, but no ASCII
        ("", None),
    ],
)
def test_a_traceparent(text: str, sampled: bool | None) -> None:
    found = parse_traceparent(text)
    assert (None if found is None else found.sampled) is sampled
    if found is not None:
        assert found[:2] == (int(TRACE, 16), int(SPAN, 16))


def set_k(seq: int = 1) -> pb.WriteGroup:
    op = pb.AtomicWrite()
    op.mutations.add(key=b"\x02k\0", type=pb.MUTATION_TYPE_SET, value=b"v", encoding=pb.VALUE_ENCODING_BYTES)
    return pb.WriteGroup(session=b"s" * 10, writes=[pb.Write(seq=seq, op=op.SerializeToString())])


async def test_what_stands_in_the_log_does_not_tell_who_traces(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    payloads = []
    for traces in ([], [pb.Trace(traceparent=PARENT, write=1)]):
        node = Node(tmp_path / str(len(traces)))
        session = node.open_session()
        stream = Stream(node.service, "n1", None)
        group = set_k()
        group.session = session
        stream._take_in(pb.ClientFrame(writes=group, traces=traces))
        node.timers.settle()
        payloads.append(node.consensus.payloads[-1])
        stream.close()
        node.close()
    assert payloads[0] == payloads[1]
    served = [span for span in spans.get_finished_spans() if span.name == "kvorum.node.write"]
    assert len(served) == 1 and follows_parent(served[0])


async def test_contexts_that_are_of_no_use_are_counted(
    spans: InMemorySpanExporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    session = node.open_session()
    stream = Stream(node.service, "n1", None)

    def counted(*traces: pb.Trace, seq: int) -> dict[str, float]:
        group = set_k(seq)
        group.session = session
        stream._take_in(pb.ClientFrame(writes=group, traces=traces))
        node.timers.settle()
        figures = node.service.statistics()
        return {name: figures[f"traces_{name}"] for name in ("malformed", "dropped", "followed")}

    assert counted(pb.Trace(traceparent="00-zz", write=1), seq=1)["malformed"] == 1
    assert counted(pb.Trace(traceparent=PARENT), seq=2)["malformed"] == 2, "of no operation"
    unsampled = f"{PARENT[:-1]}0"
    assert counted(pb.Trace(traceparent=unsampled, write=3), seq=3) == {"malformed": 2, "dropped": 0, "followed": 0}
    stranger = pb.Trace(traceparent=PARENT, write=99)
    assert counted(stranger, seq=4) == {"malformed": 2, "dropped": 0, "followed": 0}
    assert spans.get_finished_spans() == ()
    node.consensus.held = True
    monkeypatch.setattr(api_traces, "MAX_FOLLOWED", 1)
    assert counted(pb.Trace(traceparent=PARENT, write=5), seq=5)["followed"] == 1
    assert counted(pb.Trace(traceparent=PARENT, write=6), seq=6) == {"malformed": 2, "dropped": 1, "followed": 1}
    stream.close()
    (ended,) = spans.get_finished_spans()
    assert ended.status.description == "the stream ended before the answer"
    assert node.service.statistics()["traces_followed"] == 0
    node.consensus.release()  # its answer comes all the same, and is nobody's
    node.timers.settle()
    assert len(spans.get_finished_spans()) == 1
    node.close()


@pytest.mark.parametrize("refused", ["NOT_LEADER", "UNKNOWN", "INVALID"])
async def test_a_write_that_is_not_applied_is_an_error_of_its_span(
    spans: InMemorySpanExporter, tmp_path: Path, refused: str
) -> None:
    node = Node(tmp_path)
    session = node.open_session()
    stream = Stream(node.service, "n1", None)
    group = set_k()
    group.session = session
    if refused == "NOT_LEADER":
        node.consensus.depose()
    elif refused == "INVALID":
        group.writes[0].op = b"\xff"
    else:
        node.consensus.held = True
    stream._take_in(pb.ClientFrame(writes=group, traces=[pb.Trace(traceparent=PARENT, write=1)]))
    node.timers.settle()
    if refused == "UNKNOWN":
        node.consensus.fail_waiting()
        node.timers.settle()
    (span,) = spans.get_finished_spans()  # so it has no phases
    assert follows_parent(span) and span.status.status_code is trace.StatusCode.ERROR
    assert (span.attributes or {})["kvorum.outcome"] == f"OUTCOME_{refused}"
    stream.close()
    node.close()


async def test_a_refusal_is_told_without_the_key_that_it_names(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    node = Node(tmp_path)
    stream = Stream(node.service, "n1", None)
    traces, key = stream._traces, b"\x02hidden\0"
    assert traces is not None
    contexts = traces.of(pb.ClientFrame(traces=[pb.Trace(traceparent=PARENT, read=1)]))
    assert traces.follow(contexts.reads[1])
    traces.end_asked(contexts.reads[1], pb.READ_STATUS_DENIED, for_keys(Rights(pb.Scopes()), keys=[key]))
    (span,) = spans.get_finished_spans()
    assert span.status.description == "READ_STATUS_DENIED"
    assert key.hex() not in str(span.to_json())
    stream.close()
    node.close()


async def test_a_list_that_is_told_in_slices_is_one_span(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    node = Node(tmp_path)
    for number in range(40):
        op = pb.AtomicWrite()
        key = b"\x02" + bytes((65 + number,)) + b"\0"
        op.mutations.add(key=key, type=pb.MUTATION_TYPE_SET, value=bytes(65_000), encoding=pb.VALUE_ENCODING_BYTES)
        node.write(op)
    stream = Stream(node.service, "n1", None)
    stream._stop_listening = lambda: None  # as if it had been greeted
    read = pb.Read(id=7, ranges=[pb.ReadRange(end=b"\xff", limit=100)], consistency=pb.CONSISTENCY_EVENTUAL)
    stream._take_in(pb.ClientFrame(reads=[read], traces=[pb.Trace(traceparent=PARENT, read=7)]))
    frames = 0
    while not spans.get_finished_spans():
        node.timers.settle()
        assert stream._outbox.next_frame()
        stream._resume_stalled()
        frames += 1
    assert frames > 1
    (span,) = spans.get_finished_spans()
    assert span.name == "kvorum.node.read" and follows_parent(span)
    assert node.service.statistics()["traces_followed"] == 0
    stream.close()
    node.close()


async def test_a_node_that_does_not_trace_says_so_and_leaves_contexts_aside(tmp_path: Path) -> None:
    node = Node(tmp_path)
    session = node.open_session()
    stream = Stream(node.service, "n1", None)
    stream._greet(pb.ClientFrame(hello=pb.Hello(protocol=1)))
    hello = pb.ServerFrame.FromString(stream._outbox.next_frame()).hello
    assert hello.point_reads and not hello.traces
    group = set_k()
    group.session = session
    stream._take_in(pb.ClientFrame(writes=group, traces=[pb.Trace(traceparent=PARENT, write=1)]))
    node.timers.settle()
    (answer,) = pb.ServerFrame.FromString(stream._outbox.next_frame()).results
    assert [result.outcome for result in answer.results] == [pb.OUTCOME_DONE]
    assert node.service.statistics()["traces_malformed"] == 0
    stream.close()
    node.close()
