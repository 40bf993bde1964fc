"""Frames are cut right however the bytes arrive, and sizes are checked before anything is kept."""

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum_raft import wire
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.config import RaftConfig, Timing, split_address
from kvorum_raft.errors import ConfigurationError, ProtocolError, Refused
from kvorum_raft.faults import check_refused, write_marker
from kvorum_raft.quiet_log import QuietLog
from kvorum_raft.seams import Member


@given(st.lists(st.integers(1, 300), max_size=20), st.integers(1, 50))
def test_frames_come_out_as_they_went_in(sizes: list[int], piece: int) -> None:
    bodies = [pb.Envelope(term=n, append=pb.Append(entries=[b"x" * size])) for n, size in enumerate(sizes)]
    stream = b"".join(wire.encode(body) for body in bodies)
    reader, found = wire.FrameReader(1000), []
    for start in range(0, len(stream), piece):
        found += [wire.decode(frame) for frame in reader.feed(stream[start : start + piece])]
    assert found == bodies
    assert reader.waiting == 0


def test_oversized_and_empty_frames_are_refused_at_their_length() -> None:
    for length in (0, 1001, 0x80020000):
        with pytest.raises(ProtocolError, match=f"a frame of {length} bytes"):
            list(wire.FrameReader(1000).feed(length.to_bytes(4, "big")))


@given(st.binary(max_size=200))
def test_any_bytes_are_an_envelope_or_a_protocol_error(data: bytes) -> None:
    try:
        envelope = wire.decode(data)
    except ProtocolError:
        return
    assert envelope.WhichOneof("body") is not None


@pytest.mark.parametrize("address", ["", "host", "host:", ":x", "host:70000", "host:-1"])
def test_wrong_addresses_are_named(address: str) -> None:
    with pytest.raises(ConfigurationError, match="host:port"):
        split_address(address)


def test_right_addresses() -> None:
    assert split_address("127.0.0.1:7403") == ("127.0.0.1", 7403)
    assert split_address("[::1]:7403") == ("::1", 7403)


def _config(members: list[Member], node_id: str = "n1", timing: Timing | None = None) -> RaftConfig:
    return RaftConfig(node_id, members, Path("/nowhere"), timing=timing or Timing())


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([Member("n1", "h:1", ""), Member("n1", "h:2", "")], "the same id: n1"),
        ([Member("n1", "h:1", ""), Member("n2", "h:1", "")], "the same peer address: h:1"),
        ([Member("n2", "h:1", "")], "n1 is not among the members"),
        ([Member("n1", "h", "")], "host:port"),
        ([Member("", "h:1", ""), Member("n1", "h:2", "")], "id of 1 to 128 bytes"),
        ([Member(f"n{i}", f"h:{i}", "") for i in range(1, 20)], "at most 15"),
    ],
)
def test_wrong_member_lists_are_named(members: list[Member], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        _config(members).check()


def test_wrong_timing_is_named() -> None:
    with pytest.raises(ConfigurationError, match="3 × heartbeat"):
        _config([Member("n1", "h:1", "")], timing=Timing(heartbeat=0.3)).check()


def test_warnings_that_anybody_can_cause_are_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    quiet = QuietLog(logging.getLogger("kvorum.raft"), lambda: now[0], interval=10.0)
    for _ in range(50):
        quiet.warning("a", "something came in")
    quiet.warning("b", "another thing")
    now[0] = 11.0
    quiet.warning("a", "something came in")
    assert caplog.messages == ["something came in", "another thing", "something came in (49 more like this)"]


def test_a_marker_keeps_a_folder_down(tmp_path: Path) -> None:
    check_refused(tmp_path)
    assert write_marker(tmp_path, "REFUSED", "it was emptied")
    with pytest.raises(Refused, match="it was emptied"):
        check_refused(tmp_path)
    assert not write_marker(tmp_path / "missing", "REFUSED", "x")
