"""Who may talk to this node, and how a new cluster is formed: everything about folders, before and beside the log.

What a folder acknowledged is known to the leader only, entry by entry; it is stored when a start of that folder is let
in, when it has grown by 4,096 entries, every 10 s, when this node leaves office and when it stops. A leader that is
killed forgets the rest. So a folder that lost acknowledged entries without losing its newest start (a disk that lied
about its syncs, not a copy) can get in again if the leader died too, and if the lost entries are younger than that.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kvorum_raft import configuration as cf
from kvorum_raft import identity as ids
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.config import RaftConfig
from kvorum_raft.errors import RaftFault, Refused
from kvorum_raft.forming import Forming
from kvorum_raft.journal import RaftJournal
from kvorum_raft.pysyncobj_fixes import LEADER, SafeSyncObj
from kvorum_raft.quiet_log import QuietLog

_log = logging.getLogger("kvorum.raft")
_LASTING: Final = (pb.Reject.EMPTIED, pb.Reject.ROLLED_BACK, pb.Reject.REMOVED)
_LOOK_EVERY: Final = 0.05
_STORE_ENTRIES: Final = 4096
_STORE_SECONDS: Final = 10.0
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
        """Incarnation → its newest start that was let in; who was let in last is at the end."""
        self._journal = journal
        self._core = core
        self._quiet = quiet
        self._broadcast = broadcast
        self._forming = Forming(config.node_id, identity.incarnation, self._listed)
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._stored_at: dict[bytes, int] = {}
        self._admitted: set[str] = set()
        self._foreign: set[str] = set()
        self._acknowledged: dict[bytes, int] = {}
        self._led = False
        self._look_due = self._store_due = float("-inf")

    # -- what is in force

    @property
    def joining(self) -> bool:
        """This folder is empty and waits to be added to a cluster."""
        return self._config.join and self._core.configuration is None

    @property
    def _names(self) -> frozenset[str]:
        configuration = self._core.configuration
        return self._listed if configuration is None else frozenset(configuration.incarnations)

    def _removed(self) -> frozenset[bytes]:
        """According to the newest configuration that is committed: an uncommitted one may be cut off again."""
        for entry in reversed(self._journal.configurations):
            if entry.index <= self._core.commit_index:
                return frozenset(cf.decode(entry.payload).removed)
        return frozenset()

    def is_member_folder(self, node_id: str, incarnation: bytes) -> bool:
        """True if the configuration in force means this folder by that name. Only its answers count."""
        configuration = self._core.configuration
        return configuration is not None and configuration.incarnations.get(node_id) == incarnation

    def unwanted(self, hello: pb.Hello) -> bool:
        """True if a peer that was let in would not be let in again: it is of another cluster than the one that this
        folder belongs to by now, or it was removed."""
        own = self.identity.cluster_id
        return (own and hello.cluster_id not in (b"", own)) or hello.incarnation in self._removed()

    def common_data_version(self, configuration: cf.Configuration | None) -> int:
        """The newest apply semantics that all members know, as far as this node has heard; 1 for one never heard."""
        if configuration is None:
            return 1
        versions = [self._config.data_version]
        for one in configuration.members:
            if one.member.node_id != self._config.node_id:
                kept = self._kept.get(one.incarnation)
                versions.append(1 if kept is None else kept.data_version)
        return min(versions)

    # -- handshakes

    def hello(self, target: str) -> pb.Hello:
        own, member = self.identity, self._config.own
        return pb.Hello(
            protocol_min=self._config.protocols[0],
            protocol_max=self._config.protocols[1],
            cluster_id=own.cluster_id,
            node_id=own.node_id,
            incarnation=own.incarnation,
            generation=own.generation,
            generation_ids=own.generation_ids,
            formed=self._core.configuration is not None,
            durable_index=self._journal.kept_index,
            listed=sorted(self._listed),
            target=target,
            joining=self.joining,
            peer_address=member.peer_address,
            client_address=member.client_address,
            data_version=self._config.data_version,
        )

    def judge(self, hello: pb.Hello, done: _Done) -> None:
        """`done` is called once the admission is durable, or at once with the reason against it."""
        me = ids.Self(
            self.identity,
            self._core.configuration,
            self._listed,
            joining=self.joining,
            removed=self._removed(),
            protocols=self._config.protocols,
        )
        kept = self._kept.get(hello.incarnation)
        known = self._acknowledged_by(hello.node_id, hello.incarnation)
        reject = ids.judge(me, hello, kept, known)
        if reject is None and not hello.meeting and kept is None and not self._make_room():
            reject = pb.Reject(code=pb.Reject.BUSY, text="too many different folders have asked to take part")
        if reject is not None or hello.meeting:
            done(reject)
            return
        self._note_peer(hello)
        self._admit(ids.admission_of(hello, known if kept is None else max(known, kept.acknowledged_index)), done)

    def _note_peer(self, hello: pb.Hello) -> None:
        if hello.node_id in self._names:
            self._admitted.add(hello.node_id)
            self._foreign.discard(hello.node_id)
        if self._core.configuration is not None or self._config.join or hello.node_id not in self._listed:
            return
        if frozenset(hello.listed) != self._listed:
            names = ", ".join(sorted(hello.listed)[: cf.MAX_MEMBERS])[:500]
            self._quiet.warning("lists", f"node {hello.node_id} lists other members than this node: {names!r}")
        if self._forming.saw(hello.node_id, hello.incarnation):
            self.report()

    def _admit(self, admission: ids.Admission, done: _Done) -> None:
        kept = self._kept.get(admission.incarnation)
        if kept is None or (kept.generation, kept.generation_id) != (admission.generation, admission.generation_id):
            self._keep(admission)
        seq = self._stored_at.get(admission.incarnation, 0)
        if seq <= self._journal.durable_seq:
            done(None)
            return
        self._waiting.append((seq, lambda: done(None)))
        self._journal.flush()

    def _keep(self, admission: ids.Admission) -> None:
        self._kept.pop(admission.incarnation, None)
        self._kept[admission.incarnation] = admission
        self._stored_at[admission.incarnation] = self._journal.put(admission.key, admission.encode())

    def _make_room(self) -> bool:
        """Forget a folder if too many are remembered: first one that was removed (the configuration knows that), else
        the one that was let in longest ago; never a member's. False if there are only members."""
        if len(self._kept) < self._config.limits.admissions:
            return True
        configuration = self._core.configuration
        members = self._forming.seen if configuration is None else configuration.incarnations
        others = [one for one in self._kept if one not in members.values()]
        removed = self._removed()
        victim = next((one for one in others if one in removed), others[0] if others else None)
        if victim is None:
            return False
        self._journal.put(self._kept.pop(victim).key, b"")
        self._stored_at.pop(victim, None)
        return True

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
        if reject.code == pb.Reject.REMOVED:
            self._core.refused_as_removed()
        if reject.code in _LASTING:
            raise Refused(f"refused by node {node_id}: {reject.text}", lasting=True)
        names = self._names
        if reject.code != pb.Reject.FOREIGN or node_id not in names:
            return
        self._foreign.add(node_id)
        left = len(names - self._foreign)
        if not self._admitted & names and left < len(names) // 2 + 1:
            raise Refused(f"this folder belongs to another cluster than its peers: {reject.text}")

    # -- what others acknowledged

    def _acknowledged_by(self, node_id: str, incarnation: bytes) -> int:
        """As far as this node leads; only what is committed, since all else may rightly be cut off."""
        if not self.is_member_folder(node_id, incarnation):
            return 0
        return min(self._core.match_index(node_id), self._core.commit_index)

    def note_acknowledged(self, now: float, *, leaving: bool = False) -> None:
        """Called with each step, and with `leaving` before this node stops: see the module's text. What is to be stored
        goes with the next transaction of the log; none is made for it."""
        if now < self._look_due and not leaving:
            return
        self._look_due = now + _LOOK_EVERY
        leads, configuration = self._core.state == LEADER, self._core.configuration
        if leads and configuration is not None:
            for node_id, incarnation in configuration.incarnations.items():
                known = self._acknowledged_by(node_id, incarnation)
                if known:
                    self._acknowledged[incarnation] = known
        elif not self._led:
            return
        everything = leaving or not leads or now >= self._store_due
        if everything:
            self._store_due = now + _STORE_SECONDS
        for incarnation, known in self._acknowledged.items():
            kept = self._kept.get(incarnation)
            if kept is not None and known >= kept.acknowledged_index + (1 if everything else _STORE_ENTRIES):
                self._keep(replace(kept, acknowledged_index=known))
        self._led = leads
        if not leads:
            self._acknowledged.clear()

    # -- forming

    def greeting(self, hello: pb.Hello) -> pb.Envelope | None:
        """What a peer that was just met should hear of the formation, if anything."""
        if self.joining or hello.joining or (hello.formed and self._core.configuration is not None):
            return None
        return self.formation()

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
        if self._core.configuration is not None or self._config.join:
            return
        seen = cf.from_message(message.seen)
        if message.stored:
            if self._forming.may_adopt(seen.incarnations, from_log=bool(seen.cluster_id)):
                self._form(cf.make(b"", seen.members))
            else:
                self._quiet.warning("formation", f"node {node_id} formed the cluster with other folders or members")
        else:
            self._forming.reported(node_id, incarnation, seen.incarnations)
            self.try_form()

    def try_form(self) -> None:
        if self._core.configuration is None and not self._config.join and self._forming.agreed():
            self._form(self._seen())

    def _form(self, formation: cf.Configuration) -> None:
        """Stored by the same writer before any vote, so that a vote can never be older than this."""
        _log.info("node %s forms a cluster of %s", self._config.node_id, ", ".join(formation.incarnations))
        self._store(ids.FORMATION_KEY, formation.encode(), lambda: self._broadcast(self.formation()))
        self._core.form(formation)

    def configured(self, configuration: cf.Configuration, committed: bool) -> None:
        """A configuration is in force. When it is committed this folder belongs to that cluster; a folder that joins
        does so at once, since nobody is added before the cluster's id is committed. Raises RaftFault for a log of
        another cluster."""
        cluster_id = self.identity.cluster_id
        if not configuration.cluster_id or configuration.cluster_id == cluster_id:
            return
        if not committed and not self._config.join:
            return
        if cluster_id:
            raise RaftFault(
                f"a folder of cluster {cluster_id.hex()} has the log of cluster {configuration.cluster_id.hex()}"
            )
        self.identity = replace(self.identity, cluster_id=configuration.cluster_id)
        # Not flushed: it goes into the transaction of the entry that names the cluster, if that is still to come.
        self._journal.put(ids.IDENTITY_KEY, self.identity.encode())

    @property
    def forming_waits_for(self) -> list[str]:
        return self._forming.missing if self._core.configuration is None and not self._config.join else []
