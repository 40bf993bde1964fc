"""Whose folder this is, which start of it this is, and whom this node lets in.

A folder has a random *incarnation*, made once. The cluster's configuration names it beside the node id, so that an
emptied folder that comes back under its old name is somebody else: it has forgotten votes and entries that it had
promised. Each start appends a random *generation* id to the folder's list. Peers remember the newest generation that
they admitted; a folder whose list lacks it was restored from an older copy, however often it was started since.

Everything lies in the log's own environment, so no part of it can be lost alone. The functions that judge are pure.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from google.protobuf.message import DecodeError

from kvorum_raft import configuration as cf
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import ConfigurationError, RaftFault, Refused

FORMAT: Final = 1
PROTOCOL: Final = 1
GENERATION_ID_SIZE: Final = 8
GENERATIONS_KEPT: Final = 1000
IDENTITY_KEY: Final = b"identity"
FORMATION_KEY: Final = b"formation"
ADMISSION_PREFIX: Final = b"admission/"


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
        ).SerializeToString()


def decode_admission(record: bytes) -> Admission:
    message = _parse(pb.Admission(), record, "admission")
    return Admission(message.incarnation, message.generation, message.generation_id, message.acknowledged_index)


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
    """In force; None while the cluster is being formed."""
    listed: frozenset[str]
    """Node ids of the configuration file."""


def judge(me: Self, hello: pb.Hello, kept: Admission | None, acknowledged_index: int) -> pb.Reject | None:
    """Whether the peer that says this may take part: None, or why not. `acknowledged_index` is committed and known to
    be acknowledged by that folder."""
    if not hello.protocol_min <= PROTOCOL <= hello.protocol_max:
        text = (
            f"node {hello.node_id} speaks protocol versions {hello.protocol_min} to {hello.protocol_max}, "
            f"node {me.identity.node_id} version {PROTOCOL}"
        )
        return pb.Reject(code=pb.Reject.PROTOCOL, text=text)
    reject = _judge_names(me, hello) or _judge_folder(me, hello)
    if reject is None and kept is not None:
        reject = _judge_generation(me, hello, kept, max(kept.acknowledged_index, acknowledged_index))
    return reject


def _judge_names(me: Self, hello: pb.Hello) -> pb.Reject | None:
    own = me.identity
    if own.cluster_id and hello.cluster_id and own.cluster_id != hello.cluster_id:
        text = (
            f"node {hello.node_id} belongs to cluster {hello.cluster_id.hex()}, "
            f"node {own.node_id} to cluster {own.cluster_id.hex()}"
        )
        return pb.Reject(code=pb.Reject.FOREIGN, text=text)
    if hello.target not in ("", own.node_id):
        text = f"the address of node {hello.target} leads to node {own.node_id}"
        return pb.Reject(code=pb.Reject.WRONG_NODE, text=text)
    known = me.listed if me.configuration is None else me.listed | me.configuration.incarnations.keys()
    if hello.node_id not in known or hello.node_id == own.node_id:
        text = f"node {hello.node_id} is not a peer of node {own.node_id}"
        return pb.Reject(code=pb.Reject.WRONG_NODE, text=text)
    return None


def _judge_folder(me: Self, hello: pb.Hello) -> pb.Reject | None:
    valid = (
        len(hello.incarnation) == cf.ID_SIZE and 0 < len(hello.generation_ids) <= GENERATIONS_KEPT * GENERATION_ID_SIZE
    )
    if not valid or len(hello.generation_ids) % GENERATION_ID_SIZE:
        return pb.Reject(code=pb.Reject.PROTOCOL, text="an incarnation or generation list of a wrong length")
    if me.configuration is None or me.configuration.incarnations.get(hello.node_id) == hello.incarnation:
        return None
    if hello.formed:
        text = f"the folder of node {hello.node_id} is not the one with which this cluster was formed"
        return pb.Reject(code=pb.Reject.FOREIGN, text=text)
    text = (
        f"the folder of node {hello.node_id} was emptied: "
        "it belonged to this cluster and has forgotten what it promised"
    )
    return pb.Reject(code=pb.Reject.EMPTIED, text=text)


def _judge_generation(me: Self, hello: pb.Hello, kept: Admission, acknowledged_index: int) -> pb.Reject | None:
    older = hello.generation - kept.generation
    end = len(hello.generation_ids) - older * GENERATION_ID_SIZE
    in_list = older >= 0 and end > 0 and hello.generation_ids[end - GENERATION_ID_SIZE : end] == kept.generation_id
    if not in_list:
        text = (
            f"the folder of node {hello.node_id} was rolled back: "
            f"node {me.identity.node_id} knows its start {kept.generation}"
        )
        return pb.Reject(code=pb.Reject.ROLLED_BACK, text=text)
    if hello.durable_index < acknowledged_index:
        text = (
            f"the folder of node {hello.node_id} was rolled back: its log ends at entry {hello.durable_index}, "
            f"but it acknowledged entry {acknowledged_index}"
        )
        return pb.Reject(code=pb.Reject.ROLLED_BACK, text=text)
    return None


def admission_of(hello: pb.Hello, acknowledged_index: int) -> Admission:
    """What to remember of a peer that was let in."""
    return Admission(
        hello.incarnation, hello.generation, hello.generation_ids[-GENERATION_ID_SIZE:], acknowledged_index
    )
