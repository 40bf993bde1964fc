from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ValueEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VALUE_ENCODING_UNSPECIFIED: _ClassVar[ValueEncoding]
    VALUE_ENCODING_V8: _ClassVar[ValueEncoding]
    VALUE_ENCODING_LE64: _ClassVar[ValueEncoding]
    VALUE_ENCODING_BYTES: _ClassVar[ValueEncoding]

class CheckKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECK_KIND_EQUALS: _ClassVar[CheckKind]
    CHECK_KIND_EXISTS: _ClassVar[CheckKind]
    CHECK_KIND_NOT_NEWER: _ClassVar[CheckKind]

class MutationType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MUTATION_TYPE_UNSPECIFIED: _ClassVar[MutationType]
    MUTATION_TYPE_SET: _ClassVar[MutationType]
    MUTATION_TYPE_DELETE: _ClassVar[MutationType]
    MUTATION_TYPE_SUM: _ClassVar[MutationType]
    MUTATION_TYPE_MAX: _ClassVar[MutationType]
    MUTATION_TYPE_MIN: _ClassVar[MutationType]
    MUTATION_TYPE_SET_SUFFIX_VERSIONSTAMPED_KEY: _ClassVar[MutationType]
    MUTATION_TYPE_ADD: _ClassVar[MutationType]
    MUTATION_TYPE_TOUCH: _ClassVar[MutationType]
    MUTATION_TYPE_DELETE_RANGE: _ClassVar[MutationType]

class SettleKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SETTLE_KIND_UNSPECIFIED: _ClassVar[SettleKind]
    SETTLE_KIND_ACK: _ClassVar[SettleKind]
    SETTLE_KIND_RETRY: _ClassVar[SettleKind]
    SETTLE_KIND_REJECT: _ClassVar[SettleKind]
    SETTLE_KIND_RETURN: _ClassVar[SettleKind]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_DONE: _ClassVar[Outcome]
    OUTCOME_CHECK_FAILED: _ClassVar[Outcome]
    OUTCOME_TYPE_ERROR: _ClassVar[Outcome]
    OUTCOME_STALE_LEASE: _ClassVar[Outcome]
    OUTCOME_RANGE_ERROR: _ClassVar[Outcome]
    OUTCOME_SESSION_EXPIRED: _ClassVar[Outcome]
    OUTCOME_WINDOW: _ClassVar[Outcome]
    OUTCOME_SEQ_REUSED: _ClassVar[Outcome]
    OUTCOME_ABANDONED: _ClassVar[Outcome]
    OUTCOME_INVALID: _ClassVar[Outcome]
    OUTCOME_OVERLOADED: _ClassVar[Outcome]
    OUTCOME_NO_SPACE: _ClassVar[Outcome]
    OUTCOME_NOT_LEADER: _ClassVar[Outcome]
    OUTCOME_QUARANTINED: _ClassVar[Outcome]
    OUTCOME_UNKNOWN: _ClassVar[Outcome]

class Consistency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONSISTENCY_STRONG: _ClassVar[Consistency]
    CONSISTENCY_BOUNDED: _ClassVar[Consistency]
    CONSISTENCY_EVENTUAL: _ClassVar[Consistency]

class ReadStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READ_STATUS_UNSPECIFIED: _ClassVar[ReadStatus]
    READ_STATUS_OK: _ClassVar[ReadStatus]
    READ_STATUS_NO_LEADER: _ClassVar[ReadStatus]
    READ_STATUS_INVALID: _ClassVar[ReadStatus]
    READ_STATUS_OVERLOADED: _ClassVar[ReadStatus]
    READ_STATUS_TOO_OLD: _ClassVar[ReadStatus]

class ChangeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANGE_KIND_UNSPECIFIED: _ClassVar[ChangeKind]
    CHANGE_KIND_SET: _ClassVar[ChangeKind]
    CHANGE_KIND_DELETE: _ClassVar[ChangeKind]
    CHANGE_KIND_EXPIRE: _ClassVar[ChangeKind]
VALUE_ENCODING_UNSPECIFIED: ValueEncoding
VALUE_ENCODING_V8: ValueEncoding
VALUE_ENCODING_LE64: ValueEncoding
VALUE_ENCODING_BYTES: ValueEncoding
CHECK_KIND_EQUALS: CheckKind
CHECK_KIND_EXISTS: CheckKind
CHECK_KIND_NOT_NEWER: CheckKind
MUTATION_TYPE_UNSPECIFIED: MutationType
MUTATION_TYPE_SET: MutationType
MUTATION_TYPE_DELETE: MutationType
MUTATION_TYPE_SUM: MutationType
MUTATION_TYPE_MAX: MutationType
MUTATION_TYPE_MIN: MutationType
MUTATION_TYPE_SET_SUFFIX_VERSIONSTAMPED_KEY: MutationType
MUTATION_TYPE_ADD: MutationType
MUTATION_TYPE_TOUCH: MutationType
MUTATION_TYPE_DELETE_RANGE: MutationType
SETTLE_KIND_UNSPECIFIED: SettleKind
SETTLE_KIND_ACK: SettleKind
SETTLE_KIND_RETRY: SettleKind
SETTLE_KIND_REJECT: SettleKind
SETTLE_KIND_RETURN: SettleKind
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_DONE: Outcome
OUTCOME_CHECK_FAILED: Outcome
OUTCOME_TYPE_ERROR: Outcome
OUTCOME_STALE_LEASE: Outcome
OUTCOME_RANGE_ERROR: Outcome
OUTCOME_SESSION_EXPIRED: Outcome
OUTCOME_WINDOW: Outcome
OUTCOME_SEQ_REUSED: Outcome
OUTCOME_ABANDONED: Outcome
OUTCOME_INVALID: Outcome
OUTCOME_OVERLOADED: Outcome
OUTCOME_NO_SPACE: Outcome
OUTCOME_NOT_LEADER: Outcome
OUTCOME_QUARANTINED: Outcome
OUTCOME_UNKNOWN: Outcome
CONSISTENCY_STRONG: Consistency
CONSISTENCY_BOUNDED: Consistency
CONSISTENCY_EVENTUAL: Consistency
READ_STATUS_UNSPECIFIED: ReadStatus
READ_STATUS_OK: ReadStatus
READ_STATUS_NO_LEADER: ReadStatus
READ_STATUS_INVALID: ReadStatus
READ_STATUS_OVERLOADED: ReadStatus
READ_STATUS_TOO_OLD: ReadStatus
CHANGE_KIND_UNSPECIFIED: ChangeKind
CHANGE_KIND_SET: ChangeKind
CHANGE_KIND_DELETE: ChangeKind
CHANGE_KIND_EXPIRE: ChangeKind

class KvEntry(_message.Message):
    __slots__ = ("key", "value", "encoding", "versionstamp", "expire_at_ms")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    VERSIONSTAMP_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    encoding: ValueEncoding
    versionstamp: bytes
    expire_at_ms: int
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., encoding: _Optional[_Union[ValueEncoding, str]] = ..., versionstamp: _Optional[bytes] = ..., expire_at_ms: _Optional[int] = ...) -> None: ...

class Check(_message.Message):
    __slots__ = ("key", "versionstamp", "kind")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSIONSTAMP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    versionstamp: bytes
    kind: CheckKind
    def __init__(self, key: _Optional[bytes] = ..., versionstamp: _Optional[bytes] = ..., kind: _Optional[_Union[CheckKind, str]] = ...) -> None: ...

class Mutation(_message.Message):
    __slots__ = ("key", "type", "value", "encoding", "expire_in_ms", "sum_min", "sum_max", "sum_clamp", "end", "limit")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_IN_MS_FIELD_NUMBER: _ClassVar[int]
    SUM_MIN_FIELD_NUMBER: _ClassVar[int]
    SUM_MAX_FIELD_NUMBER: _ClassVar[int]
    SUM_CLAMP_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    type: MutationType
    value: bytes
    encoding: ValueEncoding
    expire_in_ms: int
    sum_min: bytes
    sum_max: bytes
    sum_clamp: bool
    end: bytes
    limit: int
    def __init__(self, key: _Optional[bytes] = ..., type: _Optional[_Union[MutationType, str]] = ..., value: _Optional[bytes] = ..., encoding: _Optional[_Union[ValueEncoding, str]] = ..., expire_in_ms: _Optional[int] = ..., sum_min: _Optional[bytes] = ..., sum_max: _Optional[bytes] = ..., sum_clamp: _Optional[bool] = ..., end: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class Backoff(_message.Message):
    __slots__ = ("delays_ms",)
    DELAYS_MS_FIELD_NUMBER: _ClassVar[int]
    delays_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, delays_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class Enqueue(_message.Message):
    __slots__ = ("queue", "payload", "delay_ms", "keys_if_undelivered", "backoff")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    KEYS_IF_UNDELIVERED_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    queue: str
    payload: bytes
    delay_ms: int
    keys_if_undelivered: _containers.RepeatedScalarFieldContainer[bytes]
    backoff: Backoff
    def __init__(self, queue: _Optional[str] = ..., payload: _Optional[bytes] = ..., delay_ms: _Optional[int] = ..., keys_if_undelivered: _Optional[_Iterable[bytes]] = ..., backoff: _Optional[_Union[Backoff, _Mapping]] = ...) -> None: ...

class Settle(_message.Message):
    __slots__ = ("message_id", "lease_id", "kind", "delay_ms", "reason")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    message_id: bytes
    lease_id: bytes
    kind: SettleKind
    delay_ms: int
    reason: str
    def __init__(self, message_id: _Optional[bytes] = ..., lease_id: _Optional[bytes] = ..., kind: _Optional[_Union[SettleKind, str]] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AtomicWrite(_message.Message):
    __slots__ = ("checks", "mutations", "enqueues", "settles")
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    MUTATIONS_FIELD_NUMBER: _ClassVar[int]
    ENQUEUES_FIELD_NUMBER: _ClassVar[int]
    SETTLES_FIELD_NUMBER: _ClassVar[int]
    checks: _containers.RepeatedCompositeFieldContainer[Check]
    mutations: _containers.RepeatedCompositeFieldContainer[Mutation]
    enqueues: _containers.RepeatedCompositeFieldContainer[Enqueue]
    settles: _containers.RepeatedCompositeFieldContainer[Settle]
    def __init__(self, checks: _Optional[_Iterable[_Union[Check, _Mapping]]] = ..., mutations: _Optional[_Iterable[_Union[Mutation, _Mapping]]] = ..., enqueues: _Optional[_Iterable[_Union[Enqueue, _Mapping]]] = ..., settles: _Optional[_Iterable[_Union[Settle, _Mapping]]] = ...) -> None: ...

class Write(_message.Message):
    __slots__ = ("seq", "op")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    seq: int
    op: bytes
    def __init__(self, seq: _Optional[int] = ..., op: _Optional[bytes] = ...) -> None: ...

class WriteGroup(_message.Message):
    __slots__ = ("session", "ack_below", "writes")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ACK_BELOW_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    ack_below: int
    writes: _containers.RepeatedCompositeFieldContainer[Write]
    def __init__(self, session: _Optional[bytes] = ..., ack_below: _Optional[int] = ..., writes: _Optional[_Iterable[_Union[Write, _Mapping]]] = ...) -> None: ...

class WriteResult(_message.Message):
    __slots__ = ("seq", "outcome", "number", "failed_checks", "message", "digest", "stamp_prefix", "deleted")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FAILED_CHECKS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STAMP_PREFIX_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    seq: int
    outcome: Outcome
    number: int
    failed_checks: _containers.RepeatedScalarFieldContainer[int]
    message: str
    digest: int
    stamp_prefix: bytes
    deleted: int
    def __init__(self, seq: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., number: _Optional[int] = ..., failed_checks: _Optional[_Iterable[int]] = ..., message: _Optional[str] = ..., digest: _Optional[int] = ..., stamp_prefix: _Optional[bytes] = ..., deleted: _Optional[int] = ...) -> None: ...

class ResultGroup(_message.Message):
    __slots__ = ("session", "stamp_prefix", "results")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STAMP_PREFIX_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    stamp_prefix: bytes
    results: _containers.RepeatedCompositeFieldContainer[WriteResult]
    def __init__(self, session: _Optional[bytes] = ..., stamp_prefix: _Optional[bytes] = ..., results: _Optional[_Iterable[_Union[WriteResult, _Mapping]]] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ("client",)
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    client: str
    def __init__(self, client: _Optional[str] = ...) -> None: ...

class CloseSessions(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, sessions: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Sweep(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("queue", "session", "consumer", "count")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    queue: str
    session: bytes
    consumer: int
    count: int
    def __init__(self, queue: _Optional[str] = ..., session: _Optional[bytes] = ..., consumer: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class ReleasedLease(_message.Message):
    __slots__ = ("message_id", "lease_id", "counts")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    message_id: bytes
    lease_id: bytes
    counts: bool
    def __init__(self, message_id: _Optional[bytes] = ..., lease_id: _Optional[bytes] = ..., counts: _Optional[bool] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[ReleasedLease]
    def __init__(self, leases: _Optional[_Iterable[_Union[ReleasedLease, _Mapping]]] = ...) -> None: ...

class InitCluster(_message.Message):
    __slots__ = ("cluster_id", "stamp_base")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    STAMP_BASE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: bytes
    stamp_base: int
    def __init__(self, cluster_id: _Optional[bytes] = ..., stamp_base: _Optional[int] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("writes", "open_session", "close_sessions", "sweep", "lease", "release", "init_cluster")
    WRITES_FIELD_NUMBER: _ClassVar[int]
    OPEN_SESSION_FIELD_NUMBER: _ClassVar[int]
    CLOSE_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    INIT_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    writes: WriteGroup
    open_session: OpenSession
    close_sessions: CloseSessions
    sweep: Sweep
    lease: Lease
    release: Release
    init_cluster: InitCluster
    def __init__(self, writes: _Optional[_Union[WriteGroup, _Mapping]] = ..., open_session: _Optional[_Union[OpenSession, _Mapping]] = ..., close_sessions: _Optional[_Union[CloseSessions, _Mapping]] = ..., sweep: _Optional[_Union[Sweep, _Mapping]] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., init_cluster: _Optional[_Union[InitCluster, _Mapping]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("data_version", "commands")
    DATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    data_version: int
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, data_version: _Optional[int] = ..., commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...

class SessionRow(_message.Message):
    __slots__ = ("ack_below", "client", "opened_at_ms")
    ACK_BELOW_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    OPENED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ack_below: int
    client: str
    opened_at_ms: int
    def __init__(self, ack_below: _Optional[int] = ..., client: _Optional[str] = ..., opened_at_ms: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "client", "token", "cluster_id", "session")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    client: str
    token: str
    cluster_id: bytes
    session: bytes
    def __init__(self, protocol: _Optional[int] = ..., client: _Optional[str] = ..., token: _Optional[str] = ..., cluster_id: _Optional[bytes] = ..., session: _Optional[bytes] = ...) -> None: ...

class ReadRange(_message.Message):
    __slots__ = ("start", "end", "limit", "reverse", "keys_only", "count_only")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    KEYS_ONLY_FIELD_NUMBER: _ClassVar[int]
    COUNT_ONLY_FIELD_NUMBER: _ClassVar[int]
    start: bytes
    end: bytes
    limit: int
    reverse: bool
    keys_only: bool
    count_only: bool
    def __init__(self, start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., limit: _Optional[int] = ..., reverse: _Optional[bool] = ..., keys_only: _Optional[bool] = ..., count_only: _Optional[bool] = ...) -> None: ...

class Read(_message.Message):
    __slots__ = ("id", "keys", "ranges", "consistency", "max_age_ms", "min_versionstamp", "with_expiry")
    ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSIONSTAMP_FIELD_NUMBER: _ClassVar[int]
    WITH_EXPIRY_FIELD_NUMBER: _ClassVar[int]
    id: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    ranges: _containers.RepeatedCompositeFieldContainer[ReadRange]
    consistency: Consistency
    max_age_ms: int
    min_versionstamp: bytes
    with_expiry: bool
    def __init__(self, id: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ..., ranges: _Optional[_Iterable[_Union[ReadRange, _Mapping]]] = ..., consistency: _Optional[_Union[Consistency, str]] = ..., max_age_ms: _Optional[int] = ..., min_versionstamp: _Optional[bytes] = ..., with_expiry: _Optional[bool] = ...) -> None: ...

class StartWatch(_message.Message):
    __slots__ = ("id", "keys", "min_versionstamp", "start", "end", "since", "keys_only")
    ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSIONSTAMP_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    KEYS_ONLY_FIELD_NUMBER: _ClassVar[int]
    id: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    min_versionstamp: bytes
    start: bytes
    end: bytes
    since: bytes
    keys_only: bool
    def __init__(self, id: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ..., min_versionstamp: _Optional[bytes] = ..., start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., since: _Optional[bytes] = ..., keys_only: _Optional[bool] = ...) -> None: ...

class StartConsumer(_message.Message):
    __slots__ = ("id", "queue", "credits", "concurrency", "held")
    ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    id: int
    queue: str
    credits: int
    concurrency: int
    held: _containers.RepeatedCompositeFieldContainer[HeldLease]
    def __init__(self, id: _Optional[int] = ..., queue: _Optional[str] = ..., credits: _Optional[int] = ..., concurrency: _Optional[int] = ..., held: _Optional[_Iterable[_Union[HeldLease, _Mapping]]] = ...) -> None: ...

class HeldLease(_message.Message):
    __slots__ = ("message_id", "lease_id", "started")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    message_id: bytes
    lease_id: bytes
    started: bool
    def __init__(self, message_id: _Optional[bytes] = ..., lease_id: _Optional[bytes] = ..., started: _Optional[bool] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("consumer", "lease_ids")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    consumer: int
    lease_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, consumer: _Optional[int] = ..., lease_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("release",)
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    release: bool
    def __init__(self, release: _Optional[bool] = ...) -> None: ...

class ClientFrame(_message.Message):
    __slots__ = ("hello", "writes", "reads", "watches", "stop_watches", "open_session", "consumers", "stop_consumers", "started", "goodbye", "ping")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    WATCHES_FIELD_NUMBER: _ClassVar[int]
    STOP_WATCHES_FIELD_NUMBER: _ClassVar[int]
    OPEN_SESSION_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    STOP_CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    writes: WriteGroup
    reads: _containers.RepeatedCompositeFieldContainer[Read]
    watches: _containers.RepeatedCompositeFieldContainer[StartWatch]
    stop_watches: _containers.RepeatedScalarFieldContainer[int]
    open_session: OpenSession
    consumers: _containers.RepeatedCompositeFieldContainer[StartConsumer]
    stop_consumers: _containers.RepeatedScalarFieldContainer[int]
    started: _containers.RepeatedCompositeFieldContainer[Started]
    goodbye: Goodbye
    ping: int
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., writes: _Optional[_Union[WriteGroup, _Mapping]] = ..., reads: _Optional[_Iterable[_Union[Read, _Mapping]]] = ..., watches: _Optional[_Iterable[_Union[StartWatch, _Mapping]]] = ..., stop_watches: _Optional[_Iterable[int]] = ..., open_session: _Optional[_Union[OpenSession, _Mapping]] = ..., consumers: _Optional[_Iterable[_Union[StartConsumer, _Mapping]]] = ..., stop_consumers: _Optional[_Iterable[int]] = ..., started: _Optional[_Iterable[_Union[Started, _Mapping]]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., ping: _Optional[int] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("protocol", "cluster_id", "node_id", "leader")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    cluster_id: bytes
    node_id: str
    leader: Leader
    def __init__(self, protocol: _Optional[int] = ..., cluster_id: _Optional[bytes] = ..., node_id: _Optional[str] = ..., leader: _Optional[_Union[Leader, _Mapping]] = ...) -> None: ...

class Leader(_message.Message):
    __slots__ = ("node_id", "address", "term")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    term: int
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...

class RangeResult(_message.Message):
    __slots__ = ("entries", "count")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[KvEntry]
    count: int
    def __init__(self, entries: _Optional[_Iterable[_Union[KvEntry, _Mapping]]] = ..., count: _Optional[int] = ...) -> None: ...

class ReadResult(_message.Message):
    __slots__ = ("id", "status", "entries", "ranges", "read_versionstamp", "message", "more", "time_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    READ_VERSIONSTAMP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    id: int
    status: ReadStatus
    entries: _containers.RepeatedCompositeFieldContainer[KvEntry]
    ranges: _containers.RepeatedCompositeFieldContainer[RangeResult]
    read_versionstamp: bytes
    message: str
    more: bool
    time_ms: int
    def __init__(self, id: _Optional[int] = ..., status: _Optional[_Union[ReadStatus, str]] = ..., entries: _Optional[_Iterable[_Union[KvEntry, _Mapping]]] = ..., ranges: _Optional[_Iterable[_Union[RangeResult, _Mapping]]] = ..., read_versionstamp: _Optional[bytes] = ..., message: _Optional[str] = ..., more: _Optional[bool] = ..., time_ms: _Optional[int] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("kind", "entry")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    kind: ChangeKind
    entry: KvEntry
    def __init__(self, kind: _Optional[_Union[ChangeKind, str]] = ..., entry: _Optional[_Union[KvEntry, _Mapping]] = ...) -> None: ...

class WatchEvent(_message.Message):
    __slots__ = ("id", "entries", "read_versionstamp", "error", "retryable", "changes", "through", "oldest")
    ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    READ_VERSIONSTAMP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    id: int
    entries: _containers.RepeatedCompositeFieldContainer[KvEntry]
    read_versionstamp: bytes
    error: str
    retryable: bool
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    through: bytes
    oldest: bytes
    def __init__(self, id: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[KvEntry, _Mapping]]] = ..., read_versionstamp: _Optional[bytes] = ..., error: _Optional[str] = ..., retryable: _Optional[bool] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., through: _Optional[bytes] = ..., oldest: _Optional[bytes] = ...) -> None: ...

class SessionOpened(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    def __init__(self, session: _Optional[bytes] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("consumer", "message_id", "lease_id", "attempt", "payload", "queue", "enqueued_at_ms")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    consumer: int
    message_id: bytes
    lease_id: bytes
    attempt: int
    payload: bytes
    queue: str
    enqueued_at_ms: int
    def __init__(self, consumer: _Optional[int] = ..., message_id: _Optional[bytes] = ..., lease_id: _Optional[bytes] = ..., attempt: _Optional[int] = ..., payload: _Optional[bytes] = ..., queue: _Optional[str] = ..., enqueued_at_ms: _Optional[int] = ...) -> None: ...

class ServerFrame(_message.Message):
    __slots__ = ("hello", "results", "reads", "watches", "session", "deliveries", "leader", "pong", "error", "error_is_final")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    WATCHES_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    hello: HelloReply
    results: _containers.RepeatedCompositeFieldContainer[ResultGroup]
    reads: _containers.RepeatedCompositeFieldContainer[ReadResult]
    watches: _containers.RepeatedCompositeFieldContainer[WatchEvent]
    session: SessionOpened
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    leader: Leader
    pong: int
    error: str
    error_is_final: bool
    def __init__(self, hello: _Optional[_Union[HelloReply, _Mapping]] = ..., results: _Optional[_Iterable[_Union[ResultGroup, _Mapping]]] = ..., reads: _Optional[_Iterable[_Union[ReadResult, _Mapping]]] = ..., watches: _Optional[_Iterable[_Union[WatchEvent, _Mapping]]] = ..., session: _Optional[_Union[SessionOpened, _Mapping]] = ..., deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ..., leader: _Optional[_Union[Leader, _Mapping]] = ..., pong: _Optional[int] = ..., error: _Optional[str] = ..., error_is_final: _Optional[bool] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("write",)
    WRITE_FIELD_NUMBER: _ClassVar[int]
    write: AtomicWrite
    def __init__(self, write: _Optional[_Union[AtomicWrite, _Mapping]] = ...) -> None: ...

class WriteResponse(_message.Message):
    __slots__ = ("outcome", "versionstamp", "failed_checks", "message", "deleted")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VERSIONSTAMP_FIELD_NUMBER: _ClassVar[int]
    FAILED_CHECKS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    versionstamp: bytes
    failed_checks: _containers.RepeatedScalarFieldContainer[int]
    message: str
    deleted: int
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., versionstamp: _Optional[bytes] = ..., failed_checks: _Optional[_Iterable[int]] = ..., message: _Optional[str] = ..., deleted: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PeerStatus(_message.Message):
    __slots__ = ("node_id", "address", "connected", "match_index", "voter")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    MATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    VOTER_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    connected: bool
    match_index: int
    voter: bool
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ..., connected: _Optional[bool] = ..., match_index: _Optional[int] = ..., voter: _Optional[bool] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("node_id", "cluster_id", "role", "term", "leader", "commit_index", "applied_index", "last_log_index", "durable_index", "state_hash", "peers", "version", "uptime_ms", "statistics")
    class StatisticsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_LOG_INDEX_FIELD_NUMBER: _ClassVar[int]
    DURABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    cluster_id: bytes
    role: str
    term: int
    leader: Leader
    commit_index: int
    applied_index: int
    last_log_index: int
    durable_index: int
    state_hash: bytes
    peers: _containers.RepeatedCompositeFieldContainer[PeerStatus]
    version: str
    uptime_ms: int
    statistics: _containers.ScalarMap[str, float]
    def __init__(self, node_id: _Optional[str] = ..., cluster_id: _Optional[bytes] = ..., role: _Optional[str] = ..., term: _Optional[int] = ..., leader: _Optional[_Union[Leader, _Mapping]] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., last_log_index: _Optional[int] = ..., durable_index: _Optional[int] = ..., state_hash: _Optional[bytes] = ..., peers: _Optional[_Iterable[_Union[PeerStatus, _Mapping]]] = ..., version: _Optional[str] = ..., uptime_ms: _Optional[int] = ..., statistics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("node_id", "peer_address", "client_address", "voter", "connected", "match_index", "applied_index", "lag", "snapshot_sent", "snapshot_size")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VOTER_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    MATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_SENT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_SIZE_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    peer_address: str
    client_address: str
    voter: bool
    connected: bool
    match_index: int
    applied_index: int
    lag: int
    snapshot_sent: int
    snapshot_size: int
    def __init__(self, node_id: _Optional[str] = ..., peer_address: _Optional[str] = ..., client_address: _Optional[str] = ..., voter: _Optional[bool] = ..., connected: _Optional[bool] = ..., match_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., lag: _Optional[int] = ..., snapshot_sent: _Optional[int] = ..., snapshot_size: _Optional[int] = ...) -> None: ...

class MembersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MembersResponse(_message.Message):
    __slots__ = ("cluster_id", "node_id", "role", "leader", "term", "commit_index", "members", "no_space")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    NO_SPACE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: bytes
    node_id: str
    role: str
    leader: Leader
    term: int
    commit_index: int
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    no_space: str
    def __init__(self, cluster_id: _Optional[bytes] = ..., node_id: _Optional[str] = ..., role: _Optional[str] = ..., leader: _Optional[_Union[Leader, _Mapping]] = ..., term: _Optional[int] = ..., commit_index: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., no_space: _Optional[str] = ...) -> None: ...

class AddMemberRequest(_message.Message):
    __slots__ = ("node_id", "peer_address", "client_address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    peer_address: str
    client_address: str
    def __init__(self, node_id: _Optional[str] = ..., peer_address: _Optional[str] = ..., client_address: _Optional[str] = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class ReplaceRequest(_message.Message):
    __slots__ = ("node_id", "peer_address", "client_address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    peer_address: str
    client_address: str
    def __init__(self, node_id: _Optional[str] = ..., peer_address: _Optional[str] = ..., client_address: _Optional[str] = ...) -> None: ...

class TransferRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class SetTimeRequest(_message.Message):
    __slots__ = ("unix_ms",)
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    unix_ms: int
    def __init__(self, unix_ms: _Optional[int] = ...) -> None: ...

class AdminResponse(_message.Message):
    __slots__ = ("leader_id",)
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    leader_id: str
    def __init__(self, leader_id: _Optional[str] = ...) -> None: ...
