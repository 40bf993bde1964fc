"""KV Connect by hand, for what no client shows: the bytes of an answer."""

import json
from http.client import HTTPConnection


def field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field of less than 128 bytes."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def read_raw(address: str, key: bytes, agent: str, token: str) -> bytes:
    """The answer to a read of one key by a client that calls itself `agent`."""
    connection = HTTPConnection(address, timeout=20)
    try:
        headers = {"user-agent": agent, "authorization": f"Bearer {token}", "content-type": "application/json"}
        connection.request("POST", "/", json.dumps({"supportedVersions": [1, 2, 3]}), headers)
        metadata = json.loads(connection.getresponse().read())
        headers |= {"content-type": "application/x-protobuf", "x-denokv-version": "3"}
        headers |= {"x-denokv-database-id": metadata["databaseId"], "authorization": f"Bearer {metadata['token']}"}
        body = field(1, field(1, key) + field(2, key + b"\x00") + b"\x18\x01")
        connection.request("POST", metadata["endpoints"][0]["url"] + "/snapshot_read", body, headers)
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        return answer
    finally:
        connection.close()
