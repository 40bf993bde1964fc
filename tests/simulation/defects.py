"""The rows of docs/consensus-defects.md that are shown by one schedule for both kinds of nodes."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.simulation import scenarios as general
from tests.simulation import scenarios_leading as leading
from tests.simulation import scenarios_members as members
from tests.simulation import scenarios_snapshots as snapshots
from tests.simulation.world import World


class Defect(NamedTuple):
    """How the plain class breaks, in words that the scenario uses, and what world it takes."""

    scenario: Callable[[World], None]
    breaks: str
    """A regular expression that the plain class's Broken matches."""
    ids: str = "ABC"
    founders: str | None = None
    files: bool = False
    """The plain nodes keep their journal in files; ours always live on a simulated disk."""
    plain: Mapping[str, Any] = MappingProxyType({})
    """Settings of the plain class, where its defaults are what the row is about."""


DEFECTS: dict[str, Defect] = {
    "S1": Defect(general.duplicate_refusal_keeps_acknowledged_entries, "acknowledged writes are lost"),
    "S2": Defect(general.pipelining_deletes_nothing, "entries were deleted and written again"),
    "S3": Defect(snapshots.snapshot_commits_nothing, "applies its own tail", plain={"logCompactionBatchSize": 100}),
    "S4": Defect(general.late_acknowledgement_is_no_replica, "acknowledged writes are lost", ids="ABCDE"),
    "S5": Defect(members.one_change_at_a_time, "each with its own majority", ids="ABCDEFG", founders="ABC"),
    "S6": Defect(
        members.restarted_nodes_know_the_newest_members, "two of five nodes elect", ids="ABCDE", founders="ABC"
    ),
    "S7": Defect(snapshots.late_snapshot_is_ignored, "acknowledged writes are lost"),
    "S8": Defect(general.failing_callback_applies_once, "applied [2-9] times"),
    "S9": Defect(leading.vote_counts_once, "leads with 2 of 5 votes", ids="ABCDE"),
    "S10": Defect(leading.nothing_is_committed_alone, "acknowledged that one node holds", files=True),
    "S11": Defect(leading.read_sees_what_was_acknowledged, "a read that began after"),
    "D1": Defect(leading.acknowledged_survives_a_power_cut, "acknowledged writes are lost", files=True),
    "D2": Defect(leading.vote_survives_a_power_cut, "two leaders in term", files=True),
    "L1": Defect(general.diverged_follower_converges, "does not converge"),
    "L2": Defect(general.poisonous_command_stops_nobody, "only 0 of 5"),
    "L3": Defect(snapshots.busy_snapshot_floods_nobody, "messages to one follower in one step"),
    "L4": Defect(leading.healthy_leader_stays, "was deposed"),
    "L5": Defect(leading.cut_off_leader_gives_up, "leads on after 2 s", plain={"leaderFallbackTimeout": 30.0}),
    "L6": Defect(leading.caller_hears_an_outcome, "5 of 5 callers wait for ever"),
    "L8": Defect(general.entry_beyond_the_message_size_travels, "a follower fails at a large entry"),
    "L9": Defect(general.step_is_short_however_much_waits, "one step takes"),
    "L10": Defect(members.empty_node_stops_nothing, "adding an empty node", ids="ABCD", founders="ABC"),
    "P3": Defect(general.write_does_not_wait_for_the_next_heartbeat, "waits for the next heartbeat"),
}
