"""A scenario that passes with kvorum's core proves something only if it fails with the rule taken away."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvorum_raft import configuration as cf
from kvorum_raft.entry import Kind
from kvorum_raft.journal import HardState
from kvorum_raft.pysyncobj_fixes import SafeSyncObj
from tests.simulation.defects import DEFECTS
from tests.simulation.world import Broken, SafeNode, SimDisk, World

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "kvorum.raft")


def _snapshots_move_the_commit_index(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = SafeSyncObj._receive_append

    def forward(self: Any, node: Any, envelope: Any, entries: Any) -> None:
        receive(self, node, envelope, entries)
        body = envelope.append
        if not body.prev_index and not body.entries:
            index = min(body.commit_index, self.journal.last_index)
            if index > self.commit_index:
                self._set_commit(index)

    monkeypatch.setattr(SafeSyncObj, "_receive_append", forward)


def _old_acknowledgements_count(monkeypatch: pytest.MonkeyPatch) -> None:
    in_term = SafeSyncObj._in_term

    def lax(self: Any, node: Any, envelope: Any) -> bool:
        late = envelope.term < self.term and envelope.WhichOneof("body") == "append_reply"
        return late or in_term(self, node, envelope)

    monkeypatch.setattr(SafeSyncObj, "_in_term", lax)


def _changes_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(self: Any, configuration: cf.Configuration, callback: Any) -> int:
        index = int(self._append_own(Kind.CONFIGURATION, configuration.encode()))
        self._configure()
        return index

    monkeypatch.setattr(SafeSyncObj, "change", change)


def _members_are_those_of_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    configure = SafeSyncObj._configure

    def forgetful(self: Any) -> None:
        entries = self.journal.configurations
        if self.configuration is None and self._formation is not None:
            self.journal.configurations = []
        configure(self)
        self.journal.configurations = entries

    monkeypatch.setattr(SafeSyncObj, "_configure", forgetful)


def _reads_need_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SafeSyncObj, "read_index", lambda self, callback: callback(self.commit_index, None))


def _nothing_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: SimDisk) -> None:
        self.pending.clear()
        self.entries.clear()
        self.records.clear()
        self.state, self.base = HardState(), None

    monkeypatch.setattr(SimDisk, "crash", crash)


def _nobody_is_loyal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SafeSyncObj, "_leader_lives", lambda self: False)


def _nobody_steps_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SafeSyncObj, "_judge_office", lambda self, now: None)


def _nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SafeSyncObj, "_fail_waiting", lambda self, reason: None)


def _new_nodes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = cf.Configuration.with_learner

    def voter(self: cf.Configuration, member: Any, incarnation: bytes) -> cf.Configuration:
        return learner(self, member, incarnation).with_promoted(member.node_id)

    monkeypatch.setattr(cf.Configuration, "with_learner", voter)


RULES: dict[str, Patch] = {
    "S3": _snapshots_move_the_commit_index,
    "S4": _old_acknowledgements_count,
    "S5": _changes_do_not_wait,
    "S6": _members_are_those_of_the_beginning,
    "S11": _reads_need_no_round,
    "D1": _nothing_is_synced,
    "D2": _nothing_is_synced,
    "L4": _nobody_is_loyal,
    "L5": _nobody_steps_down,
    "L6": _nobody_is_told,
    "L10": _new_nodes_count,
}


@pytest.mark.parametrize("row", RULES)
def test_without_the_rule_our_core_breaks_the_promise_too(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect = DEFECTS[row]
    RULES[row](monkeypatch)
    world = World(SafeNode, defect.ids, founders=defect.founders, folder=tmp_path).start()
    with pytest.raises(Broken, match=defect.breaks):
        defect.scenario(world)
