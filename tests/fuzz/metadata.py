"""The body of a metadata request: a version that both sides speak, or 400."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvorum_node.http.message import Refusal
from kvorum_node.http.metadata import MAX_BODY, VERSIONS, negotiated

SEEDS = [
    b"",
    b" \n",
    b'{"supportedVersions":[1,2,3]}',
    b'{"supportedVersions":[2.0,true,"3",null,3e0]}',
    b'{"supportedVersions":[9999999999999999999999999],"x":{"y":[{}]}}',
    b'\xef\xbb\xbf{"supportedVersions":[3]}',
    '{"supportedVersions":[3],"ü":"\\ud800"}'.encode("utf-16"),
    b"[" * 5_000,
    b"-Infinity",
    b"1" * 5_000,
]


@contextmanager
def opened() -> Iterator[Callable[[bytes], None]]:
    yield check


def check(data: bytes) -> None:
    body = data[:MAX_BODY]
    try:
        version = negotiated(body)
    except Refusal as refusal:
        assert refusal.status == 400
        assert refusal.text
        return
    assert version in VERSIONS
    if body.strip():
        offer = json.loads(body)
        assert version == 1 or version in offer["supportedVersions"]
