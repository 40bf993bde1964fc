"""What is done when nobody disturbs the cluster any more: messages are waited for, and a client that was not there
before looks at everything."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import kvorum

from . import audit
from .crew import Account
from .duties.doing import final as look_at_duties
from .history import Operation
from .recorder import DONE, HANDLED, MARKS, UNDELIVERED, VALUES, Recorder, seen_of
from .report import Report
from .workload import KEYS

PATIENCE: Final = 45.0
"""Seconds that the queue may take to run dry, and the replicas to become equal, when nobody disturbs them."""
CALL: Final = 10_000
"""Milliseconds for each call of the final look."""

Open = Callable[[], AbstractAsyncContextManager[kvorum.Kv]]
"""A client of the cluster."""


async def until_handled(open_kv: Open, operations: list[Operation]) -> None:
    """Wait for the messages that are certainly on the queue; what is missing then is found by the audit."""
    deadline = time.monotonic() + PATIENCE
    async with open_kv() as kv:
        resolved, _ = audit.resolve(operations, await _marks(kv), time.monotonic_ns())
        missing = audit.to_be_handled(resolved)
        while missing and time.monotonic() < deadline:
            missing -= {str(entry.key[-1]) async for entry in kv.list(prefix=DONE, batch_size=500, timeout=CALL)}
            await asyncio.sleep(0.2)


async def look(open_kv: Open, account: Account, report: Report) -> tuple[list[Operation], audit.Final]:
    """The state after everything, by a new client; its reads belong to the history. What the marks contradict goes to
    the report."""
    recorder = Recorder()
    async with open_kv() as kv:
        marks = await _marks(kv)
        done = {str(entry.key[-1]): entry async for entry in kv.list(prefix=DONE, batch_size=500, timeout=CALL)}
        marks |= {str(entry.value): str(entry.versionstamp) for entry in done.values()}
        undelivered = {str(entry.key[-1]) async for entry in kv.list(prefix=UNDELIVERED, timeout=CALL)}
        keys = (*KEYS, HANDLED)
        draft = Operation(-1, "get", 0, None, "unknown", reads=keys)
        read = await recorder.read(draft, kv.get_many([(*VALUES, key) for key in keys], timeout=CALL))
        entry = await kv.get((*VALUES, HANDLED), timeout=CALL)
        await look_at_duties(kv, account.deeds, CALL)
    account.operations.append(read)
    resolved, problems = audit.resolve(account.operations, marks, read.returned or time.monotonic_ns())
    report.problems += problems
    return resolved, audit.Final(marks, set(done), seen_of(entry).value or 0, undelivered)


async def _marks(kv: kvorum.Kv) -> dict[str, str]:
    rows = kv.list(prefix=MARKS, batch_size=500, timeout=CALL)
    return {str(entry.key[-1]): str(entry.versionstamp) async for entry in rows}
