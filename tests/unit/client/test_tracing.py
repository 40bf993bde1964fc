"""Spans of OpenTelemetry, kept in memory."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import kvorum
import kvorum.sync
from kvorum import errors, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.keys import encode_key
from kvorum.rights import denied
from kvorum.tracing import TracedBackend, Tracing
from tests.spans import kept_spans

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return kept_spans(monkeypatch)


def named(spans: InMemorySpanExporter, *names: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if not names or span.name in names]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_calls_are_spans(spans: InMemorySpanExporter) -> None:
    async with kvorum.open_kv(":memory:") as kv:
        await kv.set(("secret", 1), "hidden")
        await kv.get(("secret", 1))
        await kv.get_many([("a",), ("b",)])
        await kv.expires_in(("a",))
        await kv.count(("secret",))
        assert [entry.value async for entry in kv.list(("secret",))] == ["hidden"]
        await kv.atomic().sum(("n",), 1).commit()
        await kv.atomic().set(("a",), 1).set(("b",), 2).commit()
        missed = await kv.atomic().check(kvorum.Entry(("a",), None, None)).set(("a",), 2).commit()
        assert not missed
        await kv.delete(("a",))
        await kv.queues()
    assert [span.name for span in named(spans)] == [
        *("kvorum.set", "kvorum.get", "kvorum.get_many", "kvorum.expires_in", "kvorum.count", "kvorum.list"),
        *("kvorum.sum", "kvorum.commit", "kvorum.commit", "kvorum.delete", "kvorum.queues"),
    ]
    assert {span.kind for span in named(spans)} == {trace.SpanKind.CLIENT}
    plain, missed_span = named(spans, "kvorum.commit")
    assert attributes(plain) == {"db.system.name": "kvorum", "kvorum.mutations": 2}
    assert attributes(missed_span)["kvorum.outcome"] == "OUTCOME_CHECK_FAILED"
    assert "secret" not in str([span.to_json() for span in named(spans)])
    assert "hidden" not in str([span.to_json() for span in named(spans)])


async def test_a_call_is_a_child_of_the_current_span(spans: InMemorySpanExporter) -> None:
    async with kvorum.open_kv(":memory:") as kv:
        with trace.get_tracer("app").start_as_current_span("request") as parent:
            await asyncio.gather(kv.set(("a",), 1), kv.set(("b",), 2))
    for span in named(spans, "kvorum.set"):
        assert span.parent is not None and span.parent.span_id == parent.get_span_context().span_id


async def test_errors_are_noted(spans: InMemorySpanExporter) -> None:
    async with kvorum.open_kv(":memory:") as kv:
        await kv.set(("text",), "x")
        with pytest.raises(errors.KvorumError):
            await kv.atomic().sum(("text",), 1).commit()
    (span,) = named(spans, "kvorum.sum")
    # judged by the node, so the call itself is answered
    assert attributes(span)["kvorum.outcome"].startswith("OUTCOME_")

    class Broken:
        async def read(self, read: pb.Read, *, timeout: float) -> pb.ReadResult:
            raise errors.Unavailable("nobody is there")

    with pytest.raises(errors.Unavailable):
        await TracedBackend(Broken(), Tracing()).read(pb.Read(keys=[b"k"]), timeout=1)  # type: ignore[arg-type]
    (span,) = named(spans, "kvorum.get")
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.status.description == "Unavailable: nobody is there"
    assert [event.name for event in span.events] == ["exception"]


async def test_a_refusal_is_noted_without_the_key_that_it_names(spans: InMemorySpanExporter) -> None:
    class Denying:
        async def read(self, read: pb.Read, *, timeout: float) -> pb.ReadResult:
            raise denied(f"read key {read.keys[0].hex()}")

    with pytest.raises(errors.PermissionDenied, match="hidden"):
        await TracedBackend(Denying(), Tracing()).read(  # type: ignore[arg-type]
            pb.Read(keys=[encode_key(("hidden",))]), timeout=1
        )
    (span,) = named(spans, "kvorum.get")
    assert span.status.status_code is trace.StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]
    told = str(span.to_json())
    assert "PermissionDenied" in told
    assert "hidden" not in told
    assert b"hidden".hex() not in told


async def test_a_handler_is_linked_to_who_sent_the_message(spans: InMemorySpanExporter) -> None:
    handled = asyncio.Event()
    inner: list[trace.SpanContext] = []

    async def handle(value: object) -> None:
        inner.append(trace.get_current_span().get_span_context())
        handled.set()

    async with kvorum.open_kv(":memory:") as kv:
        with trace.get_tracer("app").start_as_current_span("request"):
            await kv.queue("mail").send("hello", headers={"kind": "welcome"})
        listening = asyncio.create_task(kv.listen_queue(handle, queue="mail"))
        await handled.wait()
    await listening
    (sent,) = named(spans, "kvorum.send")
    (processed,) = named(spans, "kvorum.process")
    assert sent.kind is trace.SpanKind.PRODUCER and processed.kind is trace.SpanKind.CONSUMER
    assert attributes(sent)["messaging.destination.name"] == "mail"
    assert [link.context.span_id for link in processed.links] == [sent.context.span_id]
    assert [link.context.trace_id for link in processed.links] == [sent.context.trace_id]
    assert processed.parent is None, "it may be handled hours later"
    assert attributes(processed)["kvorum.attempt"] == 1
    assert len(attributes(processed)["messaging.message.id"]) == 24
    assert inner[0].span_id == processed.context.span_id


async def test_a_batch_is_linked_to_all_its_senders(spans: InMemorySpanExporter) -> None:
    seen: list[int] = []
    handled = asyncio.Event()

    async def handle(messages: Sequence[Any]) -> None:
        seen.append(len(messages))
        if sum(seen) == 3:
            handled.set()

    async with kvorum.open_kv(":memory:") as kv:
        for number in range(3):
            await kv.queue("mail").send(number)
        listening = asyncio.create_task(kv.queue("mail").listen(handle, batch=10, batch_wait=50))
        await handled.wait()
    await listening
    links = [link.context.span_id for span in named(spans, "kvorum.process") for link in span.links]
    assert sorted(links) == sorted(span.context.span_id for span in named(spans, "kvorum.send"))


async def test_a_failing_handler_is_an_error_of_its_span(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    handled = asyncio.Event()

    async def handle(value: object) -> None:
        handled.set()
        raise ValueError("no")

    async with kvorum.open_kv(":memory:") as kv:
        await kv.enqueue(1, backoff_schedule=[])
        listening = asyncio.create_task(kv.listen_queue(handle))
        await handled.wait()
    await listening
    (span,) = named(spans, "kvorum.process")
    assert span.status.status_code is trace.StatusCode.ERROR
    assert "Exception in queue handler" in caplog.text


def test_threads_of_the_blocking_client_have_the_context(spans: InMemorySpanExporter) -> None:
    inner: list[trace.SpanContext] = []
    with kvorum.sync.open_kv(":memory:") as kv:

        def handle(value: object) -> None:
            inner.append(trace.get_current_span().get_span_context())
            kv.set(("done",), value)

        with trace.get_tracer("app").start_as_current_span("request") as parent:
            kv.enqueue("x")
        listening = threading.Thread(target=kv.listen_queue, args=(handle,))
        listening.start()
        for (done,) in kv.watch([("done",)]):
            if done.value is not None:
                break
    listening.join()
    (sent,) = named(spans, "kvorum.send")
    (processed,) = named(spans, "kvorum.process")
    assert sent.parent is not None and sent.parent.span_id == parent.get_span_context().span_id
    assert inner == [processed.context]
    (stored,) = named(spans, "kvorum.set")
    assert stored.parent is not None and stored.parent.span_id == processed.context.span_id


def test_a_context_that_is_there_is_kept_and_one_without_room_left_out(spans: InMemorySpanExporter) -> None:
    tracing = Tracing()
    with trace.get_tracer("app").start_as_current_span("request"):
        own = pb.Enqueue(headers=pb.Headers(fields={"traceparent": PARENT}).SerializeToString())
        before = own.headers
        tracing.inject(own)
        assert own.headers == before
        full = pb.Enqueue(headers=pb.Headers(fields={"x": "y" * (limits.MAX_HEADERS_SIZE - 20)}).SerializeToString())
        before = full.headers
        tracing.inject(full)
        assert full.headers == before
        bare = pb.Enqueue()
        tracing.inject(bare)
        assert pb.Headers.FromString(bare.headers).fields["traceparent"].startswith("00-")
    nothing = pb.Enqueue()
    tracing.inject(nothing)
    assert nothing.headers == b"", "outside of any span there is no context"


async def test_a_context_that_makes_no_sense_is_none(spans: InMemorySpanExporter) -> None:
    """What others have sent."""
    handled: asyncio.Queue[object] = asyncio.Queue()
    async with kvorum.open_kv(":memory:") as kv:
        for parent in ("00-zz-1", "", PARENT.replace("b7ad6b7169203331", "0" * 16)):
            await kv.queue("mail").send(1.0, headers={"traceparent": parent, "tracestate": "="})
        listening = asyncio.create_task(kv.listen_queue(handled.put, queue="mail"))
        assert [await handled.get() for _ in range(3)] == [1.0] * 3
    await listening
    assert [len(span.links) for span in named(spans, "kvorum.process")] == [0, 0, 0]


async def test_without_a_provider_nothing_is_traced() -> None:
    """The library is there, and imported by this module."""
    async with kvorum.open_kv(":memory:") as kv:
        assert kv.link.tracing is None
        assert not isinstance(kv.link.backend, TracedBackend)


def test_a_program_that_does_not_trace_does_not_import_the_library() -> None:
    program = """
import asyncio, sys, kvorum
async def main():
    async with kvorum.open_kv(":memory:") as kv:
        await kv.set(("a",), 1)
        await kv.enqueue(1)
asyncio.run(main())
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


async def test_a_request_is_one_trace_with_its_answer(spans: InMemorySpanExporter) -> None:
    async with kvorum.open_kv(":memory:") as kv:
        stop = asyncio.Event()

        async def answer(message: kvorum.Message) -> str:
            await kv.set(("asked",), message.value)
            return "pong"

        serving = asyncio.create_task(kv.queue("ask").serve(answer, stop=stop))
        with trace.get_tracer("app").start_as_current_span("request") as request:
            assert await kv.request("ask", "ping") == "pong"
        stop.set()
        await serving
    (asked,) = named(spans, "kvorum.send")
    (processed,) = named(spans, "kvorum.process")
    (replied,) = named(spans, "kvorum.commit")
    assert processed.parent is not None and processed.parent.span_id == asked.context.span_id
    assert [link.context.span_id for link in processed.links] == [asked.context.span_id]
    assert replied.parent is not None and replied.parent.span_id == processed.context.span_id
    traces = {span.context.trace_id for span in (asked, processed, replied, *named(spans, "kvorum.set"))}
    assert traces == {request.get_span_context().trace_id}


async def test_what_is_received_is_linked_to_who_sent_it(spans: InMemorySpanExporter) -> None:
    async with kvorum.open_kv(":memory:") as kv:
        queue = kv.queue("mail")
        await queue.send(1)
        async with queue.receive() as receiving:
            async for message in receiving:
                await message.ack()
                break
        await queue.send_batch([2, 3])
        batch = await queue.receive_batch(max=2)
        assert [message.value for message in batch] == [2, 3]
        for message in batch:
            await message.ack()
        assert len(await queue.receive_batch(max=1, wait=0.01)) == 0
    first, both = named(spans, "kvorum.send")
    one, two = named(spans, "kvorum.receive")
    assert one.kind is trace.SpanKind.CONSUMER and one.parent is None
    assert attributes(one)["messaging.operation.name"] == "receive" and attributes(one)["kvorum.attempt"] == 1
    assert [link.context.span_id for link in one.links] == [first.context.span_id]
    assert [link.context.span_id for link in two.links] == [both.context.span_id] * 2
    assert attributes(two)["messaging.batch.message_count"] == 2


@pytest.mark.parametrize("fails", [False, True])
async def test_the_verdict_on_a_handled_message_belongs_to_its_handling(
    spans: InMemorySpanExporter, *, fails: bool
) -> None:
    handled = asyncio.Event()

    async def handle(message: object) -> None:
        handled.set()
        if fails:
            raise ValueError("no")

    async with kvorum.open_kv(":memory:") as kv:
        await kv.enqueue(1, backoff_schedule=[])
        listening = asyncio.create_task(kv.listen_queue(handle))
        await handled.wait()
    await listening
    (processed,) = named(spans, "kvorum.process")
    (settled,) = named(spans, "kvorum.settle")
    assert settled.parent is not None and settled.parent.span_id == processed.context.span_id
    expected = trace.StatusCode.ERROR if fails else trace.StatusCode.UNSET
    assert processed.status.status_code is expected


def test_the_set_up_of_the_page_makes_a_program_trace() -> None:
    """With a stand-in for the exporter, which the project does not install. In a process of its own: a provider is set
    once."""
    page = (Path(__file__).parents[3] / "docs" / "tracing.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    program = f"""
import sys, types
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
module = types.ModuleType("trace_exporter")
module.OTLPSpanExporter = lambda endpoint: InMemorySpanExporter()
for name in ("exporter", "exporter.otlp", "exporter.otlp.proto", "exporter.otlp.proto.grpc"):
    sys.modules[f"opentelemetry.{{name}}"] = types.ModuleType(name)
sys.modules["opentelemetry.exporter.otlp.proto.grpc.trace_exporter"] = module
{block}
from kvorum.tracing import is_tracing
assert is_tracing()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
