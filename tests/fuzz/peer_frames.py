"""What comes in on the peer port: frames, cut wherever the network cuts them, until a ProtocolError."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvorum_raft import wire
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import ProtocolError

SEEDS = [
    wire.encode(pb.Envelope(hello=pb.Hello(cluster_id=b"c" * 16, node_id="n1", protocol_min=1, protocol_max=1))),
    wire.encode(pb.Envelope(term=3, append=pb.Append(prev_index=7, entries=[b"one", b"two"]))) * 2,
    wire.encode(pb.Envelope(term=1 << 63, formation=pb.Formation())),
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
]


@contextmanager
def opened() -> Iterator[Callable[[bytes], None]]:
    yield check


def check(data: bytes) -> None:
    if not data:
        return
    piece = data[0] % 64 + 1
    found, whole = _frames(data[1:], piece), _frames(data[1:], len(data))
    assert found == whole
    for frame in found[0]:
        try:
            envelope = wire.decode(frame)
        except ProtocolError:
            continue
        assert wire.decode(envelope.SerializeToString()) == envelope


def _frames(data: bytes, piece: int) -> tuple[list[bytes], str]:
    """The frames until the error, and its text."""
    reader = wire.FrameReader(1_000)
    found: list[bytes] = []
    try:
        for start in range(0, len(data), piece):
            found.extend(reader.feed(data[start : start + piece]))
            assert reader.waiting <= 1_004
    except ProtocolError as error:
        return found, str(error)
    return found, ""
