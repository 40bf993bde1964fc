"""`kvorum doctor`: everything that is often wrong with a node, a disk or a cluster, looked at once."""

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import click

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cli.admin import AdminClient
from kvorum.cli.doctor_cluster import Told, certificate_finding, judge
from kvorum.cli.doctor_machine import (
    bucket_finding,
    check_archive,
    check_files,
    check_folder,
    check_loopback,
    check_port,
)
from kvorum.cli.findings import Finding, print_findings
from kvorum.cli.progress import Waiting
from kvorum.cli.session import NOT_FOUND, USAGE, Options, cluster_options, fail, runs_without_url
from kvorum.cluster.connection import Connection, NodeFailed
from kvorum.cluster.route import Address, name, parse
from kvorum.target import Folder

ASK: Final = 5.0
"""Seconds that a node gets at most to answer one question."""
EMBEDDED_RESERVE: Final = 64 << 20


@click.command("doctor")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A node's file, on the node's machine: also its settings, folder, disk, ports and certificates.",
)
@cluster_options("10s")
@runs_without_url
async def doctor_command(options: Options, config: Path | None) -> int | None:
    """Look for what is often wrong: clocks, disks, ports, certificates, versions, settings, members.

    With --url a cluster is asked, with --config the machine of one node is looked at as well. On the disk of the data
    folder a small file is written, synced and deleted. Each check is ok, warn or FAIL, with --json an object of its
    own; with a FAIL the exit status is 1.
    """
    if config is None and not options.url:
        fail(USAGE, "what shall be looked at? give --config FILE of a node, or --url (or KVORUM_URL)")
    with Waiting("looking …"):
        findings: list[Finding] = []
        addresses: tuple[Address, ...] = ()
        if config is not None:
            found, addresses, options = await _look_at_node(config, options)
            findings += found
        if options.url:
            target = options.target
            if isinstance(target, Folder):
                findings += await asyncio.to_thread(_look_at_folder, target)
            else:
                addresses = target.addresses
        if addresses:
            findings += await look_at_cluster(addresses, options)
    print_findings(findings, as_json=options.as_json)
    return NOT_FOUND if any(one.state == "FAIL" for one in findings) else None


# ---- one node's machine


async def _look_at_node(file: Path, options: Options) -> tuple[list[Finding], tuple[Address, ...], Options]:
    """What its file says and its machine has; the addresses of the members, and how they are spoken to: as the node
    itself does, unless that was said."""
    from kvorum_node.doctoring import ConfigurationError, node_facts

    try:
        facts = node_facts(file)
    except ConfigurationError as error:
        return (
            [Finding("configuration", str(file), "FAIL", str(error), "mend it; kvorum node --help has all settings")],
            (),
            options,
        )
    findings = [Finding("configuration", str(file), "ok", f"node {facts.node_id}, {len(facts.members)} member(s)")]
    findings += [Finding("configuration", str(file), "warn", told, todo) for told, todo in facts.oddities]
    findings += check_loopback([host for _, host, _ in facts.ports], facts.other_hosts)
    findings += await asyncio.to_thread(check_folder, facts.data_dir, facts.least_free)
    members = tuple(address for text in facts.members if (address := parse(text)) is not None)
    options = replace(options, tls=options.tls or facts.tls, token=options.token or facts.token or None)
    if facts.archive is not None:
        findings += await asyncio.to_thread(check_archive, facts.archive, facts.data_dir)
    if facts.bucket:
        findings.append(bucket_finding(facts.bucket, await asyncio.to_thread(facts.bucket_problem)))
    own = parse(facts.client_address)
    told = await ask(own, options) if own is not None else None
    running = told is not None and told.status is not None and told.status.node_id == facts.node_id
    findings += [check_port(what, host, port, own=running) for what, host, port in facts.ports]
    findings.append(check_files())
    for one in facts.certificates:
        where = str(one.file)
        if one.problem:
            findings.append(Finding("certificate", where, "FAIL", one.problem, "see kvorum certs node --help"))
            continue
        findings.append(certificate_finding(where, one.left))
        if one.doubt:
            findings.append(Finding("certificate", where, "warn", one.doubt, "chmod 600 the key"))
    return findings, members, options


def _look_at_folder(target: Folder) -> list[Finding]:
    if target.path is None:
        return [Finding("data folder", ":memory:", "ok", "there is none")]
    return [*check_folder(Path(target.path), lambda size: min(EMBEDDED_RESERVE, size // 20)), check_files()]


# ---- a cluster


async def look_at_cluster(addresses: tuple[Address, ...], options: Options) -> list[Finding]:
    """Ask the nodes at these addresses, and the members that they name."""
    view = await _members(addresses, options)
    if view is not None:
        named = [parse(member.client_address) for member in view.members]
        known = {address for address in named if address is not None}
        if not known & set(addresses):
            # From here the nodes have other addresses than they know of: those that were given count.
            known = set()
        addresses = tuple(dict.fromkeys([*addresses, *sorted(known)]))
    answers = await asyncio.gather(*(ask(address, options) for address in addresses))
    # One node may have been asked under two names; one of the same name in another cluster is another one.
    return judge(list({(told.name, told.cluster): told for told in answers}.values()), view)


async def ask(address: Address, options: Options) -> Told:
    """A node's status, with the times that judging its clock takes."""
    connection = Connection(address, asyncio.get_running_loop(), options.channel_tls)
    seconds = min(ASK, options.timeout / timedelta(seconds=1))
    try:
        # The first answer includes making the connection, so its middle is no good.
        await connection.status(seconds, options.shown_token)
        wall, began = time.time(), time.monotonic()
        status = await connection.status(seconds, options.shown_token)
    except NodeFailed as failure:
        return Told(name(address), None, failure.problem, 0.0, 0.0)
    except errors.Unauthenticated as error:
        return Told(name(address), None, str(error), 0.0, 0.0)
    finally:
        await connection.close()
    took = time.monotonic() - began
    return Told(name(address), status, "", (wall + took / 2) * 1000, took * 1000)


async def _members(addresses: tuple[Address, ...], options: Options) -> pb.MembersResponse | None:
    async with AdminClient(addresses, options.channel_tls, options.shown_token) as client:
        try:
            return await client.members(min(ASK, options.timeout / timedelta(seconds=1)))
        except errors.KvorumError:
            return None
