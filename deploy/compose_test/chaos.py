"""The crews of `chaos` at work outside of the network, what an engine can do to containers, and the judges of `chaos`
over what the crews saw."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Final

from chaos import audit
from chaos.closing import look, until_handled
from chaos.crew import Account
from chaos.crews import CrewFailed, Crews, words_of
from chaos.recorder import SawNonsense
from chaos.report import Report
from kvorum import errors

from .cluster import NODES, ROOT_TOKEN, URL, Project
from .steps import Failed, say

QUIET: Final = 3.0
"""Seconds of work before each fault, and after the last one."""
LONGEST: Final = 4.0
"""Seconds of a fault, at most."""
NETWORK: Final = "default"

Fault = Callable[[Project, Random], Awaitable[str]]
"""Does something and undoes it; returns to whom. Errors: Failed, also if nothing came of it."""


async def chaos(project: Project, folder: Path, seed: int, rounds: int) -> dict[str, str]:
    """Each fault so many times, in random order. Returns figures. Errors: Failed."""
    rng = Random(f"{seed}/compose")
    options = {
        "url": URL,
        "seed": seed,
        "clients": 2,
        "lanes": 2,
        "visitors": 1,
        "operations": 200_000,
        "thinking": 0.02,
    }
    environment = {"KVORUM_CA_FILE": str(project.secret("ca.pem"))}
    environment["KVORUM_TOKEN_FILE"] = str(project.secret(ROOT_TOKEN))
    report, folder = Report(), folder / "chaos"
    folder.mkdir()
    try:
        async with Crews(folder, [None, None], words_of(options), environment) as crews:
            await crews.work()
            for kind in rng.sample([*FAULTS] * rounds, len(FAULTS) * rounds):
                await asyncio.sleep(QUIET)
                whom = await FAULTS[kind](project, rng)
                await project.wait_healthy(*NODES)
                report.faults[kind] += 1
                say(f"chaos: {kind} of {whom}, and whole again")
            await asyncio.sleep(QUIET)
            await crews.stop()
            await until_handled(project.open, crews.account().operations)
            await crews.end()
            account = crews.account()
        await _judge(project, account, report)
    except (CrewFailed, SawNonsense, TimeoutError, errors.KvorumError) as error:
        raise Failed(f"chaos: {type(error).__name__}: {error}") from error
    if report.problems:
        raise Failed("chaos: " + "; ".join(report.problems[:5]))
    duties = ", ".join(f"{duty} {verdict}" for duty, verdict in report.duties.items())
    say(f"chaos: {duties}")
    outcomes = ", ".join(f"{name} {count}" for name, count in sorted(report.outcomes.items()))
    return {"chaos": f"{report.faults.total()} faults, {outcomes}, {report.messages} messages, 0 lost or doubled"}


async def _judge(project: Project, account: Account, report: Report) -> None:
    resolved, final = await look(project.open, account, report)
    report.problems += audit.audit_messages(resolved, account.deliveries, final)
    report.messages = len(final.done)
    report.count(account)
    report.judge(resolved, say)
    report.judge_deeds(account.deeds)


# ---- faults


async def _kill(project: Project, *nodes: str) -> str:
    """kill -9, a moment of nothing, and a new start."""
    before = {node: await _state(project, node) for node in nodes}
    names = [project.container(node) for node in nodes]
    await project.docker_async("kill", "-s", "KILL", *names)
    for node in nodes:
        state = await _state(project, node)
        if state["Running"] or state["ExitCode"] != 128 + 9:
            raise Failed(f"{node} was killed, and is {state}")
    await project.docker_async("start", *names)
    for node in nodes:
        if (await _state(project, node))["StartedAt"] == before[node]["StartedAt"]:
            raise Failed(f"{node} was not started again")
    return " and ".join(nodes)


async def _kill_one(project: Project, rng: Random) -> str:
    return await _kill(project, rng.choice(NODES))


async def _kill_leader(project: Project, _: Random) -> str:
    return await _kill(project, await project.leader())


async def _kill_majority(project: Project, rng: Random) -> str:
    return await _kill(project, *rng.sample(NODES, 2))


async def _kill_all(project: Project, _: Random) -> str:
    return await _kill(project, *NODES)


async def _pause(project: Project, rng: Random) -> str:
    """All threads of a container stand still."""
    node = rng.choice([await project.leader(), *NODES])
    await project.docker_async("pause", project.container(node))
    try:
        if not (await _state(project, node))["Paused"]:
            raise Failed(f"{node} was paused, and is not")
        await asyncio.sleep(rng.uniform(0.2, LONGEST))
    finally:
        await project.docker_async("unpause", project.container(node))
    return node


async def _unplug(project: Project, rng: Random) -> str:
    """A container loses its network, and gets it back, perhaps with another address."""
    node = rng.choice([await project.leader(), *NODES])
    network, container = f"{project.name}_{NETWORK}", project.container(node)
    await project.docker_async("network", "disconnect", network, container)
    try:
        if network in json.loads(await project.docker_async("inspect", "-f", _NETWORKS, container)):
            raise Failed(f"{node} was taken from its network, and has it still")
        await asyncio.sleep(rng.uniform(0.5, LONGEST))
    finally:
        await project.docker_async("network", "connect", "--alias", node, network, container)
    return node


_NETWORKS: Final = "{{json .NetworkSettings.Networks}}"


async def _state(project: Project, node: str) -> dict[str, object]:
    state: dict[str, object] = json.loads(
        await project.docker_async("inspect", "-f", "{{json .State}}", project.container(node))
    )
    return state


FAULTS: Final[dict[str, Fault]] = {
    "kill": _kill_one,
    "leader": _kill_leader,
    "majority": _kill_majority,
    "all": _kill_all,
    "pause": _pause,
    "unplug": _unplug,
}
