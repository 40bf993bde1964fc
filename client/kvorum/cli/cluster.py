"""`kvorum cluster …`: the members of a cluster, and what an operator may change."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, ParamSpec

import click

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cli.admin import PROBE, AdminClient
from kvorum.cli.progress import Waiting, on_terminal
from kvorum.cli.session import (
    NOT_FOUND,
    OK,
    UNAVAILABLE,
    Options,
    cluster_options,
    dry_run_option,
    echo,
    note,
    print_json,
    print_plan,
    print_table,
    runs,
)
from kvorum.cluster.connection import Connection, NodeFailed
from kvorum.target import Cluster

CALL: Final = 30.0
"""Seconds that one change may take; the rest of --timeout is for waiting."""
LOOK: Final = 0.5
"""Seconds between looks at a learner that is catching up."""
NEAR: Final = 1_000
"""Entries that a learner may lack when it is promoted; the leader judges for itself."""

AHEAD_MS: Final = 60_000
"""Milliseconds by which a time may be ahead of this machine's clock without being asked about."""

_COLUMNS: Final = ("Node", "Role", "Peers at", "Clients at", "Connected", "Has", "Lag", "Snapshot")
P = ParamSpec("P")
Change = Callable[[AdminClient, float], Awaitable[pb.AdminResponse]]


@click.group("cluster")
def cluster_group() -> None:
    """Look at the members of a cluster, and change them.

    Changes go to the leader, wherever --url points, and are made one at a time.
    """


_PLACE: Final = (
    click.option("--client-address", required=True, metavar="HOST:PORT", help="Where clients reach the node."),
    click.option("--peer-address", required=True, metavar="HOST:PORT", help="Where the other nodes reach it."),
    click.option(
        "--promote", is_flag=True, help="Wait until it has caught up (bounded by --timeout), then make it a voter."
    ),
)


def _place(function: Callable[P, None]) -> Callable[P, None]:
    for option in _PLACE:
        function = option(function)
    return function


def _client(options: Options) -> AdminClient:
    target = options.target
    if not isinstance(target, Cluster):
        raise errors.InvalidArgument(f"{options.url} is an embedded database, which has no members")
    return AdminClient(target.addresses, options.channel_tls, options.shown_token)


# ---- members


@cluster_group.command("members")
@cluster_options("10s")
@runs
async def members_command(options: Options) -> int | None:
    """Show the members: who votes, who is connected, who lags."""
    async with _client(options) as client:
        view = await client.members(_seconds(options))
    if options.as_json:
        print_json(members_json(view))
    else:
        print_table(_COLUMNS, [_row(member, view) for member in view.members])
    if view.no_space:
        note(f"kvorum: writes that grow the database are refused: {view.no_space}")
    if not view.leader.node_id:
        note(f"kvorum: there is no leader; this is what node {view.node_id} knows")
        return UNAVAILABLE
    return None


def members_json(view: pb.MembersResponse) -> dict[str, object]:
    """The view as JSON data."""
    return {
        "cluster": view.cluster_id.hex(),
        "asked": view.node_id,
        "leader": view.leader.node_id or None,
        "leader_address": view.leader.address or None,
        "term": view.term,
        "commit_index": view.commit_index,
        "no_space": view.no_space or None,
        "members": [
            {
                "node": member.node_id,
                "voter": member.voter,
                "peer_address": member.peer_address,
                "client_address": member.client_address,
                "connected": member.connected,
                "match_index": member.match_index,
                "lag": member.lag,
                "snapshot": [member.snapshot_sent, member.snapshot_size] if member.snapshot_size else None,
            }
            for member in view.members
        ],
    }


def _row(member: pb.MemberStatus, view: pb.MembersResponse) -> tuple[str, ...]:
    role = "voter" if member.voter else "learner"
    if member.node_id == view.leader.node_id:
        role = "leader"
    # Only the leader knows how far others are.
    known = view.node_id in (view.leader.node_id, member.node_id)
    return (
        member.node_id,
        role,
        member.peer_address,
        member.client_address,
        "yes" if member.connected else "NO",
        f"{member.match_index:,}" if known else "?",
        f"{member.lag:,}" if known else "?",
        _share(member),
    )


def _share(member: pb.MemberStatus) -> str:
    if not member.snapshot_size:
        return ""
    return f"{100 * member.snapshot_sent // member.snapshot_size} % of {member.snapshot_size / (1 << 20):,.1f} MiB"


# ---- changes


@cluster_group.command("add")
@click.argument("node_id", metavar="NODE")
@_place
@cluster_options("10m")
@runs
async def add_command(
    options: Options, node_id: str, peer_address: str, client_address: str, promote: bool
) -> int | None:
    """Let the node in that waits at this address with an empty folder (`join = true`), as a learner.

    For a member whose folder has moved to other addresses: note them.
    """
    request = pb.AddMemberRequest(node_id=node_id, peer_address=peer_address, client_address=client_address)
    return await _let_in(options, "AddMember", request, promote)


@cluster_group.command("replace")
@click.argument("node_id", metavar="NODE")
@_place
@cluster_options("10m")
@runs
async def replace_command(
    options: Options, node_id: str, peer_address: str, client_address: str, promote: bool
) -> int | None:
    """Put the empty folder that waits at this address (`join = true`) in the place of a member's lost one."""
    request = pb.ReplaceRequest(node_id=node_id, peer_address=peer_address, client_address=client_address)
    return await _let_in(options, "Replace", request, promote)


async def _let_in(options: Options, method: str, request: Any, promote: bool) -> int | None:
    deadline = time.monotonic() + _seconds(options)
    node_id = request.node_id
    async with _client(options) as client:
        await client.change(method, request, min(CALL, _seconds(options)))
        if not promote:
            try:
                member = _find(await client.members(_look_time(deadline)), node_id)
            except errors.Unavailable:
                # Nothing to fail for: the change is made.
                text = f"node {node_id} is let in; whether as a learner: kvorum cluster members"
                return _done(options, text, node=node_id, voter=None)
            if member is not None and member.voter:
                return _done(options, f"node {node_id} is a voter, at {member.peer_address}", node=node_id, voter=True)
            text = f"node {node_id} is a learner; when it has caught up: kvorum cluster promote {node_id}"
            return _done(options, text, node=node_id, voter=False)
        with Progress(f"node {node_id}: let in") as progress:
            await _promote_in_time(client, node_id, deadline, progress)
    return _done(options, f"node {node_id} is a voter", node=node_id, voter=True)


async def _promote_in_time(client: AdminClient, node_id: str, deadline: float, progress: "Progress") -> None:
    """Wait for a learner, and promote it. Errors: DeadlineExceeded with what it was waiting for."""
    waits_for = "it was not seen yet"
    while time.monotonic() < deadline:
        try:
            member = _find(await client.members(_look_time(deadline)), node_id)
            if member is not None and member.voter:
                return
            waits_for = _what_it_lacks(member)
            if not waits_for:
                waits_for = await _refusal(client, node_id, _look_time(deadline))
            if not waits_for:
                return
        except errors.Unavailable as error:
            # The cluster elects, or a node restarts: a wait of minutes outlives that.
            waits_for = str(error)
        progress.show(f"node {node_id}: {waits_for}")
        await asyncio.sleep(min(LOOK, max(0.0, deadline - time.monotonic())))
    raise errors.DeadlineExceeded(
        f"node {node_id} is a learner, and was not promoted in time: {waits_for};"
        f" when that is over: kvorum cluster promote {node_id}"
    )


def _look_time(deadline: float) -> float:
    """Seconds; the last look has time for an answer too."""
    return min(CALL, max(PROBE, deadline - time.monotonic()))


def _what_it_lacks(member: pb.MemberStatus | None) -> str:
    """Before it can be promoted; "" if nothing is known."""
    if member is None:
        return "it is not a member"
    if not member.connected:
        return "the leader is not connected to it"
    if member.snapshot_size:
        return f"it gets a snapshot, {_share(member)}"
    return f"it lacks {member.lag:,} entries" if member.lag > NEAR else ""


async def _refusal(client: AdminClient, node_id: str, timeout: float) -> str:
    """Why the leader does not promote it: it was close a moment ago, what the leader says now decides."""
    try:
        await client.change("Promote", pb.PromoteRequest(node_id=node_id), timeout)
    except errors.InvalidArgument as error:
        return str(error)
    return ""


@cluster_group.command("promote")
@click.argument("node_id", metavar="NODE")
@cluster_options("30s")
@runs
async def promote_command(options: Options, node_id: str) -> int | None:
    """Make a learner that has caught up a voter."""
    await _change(options, "Promote", pb.PromoteRequest(node_id=node_id))
    return _done(options, f"node {node_id} is a voter", node=node_id, voter=True)


@cluster_group.command("remove")
@click.argument("node_id", metavar="NODE")
@dry_run_option
@cluster_options("30s")
@runs
async def remove_command(options: Options, node_id: str, dry_run: bool) -> int | None:
    """Take a member out for good: its folder never comes back."""
    if dry_run:
        return await _plan_removal(options, node_id)
    await _change(options, "Remove", pb.RemoveRequest(node_id=node_id))
    return _done(options, f"node {node_id} is no member any more; its process may be stopped", node=node_id)


async def _plan_removal(options: Options, node_id: str) -> int | None:
    async with _client(options) as client:
        view = await client.members(_seconds(options))
    member = _find(view, node_id)
    if member is None:
        names = ", ".join(other.node_id for other in view.members)
        note(f"kvorum: not found: node {node_id} is not a member; the members are {names}")
        return NOT_FOUND
    voters = [other for other in view.members if other.voter and other.node_id != node_id]
    connected = sum(other.connected for other in voters)
    leads = view.leader.node_id == node_id
    role = "learner" if not member.voter else "leader" if leads else "voter"
    text = (
        f"would remove {role} {node_id}; {len(voters)} voters would be left, {connected} of them connected,"
        f" {len(voters) // 2 + 1} needed"
    )
    print_plan(
        options, text, node=node_id, voter=member.voter, leads=leads, voters_left=len(voters), connected_left=connected
    )
    return OK


@cluster_group.command("transfer")
@click.argument("node_id", metavar="[NODE]", default="")
@cluster_options("30s")
@runs
async def transfer_command(options: Options, node_id: str) -> int | None:
    """Hand leadership over, to NODE or to whoever has most of the log."""
    async with _client(options) as client:
        try:
            answer = await client.change("Transfer", pb.TransferRequest(node_id=node_id), _seconds(options))
        except errors.InvalidArgument as error:
            view = await client.members(_seconds(options))
            if not node_id or _find(view, node_id) is not None:
                raise
            names = ", ".join(member.node_id for member in view.members)
            raise errors.InvalidArgument(f"{error}: the members are {names}") from None
    return _done(options, f"node {answer.leader_id} leads", leader=answer.leader_id)


@cluster_group.command("set-time")
@click.argument("moment", metavar="TIME")
@click.option("--ahead", is_flag=True, help="Also to a time that lies ahead of this machine's clock.")
@dry_run_option
@cluster_options("30s")
@runs
async def set_time_command(options: Options, moment: str, ahead: bool, dry_run: bool) -> int | None:
    """Let the cluster's time jump forward to TIME: `now`, 2027-01-31T12:00:00+00:00, or Unix milliseconds.

    Only for a cluster whose clocks were wrong: everything that expires or is delayed up to then is due at once, and
    nothing sets it back.
    """
    now_ms = time.time_ns() // 1_000_000
    unix_ms = parse_moment(moment, now_ms)
    shown = _shown_moment(unix_ms)
    if unix_ms > now_ms + AHEAD_MS and not ahead:
        raise errors.InvalidArgument(
            f"{shown} is ahead of this machine's clock ({_shown_moment(now_ms)}), and the cluster's time never goes"
            " back: all keys and messages that expire until then would be gone. If that is meant, add --ahead"
        )
    if dry_run:
        return await _plan_jump(options, unix_ms)
    await _change(options, "SetTime", pb.SetTimeRequest(unix_ms=unix_ms))
    return _done(options, f"the cluster's time is {shown}", unix_ms=unix_ms)


async def _plan_jump(options: Options, unix_ms: int) -> int:
    now_ms = await _cluster_time(options)
    text = f"would let the cluster's time jump from {_shown_moment(now_ms)} to {_shown_moment(unix_ms)}"
    print_plan(options, text, time_ms=now_ms, unix_ms=unix_ms)
    return OK


async def _cluster_time(options: Options) -> int:
    """As its leader tells it. Errors: Unavailable."""
    async with _client(options) as client:
        view = await client.members(_seconds(options))
        leader = _find(view, view.leader.node_id)
        address = None if leader is None else client.address_of(leader)
    if address is None:
        raise errors.Unavailable("there is no leader, which knows the cluster's time: try again")
    connection = Connection(address, asyncio.get_running_loop(), options.channel_tls)
    try:
        status = await connection.status(_seconds(options), options.shown_token)
    except NodeFailed as failure:
        raise errors.Unavailable(f"the leader does not tell the cluster's time: {failure.problem}") from None
    finally:
        await connection.close()
    return status.time_ms


def _shown_moment(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds")


def parse_moment(text: str, now_ms: int) -> int:
    """Unix milliseconds. Errors: InvalidArgument."""
    if text == "now":
        return now_ms
    if re.fullmatch(r"[0-9]{1,15}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise errors.InvalidArgument(
            f"{text!r} is no time: write now, Unix milliseconds, or a date with its time zone"
            " as in 2027-01-31T12:00:00+00:00"
        )
    found = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if found <= 0:
        raise errors.InvalidArgument(f"{text!r} is before 1970")
    return found


async def _change(options: Options, method: str, request: Any) -> pb.AdminResponse:
    async with _client(options) as client:
        return await client.change(method, request, _seconds(options))


# ---- printing


class Progress(Waiting):
    """Says what is being waited for also where there is no terminal: a line whenever that changes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._text = text

    def show(self, text: str) -> None:
        if text == self._text:
            return
        self._text = text
        if on_terminal():
            self.say(text)
        else:
            note(text)


def _find(view: pb.MembersResponse, node_id: str) -> pb.MemberStatus | None:
    return next((member for member in view.members if member.node_id == node_id), None)


def _seconds(options: Options) -> float:
    return options.timeout / timedelta(seconds=1)


def _done(options: Options, text: str, **facts: object) -> int:
    if options.as_json:
        print_json({"ok": True, **facts})
    else:
        echo(text)
    return OK
