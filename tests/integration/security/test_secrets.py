"""Whatever goes wrong, no token, key or password stands in what a node or a client writes or says."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import grpc.aio
import pytest

import kvorum
from kvorum import tokens
from kvorum_node.dev_cluster import in_thread
from tests.integration.cluster_fixture import ThreeNodes
from tests.integration.hostile.attacks import begin
from tests.integration.kv_connect.wire import CLIENTS, Http1
from tests.s3_server import CREDENTIALS, Request, s3_server

ROOT, CONNECT, SESSION, WRONG = (secrets.token_urlsafe(40) for _ in range(4))
WINDOW = 10
"""Characters in a row of a secret that nobody may show: a part of one is too much, too."""


class Nodes(ThreeNodes):
    """They know secrets of all kinds, and write down all they can."""

    refusing = False
    """Whether the store takes nobody's credentials."""

    def refuse(self, request: Request) -> list[bytes] | None:
        return request.refuse(403, "SignatureDoesNotMatch") if self.refusing else None


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "root").write_text(f"{ROOT}\n")
    variables = {"KVORUM_KV_CONNECT_TOKEN": CONNECT, "AWS_SESSION_TOKEN": SESSION}
    with s3_server() as server, mock.patch.dict(os.environ, variables):
        nodes = Nodes(
            tmp_path,
            root_token_file=str(tmp_path / "root"),
            log_level="debug",
            slow_operation_ms=1,
            archive="s3://archive/kvorum",
            archive_s3_endpoint=server.url,
            archive_every_s=1,
        )
        server.fault = nodes.refuse
        with nodes:
            yield nodes


class Told:
    """What was written and said, and by whom."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []
        self.secrets = [ROOT, CONNECT, SESSION, WRONG, CREDENTIALS["AWS_SECRET_ACCESS_KEY"]]

    def add(self, who: str, text: object) -> None:
        self.texts.append((who, str(text)))

    def error(self, who: str, error: BaseException) -> None:
        self.add(who, error)
        self.add(f"repr of {who}", repr(error))
        self.add(f"traceback of {who}", "".join(traceback.format_exception(error)))

    def leaks(self) -> list[str]:
        """Who has told a part of a secret."""
        found = []
        for secret in self.secrets:
            parts = {secret[at : at + WINDOW] for at in range(len(secret) - WINDOW + 1)}
            found += [who for who, text in self.texts if any(part in text for part in parts)]
        return found


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


async def use(url: str, token: str, told: Told, who: str) -> None:
    """Everything that a token may be refused."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            kv = await stack.enter_async_context(kvorum.open_kv(url, token=token))
        except kvorum.KvorumError as error:
            told.error(who, error)
            return
        told.add(f"repr of {who}", f"{kv!r} {kv.auth!r} {vars(kv) if hasattr(kv, '__dict__') else ''}")
        for call in (
            kv.set(("a", 1), 1),
            kv.get(("b",)),
            kv.enqueue(1, queue="q"),
            kv.auth.list(),
            kv.auth.create("x", admin=True),
            kv.queue("q").define(max_attempts=3),
        ):
            try:
                told.add(who, repr(await call))
            except kvorum.KvorumError as error:
                told.error(who, error)


async def call_unary(address: str, token: str, told: Told) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        for method in ("Kv/Status", "Kv/Get", "Admin/Members", "Admin/Backup"):
            call = channel.unary_unary(f"/kvorum.v1.{method}")
            try:
                await call(b"\xff", metadata=(("authorization", f"Bearer {token}"),), timeout=10)
            except grpc.aio.AioRpcError as error:
                told.error(f"unary {method}", error)


def field(name: bytes, value: bytes) -> bytes:
    """A header in HPACK as it is."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def malformed(token: str) -> list[bytes]:
    """Requests that no library takes, with a token in what is wrong with them. Three of each version: what is wrong
    with one is told by each node once in a while only."""
    shown = f"Bearer {token}".encode()
    start = b"POST / HTTP/1.1\r\nHost: x\r\n"

    def frame(block: bytes) -> bytes:
        return begin() + len(block).to_bytes(3, "big") + b"\1\5\0\0\0\1" + block

    good = b"\x83\x86\x84" + field(b":authority", b"x")
    return [
        start + b"Authorization: " + shown + b"\x01\r\n\r\n",
        start + b"Authorization " + shown + b"\r\n\r\n",
        start + b"Authorization: x\r\n\x0b" + shown + b"\r\n\r\n",
        frame(good + field(b"authorization", shown + b" ")),
        frame(good + field(shown, b"x")),
        frame(good + field(b"authorization", b"\x01" + shown)),
    ]


async def send(address: str, data: bytes) -> None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(5):
            while await reader.read(65_536):
                pass
    writer.transport.abort()


def command(cluster: Nodes, told: Told, *words: str) -> str:
    """What the command line says in the root token's name."""
    environment = {**os.environ, "KVORUM_TOKEN_FILE": str(cluster.base_dir.parent / "root"), "KVORUM_URL": cluster.url}
    done = subprocess.run(
        [sys.executable, "-m", "kvorum.cli", *words],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    told.add(f"kvorum {' '.join(words)}", done.stdout + done.stderr)
    return done.stdout


async def test_no_secret_is_told(cluster: Nodes) -> None:
    told = Told()
    async with kvorum.open_kv(cluster.url, token=ROOT) as root:
        await root.auth.on()
        made = await root.auth.create("limited", read=[("a",)], write=[("a",)])
        parts = tokens.parse(made.text)
        assert parts is not None
        told.secrets.append(made.text.rpartition("_")[2])
        told.add("what was made", f"{made!r} {parts!r}")
        wrong = tokens.text_of(parts.id, tokens.make_secret())
        told.secrets.append(wrong.rpartition("_")[2])
        for who, token in (("a token", made.text), ("a wrong secret", wrong), ("no token", WRONG), ("root", ROOT)):
            if who != "root":
                await use(cluster.url, token, told, who)
            await call_unary(cluster.client_address(cluster.leader()), token, told)
            for version in CLIENTS.values():
                async with version(cluster.http_address(0)) as client:
                    answer = await client.request(
                        "POST", "/v2/snapshot_read", b"\xff", {"authorization": f"Bearer {token}"}
                    )
                    told.add(f"HTTP for {who}", answer)
        for at, data in enumerate(malformed(made.text)):
            await send(cluster.http_address(at % 3), data)
        await in_thread(_crash, cluster)
        cluster.refusing = True
        for number in range(20):
            await root.set(("a", number), number)
        await in_thread(until, lambda: "cannot be written" in _logs(cluster), "no trouble with the store")
        await _collect(cluster, told)
    log = _logs(cluster)
    for happened in (
        "denied principal", "broke the rules of HTTP/1.1", "broke the rules of HTTP/2", "slow operation",
        "the process before this one crashed", "cannot be written, next attempt", f"token:{made.id}",
    ):  # fmt: skip
        assert happened in log, f"not tried: {happened}"
    assert told.leaks() == []


def _logs(cluster: Nodes) -> str:
    return "".join(cluster.log(number).read_text(errors="replace") for number in range(3))


def _crash(cluster: Nodes) -> None:
    """A follower dies by a fault of its own, and comes back."""
    number = cluster.followers()[0]
    cluster._end(number, signal.SIGABRT)
    cluster.start(number)


async def _collect(cluster: Nodes, told: Told) -> None:
    for number in range(3):
        for path in ("/metrics", "/readyz", "/livez", "/nothing"):
            async with Http1(cluster.http_address(number)) as client:
                told.add(path, await client.request("GET", path, headers={"authorization": f"Bearer {ROOT}"}))
        arguments = await in_thread(Path(f"/proc/{cluster.pid(number)}/cmdline").read_text)
        told.add("arguments", arguments)
        told.add("log", cluster.log(number).read_text(errors="replace"))
        for crash in cluster.data_dir(number).glob("CRASH*"):
            told.add("CRASH", crash.read_text(errors="replace"))
    config = str(cluster.config(0))
    findings = await in_thread(command, cluster, told, "doctor", "--json", "--config", config)
    assert len([json.loads(line) for line in findings.splitlines()]) > 10
    for words in (("status",), ("cluster", "members"), ("auth", "token", "list"), ("top", "--once")):
        await in_thread(command, cluster, told, *words)


def test_a_leak_would_be_noticed() -> None:
    told = Told()
    told.add("a log", f"x {ROOT[3:20]} y")
    told.error("an error", ValueError(f"Bearer {WRONG}"))
    told.add("another log", "nothing")
    assert told.leaks() == ["a log", "an error", "repr of an error", "traceback of an error"]
