"""What is found in the end, and what it says of outcomes that nobody knew."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import kvorum

from .history import Effect, Left, Letter, Queue, Record, Send, Ticks
from .plan import EFFECT, MARK, NAME, PERIOD, RECORDS, SCHEDULE

CALL: Final = 20_000
"""Milliseconds for each call."""
_PAGE: Final = 500


async def found(kv: kvorum.Kv) -> list[Record]:
    """Effects, dead letters, and messages that are still there. Errors: KvorumError."""
    records: list[Record] = []
    async for entry in kv.list(prefix=(EFFECT,), batch_size=_PAGE, timeout=CALL):
        records.append(Effect(str(entry.key[-1]), int(entry.value), str(entry.versionstamp)))
    for queue in (record.name for record in RECORDS if isinstance(record, Queue)):
        async for info in kv.queue(queue).dead:
            records.append(_letter(info, queue))
        for info in await kv.queue(queue).peek(limit=1_000, timeout=CALL):
            records.append(Left(_name(info), queue))
    return records


def _letter(info: kvorum.MessageInfo, queue: str) -> Letter:
    origin = info.origin
    if origin is None or origin.queue == queue:
        return Letter(info.id, _name(info), queue, info.attempt)
    return Letter(info.id, _name(info), queue, origin.attempts, origin.id, origin.queue)


def _name(info: kvorum.MessageInfo) -> str:
    return str(info.value[NAME]) if isinstance(info.value, dict) and NAME in info.value else ""


async def marks(kv: kvorum.Kv) -> dict[str, str]:
    """Versionstamps of all commits of sends. Errors: KvorumError."""
    rows = kv.list(prefix=(MARK,), batch_size=_PAGE, timeout=CALL)
    return {str(entry.key[-1]): str(entry.versionstamp) async for entry in rows}


def resolve(sends: Iterable[Send], marked: Mapping[str, str]) -> tuple[list[Record], list[str]]:
    """Sends whose outcome is known now, and what their marks contradict."""
    resolved: list[Record] = []
    problems = []
    for send in sends:
        stamp = marked.get(send.mark, "")
        if send.outcome == "unknown" and not stamp:
            send = replace(send, outcome="not applied")
        elif send.outcome == "unknown" and not send.dedup:  # whether a duplicate was left out is not known
            send = replace(send, outcome="ok", stamp=stamp)
        elif send.outcome == "ok" and send.stamp != stamp:
            problems.append(f"send {send.name} was acknowledged at {send.stamp}, and is found at {stamp or 'no place'}")
        elif send.outcome == "not applied" and stamp:
            problems.append(f"send {send.name} was denied, and is found at {stamp}")
        resolved.append(send)
    return resolved, problems


async def begin_schedule(kv: kvorum.Kv) -> int:
    """The first moment that a recurring message will stand for, Unix milliseconds. Errors: KvorumError."""
    await kv.schedule(SCHEDULE, "* * * * * *", queue="bells", value={NAME: SCHEDULE})
    (info,) = await kv.schedules()
    moment = info.last_at or info.next_at
    assert moment is not None
    return round(moment.timestamp() * 1000)


async def end_schedule(kv: kvorum.Kv, first: int) -> Ticks:
    """All moments that there must be a message for. Errors: KvorumError."""
    (info,) = await kv.schedules()
    await kv.unschedule(SCHEDULE)
    last = first - PERIOD if info.last_at is None else round(info.last_at.timestamp() * 1000)
    return Ticks(SCHEDULE, "bells", first, last, PERIOD)
