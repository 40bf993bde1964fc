"""Whose folder this is, which start of it this is, and whom this node lets in.

A folder has a random *incarnation*, made once. The cluster's configuration names it beside the node id, so that an
emptied folder that comes back under its old name is somebody else: it has forgotten votes and entries that it had
promised. Each start appends a random *generation* id to the folder's list. Peers remember the newest generation that
they admitted; a folder whose list lacks it was restored from an older copy, however often it was started since.

Everything lies in the log's own environment, so no part of it can be lost alone. The functions that judge are pure.

**Why this node's own configuration does not decide who is let in.** It may be old. Of {A, B, C} + D, E with B behind, A
and C can die; then D or E must get B's vote, and B has never heard of either. So a formed folder of the same cluster is
let in whatever this node's configuration says, also under the name of a member whose folder is another one: it may be
the newer replacement. It may as well be the folder that was replaced long ago, and that does no harm. A candidate
counts only answers of folders that are voters in *its* configuration, so the replaced one's answers count with nobody
who knows better. It can win no election itself: the configuration without it was committed by a majority of the
remaining voters, each majority of its own old configuration holds one of those, and that one's log is longer than its
own. Once this node has the committed configuration that names the folder among the removed, it refuses it for good.

This node may also not know its cluster's id yet, while the other one does (it stored the formation and was away when
the first entry was committed; or it is empty and joins). It then lets in any formed folder. The other side judges too,
and lets this node in only if its configuration names this very folder, so that two clusters cannot mix.

A folder that is not formed can promise nothing that it has not forgotten: it is let in only if a configuration names
it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from google.protobuf.message import DecodeError

from kvorum_raft import configuration as cf
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.config import PROTOCOL_MAX, PROTOCOL_MIN, split_address
from kvorum_raft.errors import ConfigurationError, RaftFault, Refused

FORMAT: Final = 1
GENERATION_ID_SIZE: Final = 8
GENERATIONS_KEPT: Final = 1000
IDENTITY_KEY: Final = b"identity"
FORMATION_KEY: Final = b"formation"
ADMISSION_PREFIX: Final = b"admission/"
_MAX_NAME: Final = 128
_MAX_ADDRESS: Final = 300


@dataclass(frozen=True, slots=True)
class Identity:
    """Of this node's folder, as stored."""

    node_id: str
    incarnation: bytes
    cluster_id: bytes = b""
    generation: int = 0
    generation_ids: bytes = b""

    def next_start(self, random_bytes: Callable[[int], bytes]) -> "Identity":
        ids = self.generation_ids + random_bytes(GENERATION_ID_SIZE)
        return replace(
            self, generation=self.generation + 1, generation_ids=ids[-GENERATIONS_KEPT * GENERATION_ID_SIZE :]
        )

    def encode(self) -> bytes:
        return pb.Identity(
            format=FORMAT,
            node_id=self.node_id,
            incarnation=self.incarnation,
            cluster_id=self.cluster_id,
            generation=self.generation,
            generation_ids=self.generation_ids,
        ).SerializeToString()


def decode_identity(record: bytes) -> Identity:
    """Raises ConfigurationError for a newer format, RaftFault for damage."""
    message = _parse(pb.Identity(), record, "identity")
    if len(message.incarnation) != cf.ID_SIZE or not message.generation_ids:
        raise RaftFault("the stored identity is damaged")
    return Identity(
        message.node_id, message.incarnation, message.cluster_id, message.generation, message.generation_ids
    )


def started(record: bytes | None, node_id: str, random_bytes: Callable[[int], bytes]) -> Identity:
    """The identity of a start: a new one for an empty folder. Raises Refused for another node's folder."""
    if record is None:
        return Identity(node_id, random_bytes(cf.ID_SIZE)).next_start(random_bytes)
    identity = decode_identity(record)
    if identity.node_id != node_id:
        raise Refused(f"the folder belongs to node {identity.node_id}, not to node {node_id}")
    return identity.next_start(random_bytes)


@dataclass(frozen=True, slots=True)
class Admission:
    """The newest start of a folder that this node let in."""

    incarnation: bytes
    generation: int
    generation_id: bytes
    acknowledged_index: int
    data_version: int = 1
    """Newest apply semantics that this start knew."""

    @property
    def key(self) -> bytes:
        return ADMISSION_PREFIX + self.incarnation

    def encode(self) -> bytes:
        return pb.Admission(
            format=FORMAT,
            incarnation=self.incarnation,
            generation=self.generation,
            generation_id=self.generation_id,
            acknowledged_index=self.acknowledged_index,
            data_version=self.data_version,
        ).SerializeToString()


def decode_admission(record: bytes) -> Admission:
    message = _parse(pb.Admission(), record, "admission")
    return Admission(
        message.incarnation,
        message.generation,
        message.generation_id,
        message.acknowledged_index,
        message.data_version or 1,
    )


_Message = TypeVar("_Message", pb.Identity, pb.Admission)


def _parse(message: _Message, record: bytes, what: str) -> _Message:
    try:
        message.ParseFromString(record)
    except DecodeError as error:
        raise RaftFault(f"the stored {what} cannot be read: {error}") from error
    if message.format > FORMAT:
        raise ConfigurationError(
            f"the stored {what} has format {message.format}; this version knows formats up to {FORMAT}"
        )
    return message


@dataclass(frozen=True, slots=True)
class Self:
    """What a node knows about itself and its cluster when it judges a peer."""

    identity: Identity
    configuration: cf.Configuration | None
    """In force; None while the cluster is being formed, or this node waits to be added to one."""
    listed: frozenset[str]
    """Node ids of the configuration file."""
    joining: bool = False
    """An empty folder that waits to be added."""
    removed: frozenset[bytes] = frozenset()
    """Incarnations that a *committed* configuration says were removed."""
    protocols: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX)


def negotiated(own: tuple[int, int], hello: pb.Hello) -> int | None:
    """The newest protocol version that both sides speak; None if there is none."""
    newest = min(own[1], hello.protocol_max)
    return newest if newest >= max(own[0], hello.protocol_min) else None


def judge(me: Self, hello: pb.Hello, kept: Admission | None, acknowledged_index: int) -> pb.Reject | None:
    """Whether the peer that says this may take part: None, or why not. `acknowledged_index` is committed and known to
    be acknowledged by that folder. Whatever the fields hold, nothing is raised."""
    reject = _judge_form(me, hello) or _judge_names(me, hello) or _judge_folder(me, hello)
    if reject is None and kept is not None:
        reject = _judge_generation(me, hello, kept)
        acknowledged_index = max(kept.acknowledged_index, acknowledged_index)
    if reject is None and hello.durable_index < acknowledged_index:
        text = (
            f"the folder of node {hello.node_id} was rolled back: its log ends at entry {hello.durable_index}, "
            f"but it acknowledged entry {acknowledged_index}"
        )
        reject = _no(pb.Reject.ROLLED_BACK, text)
    return reject


def _no(code: pb.Reject.Code, text: str) -> pb.Reject:
    return pb.Reject(code=code, text=text)


def _judge_form(me: Self, hello: pb.Hello) -> pb.Reject | None:
    if not 0 < len(hello.node_id.encode()) <= _MAX_NAME or not hello.node_id.isprintable():
        return _no(pb.Reject.PROTOCOL, "a node id that cannot be one")
    if negotiated(me.protocols, hello) is None:
        text = (
            f"node {hello.node_id} speaks protocol versions {hello.protocol_min} to {hello.protocol_max}, "
            f"node {me.identity.node_id} versions {me.protocols[0]} to {me.protocols[1]}"
        )
        return _no(pb.Reject.PROTOCOL, text)
    ids = len(hello.generation_ids)
    if len(hello.incarnation) != cf.ID_SIZE or len(hello.cluster_id) not in (0, cf.ID_SIZE):
        return _no(pb.Reject.PROTOCOL, "an incarnation or cluster id of a wrong length")
    if not 0 < ids <= GENERATIONS_KEPT * GENERATION_ID_SIZE or ids % GENERATION_ID_SIZE:
        return _no(pb.Reject.PROTOCOL, "a generation list of a wrong length")
    if not (_usable(hello.peer_address) and len(hello.client_address) <= _MAX_ADDRESS):
        return _no(pb.Reject.PROTOCOL, f"node {hello.node_id} says an address that cannot be one")
    return None


def _usable(address: str) -> bool:
    """Nothing, or host:port."""
    if not address or len(address) > _MAX_ADDRESS or not address.isprintable():
        return not address
    try:
        split_address(address)
    except ConfigurationError:
        return False
    return True


def _judge_names(me: Self, hello: pb.Hello) -> pb.Reject | None:
    own = me.identity
    if own.cluster_id and hello.cluster_id and own.cluster_id != hello.cluster_id:
        text = (
            f"node {hello.node_id} belongs to cluster {hello.cluster_id.hex()}, "
            f"node {own.node_id} to cluster {own.cluster_id.hex()}"
        )
        return _no(pb.Reject.FOREIGN, text)
    if hello.target not in ("", own.node_id):
        text = f"the address of node {hello.target[:_MAX_NAME]!r} leads to node {own.node_id}"
        return _no(pb.Reject.WRONG_NODE, text)
    if hello.node_id == own.node_id and not _is_oneself(me, hello):
        return _no(pb.Reject.WRONG_NODE, f"node {hello.node_id} is not a peer of node {own.node_id}")
    return None


def _is_oneself(me: Self, hello: pb.Hello) -> bool:
    """A leader asks whether a new address of its own leads to itself."""
    own = me.identity
    return hello.meeting and hello.incarnation == own.incarnation and hello.generation_ids == own.generation_ids


def _judge_folder(me: Self, hello: pb.Hello) -> pb.Reject | None:
    if hello.incarnation in me.removed:
        return _no(pb.Reject.REMOVED, f"the folder of node {hello.node_id} was removed from the cluster")
    if me.configuration is None:
        return _judge_first_contact(me, hello)
    if me.configuration.incarnations.get(hello.node_id) == hello.incarnation:
        return None
    if not hello.formed:
        return _judge_empty(me, me.configuration, hello)
    if hello.cluster_id:
        return None if _can_call_back(hello) or me.configuration.find(hello.node_id) else _no_address(hello)
    text = f"the folder of node {hello.node_id} is not the one with which this cluster was formed"
    return _no(pb.Reject.FOREIGN, text)


def _judge_first_contact(me: Self, hello: pb.Hello) -> pb.Reject | None:
    """This node belongs to no cluster yet."""
    own = me.identity.node_id
    if hello.formed and hello.cluster_id:
        return None if _can_call_back(hello) or hello.node_id in me.listed else _no_address(hello)
    if me.joining or hello.joining:
        joiner = own if me.joining else hello.node_id
        return _no(pb.Reject.BUSY, f"node {joiner} waits to be added to a cluster: it forms none")
    if hello.node_id not in me.listed:
        return _no(pb.Reject.WRONG_NODE, f"node {hello.node_id} is not a peer of node {own}")
    return None


def _judge_empty(me: Self, configuration: cf.Configuration, hello: pb.Hello) -> pb.Reject | None:
    """An empty folder that no configuration names."""
    name = hello.node_id
    member = configuration.find(name) is not None
    if hello.joining:
        if member:
            text = f"node {name} has another folder than the member of that name: run `kvorum cluster replace`"
        else:
            text = f"node {name} is not a member yet: run `kvorum cluster add`"
        return _no(pb.Reject.BUSY, text)
    if not member:
        text = f"node {name} is not a member: start it with join = true and run `kvorum cluster add`"
        return _no(pb.Reject.WRONG_NODE, text)
    if not me.identity.cluster_id:
        # Nothing is known to be committed: perhaps the cluster never comes to life, and all folders are emptied.
        text = f"the folder of node {name} was emptied while the cluster was formed"
        return _no(pb.Reject.BUSY, text)
    text = f"the folder of node {name} was emptied: it belonged to this cluster and has forgotten what it promised"
    return _no(pb.Reject.EMPTIED, text)


def _can_call_back(hello: pb.Hello) -> bool:
    """A guest is known by what it says of itself only, and answers travel over a connection of our own."""
    return bool(hello.peer_address)


def _no_address(hello: pb.Hello) -> pb.Reject:
    return _no(pb.Reject.WRONG_NODE, f"node {hello.node_id} does not say where it can be reached")


def _judge_generation(me: Self, hello: pb.Hello, kept: Admission) -> pb.Reject | None:
    older = hello.generation - kept.generation
    end = len(hello.generation_ids) - older * GENERATION_ID_SIZE
    if end <= 0 and len(hello.generation_ids) == GENERATIONS_KEPT * GENERATION_ID_SIZE:
        # Sound or an old copy, nobody can tell: it stays outside here, but that is no verdict about it.
        text = (
            f"the folder of node {hello.node_id} was started more than {GENERATIONS_KEPT} times since node "
            f"{me.identity.node_id} met it, and cannot show that it is no old copy: run `kvorum cluster replace`"
        )
        return _no(pb.Reject.BUSY, text)
    in_list = older >= 0 and end > 0 and hello.generation_ids[end - GENERATION_ID_SIZE : end] == kept.generation_id
    if not in_list:
        text = (
            f"the folder of node {hello.node_id} was rolled back: "
            f"node {me.identity.node_id} knows its start {kept.generation}"
        )
        return _no(pb.Reject.ROLLED_BACK, text)
    return None


def admission_of(hello: pb.Hello, acknowledged_index: int) -> Admission:
    """What to remember of a peer that was let in."""
    newest = hello.generation_ids[-GENERATION_ID_SIZE:]
    return Admission(hello.incarnation, hello.generation, newest, acknowledged_index, hello.data_version or 1)
