"""Records that say where a log begins and what a checkpoint is: damage is found, newer formats are named."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.base import Base, sealed
from kvorum_raft.entry import Kind, make
from kvorum_raft.errors import ConfigurationError
from kvorum_raft.manifest import MAX_SIZE, Manifest
from tests.unit.raft.fake_state import CONFIGURATION

BASE = Base(500, 7, 1_700_000_000_000, CONFIGURATION)
MANIFEST = Manifest(BASE, b"h" * 16, 4096, b"f" * 32)


def test_they_come_back() -> None:
    assert Base.decode(BASE.encode()) == BASE
    assert Base.decode(Base(1, 1, 0).encode()) == Base(1, 1, 0)
    assert Manifest.decode(MANIFEST.encode()) == MANIFEST
    assert MANIFEST.name == "00000000000000000500-0000000007"


@pytest.mark.parametrize("record", [BASE.encode(), MANIFEST.encode()], ids=["base", "manifest"])
def test_every_flipped_bit_and_every_cut_is_found(record: bytes) -> None:
    decode = Base.decode if record == BASE.encode() else Manifest.decode
    for position in range(len(record)):
        for bit in range(8):
            flipped = bytearray(record)
            flipped[position] ^= 1 << bit
            with pytest.raises(ValueError):
                decode(bytes(flipped))
        with pytest.raises(ValueError):
            decode(record[:position])


@given(st.binary(max_size=200))
def test_anything_with_a_right_checksum_is_a_record_or_a_value_error(body: bytes) -> None:
    for decode in (Base.decode, Manifest.decode):
        try:
            decode(sealed(body))
        except (ValueError, ConfigurationError):
            continue


def test_a_newer_format_is_named() -> None:
    base, manifest = BASE.message(), MANIFEST.message()
    base.format = manifest.format = 2
    with pytest.raises(ConfigurationError, match="format 2"):
        Base.decode(sealed(base.SerializeToString()))
    with pytest.raises(ConfigurationError, match="format 2"):
        Manifest.decode(sealed(manifest.SerializeToString()))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: setattr(m, "size", 0),
        lambda m: setattr(m, "size", MAX_SIZE + 1),
        lambda m: setattr(m, "format", 0),
        lambda m: setattr(m, "content_hash", b"h" * 15),
        lambda m: setattr(m, "file_hash", b""),
        lambda m: setattr(m.base, "index", 0),
        lambda m: setattr(m.base, "term", 0),
        lambda m: setattr(m.base, "time_ms", -1),
        lambda m: setattr(m.base, "configuration", b"nonsense"),
        lambda m: setattr(m.base, "configuration", make(Kind.COMMAND, 1, 1, 1, b"x").record),
        lambda m: setattr(m.base, "configuration", make(Kind.CONFIGURATION, 1, 1, 1, b"\xff").record),
        lambda m: setattr(m.base, "configuration", make(Kind.CONFIGURATION, 501, 1, 1, b"").record),
        lambda m: m.ClearField("base"),
    ],
)
def test_nonsense_is_refused(spoil: Callable[[pb.Manifest], None]) -> None:
    message = MANIFEST.message()
    spoil(message)
    with pytest.raises(ValueError):
        Manifest.from_message(message)
