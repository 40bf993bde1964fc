"""Three processes, `kill -9`: nothing acknowledged is lost, a new leader comes soon, the killed one catches up."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvorum_raft.seams import Member
from tests.integration.raft.harness import make_members
from tests.pace import Pace


class Process:
    """A replica and the questions that it has not answered."""

    def __init__(self, node_id: str, folder: Path, members: list[Member]) -> None:
        self.node_id = node_id
        self._arguments = (node_id, str(folder / node_id), json.dumps([list(_fields(one)) for one in members]))
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._number = 0

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        """0 if it does not run."""
        return 0 if self._process is None else self._process.pid

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.integration.raft.replica",
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"ready\n"
        self._reader = asyncio.create_task(self._read(self._process.stdout))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            answer = json.loads(line)
            self._waiting.pop(answer["id"]).set_result(answer)
        for future in self._waiting.values():
            future.set_result({"ok": False, "error": "gone", "leads": False})
        self._waiting.clear()

    async def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """The answer; one of a killed process says that it is gone."""
        if self._process is None or self._process.stdin is None:
            return {"ok": False, "error": "gone", "leads": False}
        self._number += 1
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = future
        try:
            self._process.stdin.write(json.dumps({"id": self._number, "do": do, **more}).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return {"ok": False, "error": "gone", "leads": False}
        return await future

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self, *, kill: bool) -> int:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        if kill:
            process.kill()
        else:
            process.stdin.close()
            process.send_signal(signal.SIGCONT)  # a test that failed may have left it frozen
        code = await process.wait()
        if self._reader is not None:
            await self._reader
        return code


def _fields(member: Member) -> tuple[str, str, str]:
    return member.node_id, member.peer_address, member.client_address


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[list[Process]]:
    members = make_members()
    processes = [Process(member.node_id, tmp_path, members) for member in members]
    await asyncio.gather(*[process.start() for process in processes])
    yield processes
    for process in processes:
        if process.running:
            assert await process.end(kill=False) == 0


async def _leader(processes: list[Process], *, within: float = 60.0) -> Process:
    end = time.monotonic() + within
    while time.monotonic() < end:
        for process in processes:
            if process.running and (await process.ask("status"))["leads"]:
                return process
        await asyncio.sleep(0.02)
    raise TimeoutError("no leader")


async def _settled(processes: list[Process], *, within: float = 60.0) -> list[dict[str, Any]]:
    end = time.monotonic() + within
    while time.monotonic() < end:
        found = [await process.ask("status", payloads=True) for process in processes if process.running]
        if len({one["applied"] for one in found}) == 1 and found[0]["applied"] == max(one["last"] for one in found):
            assert len({one["digest"] for one in found}) == 1
            return found
        await asyncio.sleep(0.05)
    raise TimeoutError("the nodes do not agree")


async def test_a_killed_leader_is_replaced_within_two_seconds_and_nothing_acknowledged_is_lost(
    processes: list[Process],
) -> None:
    acknowledged: set[str] = set()
    number = 0
    for _ in range(2):
        leader = await _leader(processes)
        under_way = []
        for _ in range(300):
            number += 1
            under_way.append((f"p{number}", asyncio.create_task(leader.ask("propose", payload=f"p{number}"))))
        await asyncio.wait([task for _, task in under_way[:100]])
        pace = Pace(lambda: [process.pid for process in processes])
        assert await leader.end(kill=True) == -9
        await _leader(processes)
        assert pace.seconds() < 2.0
        for payload, task in under_way:
            if (await task)["ok"]:
                acknowledged.add(payload)
        assert len(acknowledged) >= 100
        await leader.start()
        await _settled(processes)
    for found in await _settled(processes):
        assert acknowledged <= set(found["payloads"])
        assert len(found["payloads"]) == len(set(found["payloads"]))


async def test_a_killed_follower_catches_up_from_the_log(processes: list[Process]) -> None:
    leader = await _leader(processes)
    follower = next(process for process in processes if process is not leader)
    await follower.end(kill=True)
    answers = await asyncio.gather(*[leader.ask("propose", payload=f"q{number}") for number in range(2000)])
    assert all(answer["ok"] for answer in answers)
    await follower.start()
    while not (read := await follower.ask("read"))["ok"]:  # it knows no leader yet
        assert read["error"] == "NotLeader"
        await asyncio.sleep(0.02)
    assert read["index"] >= max(answer["index"] for answer in answers)
    assert len((await _settled(processes))[0]["payloads"]) == 2000


async def test_all_killed_at_once_keep_what_was_acknowledged(processes: list[Process]) -> None:
    leader = await _leader(processes)
    answers = await asyncio.gather(*[leader.ask("propose", payload=f"r{number}") for number in range(500)])
    assert all(answer["ok"] for answer in answers)
    await asyncio.gather(*[process.end(kill=True) for process in processes])
    await asyncio.gather(*[process.start() for process in processes])
    await _leader(processes)
    for found in await _settled(processes):
        assert set(found["payloads"]) == {f"r{number}" for number in range(500)}


async def test_a_leader_that_was_frozen_finds_itself_replaced(processes: list[Process]) -> None:
    old = await _leader(processes)
    others = [process for process in processes if process is not old]
    old.signal(signal.SIGSTOP)
    frozen = [asyncio.create_task(old.ask("propose", payload=f"frozen{number}")) for number in range(10)]
    new = await _leader(others)
    answers = await asyncio.gather(*[new.ask("propose", payload=f"s{number}") for number in range(100)])
    assert all(answer["ok"] for answer in answers)
    old.signal(signal.SIGCONT)
    told = await asyncio.gather(*frozen)
    assert {answer.get("error") for answer in told if not answer["ok"]} <= {"UnknownOutcome", "NotLeader"}
    for found in await _settled(processes):
        assert {f"s{number}" for number in range(100)} <= set(found["payloads"])
        for number, answer in enumerate(told):
            assert answer["ok"] or answer["error"] == "UnknownOutcome" or f"frozen{number}" not in found["payloads"]


async def test_a_frozen_follower_costs_no_election_and_holds_nobody_up(processes: list[Process]) -> None:
    leader = await _leader(processes)
    term = (await leader.ask("status"))["term"]
    follower = next(process for process in processes if process is not leader)
    follower.signal(signal.SIGSTOP)
    start = time.monotonic()
    payloads = [f"{number}".ljust(20_000, ".") for number in range(1000)]  # more than the window and the sockets take
    answers = await asyncio.gather(*[leader.ask("propose", payload=payload) for payload in payloads])
    assert all(answer["ok"] for answer in answers)
    if time.monotonic() - start < 1.5:
        await asyncio.sleep(1.5)  # longer than any election timeout
    follower.signal(signal.SIGCONT)
    for found in await _settled(processes):
        assert len(found["payloads"]) == 1000
        assert found["term"] == term
