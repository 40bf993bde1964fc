"""What a checkpoint is: the last entry in it, its content hash, and the size and hash of its one file."""

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.base import Base, opened, sealed
from kvorum_raft.errors import ConfigurationError

FORMAT: Final = 1
CONTENT_HASH_SIZE: Final = 16
FILE_HASH_SIZE: Final = 32
MAX_SIZE: Final = 1 << 46
"""Bytes of a file; far more than a state's address space."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Names a checkpoint; equal ones are the same bytes."""

    base: Base
    content_hash: bytes
    """Of the state machine, 16 bytes."""
    size: int
    """Bytes of the file, at least 1."""
    file_hash: bytes
    """BLAKE2b-256 of the file."""

    @property
    def name(self) -> str:
        """Of its folder; names of later ones sort later."""
        return f"{self.base.index:020}-{self.base.term:010}"

    def message(self) -> pb.Manifest:
        return pb.Manifest(
            format=FORMAT,
            base=self.base.message(),
            content_hash=self.content_hash,
            size=self.size,
            file_hash=self.file_hash,
        )

    @classmethod
    def from_message(cls, message: pb.Manifest) -> "Manifest":
        """Raises ConfigurationError for a newer format and ValueError for nonsense."""
        if message.format > FORMAT:
            raise ConfigurationError(
                f"a checkpoint has format {message.format}; this version knows formats up to {FORMAT}"
            )
        if message.format < 1 or not 1 <= message.size <= MAX_SIZE:
            raise ValueError(f"a checkpoint of {message.size} bytes, format {message.format}")
        if len(message.content_hash) != CONTENT_HASH_SIZE or len(message.file_hash) != FILE_HASH_SIZE:
            raise ValueError("a checkpoint with a hash of a wrong length")
        return cls(Base.from_message(message.base), message.content_hash, message.size, message.file_hash)

    def encode(self) -> bytes:
        """With a checksum."""
        return sealed(self.message().SerializeToString(deterministic=True))

    @classmethod
    def decode(cls, record: bytes) -> "Manifest":
        """Raises ValueError for damage, ConfigurationError for a newer format."""
        try:
            message = pb.Manifest.FromString(opened(record, "manifest of a checkpoint"))
        except DecodeError as error:
            raise ValueError("the manifest of a checkpoint cannot be read") from error
        return cls.from_message(message)
