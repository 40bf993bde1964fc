from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Voter(_message.Message):
    __slots__ = ("node_id", "incarnation", "peer_address", "client_address", "learner")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: bytes
    peer_address: str
    client_address: str
    learner: bool
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., peer_address: _Optional[str] = ..., client_address: _Optional[str] = ..., learner: _Optional[bool] = ...) -> None: ...

class Configuration(_message.Message):
    __slots__ = ("format", "cluster_id", "voters", "removed")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    format: int
    cluster_id: bytes
    voters: _containers.RepeatedCompositeFieldContainer[Voter]
    removed: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, format: _Optional[int] = ..., cluster_id: _Optional[bytes] = ..., voters: _Optional[_Iterable[_Union[Voter, _Mapping]]] = ..., removed: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Base(_message.Message):
    __slots__ = ("format", "index", "term", "time_ms", "configuration")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    format: int
    index: int
    term: int
    time_ms: int
    configuration: bytes
    def __init__(self, format: _Optional[int] = ..., index: _Optional[int] = ..., term: _Optional[int] = ..., time_ms: _Optional[int] = ..., configuration: _Optional[bytes] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("format", "base", "content_hash", "size", "file_hash")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    FILE_HASH_FIELD_NUMBER: _ClassVar[int]
    format: int
    base: Base
    content_hash: bytes
    size: int
    file_hash: bytes
    def __init__(self, format: _Optional[int] = ..., base: _Optional[_Union[Base, _Mapping]] = ..., content_hash: _Optional[bytes] = ..., size: _Optional[int] = ..., file_hash: _Optional[bytes] = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("format", "node_id", "incarnation", "cluster_id", "generation", "generation_ids")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_IDS_FIELD_NUMBER: _ClassVar[int]
    format: int
    node_id: str
    incarnation: bytes
    cluster_id: bytes
    generation: int
    generation_ids: bytes
    def __init__(self, format: _Optional[int] = ..., node_id: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., cluster_id: _Optional[bytes] = ..., generation: _Optional[int] = ..., generation_ids: _Optional[bytes] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("format", "incarnation", "generation", "generation_id", "acknowledged_index", "data_version")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_INDEX_FIELD_NUMBER: _ClassVar[int]
    DATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    format: int
    incarnation: bytes
    generation: int
    generation_id: bytes
    acknowledged_index: int
    data_version: int
    def __init__(self, format: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., generation: _Optional[int] = ..., generation_id: _Optional[bytes] = ..., acknowledged_index: _Optional[int] = ..., data_version: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_min", "protocol_max", "cluster_id", "node_id", "incarnation", "generation", "generation_ids", "formed", "durable_index", "listed", "target", "joining", "peer_address", "client_address", "data_version", "meeting")
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_IDS_FIELD_NUMBER: _ClassVar[int]
    FORMED_FIELD_NUMBER: _ClassVar[int]
    DURABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    JOINING_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    MEETING_FIELD_NUMBER: _ClassVar[int]
    protocol_min: int
    protocol_max: int
    cluster_id: bytes
    node_id: str
    incarnation: bytes
    generation: int
    generation_ids: bytes
    formed: bool
    durable_index: int
    listed: _containers.RepeatedScalarFieldContainer[str]
    target: str
    joining: bool
    peer_address: str
    client_address: str
    data_version: int
    meeting: bool
    def __init__(self, protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., cluster_id: _Optional[bytes] = ..., node_id: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., generation: _Optional[int] = ..., generation_ids: _Optional[bytes] = ..., formed: _Optional[bool] = ..., durable_index: _Optional[int] = ..., listed: _Optional[_Iterable[str]] = ..., target: _Optional[str] = ..., joining: _Optional[bool] = ..., peer_address: _Optional[str] = ..., client_address: _Optional[str] = ..., data_version: _Optional[int] = ..., meeting: _Optional[bool] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "hello")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    hello: Hello
    def __init__(self, protocol: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ...) -> None: ...

class Reject(_message.Message):
    __slots__ = ("code", "text")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[Reject.Code]
        PROTOCOL: _ClassVar[Reject.Code]
        FOREIGN: _ClassVar[Reject.Code]
        EMPTIED: _ClassVar[Reject.Code]
        ROLLED_BACK: _ClassVar[Reject.Code]
        WRONG_NODE: _ClassVar[Reject.Code]
        BUSY: _ClassVar[Reject.Code]
        REMOVED: _ClassVar[Reject.Code]
    UNSPECIFIED: Reject.Code
    PROTOCOL: Reject.Code
    FOREIGN: Reject.Code
    EMPTIED: Reject.Code
    ROLLED_BACK: Reject.Code
    WRONG_NODE: Reject.Code
    BUSY: Reject.Code
    REMOVED: Reject.Code
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    code: Reject.Code
    text: str
    def __init__(self, code: _Optional[_Union[Reject.Code, str]] = ..., text: _Optional[str] = ...) -> None: ...

class Formation(_message.Message):
    __slots__ = ("seen", "stored")
    SEEN_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    seen: Configuration
    stored: bool
    def __init__(self, seen: _Optional[_Union[Configuration, _Mapping]] = ..., stored: _Optional[bool] = ...) -> None: ...

class PreVote(_message.Message):
    __slots__ = ("last_index", "last_term", "attempt")
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    last_index: int
    last_term: int
    attempt: int
    def __init__(self, last_index: _Optional[int] = ..., last_term: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class PreVoteReply(_message.Message):
    __slots__ = ("granted", "attempt", "current_term")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CURRENT_TERM_FIELD_NUMBER: _ClassVar[int]
    granted: bool
    attempt: int
    current_term: int
    def __init__(self, granted: _Optional[bool] = ..., attempt: _Optional[int] = ..., current_term: _Optional[int] = ...) -> None: ...

class RequestVote(_message.Message):
    __slots__ = ("last_index", "last_term", "transfer")
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    last_index: int
    last_term: int
    transfer: bool
    def __init__(self, last_index: _Optional[int] = ..., last_term: _Optional[int] = ..., transfer: _Optional[bool] = ...) -> None: ...

class Vote(_message.Message):
    __slots__ = ("granted",)
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    granted: bool
    def __init__(self, granted: _Optional[bool] = ...) -> None: ...

class Append(_message.Message):
    __slots__ = ("prev_index", "prev_term", "commit_index", "round", "urgent", "time_ms", "median_ms", "entries", "checkpoint_turn")
    PREV_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREV_TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    URGENT_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_MS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_TURN_FIELD_NUMBER: _ClassVar[int]
    prev_index: int
    prev_term: int
    commit_index: int
    round: int
    urgent: bool
    time_ms: int
    median_ms: int
    entries: _containers.RepeatedScalarFieldContainer[bytes]
    checkpoint_turn: int
    def __init__(self, prev_index: _Optional[int] = ..., prev_term: _Optional[int] = ..., commit_index: _Optional[int] = ..., round: _Optional[int] = ..., urgent: _Optional[bool] = ..., time_ms: _Optional[int] = ..., median_ms: _Optional[int] = ..., entries: _Optional[_Iterable[bytes]] = ..., checkpoint_turn: _Optional[int] = ...) -> None: ...

class AppendReply(_message.Message):
    __slots__ = ("success", "match_index", "prev_index", "hint_index", "round", "wants_snapshot", "low_space", "checkpoint_need", "far_behind")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREV_INDEX_FIELD_NUMBER: _ClassVar[int]
    HINT_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WANTS_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    LOW_SPACE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_NEED_FIELD_NUMBER: _ClassVar[int]
    FAR_BEHIND_FIELD_NUMBER: _ClassVar[int]
    success: bool
    match_index: int
    prev_index: int
    hint_index: int
    round: int
    wants_snapshot: bool
    low_space: bool
    checkpoint_need: int
    far_behind: bool
    def __init__(self, success: _Optional[bool] = ..., match_index: _Optional[int] = ..., prev_index: _Optional[int] = ..., hint_index: _Optional[int] = ..., round: _Optional[int] = ..., wants_snapshot: _Optional[bool] = ..., low_space: _Optional[bool] = ..., checkpoint_need: _Optional[int] = ..., far_behind: _Optional[bool] = ...) -> None: ...

class Stale(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadIndex(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class ReadIndexReply(_message.Message):
    __slots__ = ("id", "ok", "index")
    ID_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    id: int
    ok: bool
    index: int
    def __init__(self, id: _Optional[int] = ..., ok: _Optional[bool] = ..., index: _Optional[int] = ...) -> None: ...

class SnapshotOffer(_message.Message):
    __slots__ = ("manifest",)
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    manifest: Manifest
    def __init__(self, manifest: _Optional[_Union[Manifest, _Mapping]] = ...) -> None: ...

class SnapshotChunk(_message.Message):
    __slots__ = ("file_hash", "offset", "crc", "data")
    FILE_HASH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file_hash: bytes
    offset: int
    crc: int
    data: bytes
    def __init__(self, file_hash: _Optional[bytes] = ..., offset: _Optional[int] = ..., crc: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class SnapshotReply(_message.Message):
    __slots__ = ("file_hash", "offset", "installed", "index", "failed")
    FILE_HASH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    INSTALLED_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    file_hash: bytes
    offset: int
    installed: bool
    index: int
    failed: bool
    def __init__(self, file_hash: _Optional[bytes] = ..., offset: _Optional[int] = ..., installed: _Optional[bool] = ..., index: _Optional[int] = ..., failed: _Optional[bool] = ...) -> None: ...

class TimeoutNow(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StateHash(_message.Message):
    __slots__ = ("index", "content_hash", "verdict")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    index: int
    content_hash: bytes
    verdict: bool
    def __init__(self, index: _Optional[int] = ..., content_hash: _Optional[bytes] = ..., verdict: _Optional[bool] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("term", "wall_ms", "hello", "welcome", "reject", "formation", "pre_vote", "pre_vote_reply", "request_vote", "vote", "append", "append_reply", "stale", "read_index", "read_index_reply", "snapshot_offer", "snapshot_chunk", "snapshot_reply", "timeout_now", "state_hash")
    TERM_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REJECT_FIELD_NUMBER: _ClassVar[int]
    FORMATION_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_REPLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_VOTE_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    APPEND_REPLY_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    READ_INDEX_FIELD_NUMBER: _ClassVar[int]
    READ_INDEX_REPLY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_OFFER_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_CHUNK_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_REPLY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NOW_FIELD_NUMBER: _ClassVar[int]
    STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    term: int
    wall_ms: int
    hello: Hello
    welcome: Welcome
    reject: Reject
    formation: Formation
    pre_vote: PreVote
    pre_vote_reply: PreVoteReply
    request_vote: RequestVote
    vote: Vote
    append: Append
    append_reply: AppendReply
    stale: Stale
    read_index: ReadIndex
    read_index_reply: ReadIndexReply
    snapshot_offer: SnapshotOffer
    snapshot_chunk: SnapshotChunk
    snapshot_reply: SnapshotReply
    timeout_now: TimeoutNow
    state_hash: StateHash
    def __init__(self, term: _Optional[int] = ..., wall_ms: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., reject: _Optional[_Union[Reject, _Mapping]] = ..., formation: _Optional[_Union[Formation, _Mapping]] = ..., pre_vote: _Optional[_Union[PreVote, _Mapping]] = ..., pre_vote_reply: _Optional[_Union[PreVoteReply, _Mapping]] = ..., request_vote: _Optional[_Union[RequestVote, _Mapping]] = ..., vote: _Optional[_Union[Vote, _Mapping]] = ..., append: _Optional[_Union[Append, _Mapping]] = ..., append_reply: _Optional[_Union[AppendReply, _Mapping]] = ..., stale: _Optional[_Union[Stale, _Mapping]] = ..., read_index: _Optional[_Union[ReadIndex, _Mapping]] = ..., read_index_reply: _Optional[_Union[ReadIndexReply, _Mapping]] = ..., snapshot_offer: _Optional[_Union[SnapshotOffer, _Mapping]] = ..., snapshot_chunk: _Optional[_Union[SnapshotChunk, _Mapping]] = ..., snapshot_reply: _Optional[_Union[SnapshotReply, _Mapping]] = ..., timeout_now: _Optional[_Union[TimeoutNow, _Mapping]] = ..., state_hash: _Optional[_Union[StateHash, _Mapping]] = ...) -> None: ...
