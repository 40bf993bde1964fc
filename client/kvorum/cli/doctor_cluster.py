"""What `kvorum doctor` makes of the answers of a cluster's nodes. Nothing here asks anybody."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.cli.doctor_machine import files_finding, shown_bytes
from kvorum.cli.findings import Finding, graded

CLOCK_WARN_MS: Final = 250
CLOCK_FAIL_MS: Final = 1_000
"""From here on a node waits before it campaigns, and a majority of such clocks moves what expires and what is due."""
FAR_BEHIND: Final = 1_000
"""Entries that a member may lack before it is worth a warning."""
UNSYNCED_WARN: Final = 0.1
UNSYNCED_FAIL: Final = 0.5
"""Seconds; a leader with an older unsynced write hands leadership over."""
LATE_LOOP: Final = 0.25
"""Seconds: half of the default election timeout."""
FULL: Final = 0.8
"""Share of a limit."""
RESERVE: Final = 1 << 30
DAY: Final = 86_400.0
CERTIFICATE_DAYS: Final = 14


@dataclass(frozen=True)
class Told:
    """What a node said (or why it said nothing), this machine's wall clock in the middle of the question, and how long
    the answer took; ms."""

    address: str
    status: pb.StatusResponse | None
    problem: str
    wall_ms: float
    took_ms: float

    @property
    def name(self) -> str:
        """Its id, or its address if it did not tell."""
        return self.address if self.status is None else self.status.node_id or self.address

    @property
    def cluster(self) -> bytes:
        """The id of its cluster; empty if it did not tell."""
        return b"" if self.status is None else self.status.cluster_id


def judge(answers: Sequence[Told], members: pb.MembersResponse | None) -> list[Finding]:
    """All that can be seen from outside. `members`: the leader's view if it can be had, else anybody's."""
    findings = [_answers(told) for told in answers]
    sound = [told for told in answers if told.status is not None]
    if not sound:
        return findings
    statuses = [told.status for told in sound if told.status is not None]
    findings += [
        _leader(statuses),
        _one_cluster(statuses),
        _versions(statuses),
        *_clocks(sound),
        *_members(members),
        _contents(statuses),
    ]
    for status in statuses:
        findings += _figures(status.node_id, status.statistics)
    return findings


def _answers(told: Told) -> Finding:
    if told.status is None:
        return Finding("node", told.address, "FAIL", f"no answer: {told.problem}", "start it, or look at its log")
    up = told.status.uptime_ms // 1_000
    return Finding("node", told.name, "ok", f"answers in {told.took_ms:.1f} ms; {told.status.role}, up for {up:,} s")


def _leader(statuses: Sequence[pb.StatusResponse]) -> Finding:
    term = max(status.term for status in statuses)
    leaders = {status.leader.node_id for status in statuses if status.leader.node_id}
    if not leaders:
        todo = "start nodes until a majority of the voters runs and can reach one another (peer ports)"
        return Finding("leader", "cluster", "FAIL", "no node that answers knows a leader", todo)
    if len(leaders) > 1:
        told = f"nodes name different leaders: {', '.join(sorted(leaders))}"
        return Finding("leader", "cluster", "warn", told, "that is right for a moment after a failover: look again")
    unaware = sorted(status.node_id for status in statuses if not status.leader.node_id)
    if unaware:
        told = f"node {leaders.pop()} leads, which {', '.join(unaware)} does not know"
        return Finding("leader", "cluster", "warn", told, "look again; if it stays, the peer ports are cut off")
    return Finding("leader", "cluster", "ok", f"node {leaders.pop()} leads, in term {term}")


def _one_cluster(statuses: Sequence[pb.StatusResponse]) -> Finding:
    ids = {status.cluster_id.hex(): status.node_id for status in statuses if status.cluster_id}
    if len(ids) <= 1:
        return Finding("cluster id", "cluster", "ok", next(iter(ids), "none yet"))
    told = "the addresses belong to different clusters: " + ", ".join(
        f"{node} to {id[:8]}…" for id, node in ids.items()
    )
    todo = (
        "clients write here and there: stop the nodes that do not belong here (after a restore those of the old"
        " cluster, whose folders are put aside), or mend the addresses"
    )
    return Finding("cluster id", "cluster", "FAIL", told, todo)


def _versions(statuses: Sequence[pb.StatusResponse]) -> Finding:
    versions: dict[str, list[str]] = {}
    for status in statuses:
        versions.setdefault(status.version, []).append(status.node_id)
    if len(versions) == 1:
        return Finding("versions", "cluster", "ok", f"all of version {next(iter(versions))}")
    told = "; ".join(f"{version}: {', '.join(nodes)}" for version, nodes in sorted(versions.items()))
    return Finding(
        "versions", "cluster", "warn", told, "finish the upgrade: what is new is used when all nodes have it"
    )


def _clocks(sound: Sequence[Told]) -> list[Finding]:
    """Each clock against the cluster's time, which the node told in the same moment; and all against one another."""
    findings: list[Finding] = []
    offsets: list[tuple[float, float, str]] = []
    for told in sound:
        status = told.status
        assert status is not None
        if not status.wall_ms:
            findings.append(Finding("clock", told.name, "warn", "this version does not tell its clock", "upgrade it"))
            continue
        offsets.append((status.wall_ms - told.wall_ms, told.took_ms / 2, told.name))
        if status.time_ms:
            findings.append(_against_cluster(told.name, status.wall_ms - status.time_ms))
    if len(offsets) > 1:
        low, high = min(offsets), max(offsets)
        # Each is known but for half of the time that its answer took.
        apart = max(0.0, high[0] - low[0] - high[1] - low[1])
        state = graded(apart, CLOCK_WARN_MS, CLOCK_FAIL_MS)
        text = f"{low[2]} and {high[2]} are {high[0] - low[0]:.0f} ms (± {high[1] + low[1]:.0f}) apart"
        todo = "" if state == "ok" else "let a time service (chrony, systemd-timesyncd) run on all nodes"
        findings.append(Finding("clock", "cluster", state, text, todo))
    return findings


def _against_cluster(name: str, offset: int) -> Finding:
    state = graded(abs(offset), CLOCK_WARN_MS, CLOCK_FAIL_MS)
    told = f"{offset:+,} ms against the cluster's time"
    todo = (
        "" if state == "ok" else "set its clock right; if the cluster's time is what lags: kvorum cluster set-time now"
    )
    return Finding("clock", name, state, told, todo)


def _members(view: pb.MembersResponse | None) -> list[Finding]:
    if view is None:
        return [Finding("members", "cluster", "warn", "the members could not be asked for", "look again")]
    voters = [member for member in view.members if member.voter]
    away = [member.node_id for member in voters if not member.connected]
    majority = len(voters) // 2 + 1
    findings = [_voters(len(voters), len(voters) - len(away), majority, away)]
    if not view.leader.node_id or view.node_id != view.leader.node_id:
        return findings  # only the leader knows how far others are
    if view.no_space:
        todo = "free space there, or delete keys (docs/operations.md, A full disk)"
        findings.append(Finding("members", "cluster", "FAIL", f"growth is refused: {view.no_space}", todo))
    for member in view.members:
        if member.connected and member.snapshot_size:
            told = f"gets a snapshot: {shown_bytes(member.snapshot_sent)} of {shown_bytes(member.snapshot_size)}"
            findings.append(Finding("members", member.node_id, "warn", told, "wait until it has it"))
        elif member.connected and member.lag > FAR_BEHIND:
            told = f"lacks {member.lag:,} entries"
            findings.append(Finding("members", member.node_id, "warn", told, "look at its disk and its network"))
        if not member.voter:
            todo = f"when it has caught up: kvorum cluster promote {member.node_id}"
            findings.append(Finding("members", member.node_id, "warn", "is a learner, which does not vote", todo))
    return findings


def _voters(voters: int, connected: int, majority: int, away: Sequence[str]) -> Finding:
    told = f"{connected} of {voters} voters are connected; {majority} are needed"
    if connected < majority:
        return Finding("members", "cluster", "FAIL", told, f"start {', '.join(away)}: nothing can be written")
    if away:
        todo = f"start {', '.join(away)}, or replace what is lost (docs/operations.md)"
        return Finding("members", "cluster", "warn", told, todo)
    if voters % 2 == 0:
        told += f"; {voters} survive no more losses than {voters - 1}"
        return Finding("members", "cluster", "warn", told, "have an odd number of voters")
    if voters == 1:
        return Finding("members", "cluster", "warn", f"{told}; no loss is survived", "have three voters or more")
    return Finding("members", "cluster", "ok", told)


def _contents(statuses: Sequence[pb.StatusResponse]) -> Finding:
    """States at the same entry have the same hash. Those of different entries say nothing about one another."""
    by_index: dict[tuple[bytes, int], dict[bytes, list[str]]] = {}
    for status in statuses:
        of_entry = by_index.setdefault((status.cluster_id, status.applied_index), {})
        of_entry.setdefault(status.state_hash, []).append(status.node_id)
    for (_, index), hashes in by_index.items():
        if len(hashes) > 1:
            nodes = " against ".join(", ".join(sorted(names)) for names in hashes.values())
            todo = "keep the folders, and look for lines of level critical in the logs: this must not happen"
            return Finding("content", "cluster", "FAIL", f"the states at entry {index:,} differ: {nodes}", todo)
    compared = max(sum(len(names) for names in hashes.values()) for hashes in by_index.values())
    if compared < 2:
        return Finding("content", "cluster", "ok", "not compared: no two nodes were at the same entry when asked")
    return Finding("content", "cluster", "ok", f"the states of {compared} nodes are the same")


def _figures(name: str, figures: Mapping[str, float]) -> list[Finding]:
    """What a node's own figures say; one that an older node does not know is not judged."""
    looks: tuple[Callable[[str, Mapping[str, float]], Finding | None], ...] = (
        _space,
        _map,
        _log,
        _readers,
        _files,
        _loop,
        _alarms,
        _clear_peers,
        _archive,
        _certificate,
    )
    found = [look(name, figures) for look in looks]
    return [one for one in found if one is not None]


def _space(name: str, figures: Mapping[str, float]) -> Finding | None:
    if "disk_bytes" not in figures:
        return None
    free, size = int(figures["disk_free_bytes"]), int(figures["disk_bytes"])
    if figures.get("space_low"):
        told = f"{shown_bytes(free)} of {shown_bytes(size)} free: growth is refused"
        return Finding("free space", name, "FAIL", told, "free space on its disk, or delete keys")
    told = f"{shown_bytes(free)} of {shown_bytes(size)} free"
    if free < 2 * max(RESERVE, size // 20):
        return Finding("free space", name, "warn", told, "make room before writes are refused")
    return Finding("free space", name, "ok", told)


def _map(name: str, figures: Mapping[str, float]) -> Finding | None:
    size = figures.get("map_bytes", 0)
    if not size:
        return None
    used = figures.get("used_bytes", 0)
    state = graded(used / size, FULL, 0.95)
    told = f"the state's file has used {shown_bytes(used)} of its {shown_bytes(size)} of address space"
    return Finding("map", name, state, told, "" if state == "ok" else "delete keys: the file can grow no further")


def _log(name: str, figures: Mapping[str, float]) -> Finding | None:
    if "log_unsynced_age" not in figures:
        return None
    age = figures["log_unsynced_age"]
    state = graded(age, UNSYNCED_WARN, UNSYNCED_FAIL)
    told = f"the oldest unsynced log write is {age * 1000:.0f} ms old"
    return Finding("log", name, state, told, "" if state == "ok" else "its disk is too slow, or stuck: look at it")


def _readers(name: str, figures: Mapping[str, float]) -> Finding | None:
    most = figures.get("readers_limit", 0)
    if not most:
        return None
    used = figures.get("readers", 0)
    state = graded(used / most, FULL, 1.0)
    told = f"{used:.0f} of {most:.0f} slots of LMDB readers"
    return Finding(
        "readers", name, state, told, "" if state == "ok" else "long lists hold them: restart the node if they stay"
    )


def _files(name: str, figures: Mapping[str, float]) -> Finding | None:
    return files_finding(name, int(figures["files_limit"])) if "files_limit" in figures else None


def _loop(name: str, figures: Mapping[str, float]) -> Finding | None:
    if "loop_lag_worst" not in figures:
        return None
    worst = figures["loop_lag_worst"]
    state = "warn" if worst >= LATE_LOOP else "ok"
    told = f"its loop was late by {worst * 1000:.0f} ms at most, lately"
    return Finding(
        "loop", name, graded(worst, LATE_LOOP, 1e9), told, "" if state == "ok" else "it lacks CPU: give it more"
    )


def _alarms(name: str, figures: Mapping[str, float]) -> Finding | None:
    if figures.get("state_alarms"):
        told = "states of nodes differed, and no majority agreed"
        return Finding("content", name, "FAIL", told, "look for lines of level critical in the logs")
    if figures.get("checkpoint_failures"):
        told = f"{figures['checkpoint_failures']:.0f} checkpoints failed since its start"
        return Finding("checkpoints", name, "warn", told, "look at its log: space or the disk")
    return None


def _clear_peers(name: str, figures: Mapping[str, float]) -> Finding | None:
    """A node that prefers TLS, and does not require it; others do not have the figure."""
    if "peer_clear_connections" not in figures:
        return None
    clear = int(figures["peer_clear_connections"])
    if clear:
        told = f"it takes clear connections with peers (peer_tls = prefer), and has {clear}"
        todo = (
            "give the other nodes certificates and peer_tls = prefer; their logs say what is wrong (docs/security.md)"
        )
    else:
        told = "it takes clear connections with peers (peer_tls = prefer), and has none"
        todo = "when no node has any, set peer_tls = require, one node after the other (docs/security.md)"
    return Finding("peers", name, "warn", told, todo)


def _archive(name: str, figures: Mapping[str, float]) -> Finding | None:
    """Of a node that archives its log."""
    if "archive_failing_seconds" not in figures:
        return None
    failing, gaps = figures["archive_failing_seconds"], figures.get("archive_gaps", 0)
    if failing:
        told = f"it cannot be written for {failing:,.0f} s; the log is kept meanwhile, as long as the disk has room"
        return Finding("archive", name, "FAIL", told, "look at its log for why: mounted, full, read-only?")
    if gaps:
        told = f"{gaps:.0f} gaps since its start: no moment within them can be restored"
        return Finding("archive", name, "warn", told, "look at its log, and at the archive: kvorum pitr verify")
    told = f"the last entry in it is {figures.get('archive_entry', 0):,.0f}"
    return Finding("archive", name, "ok", told)


def _certificate(name: str, figures: Mapping[str, float]) -> Finding | None:
    if "tls_cert_expiry_seconds" not in figures:
        return None
    return certificate_finding(name, figures["tls_cert_expiry_seconds"])


def certificate_finding(where: str, left: float) -> Finding:
    """`left`: seconds until it expires."""
    if left <= 0:
        return Finding("certificate", where, "FAIL", "it has expired", "replace it: the node takes new files by itself")
    told = f"valid for {left / DAY:,.0f} days more"
    if left < CERTIFICATE_DAYS * DAY:
        return Finding("certificate", where, "warn", told, "replace it in time: the node takes new files by itself")
    return Finding("certificate", where, "ok", told)
