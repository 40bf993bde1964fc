"""Who may talk to this node, and how a new cluster is formed: everything about folders, before and beside the log."""

import logging
from collections.abc import Callable
from typing import Final

from kvorum_raft import configuration as cf
from kvorum_raft import identity as ids
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.config import RaftConfig
from kvorum_raft.errors import RaftFault, Refused
from kvorum_raft.forming import Forming
from kvorum_raft.journal import RaftJournal
from kvorum_raft.pysyncobj_fixes import SafeSyncObj
from kvorum_raft.quiet_log import QuietLog

_log = logging.getLogger("kvorum.raft")
_MAX_ADMISSIONS: Final = 256
"""Folders remembered. Once a cluster is formed only its members' are added; before, anybody who knows a name could add
some."""
_Done = Callable[[pb.Reject | None], None]


class Admissions:
    """Keeps the node's identity and what it knows of the others' folders; stores both through the journal, in its
    order."""

    def __init__(
        self,
        config: RaftConfig,
        identity: ids.Identity,
        admissions: list[ids.Admission],
        journal: RaftJournal,
        core: SafeSyncObj,
        quiet: QuietLog,
        broadcast: Callable[[pb.Envelope], None],
    ) -> None:
        self.identity = identity
        self._config = config
        self._listed = frozenset(member.node_id for member in config.members)
        self._kept = {admission.incarnation: admission for admission in admissions}
        self._journal = journal
        self._core = core
        self._quiet = quiet
        self._broadcast = broadcast
        self._forming = Forming(config.node_id, identity.incarnation, self._listed)
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._admitted: set[str] = set()
        self._foreign: set[str] = set()

    # -- handshakes

    def hello(self, target: str) -> pb.Hello:
        own = self.identity
        return pb.Hello(
            protocol_min=ids.PROTOCOL,
            protocol_max=ids.PROTOCOL,
            cluster_id=own.cluster_id,
            node_id=own.node_id,
            incarnation=own.incarnation,
            generation=own.generation,
            generation_ids=own.generation_ids,
            formed=self._core.configuration is not None,
            durable_index=self._journal.durable_index,
            listed=sorted(self._listed),
            target=target,
        )

    def judge(self, hello: pb.Hello, done: _Done) -> None:
        """`done` is called once the admission is durable, or at once with the reason against it."""
        me = ids.Self(self.identity, self._core.configuration, self._listed)
        kept = self._kept.get(hello.incarnation)
        known = min(self._core.match_index(hello.node_id), self._core.commit_index)
        reject = ids.judge(me, hello, kept, known)
        if reject is not None:
            done(reject)
            return
        if kept is None and len(self._kept) >= _MAX_ADMISSIONS:
            done(pb.Reject(code=pb.Reject.BUSY, text="too many different folders have asked to take part"))
            return
        if frozenset(hello.listed) != self._listed and self._core.configuration is None:
            names = ", ".join(sorted(hello.listed))
            self._quiet.warning("lists", f"node {hello.node_id} lists other members than this node: {names}")
        self._admitted.add(hello.node_id)
        self._foreign.discard(hello.node_id)
        if self._core.configuration is None and self._forming.saw(hello.node_id, hello.incarnation):
            self.report()
        admission = ids.admission_of(hello, known)
        if kept is not None and (kept.generation, kept.generation_id) == (
            admission.generation,
            admission.generation_id,
        ):
            done(None)
            return
        self._kept[hello.incarnation] = admission
        self._store(admission.key, admission.encode(), lambda: done(None))

    def _store(self, key: bytes, record: bytes, then: Callable[[], None]) -> None:
        seq = self._journal.put(key, record)
        self._waiting.append((seq, then))
        self._journal.flush()

    def durable(self, seq: int) -> None:
        """The journal is synced up to this number."""
        while self._waiting and self._waiting[0][0] <= seq:
            self._waiting.pop(0)[1]()

    def rejected_by(self, node_id: str, reject: pb.Reject) -> None:
        """A peer does not let this node in. Raises Refused if that ends it."""
        if reject.code in (pb.Reject.EMPTIED, pb.Reject.ROLLED_BACK):
            raise Refused(f"refused by node {node_id}: {reject.text}", lasting=True)
        if reject.code != pb.Reject.FOREIGN:
            return
        self._foreign.add(node_id)
        left = len(self._listed) - len(self._foreign)
        if not self._admitted and left < len(self._listed) // 2 + 1:
            raise Refused(f"this folder belongs to another cluster than its peers: {reject.text}")

    # -- forming

    def report(self) -> None:
        """Tell everybody what this node sees, and form the cluster if all agree."""
        self._broadcast(self.formation())
        self.try_form()

    def formation(self) -> pb.Envelope:
        formed = self._core.configuration
        seen = formed if formed is not None else self._seen()
        return pb.Envelope(formation=pb.Formation(seen=seen.message(), stored=formed is not None))

    def _seen(self) -> cf.Configuration:
        members = {member.node_id: member for member in self._config.members}
        return cf.make(b"", [cf.Voter(members[node_id], one) for node_id, one in self._forming.seen.items()])

    def reported(self, node_id: str, incarnation: bytes, message: pb.Formation) -> None:
        """Raises ValueError for nonsense."""
        if self._core.configuration is not None:
            return
        seen = cf.from_message(message.seen)
        if message.stored:
            if self._forming.may_adopt(seen.incarnations):
                self._form(cf.make(b"", seen.members))
            else:
                self._quiet.warning("formation", f"node {node_id} formed the cluster with other folders or members")
        else:
            self._forming.reported(node_id, incarnation, seen.incarnations)
            self.try_form()

    def try_form(self) -> None:
        if self._core.configuration is None and self._forming.agreed():
            self._form(self._seen())

    def _form(self, formation: cf.Configuration) -> None:
        """Stored by the same writer before any vote, so that a vote can never be older than this."""
        _log.info("node %s forms a cluster of %s", self._config.node_id, ", ".join(formation.incarnations))
        self._store(ids.FORMATION_KEY, formation.encode(), lambda: self._broadcast(self.formation()))
        self._core.form(formation)

    def committed(self, configuration: cf.Configuration) -> None:
        """The cluster's configuration is committed: from now on this folder belongs to that cluster."""
        cluster_id = self.identity.cluster_id
        if not configuration.cluster_id or configuration.cluster_id == cluster_id:
            return
        if cluster_id:
            raise RaftFault(
                f"a folder of cluster {cluster_id.hex()} has the log of cluster {configuration.cluster_id.hex()}"
            )
        own = self.identity
        self.identity = ids.Identity(
            own.node_id, own.incarnation, configuration.cluster_id, own.generation, own.generation_ids
        )
        self._store(ids.IDENTITY_KEY, self.identity.encode(), lambda: None)

    @property
    def forming_waits_for(self) -> list[str]:
        return self._forming.missing if self._core.configuration is None else []
