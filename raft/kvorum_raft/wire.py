"""Frames between peers: a big-endian 4-byte length and a protobuf Envelope. The length is checked before anything is
allocated."""

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import ProtocolError

MAX_HELLO: Final = 64 * 1024
"""Largest frame of a peer that has not been let in."""
_LENGTH: Final = 4


def encode(envelope: pb.Envelope) -> bytes:
    body = envelope.SerializeToString()
    return len(body).to_bytes(_LENGTH, "big") + body


def decode(frame: bytes) -> pb.Envelope:
    """Raises ProtocolError."""
    try:
        envelope = pb.Envelope.FromString(frame)
    except DecodeError as error:
        raise ProtocolError("a frame that is not an envelope") from error
    if envelope.WhichOneof("body") is None:
        raise ProtocolError("an envelope without a body")
    return envelope


class FrameReader:
    """Cuts a byte stream into frames. Holds at most one frame of `limit` bytes and one read of the socket."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()

    @property
    def waiting(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that are complete now. Raises ProtocolError for an empty or oversized one."""
        self._buffer += data
        start, size = 0, len(self._buffer)
        try:
            while size - start >= _LENGTH:
                length = int.from_bytes(self._buffer[start : start + _LENGTH], "big")
                if not 0 < length <= self.limit:
                    raise ProtocolError(f"a frame of {length} bytes; up to {self.limit} are allowed")
                end = start + _LENGTH + length
                if end > size:
                    break
                frame = bytes(memoryview(self._buffer)[start + _LENGTH : end])
                start = end
                yield frame
        finally:
            del self._buffer[:start]
