"""Lanes and workers on an embedded database: what they write down is a history that both checkers accept, and every
kind of operation is in it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from random import Random

import pytest

import kvorum
from chaos import linearizability, serializability
from chaos.history import Operation
from chaos.recorder import DONE, MARKS, Recorder, SawNonsense
from chaos.workload import KEYS, Lane, Worker
from kvorum.errors import OutcomeUnknown, StaleLease, Unavailable


@pytest.fixture
async def kv() -> AsyncIterator[kvorum.Kv]:
    async with kvorum.open_kv(":memory:") as kv:
        yield kv


async def test_a_run_on_a_sound_database_is_judged_valid(kv: kvorum.Kv, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    listening = asyncio.create_task(Worker(kv, 0, Random(1), recorder).run())
    lanes = [Lane(kv, process, Random(process), recorder) for process in range(8)]
    await asyncio.gather(*(lane.run(asyncio.Event(), 1_200) for lane in lanes))
    sent = {operation.message for operation in recorder.operations if operation.kind == "enqueue"}
    async with asyncio.timeout(30):
        await recorder.all_recorded(sent)
    marks = {str(entry.key[-1]): entry.versionstamp async for entry in kv.list(prefix=MARKS)}
    done = {str(entry.key[-1]) async for entry in kv.list(prefix=DONE)}
    await kv.close()
    await listening
    kinds = Counter(operation.kind for operation in recorder.operations)
    assert min(kinds[kind] for kind in ("get", "set", "cas", "sum", "delete", "atomic", "enqueue", "handle")) > 0
    assert any(operation.failed_checks for operation in recorder.operations)
    assert {operation.outcome for operation in recorder.operations} == {"ok"}
    for checker in (linearizability, serializability):
        verdict = checker.check(recorder.operations)
        assert verdict.ok, verdict.explanation
    marked = [operation for operation in recorder.operations if operation.mark and operation.kind != "handle"]
    assert all(marks.get(operation.mark) == operation.versionstamp for operation in marked)
    assert done == sent
    assert any("has to wait" in record.getMessage() or record.exc_info for record in caplog.records)


async def test_the_history_of_a_run_that_is_tampered_with_is_refused(kv: kvorum.Kv) -> None:
    recorder = Recorder()
    lanes = [Lane(kv, process, Random(process), recorder) for process in range(4)]
    await asyncio.gather(*(lane.run(asyncio.Event(), 400) for lane in lanes))
    written = {effect.key for operation in recorder.operations for effect in operation.effects}
    assert written >= set(KEYS)
    whole = [at for at, operation in enumerate(recorder.operations) if len(operation.reads) > len(KEYS)]
    later, earlier = recorder.operations[whole[-1]], recorder.operations[whole[0]]
    assert later.seen != earlier.seen
    recorder.operations[whole[-1]] = _answering(later, earlier)
    assert not linearizability.check(recorder.operations).ok
    assert not serializability.check(recorder.operations).ok


def _answering(operation: Operation, other: Operation) -> Operation:
    line = operation.to_json()
    assert operation.reads == other.reads
    return Operation.from_json(line.replace(_seen(operation), _seen(other)))


def _seen(operation: Operation) -> str:
    return operation.to_json().partition('"seen":')[2]


DRAFT = Operation(0, "sum", 0, None, "unknown")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(OutcomeUnknown("?"), "unknown"), (Unavailable("no"), "not applied"), (StaleLease("no"), "not applied")],
)
async def test_errors_are_outcomes(error: Exception, outcome: str) -> None:
    async def fail() -> kvorum.CommitResult:
        raise error

    recorder = Recorder()
    done = await recorder.commit(DRAFT, fail())
    assert done.outcome == outcome
    assert recorder.operations == [done]
    assert done.returned is not None and 0 < done.invoked <= done.returned


async def test_a_cancelled_commit_is_unknown() -> None:
    recorder = Recorder()
    begun = asyncio.Event()

    async def hang() -> kvorum.CommitResult:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.create_task(recorder.commit(DRAFT, hang()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [operation.outcome for operation in recorder.operations] == ["unknown"]


async def test_a_value_that_nobody_can_have_stored_is_an_error() -> None:
    async def answer() -> list[kvorum.Entry]:
        return [kvorum.Entry(("chaos", "value", "k0"), "text", "0" * 20)]

    with pytest.raises(SawNonsense):
        await Recorder().read(Operation(0, "get", 0, None, "unknown", reads=("k0",)), answer())
