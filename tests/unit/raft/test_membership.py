"""What a leader refuses of what an operator asks."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvorum_raft import configuration as cf
from kvorum_raft.errors import ChangePending
from kvorum_raft.membership import Membership
from kvorum_raft.seams import Member

MEMBERS = [Member(name, f"127.0.0.1:{port}", f"127.0.0.1:{port + 10}") for port, name in enumerate("ABC", 7001)]


class Core:
    """A leader A of A, B and C, as far as changes of members ask it."""

    def __init__(self, *, connected: str, heard: str, has_successor: bool = True) -> None:
        self.node_id = "A"
        self.has_successor = has_successor
        self.leads = True
        self.configuration = cf.make(b"c" * 16, [cf.Voter(one, one.node_id.encode() * 16) for one in MEMBERS])
        self.changed: list[cf.Configuration] = []
        self._connected, self._heard = connected, heard

    def is_connected(self, node_id: str) -> bool:
        return node_id in self._connected

    def hears(self, node_id: str) -> bool:
        return node_id in self._heard

    def change(self, configuration: cf.Configuration, callback: Any) -> None:
        self.changed.append(configuration)
        callback(SimpleNamespace(), None)


def remove(core: Core, node_id: str) -> None:
    asyncio.run(Membership(cast(Any, core), cast(Any, None), lambda: None).remove(node_id))


@pytest.mark.parametrize(
    ("connected", "heard", "error", "words"),
    [
        ("", "", ValueError, "only A can be reached.* 2 are needed"),
        ("B", "", ChangePending, "only A answer at the moment, and 2 are needed.* try again"),
        ("BC", "C", ChangePending, "only A answer"),
    ],
)
def test_a_change_needs_a_majority_that_answers(connected: str, heard: str, error: type[Exception], words: str) -> None:
    """A connection alone says little: it is there for seconds after the last word came through it."""
    core = Core(connected=connected, heard=heard)
    with pytest.raises(error, match=words):
        remove(core, "C")
    assert not core.changed


def test_who_is_to_go_need_not_answer() -> None:
    core = Core(connected="BC", heard="B")
    remove(core, "C")
    assert [sorted(one.voters) for one in core.changed] == [["A", "B"]]


def test_a_leader_that_nobody_could_follow_at_once_does_not_go() -> None:
    """The others build their states anew after a power cut, say: until that is done, nobody would take anything."""
    core = Core(connected="BC", heard="BC", has_successor=False)
    with pytest.raises(ChangePending, match=r"node A leads, and no other voter could at once.*try again"):
        remove(core, "A")
    assert not core.changed
    remove(core, "B")
    core.has_successor = True
    remove(core, "A")
    assert len(core.changed) == 2
