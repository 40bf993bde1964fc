"""Reported cases of queues on an embedded database whose clock is put forward."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

import kvorum
from tests.integration.api.jumping import Jumps, play


def test_p70_a_queue_that_was_idle_for_two_hours_takes_the_first_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P70: local queue dead after two idle hours → idle soak (virtual 2 h) → first send works."""

    async def soak(jumps: Jumps) -> list[object]:
        got: asyncio.Queue[object] = asyncio.Queue()
        async with kvorum.open_kv(str(tmp_path / "data.kv")) as kv:
            queue = kv.queue("idle")
            listening = asyncio.create_task(queue.listen(lambda message: got.put_nowait(message.value)))
            receiving = asyncio.ensure_future(kv.queue("pulled").receive().next())
            await queue.send("before")
            seen = [await got.get()]
            for _ in range(120):
                jumps.pass_by(timedelta(minutes=1))
                await asyncio.sleep(0.002)  # whatever is done now and then has its turn
            await queue.send("after")
            await kv.queue("pulled").send("pulled")
            seen.append(await got.get())
            message = await receiving
            assert message is not None
            await message.ack()
            seen.append(message.value)
        await listening
        return seen

    assert play(soak, monkeypatch) == ["before", "after", "pulled"]
