"""What is shown, in this order; each part raises Failed if it does not hold."""

import asyncio
import json
import urllib.parse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from kvorum import errors

from .chaos import chaos
from .cluster import NODES, PORTS, SECRETS, Project, fetch, names_shown, prometheus
from .load import Load, check, check_messages, longest_pause
from .steps import Failed, say
from .supplies import ROOT

UP: Final = 180.0
"""Seconds for `up --wait` on a busy machine; it takes about 10."""
ALERT: Final = "KvorumNoLeader"
ALERT_FIRES: Final = 240.0
HAND_OVER: Final = 1.5
"""Seconds that a single caller may wait while the leader is stopped. An election alone takes 0.5 to 1 s after the
leader's silence was noticed; the figure is reported."""
TRANSFERS: Final = 5
RENEWED: Final = 60.0
"""Seconds until a node shows a certificate that was put in the place of its own."""
SEED: Final = 1
WRITES: Final = 100
"""Acknowledged writes that must follow each fault."""


async def play(project: Project, folder: Path, rounds: int) -> str:
    """The figures of the last line; `folder` takes what clients saw, `rounds` is how often each fault of `chaos`
    comes. Errors: Failed."""
    await project.compose_async("up", "-d", "--no-build", "--wait", timeout=UP)
    say("up: three nodes are healthy")
    await project.fetch_secrets()
    await _hardened(project)
    await _scraped(project, dict.fromkeys(NODES, 1))
    await _reached(project)
    await _kv_connect(project)
    await _tokens(project)
    await _renewed(project)
    figures = await _under_load(project)
    figures |= await chaos(project, folder, SEED, rounds)
    await _volumes(project)
    if (ROOT / "deploy/prometheus/alerts.yml").exists():
        figures["alert"] = await _alert(project)
    return ", ".join(f"{name} {value}" for name, value in figures.items())


async def _hardened(project: Project) -> None:
    """What compose.yaml says is so: user, root file system, ports."""
    for service in (*NODES, "setup", "prometheus"):
        text = await project.docker_async("inspect", project.container(service))
        (container,) = json.loads(text)
        user, host = container["Config"]["User"], container["HostConfig"]
        ports = [place["HostIp"] for places in (host["PortBindings"] or {}).values() for place in places]
        if user.split(":")[0] in ("", "0", "root") or not host["ReadonlyRootfs"] or set(ports) - {"127.0.0.1"}:
            raise Failed(f"{service}: user {user!r}, read-only {host['ReadonlyRootfs']}, ports on {ports}")
    try:
        await project.docker_async("exec", project.container("n1"), "touch", "/opt/kvorum/x")
    except Failed as error:
        if "Read-only" not in str(error):
            raise
    else:
        raise Failed("n1 can write to its root file system")


async def _scraped(project: Project, wanted: dict[str, int], timeout: float = 60.0) -> None:
    """Prometheus shows the nodes as they are: 1 up, 0 down."""
    seen: Any = None
    try:
        async with asyncio.timeout(timeout):
            while True:
                answer = await prometheus("query?" + urllib.parse.urlencode({"query": "up"}))
                if answer is not None:
                    samples = [(row["metric"]["instance"], int(row["value"][1])) for row in answer["result"]]
                    seen = {place.split(":")[0]: up for place, up in samples if place.split(":")[0] in NODES}
                    if seen == wanted:
                        break
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise Failed(f"Prometheus shows {seen}, expected {wanted}") from None
    say(f"Prometheus: {seen}")


async def _reached(project: Project) -> None:
    """Clients outside and inside reach the leader, whichever node leads, though nodes tell one address only."""
    members = json.loads(await project.command("cluster", "members", "--json"))["members"]
    told = {row["node"]: row["client_address"] for row in members}
    if told != {node: f"{node}:7401" for node in NODES}:
        raise Failed(f"advertised addresses are {told}")
    async with project.open() as kv:
        for node in (*NODES, "n1"):
            if await project.leader() != node:
                await _transfer(project, node)
            for number in range(20):
                await kv.set(("compose", "reached"), [node, number])
            for other in NODES:
                said = await project.inside(other, "get", '["compose", "reached"]')
                if node not in said:
                    raise Failed(f"kvorum get inside {other} says {said!r}")
        failed = kv.statistics()["failed_connections"]
    say(f"outside and inside reach each leader; the client outside failed to connect {failed:g} times")


async def _transfer(project: Project, node: str) -> None:
    """On a machine that is busy a node may not be able to take over in time; then it is asked again."""
    for _ in range(TRANSFERS):
        try:
            await project.command("cluster", "transfer", node)
        except Failed as error:
            say(str(error).splitlines()[-1])
        if await project.leader() == node:
            return
    raise Failed(f"{node} has not come to lead in {TRANSFERS} tries")


async def _kv_connect(project: Project) -> None:
    """With the token that `setup` made, on each node; without it not."""
    token = project.secret("kv_connect_token").read_text().strip()
    context = project.https()
    for port in PORTS.values():
        url = f"https://127.0.0.1:{port + 1}/"
        body = json.dumps({"supportedVersions": [1, 2, 3]}).encode()
        headers = {"content-type": "application/json"}
        good, _ = await fetch(url, data=body, headers={**headers, "authorization": f"Bearer {token}"}, context=context)
        bad, _ = await fetch(url, data=body, headers={**headers, "authorization": "Bearer guessed"}, context=context)
        if good != 200 or bad not in (401, 403):
            raise Failed(f"{url} answers {good} with the token and {bad} with another one")
    say("KV Connect takes its token and no other, on each node")


async def _tokens(project: Project) -> None:
    """Who has no token may do nothing; who has one does what it is for."""
    for token in (None, "guessed" * 5):
        try:
            async with project.open(token=token) as kv:
                await kv.set(("compose", "tokens"), 1)
        except (errors.Unauthenticated, errors.PermissionDenied):
            pass
        else:
            raise Failed(f"a client with the token {token!r} could write")
    made = json.loads(await project.command("auth", "token", "create", "mine", "--write", '["mine"]', "--json"))
    async with project.open(token=made["token"]) as kv:
        await kv.set(("mine", 1), 1)
        try:
            await kv.set(("compose", "tokens"), 1)
        except errors.PermissionDenied:
            pass
        else:
            raise Failed("a token for one prefix could write to another one")
    say("tokens are asked for, and a token for one prefix writes there alone")


async def _renewed(project: Project) -> None:
    """`setup` makes certificates anew, here because they shall have one more name; nodes show them without having been
    restarted, and a caller's writes go on. (Whether its connection does is a question to a quieter machine.)"""
    started = await _started(project)
    async with project.open() as kv:
        await longest_pause(kv, _renew(project, "kvorum.example"))
    if await _started(project) != started:
        raise Failed("a node was started again when it got a new certificate")
    say("new certificates are shown on all ports, without a restart and without a failed write")


async def _started(project: Project) -> list[str]:
    names = [project.container(node) for node in NODES]
    return (await project.docker_async("inspect", "-f", "{{.Id}} {{.State.StartedAt}}", *names)).splitlines()


async def _renew(project: Project, name: str) -> None:
    await project.compose_async("run", "--rm", "-T", "-e", f"KVORUM_SETUP_HOSTS={name}", "setup")
    for port in (place + more for place in PORTS.values() for more in (0, 1)):
        shown: set[str] = set()
        try:
            async with asyncio.timeout(RENEWED):
                while name not in shown:
                    shown = await asyncio.to_thread(names_shown, port, project.https())
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise Failed(f"port {port} still shows a certificate for {shown} after {RENEWED:g} s") from None


async def _under_load(project: Project) -> dict[str, str]:
    """Nodes are killed and started in turn, then the leader is stopped; nothing that was acknowledged is lost."""
    figures = {}
    async with project.open() as kv, Load(kv) as load:
        await load.progress(WRITES, 60)
        pauses = []
        for node in NODES:
            load.ledger.restart()
            leads = await project.leader() == node
            await project.docker_async("kill", "-s", "KILL", project.container(node))
            await load.progress(WRITES, 60)
            await project.docker_async("start", project.container(node))
            await project.wait_healthy(*NODES)
            await load.progress(WRITES, 60)
            pauses.append(load.ledger.longest)
            say(f"{node} killed{' while it led' if leads else ''} and back: longest pause {pauses[-1] * 1e3:.0f} ms")
        figures["longest pause at a kill"] = f"{max(pauses) * 1e3:.0f} ms"
        leader = await project.leader()
        load.ledger.restart()
        pause = await longest_pause(kv, _stop(project, leader))
        if pause > HAND_OVER:
            raise Failed(f"a caller waited {pause:.2f} s while {leader}, which led, was stopped")
        await load.progress(WRITES, 60)
        figures["stop of the leader"] = f"{pause * 1e3:.0f} ms"
        say(f"{leader} stopped while it led: the longest wait of a single caller was {pause * 1e3:.0f} ms")
        await project.docker_async("start", project.container(leader))
        await project.wait_healthy(*NODES)
        await load.progress(WRITES, 60)
        await load.finish()
        await check(kv, load.ledger)
        await check_messages(load.ledger, 60)
        ledger = load.ledger
        figures["writes"] = f"{len(ledger.done)} acknowledged, {len(ledger.unknown)} unknown, 0 lost"
        figures["messages"] = f"{len(ledger.sent)} sent, 0 lost"
    say(f"{figures['writes']}; {figures['messages']}, {ledger.deliveries} deliveries")
    return figures


async def _stop(project: Project, node: str) -> None:
    """SIGTERM: it must end by itself, with status 0."""
    await project.docker_async("stop", project.container(node))
    status = (await project.docker_async("inspect", "-f", "{{.State.ExitCode}}", project.container(node))).strip()
    if status != "0":
        raise Failed(f"{node} ended with status {status} after docker stop")


async def _volumes(project: Project) -> None:
    """Containers are made anew, data and secrets stay."""
    async with project.open() as kv:
        await kv.set(("compose", "kept"), "yes")
    secrets = {name: project.secret(name).read_bytes() for name in SECRETS}
    await project.compose_async("down", timeout=90)
    await project.compose_async("up", "-d", "--no-build", "--wait", timeout=UP)
    async with project.open() as kv:
        if (await kv.get(("compose", "kept"))).value != "yes":
            raise Failed("what was written is gone after down and up")
    await project.fetch_secrets()
    if {name: project.secret(name).read_bytes() for name in SECRETS} != secrets:
        raise Failed("the second `up` made other secrets")
    say("down and up: data and secrets are still there")


async def _alert(project: Project) -> str:
    """Two of three are killed: the alert for a missing leader fires, and ends when they are back."""
    rules = await prometheus("rules")
    names = [rule["name"] for group in rules["groups"] for rule in group["rules"]]
    if ALERT not in names:
        raise Failed(f"Prometheus has no alert {ALERT}, only {names}")
    loop = asyncio.get_running_loop()
    for node in ("n2", "n3"):
        await project.docker_async("kill", "-s", "KILL", project.container(node))
    began = loop.time()
    await _scraped(project, {"n1": 1, "n2": 0, "n3": 0})
    await _until(_alert_state, {"firing"}, ALERT_FIRES)
    took = loop.time() - began
    say(f"{ALERT} fires {took:.0f} s after n2 and n3 were killed")
    for node in ("n2", "n3"):
        await project.docker_async("start", project.container(node))
    await project.wait_healthy(*NODES)
    await _scraped(project, dict.fromkeys(NODES, 1))
    await _until(_alert_state, {""}, ALERT_FIRES)
    async with project.open() as kv:
        if (await kv.get(("compose", "kept"))).value != "yes":
            raise Failed("what was written is gone after two nodes were killed")
    say(f"{ALERT} has ended")
    return f"after {took:.0f} s"


async def _alert_state() -> str:
    """firing, pending, or empty: it is silent; unknown while Prometheus does not answer."""
    answer = await prometheus("alerts")
    if answer is None:
        return "unknown"
    states = {alert["state"] for alert in answer["alerts"] if alert["labels"]["alertname"] == ALERT}
    return "firing" if "firing" in states else "pending" if states else ""


async def _until(look: Callable[[], Awaitable[str]], wanted: set[str], timeout: float) -> None:
    seen = ""
    try:
        async with asyncio.timeout(timeout):
            while (seen := await look()) not in wanted:
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise Failed(f"{ALERT} is {seen or 'silent'} after {timeout:g} s, expected {wanted}") from None
