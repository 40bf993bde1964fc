"""A trace from the call of a program to the apply of a node."""

import asyncio
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import kvorum
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node._proto import datapath_pb2 as dp
from kvorum_node.api.stream import Stream
from tests.integration.tracing.conftest import Nodes

PHASES = ["kvorum.node.admit", "kvorum.node.wait", "kvorum.node.log", "kvorum.node.apply"]


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def below(spans: InMemorySpanExporter, parent: ReadableSpan) -> list[ReadableSpan]:
    """The children of a span, in the order of their beginnings."""
    children = [
        span
        for span in spans.get_finished_spans()
        if span.parent is not None and span.parent.span_id == parent.context.span_id
    ]
    assert all(child.context.trace_id == parent.context.trace_id for child in children)
    return sorted(children, key=lambda span: span.start_time or 0)


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_write_is_one_trace_from_the_client_to_apply(nodes: Nodes, spans: InMemorySpanExporter) -> None:
    async with kvorum.open_kv(nodes.url) as kv:
        with trace.get_tracer("app").start_as_current_span("request") as request:
            versionstamp = (await kv.set(("a",), 1)).versionstamp
        (call,) = named(spans, "kvorum.set")
        assert call.parent is not None and call.parent.span_id == request.get_span_context().span_id
        served = below(spans, call)[-1]  # others before it were refused by who did not lead any more
        assert served.name == "kvorum.node.write" and served.kind is trace.SpanKind.SERVER
        assert served.parent is not None and served.parent.is_remote
        facts = told(served)
        store = nodes.replicas[facts.pop("kvorum.node")]._service.store
        assert facts.pop("kvorum.term") >= 1
        assert facts == {
            "db.system.name": "kvorum",
            "kvorum.entry": int(versionstamp[:16], 16) - store.stamp_base,
        }
        phases = below(spans, served)
        assert [phase.name for phase in phases] == PHASES
        ends = [served.start_time, *[phase.end_time for phase in phases]]
        assert [phase.start_time for phase in phases] == ends[:-1], "one after the other"
        assert ends == sorted(end or 0 for end in ends) and (ends[-1] or 0) <= (served.end_time or 0)


async def test_reads_lists_and_calls_have_a_span_of_the_node(nodes: Nodes, spans: InMemorySpanExporter) -> None:
    async with kvorum.open_kv(nodes.url) as kv:
        await kv.set(("a",), "x")
        assert (await kv.get(("a",))).value == "x"
        assert (await kv.get(("none",))).value is None
        assert [entry.value async for entry in kv.list(())] == ["x"]
        await kv.queues()
        missed = await kv.atomic().check(kvorum.Entry(("a",), None, None)).set(("a",), 2).commit()
        assert not missed
    for name, served in (("kvorum.get", "read"), ("kvorum.list", "read"), ("kvorum.queues", "queues")):
        for call in named(spans, name):
            assert [span.name for span in below(spans, call)] == [f"kvorum.node.{served}"]
    (commit,) = named(spans, "kvorum.commit")
    (served_commit,) = below(spans, commit)
    assert told(served_commit)["kvorum.outcome"] == "OUTCOME_CHECK_FAILED"
    assert served_commit.status.status_code is trace.StatusCode.UNSET, "an answer, and no failure"
    for replica in nodes.replicas.values():
        assert replica._service.statistics()["traces_followed"] == 0


def lose_first(lost: "asyncio.Future[str]", name: str, write: Callable[..., None], *group: Any) -> None:
    """A node's way in for writes, on which the first group of all vanishes."""
    if lost.done():
        write(*group)
    else:
        lost.set_result(name)


async def test_a_trace_goes_on_at_the_next_leader(
    nodes: Nodes, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt is lost with its leader; the second one belongs to the same call."""
    async with kvorum.open_kv(nodes.url) as kv:
        await kv.set(("before",), 1)
        spans.clear()
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        for name, replica in nodes.replicas.items():
            monkeypatch.setattr(replica._service, "write", partial(lose_first, lost, name, replica._service.write))
        writing = asyncio.create_task(kv.set(("a",), 1))
        first = await asyncio.wait_for(lost, 30)
        tracing = nodes.replicas[first]._service.tracing
        await nodes.end(first, orderly=False)
        await writing
    (call,) = named(spans, "kvorum.set")
    attempts = below(spans, call)
    assert {span.name for span in attempts} == {"kvorum.node.write"}
    assert told(attempts[0])["kvorum.node"] == first
    assert attempts[0].status.status_code is trace.StatusCode.ERROR
    assert attempts[0].status.description == "the stream ended before the answer"
    assert told(attempts[-1])["kvorum.node"] in nodes.replicas, "one of the others"
    assert [span.name for span in below(spans, attempts[-1])] == PHASES
    assert tracing is not None and tracing.followed == 0


async def test_a_write_through_kv_connect_continues_the_trace_of_its_request(
    nodes: Nodes, spans: InMemorySpanExporter
) -> None:
    span_id = "b7ad6b7169203331"
    leader = await nodes.leader()
    number = next(number for number in range(3) if f"n{number + 1}" != leader)  # it has to ask the leader
    write = dp.AtomicWrite()
    write.mutations.add(key=b"\x02a\0", mutation_type=dp.M_SET, value=dp.KvValue(data=b"x", encoding=dp.VE_BYTES))
    headers = {
        "traceparent": f"00-0af7651916cd43dd8448eb211c80319c-{span_id}-01",
        "content-type": "application/x-protobuf",
        "x-denokv-version": "3",
        "x-denokv-database-id": str(UUID(bytes=nodes.replicas[leader]._service.store.cluster_id)),
        "authorization": "Bearer any",
    }
    url = f"{nodes.files.http_url(number)}/v2/atomic_write"
    request = urllib.request.Request(url, write.SerializeToString(), headers)
    with await asyncio.to_thread(urllib.request.urlopen, request, timeout=30) as response:
        assert response.status == 200
    (served,) = [span for span in spans.get_finished_spans() if span.name.startswith("kvorum.http.")]
    assert served.parent is not None and f"{served.parent.span_id:016x}" == span_id
    write_span = below(spans, served)[-1]
    assert write_span.name == "kvorum.node.write" and told(write_span)["kvorum.node"] != f"n{number + 1}"
    assert [span.name for span in below(spans, write_span)] == PHASES


async def test_what_is_not_sampled_is_not_told(
    nodes: Nodes, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[pb.ClientFrame] = []
    take = Stream._take_in

    def seen(self: Stream, frame: pb.ClientFrame) -> None:
        frames.append(frame)
        take(self, frame)

    monkeypatch.setattr(Stream, "_take_in", seen)
    unsampled = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(0)))
    async with kvorum.open_kv(nodes.url) as kv:
        with trace.use_span(unsampled):
            await kv.set(("a",), 1)
            await kv.get(("a",))
        assert frames and not any(frame.traces for frame in frames)
        assert any(frame.point_reads for frame in frames), "as without tracing"
        await kv.set(("a",), 2)
        assert any(frame.traces for frame in frames), "this one is"
    assert {span.name for span in spans.get_finished_spans() if span.context.trace_id == 1} == set()


async def test_a_chain_of_messages_is_one_linked_story(nodes: Nodes, spans: InMemorySpanExporter) -> None:
    done = asyncio.Event()
    async with kvorum.open_kv(nodes.url) as kv:

        async def first(message: kvorum.Message) -> None:
            await kv.queue("second").send(message.value + "!")

        async def second(message: kvorum.Message) -> None:
            done.set()

        with trace.get_tracer("app").start_as_current_span("request") as request:
            await kv.queue("first").send("hello")
        listening = [
            asyncio.create_task(kv.queue("first").listen(first)),
            asyncio.create_task(kv.queue("second").listen(second)),
        ]
        await asyncio.wait_for(done.wait(), 30)
    await asyncio.gather(*listening)
    sent, sent_on = named(spans, "kvorum.send")
    handled = {told(span)["messaging.destination.name"]: span for span in named(spans, "kvorum.process")}
    assert sent.parent is not None and sent.parent.span_id == request.get_span_context().span_id
    assert [link.context.span_id for link in handled["first"].links] == [sent.context.span_id]
    assert sent_on.parent is not None and sent_on.parent.span_id == handled["first"].context.span_id
    assert [link.context.span_id for link in handled["second"].links] == [sent_on.context.span_id]
    for span in (sent, sent_on):
        assert [child.name for child in below(spans, span)] == ["kvorum.node.write"]
