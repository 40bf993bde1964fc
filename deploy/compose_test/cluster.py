"""The compose project under test, by way of the programs a person would use."""

import asyncio
import json
import re
import socket
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import kvorum

from .steps import Failed, run, run_async
from .supplies import ROOT

NODES: Final = ("n1", "n2", "n3")
PORTS: Final = {"n1": 7401, "n2": 7411, "n3": 7421}
"""Where clients outside reach them; HTTP is one above."""
URL: Final = "kvorum://" + ",".join(f"127.0.0.1:{port}" for port in PORTS.values())
PROMETHEUS: Final = "http://127.0.0.1:9090"
CALL: Final = 60.0
"""Seconds that a short command may take, on a busy machine."""
ROOT_TOKEN: Final = "root_token"
SECRETS: Final = ("ca.pem", ROOT_TOKEN, "kv_connect_token")
"""Files of the volume `secrets` that clients need."""
LEADS: Final = "kvorum_raft_is_leader"
TERM: Final = "kvorum_raft_term"
POLL: Final = 0.2


class Project:
    """`docker-compose -p NAME -f compose.yaml`, and `docker` for its containers."""

    def __init__(self, name: str, compose: Path, folder: Path, env: Mapping[str, str]) -> None:
        """`folder` takes what clients outside need."""
        self.name = name
        self._folder = folder
        self._compose = compose
        self.env = {"DOCKER_BUILDKIT": "0", "COMPOSE_BAKE": "false", "COMPOSE_ANSI": "never", **env}

    def compose(self, *words: str, timeout: float = CALL) -> str:
        """Errors: Failed."""
        return run(self._words(*words), timeout=timeout, env=self.env)

    async def compose_async(self, *words: str, timeout: float = CALL) -> str:
        """Errors: Failed."""
        return await run_async(self._words(*words), timeout=timeout, env=self.env)

    def _words(self, *words: str) -> list[str | Path]:
        progress = ("--progress", "plain")
        return [self._compose, *progress, "-p", self.name, "-f", ROOT / "compose.yaml", *words]

    def docker(self, *words: str, timeout: float = CALL, text: str | None = None) -> str:
        """Errors: Failed."""
        return run(["docker", *words], timeout=timeout, env=self.env, text=text)

    async def docker_async(self, *words: str, timeout: float = CALL) -> str:
        """Errors: Failed."""
        return await run_async(["docker", *words], timeout=timeout, env=self.env)

    def container(self, service: str) -> str:
        """Its name."""
        return f"{self.name}-{service}-1"

    async def health(self, service: str) -> str:
        """healthy, unhealthy, starting; or how it stands if it does not run."""
        text = await self.docker_async("inspect", "-f", "{{json .State}}", self.container(service))
        state = json.loads(text)
        return str(state["Health"]["Status"] if state["Running"] else state["Status"])

    async def wait_healthy(self, *services: str, timeout: float = 180.0) -> None:
        """Errors: Failed."""
        states: dict[str, str] = {}
        try:
            async with asyncio.timeout(timeout):
                while True:
                    states = {service: await self.health(service) for service in services}
                    if set(states.values()) == {"healthy"}:
                        return
                    await asyncio.sleep(POLL)
        except TimeoutError:
            raise Failed(f"not all nodes became healthy within {timeout:g} s: {states}") from None

    def logs(self, lines: int = 25) -> str:
        """The last lines of each container, for a failure's report."""
        parts = []
        for service in ("setup", *NODES, "auth", "prometheus"):
            try:
                done = run(
                    ["sh", "-c", f'docker logs --tail {lines} "$1" 2>&1', "sh", self.container(service)],
                    timeout=CALL,
                    env=self.env,
                )
            except Failed as error:
                done = str(error)
            parts.append(f"---- {service}\n{done.rstrip()}")
        return "\n".join(parts)

    # ---- clients

    async def fetch_secrets(self) -> None:
        """Copy what a client outside needs to here, as docs/operations.md says."""
        for name in SECRETS:
            await self.compose_async("cp", f"n1:/etc/kvorum/{name}", str(self._folder / name))

    def secret(self, name: str) -> Path:
        """One of them."""
        return self._folder / name

    def open(self, token: str | None = ROOT_TOKEN) -> Any:
        """`async with project.open() as kv`: a client outside of the network."""
        if token == ROOT_TOKEN:
            token = self.secret(ROOT_TOKEN).read_text().strip()
        return kvorum.open_kv(URL, tls=self.secret("ca.pem"), token=token)

    async def command(self, *words: str, timeout: float = CALL) -> str:
        """`kvorum …` outside of the network."""
        program = Path(sys.executable).with_name("kvorum")
        secrets = {"KVORUM_CA_FILE": "ca.pem", "KVORUM_TOKEN_FILE": ROOT_TOKEN}
        env = {"KVORUM_URL": URL, **{variable: str(self.secret(name)) for variable, name in secrets.items()}}
        return await run_async([program, *words], timeout=timeout, env=env)

    def https(self) -> ssl.SSLContext:
        """For the HTTP ports."""
        return ssl.create_default_context(cafile=str(self.secret("ca.pem")))

    async def inside(self, service: str, *words: str, timeout: float = CALL) -> str:
        """`kvorum …` in a node's container."""
        return await self.compose_async("exec", "-T", service, "kvorum", *words, timeout=timeout)

    async def leader(self, timeout: float = 60.0) -> str:
        """The id of the node whose figures say that it leads, in the newest term that any tells of. Errors: Failed."""
        context = self.https()
        try:
            async with asyncio.timeout(timeout):
                while True:
                    urls = [f"https://127.0.0.1:{port + 1}/metrics" for port in PORTS.values()]
                    pages = await asyncio.gather(*(fetch(url, context=context) for url in urls))
                    found = [
                        (figure(page, TERM), figure(page, LEADS), node)
                        for node, (_, page) in zip(NODES, pages, strict=True)
                    ]
                    _, leads, node = max(found)
                    if leads:
                        return node
                    await asyncio.sleep(POLL)
        except TimeoutError:
            raise Failed(f"no node says within {timeout:g} s that it leads") from None


def figure(page: bytes, name: str) -> float:
    """Of a page of metrics; 0 if it is not there."""
    found = re.search(rf"^{name}(?:\{{.*\}})? (\S+)$", page.decode(errors="replace"), re.MULTILINE)
    return float(found[1]) if found else 0.0


async def fetch(
    url: str,
    *,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> tuple[int, bytes]:
    """Status and body; 0 and why if nobody answers."""

    def ask() -> tuple[int, bytes]:
        request = urllib.request.Request(url, data=data, headers=dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:
                return answer.status, answer.read(1 << 20)
        except urllib.error.HTTPError as error:
            return error.code, error.read(1 << 20)
        except OSError as error:
            return 0, str(error).encode()

    return await asyncio.to_thread(ask)


def names_shown(port: int, context: ssl.SSLContext) -> set[str]:
    """The host names of the certificate that a port shows. Errors: OSError."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as link,
    ):
        found: dict[str, Any] = link.getpeercert() or {}
    return {str(name) for kind, name in found.get("subjectAltName", ()) if kind == "DNS"}


async def prometheus(path: str) -> Any:
    """The `data` of an answer of Prometheus' API; None while it has none."""
    status, body = await fetch(f"{PROMETHEUS}/api/v1/{path}")
    return json.loads(body)["data"] if status == 200 else None
