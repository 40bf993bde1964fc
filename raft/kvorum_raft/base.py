"""Where a log begins that was cut at its beginning, and the last entry that is in a checkpoint.

The record of the newest configuration travels along, because the entry itself may be gone: without it a node would not
know who its fellow members are.
"""

import zlib
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from kvorum_raft import configuration as cf
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.entry import MAX_TIME_MS, Kind, parse
from kvorum_raft.errors import ConfigurationError, RaftFault

FORMAT: Final = 1
CHECKSUM_SIZE: Final = 4


@dataclass(frozen=True, slots=True)
class Base:
    """One entry, and what was known of the members there."""

    index: int
    term: int
    time_ms: int
    """Of that entry, Unix milliseconds."""
    configuration: bytes = b""
    """Record (`kvorum_raft.entry`) of the newest configuration entry up to `index`; empty if the log never had one."""

    def message(self) -> pb.Base:
        return pb.Base(
            format=FORMAT, index=self.index, term=self.term, time_ms=self.time_ms, configuration=self.configuration
        )

    @classmethod
    def from_message(cls, message: pb.Base) -> "Base":
        """Raises ConfigurationError for a newer format and ValueError for nonsense."""
        if message.format > FORMAT:
            raise ConfigurationError(
                f"the base of the log has format {message.format}; this version knows formats up to {FORMAT}"
            )
        base = cls(message.index, message.term, message.time_ms, message.configuration)
        if message.format < 1 or base.index < 1 or base.term < 1 or not 0 <= base.time_ms <= MAX_TIME_MS:
            raise ValueError(f"a base at entry {base.index} of term {base.term}, format {message.format}")
        if base.configuration:
            entry = parse(base.configuration)
            if entry.kind is not Kind.CONFIGURATION or entry.index > base.index or entry.term > base.term:
                raise ValueError(f"a base at entry {base.index} whose configuration is not one, or of a later entry")
            _check(entry.payload)
        return base

    def encode(self) -> bytes:
        """With a checksum."""
        return sealed(self.message().SerializeToString(deterministic=True))

    @classmethod
    def decode(cls, record: bytes) -> "Base":
        """Raises ValueError for damage, ConfigurationError for a newer format."""
        return cls.from_message(_parsed(record))


def _check(payload: bytes) -> None:
    try:
        cf.decode(payload)
    except RaftFault as error:
        raise ValueError(str(error)) from error


def _parsed(record: bytes) -> pb.Base:
    try:
        return pb.Base.FromString(opened(record, "base of the log"))
    except DecodeError as error:
        raise ValueError("the base of the log cannot be read") from error


def sealed(body: bytes) -> bytes:
    """The body and its checksum."""
    return body + zlib.crc32(body).to_bytes(CHECKSUM_SIZE, "big")


def opened(record: bytes, what: str) -> bytes:
    """The body that was sealed. Raises ValueError."""
    body, checksum = record[:-CHECKSUM_SIZE], record[-CHECKSUM_SIZE:]
    if len(record) <= CHECKSUM_SIZE or zlib.crc32(body).to_bytes(CHECKSUM_SIZE, "big") != checksum:
        raise ValueError(f"wrong checksum in the {what}")
    return body
