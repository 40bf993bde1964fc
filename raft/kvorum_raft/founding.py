"""A new cluster of one node that begins with a state: what a restore makes.

The folder gets what a node has that was let in by a snapshot of that state: a verified checkpoint, and an empty log
that begins behind it. The log's base names a configuration with one voter, whose incarnation is new, so that no folder
of another cluster can ever be taken for this one. Other nodes join it with empty folders.
"""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvorum_raft import configuration as cf
from kvorum_raft import identity as ids
from kvorum_raft.base import Base
from kvorum_raft.checkpoints import Checkpoints
from kvorum_raft.copier import PipeCopier
from kvorum_raft.entry import Kind, make
from kvorum_raft.journal import Batch, HardState
from kvorum_raft.log_store import LogStore
from kvorum_raft.manifest import Manifest
from kvorum_raft.seams import Member, StateFacts, StateMachine

CHECKPOINTS: Final = "checkpoints"
RAFT: Final = "raft"
_RATE: Final = 1e12
"""Bytes a second: nothing else wants the disk."""
_MAP_SIZE: Final = 1 << 30


def found(
    data_dir: Path,
    member: Member,
    cluster_id: bytes,
    machine: StateMachine,
    *,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> Manifest:
    """Make `checkpoints/` and `raft/` in `data_dir`, which must not be there yet. The machine stands where the cluster
    is to begin, at entry 1 or later. Everything is on the disk when it returns. Raises ValueError, OSError, RaftFault.
    """
    if len(cluster_id) != cf.ID_SIZE:
        raise ValueError(f"a cluster id has {cf.ID_SIZE} bytes, got {len(cluster_id)}")
    identity = ids.Identity(member.node_id, random_bytes(cf.ID_SIZE), cluster_id).next_start(random_bytes)
    configuration = cf.make(cluster_id, [cf.Voter(member, identity.incarnation)])
    image = machine.image()
    try:
        base = _base(image.facts, configuration)
        checkpoints = Checkpoints(data_dir / CHECKPOINTS, copier=PipeCopier(_RATE))
        checkpoints.folder.mkdir()
        checkpoints.sync(data_dir)
        manifest = checkpoints.write(image, lambda _: base, machine.inspect)
    finally:
        image.close()
    (data_dir / RAFT).mkdir()
    _write_log(data_dir / RAFT / "log", base, identity)
    checkpoints.sync(data_dir / RAFT)
    checkpoints.sync(data_dir)
    return manifest


def _base(facts: StateFacts, configuration: cf.Configuration) -> Base:
    """The first term of the new cluster's own elections comes after term 1, in which all of the old one's entries are
    now said to be."""
    if facts.index < 1:
        raise ValueError("the state is empty: there is nothing that a cluster could begin with")
    entry = make(Kind.CONFIGURATION, facts.index, 1, facts.time_ms, configuration.encode())
    return Base(facts.index, 1, facts.time_ms, entry.record)


def _write_log(path: Path, base: Base, identity: ids.Identity) -> None:
    store = LogStore.open(path, map_size=_MAP_SIZE)
    try:
        state = HardState(base.term, "", base.index, base.index, base.index, base.term)
        store.write([Batch(1, state, base=base)])
        store.put_now({ids.IDENTITY_KEY: identity.encode()})
        store.verify(cache=1 << 20)
    finally:
        store.close()
