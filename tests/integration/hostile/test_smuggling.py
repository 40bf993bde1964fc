"""A request that two readers could cut differently: whatever comes behind it on the connection is not carried out."""

import asyncio
import contextlib

import pytest

from kvorum_node.dev_cluster import DevCluster
from tests.integration.kv_connect.wire import Http1, get, mutation

SMUGGLED = b"smuggled"
_BODY = mutation(SMUGGLED).SerializeToString()
_POST = b"POST /v2/atomic_write HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n"
_INNER = _POST + b"Content-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
_CHUNKED = b"Transfer-Encoding: chunked\r\n"

FORMS = {
    "both lengths": _POST + b"Content-Length: %d\r\n%b\r\n0\r\n\r\n" % (5 + len(_INNER), _CHUNKED),
    "both lengths, the other way": _POST + _CHUNKED + b"Content-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": _POST + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(_INNER),
    "a length with a sign": _POST + b"Content-Length: +0\r\n\r\n",
    "a length in hex": _POST + b"Content-Length: 0x0\r\n\r\n",
    "a length with an underscore": _POST + b"Content-Length: 1_0\r\n\r\n",
    "a negative length": _POST + b"Content-Length: -1\r\n\r\n",
    "an absurd length": _POST + b"Content-Length: %b\r\n\r\n" % (b"9" * 30),
    "a coding that nobody knows": _POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two codings": _POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a coding twice": _POST + _CHUNKED + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a space before the colon": _POST + b"Transfer-Encoding : chunked\r\nContent-Length: 0\r\n\r\n",
    "an odd space before the coding": _POST + b"Transfer-Encoding: \x0bchunked\r\nContent-Length: 0\r\n\r\n",
    "a line end within a chunk's extension": _POST + _CHUNKED + b"\r\n0;a\nb\r\n\r\n",
    "a negative chunk": _POST + _CHUNKED + b"\r\n-1\r\n\r\n",
    "a chunk in C's hex": _POST + _CHUNKED + b"\r\n0x0\r\n\r\n",
    "an absurd chunk": _POST + _CHUNKED + b"\r\n%b\r\n" % (b"f" * 25),
    "a chunk without its end": _POST + _CHUNKED + b"\r\n1\r\nxXX0\r\n\r\n",
    "a lone carriage return": _POST + b"X: a\rContent-Length: 5\r\n\r\n",
    "a zero byte": _POST + b"X: a\0b\r\n\r\n",
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "chunks in 1.0": _POST.replace(b"1.1", b"1.0") + _CHUNKED + b"\r\n0\r\n\r\n",
    "a body for somebody who asks for none": b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    % len(_INNER),
    "a body at no path": b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(_INNER),
    "a body without a token": b"POST /v2/atomic_write HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(_INNER),
    "a body that is not waited for": _POST + b"Expect: 100-continue\r\nContent-Length: 999999999\r\n\r\n",
    "no version": b"GET /livez\r\n\r\n",
}


@pytest.mark.parametrize("form", FORMS)
async def test_nothing_is_carried_out_behind_it(shared_cluster: DevCluster, form: str) -> None:
    host, _, port = shared_cluster.http_address(0).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(FORMS[form] + _INNER)
    writer.write_eof()
    answer = b""
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                answer += data
    writer.close()
    assert answer.count(b"HTTP/1.1 ") <= 1, answer
    async with Http1(shared_cluster.http_address(0)) as client:
        assert await get(client, SMUGGLED) is None


async def test_it_would_be_noticed(shared_cluster: DevCluster) -> None:
    """The same write behind an honest request is carried out."""
    host, _, port = shared_cluster.http_address(0).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    honest = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    writer.write(
        honest + _INNER.replace(SMUGGLED, b"honestly") + honest.replace(b"Host: x", b"Host: x\r\nConnection: close")
    )
    answer = await asyncio.wait_for(reader.read(-1), 10)
    writer.close()
    assert answer.count(b"HTTP/1.1 200") == 3
    async with Http1(shared_cluster.http_address(0)) as client:
        assert await get(client, b"honestly") is not None
