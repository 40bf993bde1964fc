"""The image's health check, against a node's HTTP port."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from kvorum import certificates

SCRIPT = Path(__file__).resolve().parents[3] / "deploy/image/health.py"


async def status(environment: dict[str, str]) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        SCRIPT,
        env={"PATH": os.environ["PATH"], **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode().strip()


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(("answer", "expected"), [("200 OK", 0), ("503 Service Unavailable", 1)])
async def test_ready_or_not(tmp_path: Path, tls: bool, answer: str, expected: int) -> None:
    context = None
    if tls:
        import ssl

        certificates.make_ca(tmp_path, name="test")
        made = certificates.make_node(tmp_path, node_id="n1", hosts=["n1"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made.certificate, made.key)
    asked = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(f"HTTP/1.1 {answer}\r\ncontent-length: 8\r\n\r\nas it is".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        environment = {"KVORUM_HTTP_LISTEN": f"0.0.0.0:{port}"} | ({"KVORUM_TLS_CERT": "x"} if tls else {})
        assert await status(environment) == (expected, f"{answer[:3]} as it is")
    assert asked == [b"GET /readyz HTTP/1.1"]


async def test_nobody_answers_or_there_is_no_port_to_ask() -> None:
    code, said = await status({"KVORUM_HTTP_LISTEN": "0.0.0.0:9"})
    assert (code, said.split(":")[0]) == (1, "no answer")
    assert await status({"KVORUM_HTTP_LISTEN": "off"}) == (0, "")
