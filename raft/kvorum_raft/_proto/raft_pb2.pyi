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
    __slots__ = ("format", "cluster_id", "voters")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    format: int
    cluster_id: bytes
    voters: _containers.RepeatedCompositeFieldContainer[Voter]
    def __init__(self, format: _Optional[int] = ..., cluster_id: _Optional[bytes] = ..., voters: _Optional[_Iterable[_Union[Voter, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("format", "incarnation", "generation", "generation_id", "acknowledged_index")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_INDEX_FIELD_NUMBER: _ClassVar[int]
    format: int
    incarnation: bytes
    generation: int
    generation_id: bytes
    acknowledged_index: int
    def __init__(self, format: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., generation: _Optional[int] = ..., generation_id: _Optional[bytes] = ..., acknowledged_index: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_min", "protocol_max", "cluster_id", "node_id", "incarnation", "generation", "generation_ids", "formed", "durable_index", "listed", "target")
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
    def __init__(self, protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., cluster_id: _Optional[bytes] = ..., node_id: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., generation: _Optional[int] = ..., generation_ids: _Optional[bytes] = ..., formed: _Optional[bool] = ..., durable_index: _Optional[int] = ..., listed: _Optional[_Iterable[str]] = ..., target: _Optional[str] = ...) -> None: ...

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
    UNSPECIFIED: Reject.Code
    PROTOCOL: Reject.Code
    FOREIGN: Reject.Code
    EMPTIED: Reject.Code
    ROLLED_BACK: Reject.Code
    WRONG_NODE: Reject.Code
    BUSY: Reject.Code
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
    __slots__ = ("last_index", "last_term")
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    last_index: int
    last_term: int
    def __init__(self, last_index: _Optional[int] = ..., last_term: _Optional[int] = ...) -> None: ...

class Vote(_message.Message):
    __slots__ = ("granted",)
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    granted: bool
    def __init__(self, granted: _Optional[bool] = ...) -> None: ...

class Append(_message.Message):
    __slots__ = ("prev_index", "prev_term", "commit_index", "round", "urgent", "time_ms", "median_ms", "entries")
    PREV_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREV_TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    URGENT_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_MS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    prev_index: int
    prev_term: int
    commit_index: int
    round: int
    urgent: bool
    time_ms: int
    median_ms: int
    entries: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, prev_index: _Optional[int] = ..., prev_term: _Optional[int] = ..., commit_index: _Optional[int] = ..., round: _Optional[int] = ..., urgent: _Optional[bool] = ..., time_ms: _Optional[int] = ..., median_ms: _Optional[int] = ..., entries: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AppendReply(_message.Message):
    __slots__ = ("success", "match_index", "prev_index", "hint_index", "round")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREV_INDEX_FIELD_NUMBER: _ClassVar[int]
    HINT_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    success: bool
    match_index: int
    prev_index: int
    hint_index: int
    round: int
    def __init__(self, success: _Optional[bool] = ..., match_index: _Optional[int] = ..., prev_index: _Optional[int] = ..., hint_index: _Optional[int] = ..., round: _Optional[int] = ...) -> None: ...

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

class Envelope(_message.Message):
    __slots__ = ("term", "wall_ms", "hello", "welcome", "reject", "formation", "pre_vote", "pre_vote_reply", "request_vote", "vote", "append", "append_reply", "stale", "read_index", "read_index_reply")
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
    def __init__(self, term: _Optional[int] = ..., wall_ms: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., reject: _Optional[_Union[Reject, _Mapping]] = ..., formation: _Optional[_Union[Formation, _Mapping]] = ..., pre_vote: _Optional[_Union[PreVote, _Mapping]] = ..., pre_vote_reply: _Optional[_Union[PreVoteReply, _Mapping]] = ..., request_vote: _Optional[_Union[RequestVote, _Mapping]] = ..., vote: _Optional[_Union[Vote, _Mapping]] = ..., append: _Optional[_Union[Append, _Mapping]] = ..., append_reply: _Optional[_Union[AppendReply, _Mapping]] = ..., stale: _Optional[_Union[Stale, _Mapping]] = ..., read_index: _Optional[_Union[ReadIndex, _Mapping]] = ..., read_index_reply: _Optional[_Union[ReadIndexReply, _Mapping]] = ...) -> None: ...
