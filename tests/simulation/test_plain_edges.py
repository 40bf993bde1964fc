"""The library's edges: its pipe, its sockets, its way to store and to send. Ours uses none of them:
docs/consensus-defects.md names the tests of what takes their place."""

import os
import pickle
import socket
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from pysyncobj.journal import MemoryJournal
from pysyncobj.poller import createPoller
from pysyncobj.tcp_connection import CONNECTION_STATE, TcpConnection

from tests.simulation.plain import plain_world
from tests.simulation.world import SafeNode, World


class _Visitor:
    """A connection of the library, and the socket of whoever talks to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.socket = theirs
        self.poller = createPoller("poll")
        self.messages: list[Any] = []
        self.connection = TcpConnection(
            self.poller,
            socket=ours,
            onMessageReceived=self.messages.append,
            timeout=10,
            sendBufferSize=2**20,
            recvBufferSize=2**20,
        )

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)
        self.poller.poll(0.0)

    def close(self) -> None:
        self.connection.disconnect()
        self.socket.close()


@pytest.fixture
def visitor() -> Any:
    visitor = _Visitor()
    yield visitor
    visitor.close()


class _Command:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._folder),)


def test_x1_anybody_runs_code_by_the_first_message(visitor: _Visitor, tmp_path: Path) -> None:
    data = zlib.compress(pickle.dumps(_Command(tmp_path / "proof")))
    visitor.say(struct.pack("i", len(data)) + data)
    assert (tmp_path / "proof").is_dir()


def test_x2_who_knows_the_port_changes_the_members() -> None:
    with plain_world() as world:
        open_to_all = world.nodes["A"].transport._onUtilityMessageCallbacks
        assert {"add", "remove", "set_version", "transfer", "status"} <= set(open_to_all)
        world.mesh()
        leader = world.elect("A")
        world.pump(3)
        open_to_all["add"](["X"], lambda *_: None)
        world.pump(1)
        assert "X" in leader.members


def test_x3_the_length_of_a_message_has_no_limit(visitor: _Visitor) -> None:
    visitor.say(struct.pack("i", 2**31 - 1) + b"x" * 100_000)
    assert visitor.connection.state == CONNECTION_STATE.CONNECTED, "it waits for 2 GiB"


def test_p1_messages_are_pickled_and_compressed(visitor: _Visitor) -> None:
    visitor.connection.send({"type": "append_entries", "entries": [(b"x" * 100, 1, 1)] * 100})
    visitor.poller.poll(0.0)
    data = visitor.socket.recv(1 << 20)
    message = zlib.decompress(data[4:])
    assert message[:1] == pickle.PROTO
    assert b"append_entries" in message


def test_p2_the_whole_log_lies_in_memory() -> None:
    journal = MemoryJournal()
    for index in range(1, 1001):
        journal.add(b"x" * 100, index, 1)
    assert isinstance(journal[:], list)
    assert len(journal[:]) == 1000


def test_l7_a_command_is_refused_and_queued_all_the_same() -> None:
    with plain_world(appendEntriesUseBatch=False) as world:
        core = world.nodes["A"].core
        with pytest.raises(BlockingIOError):
            for _ in range(70_000):
                core._applyCommand(b"\0x", None)
        pipe = core._SyncObj__pipeNotifier
        queued = 0
        while core._SyncObj__commandsQueue._FastQueue__queue:
            core._SyncObj__commandsQueue.get_nowait()
            queued += 1
        os.close(pipe._PipeNotifier__pipeR)
        os.close(pipe._PipeNotifier__pipeW)
    assert queued == 65_537, "the last one raised, and would be replicated"


def test_l7_ours_has_no_pipe_and_no_queue() -> None:
    core = World(SafeNode).start().nodes["A"].core
    assert not hasattr(core, "_SyncObj__pipeNotifier")
    assert core._SyncObj__commandsQueue._FastQueue__maxSize == 1
