"""A snapshot's file on a real disk, past the page cache: what has arrived is where it belongs, also after a restart."""

import hashlib
import os
from pathlib import Path

import pytest

from kvorum_raft.background import Stopping
from kvorum_raft.checkpoints import Checkpoints, PipeCopier
from kvorum_raft.incoming import Incoming
from kvorum_raft.manifest import Manifest
from tests.unit.raft.fake_state import FakeMachine, describe

CHUNK = 65_536


def of(content: bytes) -> Manifest:
    facts = FakeMachine(content, 7).image().facts
    return Manifest(
        describe(facts), facts.content_hash, len(content), hashlib.blake2b(content, digest_size=32).digest()
    )


def receive(incoming: Incoming, content: bytes, begin: int, end: int) -> None:
    for offset in range(begin, end, CHUNK):
        incoming.write(offset, content[offset : min(offset + CHUNK, end)])


@pytest.mark.parametrize("arrived", [0, CHUNK, 5 * CHUNK + 1_234])
def test_it_goes_on_where_it_was_whatever_the_place(tmp_path: Path, arrived: int) -> None:
    content = os.urandom(11 * CHUNK + 77)
    checkpoints = Checkpoints(tmp_path, copier=PipeCopier(1e12))
    first = Incoming(checkpoints, of(content), sync_every=3 * CHUNK)
    assert first.open() == 0
    receive(first, content, 0, arrived)
    first.close()
    second = Incoming(checkpoints, of(content))
    assert second.open() == arrived
    receive(second, content, arrived, len(content))
    second.sync()
    second.check_bytes()
    assert second.publish() == of(content)
    assert checkpoints.path(of(content)).read_bytes() == content


def test_a_wrong_byte_is_found_on_the_disk(tmp_path: Path) -> None:
    content = os.urandom(3 * CHUNK)
    incoming = Incoming(Checkpoints(tmp_path, copier=PipeCopier(1e12)), of(content))
    incoming.open()
    receive(incoming, content[:-1] + bytes([content[-1] ^ 1]), 0, len(content))
    incoming.sync()
    with pytest.raises(ValueError, match="damaged"):
        incoming.check_bytes()
    incoming.delete()
    assert list(tmp_path.iterdir()) == []


def test_it_keeps_the_pace_and_stops(tmp_path: Path) -> None:
    content = os.urandom(4 * CHUNK)
    slept: list[float] = []
    stopping = False
    copier = PipeCopier(CHUNK, stopping=lambda: stopping, clock=lambda: sum(slept), sleep=slept.append)
    incoming = Incoming(Checkpoints(tmp_path, copier=copier), of(content))
    incoming.open()
    receive(incoming, content, 0, len(content))
    assert sum(slept) == pytest.approx(4)
    stopping = True
    with pytest.raises(Stopping):
        incoming.write(0, content[:CHUNK])
    incoming.close()
