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
    SETTLE_KIND_EXTEND: _ClassVar[SettleKind]
    SETTLE_KIND_CANCEL: _ClassVar[SettleKind]
    SETTLE_KIND_RESCHEDULE: _ClassVar[SettleKind]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_DONE: _ClassVar[Outcome]
    OUTCOME_CHECK_FAILED: _ClassVar[Outcome]
    OUTCOME_TYPE_ERROR: _ClassVar[Outcome]
    OUTCOME_STALE_LEASE: _ClassVar[Outcome]
    OUTCOME_RANGE_ERROR: _ClassVar[Outcome]
    OUTCOME_QUEUE_FULL: _ClassVar[Outcome]
    OUTCOME_MESSAGE_GONE: _ClassVar[Outcome]
    OUTCOME_DENIED: _ClassVar[Outcome]
    OUTCOME_SESSION_EXPIRED: _ClassVar[Outcome]
    OUTCOME_WINDOW: _ClassVar[Outcome]
    OUTCOME_SEQ_REUSED: _ClassVar[Outcome]
    OUTCOME_ABANDONED: _ClassVar[Outcome]
    OUTCOME_UNAUTHENTICATED: _ClassVar[Outcome]
    OUTCOME_INVALID: _ClassVar[Outcome]
    OUTCOME_OVERLOADED: _ClassVar[Outcome]
    OUTCOME_NO_SPACE: _ClassVar[Outcome]
    OUTCOME_NOT_LEADER: _ClassVar[Outcome]
    OUTCOME_QUARANTINED: _ClassVar[Outcome]
    OUTCOME_UNKNOWN: _ClassVar[Outcome]

class DeadLetters(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEAD_LETTERS_UNSPECIFIED: _ClassVar[DeadLetters]
    DEAD_LETTERS_KEEP: _ClassVar[DeadLetters]
    DEAD_LETTERS_DROP: _ClassVar[DeadLetters]
    DEAD_LETTERS_QUEUE: _ClassVar[DeadLetters]

class Misfire(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISFIRE_UNSPECIFIED: _ClassVar[Misfire]
    MISFIRE_SKIP: _ClassVar[Misfire]
    MISFIRE_ONCE: _ClassVar[Misfire]
    MISFIRE_ALL: _ClassVar[Misfire]

class Consistency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONSISTENCY_STRONG: _ClassVar[Consistency]
    CONSISTENCY_BOUNDED: _ClassVar[Consistency]
    CONSISTENCY_EVENTUAL: _ClassVar[Consistency]

class PeekKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PEEK_KIND_UNSPECIFIED: _ClassVar[PeekKind]
    PEEK_KIND_READY: _ClassVar[PeekKind]
    PEEK_KIND_LEASED: _ClassVar[PeekKind]
    PEEK_KIND_DEAD: _ClassVar[PeekKind]

class FailureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_KIND_UNSPECIFIED: _ClassVar[FailureKind]
    FAILURE_KIND_FAILED: _ClassVar[FailureKind]
    FAILURE_KIND_REJECTED: _ClassVar[FailureKind]
    FAILURE_KIND_LOST: _ClassVar[FailureKind]

class MessageState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MESSAGE_STATE_UNSPECIFIED: _ClassVar[MessageState]
    MESSAGE_STATE_READY: _ClassVar[MessageState]
    MESSAGE_STATE_SCHEDULED: _ClassVar[MessageState]
    MESSAGE_STATE_WAITING: _ClassVar[MessageState]
    MESSAGE_STATE_LEASED: _ClassVar[MessageState]
    MESSAGE_STATE_DEAD: _ClassVar[MessageState]

class ReadStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READ_STATUS_UNSPECIFIED: _ClassVar[ReadStatus]
    READ_STATUS_OK: _ClassVar[ReadStatus]
    READ_STATUS_NO_LEADER: _ClassVar[ReadStatus]
    READ_STATUS_INVALID: _ClassVar[ReadStatus]
    READ_STATUS_OVERLOADED: _ClassVar[ReadStatus]
    READ_STATUS_TOO_OLD: _ClassVar[ReadStatus]
    READ_STATUS_DENIED: _ClassVar[ReadStatus]
    READ_STATUS_UNAUTHENTICATED: _ClassVar[ReadStatus]

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
SETTLE_KIND_EXTEND: SettleKind
SETTLE_KIND_CANCEL: SettleKind
SETTLE_KIND_RESCHEDULE: SettleKind
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_DONE: Outcome
OUTCOME_CHECK_FAILED: Outcome
OUTCOME_TYPE_ERROR: Outcome
OUTCOME_STALE_LEASE: Outcome
OUTCOME_RANGE_ERROR: Outcome
OUTCOME_QUEUE_FULL: Outcome
OUTCOME_MESSAGE_GONE: Outcome
OUTCOME_DENIED: Outcome
OUTCOME_SESSION_EXPIRED: Outcome
OUTCOME_WINDOW: Outcome
OUTCOME_SEQ_REUSED: Outcome
OUTCOME_ABANDONED: Outcome
OUTCOME_UNAUTHENTICATED: Outcome
OUTCOME_INVALID: Outcome
OUTCOME_OVERLOADED: Outcome
OUTCOME_NO_SPACE: Outcome
OUTCOME_NOT_LEADER: Outcome
OUTCOME_QUARANTINED: Outcome
OUTCOME_UNKNOWN: Outcome
DEAD_LETTERS_UNSPECIFIED: DeadLetters
DEAD_LETTERS_KEEP: DeadLetters
DEAD_LETTERS_DROP: DeadLetters
DEAD_LETTERS_QUEUE: DeadLetters
MISFIRE_UNSPECIFIED: Misfire
MISFIRE_SKIP: Misfire
MISFIRE_ONCE: Misfire
MISFIRE_ALL: Misfire
CONSISTENCY_STRONG: Consistency
CONSISTENCY_BOUNDED: Consistency
CONSISTENCY_EVENTUAL: Consistency
PEEK_KIND_UNSPECIFIED: PeekKind
PEEK_KIND_READY: PeekKind
PEEK_KIND_LEASED: PeekKind
PEEK_KIND_DEAD: PeekKind
FAILURE_KIND_UNSPECIFIED: FailureKind
FAILURE_KIND_FAILED: FailureKind
FAILURE_KIND_REJECTED: FailureKind
FAILURE_KIND_LOST: FailureKind
MESSAGE_STATE_UNSPECIFIED: MessageState
MESSAGE_STATE_READY: MessageState
MESSAGE_STATE_SCHEDULED: MessageState
MESSAGE_STATE_WAITING: MessageState
MESSAGE_STATE_LEASED: MessageState
MESSAGE_STATE_DEAD: MessageState
READ_STATUS_UNSPECIFIED: ReadStatus
READ_STATUS_OK: ReadStatus
READ_STATUS_NO_LEADER: ReadStatus
READ_STATUS_INVALID: ReadStatus
READ_STATUS_OVERLOADED: ReadStatus
READ_STATUS_TOO_OLD: ReadStatus
READ_STATUS_DENIED: ReadStatus
READ_STATUS_UNAUTHENTICATED: ReadStatus
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
    __slots__ = ("queue", "payload", "delay_ms", "keys_if_undelivered", "backoff", "group", "dedup_id", "dedup_window_ms", "headers", "ttl_ms", "topic")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    KEYS_IF_UNDELIVERED_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DEDUP_ID_FIELD_NUMBER: _ClassVar[int]
    DEDUP_WINDOW_MS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    queue: str
    payload: bytes
    delay_ms: int
    keys_if_undelivered: _containers.RepeatedScalarFieldContainer[bytes]
    backoff: Backoff
    group: str
    dedup_id: bytes
    dedup_window_ms: int
    headers: bytes
    ttl_ms: int
    topic: str
    def __init__(self, queue: _Optional[str] = ..., payload: _Optional[bytes] = ..., delay_ms: _Optional[int] = ..., keys_if_undelivered: _Optional[_Iterable[bytes]] = ..., backoff: _Optional[_Union[Backoff, _Mapping]] = ..., group: _Optional[str] = ..., dedup_id: _Optional[bytes] = ..., dedup_window_ms: _Optional[int] = ..., headers: _Optional[bytes] = ..., ttl_ms: _Optional[int] = ..., topic: _Optional[str] = ...) -> None: ...

class Headers(_message.Message):
    __slots__ = ("fields", "reply_to", "correlation", "tick_ms")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_FIELD_NUMBER: _ClassVar[int]
    TICK_MS_FIELD_NUMBER: _ClassVar[int]
    fields: _containers.ScalarMap[str, str]
    reply_to: str
    correlation: bytes
    tick_ms: int
    def __init__(self, fields: _Optional[_Mapping[str, str]] = ..., reply_to: _Optional[str] = ..., correlation: _Optional[bytes] = ..., tick_ms: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("checks", "mutations", "enqueues", "settles", "each")
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    MUTATIONS_FIELD_NUMBER: _ClassVar[int]
    ENQUEUES_FIELD_NUMBER: _ClassVar[int]
    SETTLES_FIELD_NUMBER: _ClassVar[int]
    EACH_FIELD_NUMBER: _ClassVar[int]
    checks: _containers.RepeatedCompositeFieldContainer[Check]
    mutations: _containers.RepeatedCompositeFieldContainer[Mutation]
    enqueues: _containers.RepeatedCompositeFieldContainer[Enqueue]
    settles: _containers.RepeatedCompositeFieldContainer[Settle]
    each: bool
    def __init__(self, checks: _Optional[_Iterable[_Union[Check, _Mapping]]] = ..., mutations: _Optional[_Iterable[_Union[Mutation, _Mapping]]] = ..., enqueues: _Optional[_Iterable[_Union[Enqueue, _Mapping]]] = ..., settles: _Optional[_Iterable[_Union[Settle, _Mapping]]] = ..., each: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("seq", "outcome", "number", "failed_checks", "message", "digest", "stamp_prefix", "deleted", "duplicates")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FAILED_CHECKS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STAMP_PREFIX_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    seq: int
    outcome: Outcome
    number: int
    failed_checks: _containers.RepeatedScalarFieldContainer[int]
    message: str
    digest: int
    stamp_prefix: bytes
    deleted: int
    duplicates: _containers.RepeatedCompositeFieldContainer[Duplicate]
    def __init__(self, seq: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., number: _Optional[int] = ..., failed_checks: _Optional[_Iterable[int]] = ..., message: _Optional[str] = ..., digest: _Optional[int] = ..., stamp_prefix: _Optional[bytes] = ..., deleted: _Optional[int] = ..., duplicates: _Optional[_Iterable[_Union[Duplicate, _Mapping]]] = ...) -> None: ...

class Duplicate(_message.Message):
    __slots__ = ("enqueue", "message_id")
    ENQUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    enqueue: int
    message_id: bytes
    def __init__(self, enqueue: _Optional[int] = ..., message_id: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ("queue", "session", "consumer", "count", "take", "expiring")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    EXPIRING_FIELD_NUMBER: _ClassVar[int]
    queue: str
    session: bytes
    consumer: int
    count: int
    take: bool
    expiring: bool
    def __init__(self, queue: _Optional[str] = ..., session: _Optional[bytes] = ..., consumer: _Optional[int] = ..., count: _Optional[int] = ..., take: _Optional[bool] = ..., expiring: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("leases", "known")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[ReleasedLease]
    known: int
    def __init__(self, leases: _Optional[_Iterable[_Union[ReleasedLease, _Mapping]]] = ..., known: _Optional[int] = ...) -> None: ...

class InitCluster(_message.Message):
    __slots__ = ("cluster_id", "stamp_base")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    STAMP_BASE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: bytes
    stamp_base: int
    def __init__(self, cluster_id: _Optional[bytes] = ..., stamp_base: _Optional[int] = ...) -> None: ...

class Exponential(_message.Message):
    __slots__ = ("base_ms", "factor_percent", "cap_ms", "jitter_percent")
    BASE_MS_FIELD_NUMBER: _ClassVar[int]
    FACTOR_PERCENT_FIELD_NUMBER: _ClassVar[int]
    CAP_MS_FIELD_NUMBER: _ClassVar[int]
    JITTER_PERCENT_FIELD_NUMBER: _ClassVar[int]
    base_ms: int
    factor_percent: int
    cap_ms: int
    jitter_percent: int
    def __init__(self, base_ms: _Optional[int] = ..., factor_percent: _Optional[int] = ..., cap_ms: _Optional[int] = ..., jitter_percent: _Optional[int] = ...) -> None: ...

class QueuePolicy(_message.Message):
    __slots__ = ("lease_ms", "max_attempts", "backoff", "exponential", "dead_letters", "dead_letter_queue", "max_batch", "max_wait_ms", "retention_ms", "max_backlog", "max_in_flight", "ordered")
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    EXPONENTIAL_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_QUEUE_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_BACKLOG_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    lease_ms: int
    max_attempts: int
    backoff: Backoff
    exponential: Exponential
    dead_letters: DeadLetters
    dead_letter_queue: str
    max_batch: int
    max_wait_ms: int
    retention_ms: int
    max_backlog: int
    max_in_flight: int
    ordered: bool
    def __init__(self, lease_ms: _Optional[int] = ..., max_attempts: _Optional[int] = ..., backoff: _Optional[_Union[Backoff, _Mapping]] = ..., exponential: _Optional[_Union[Exponential, _Mapping]] = ..., dead_letters: _Optional[_Union[DeadLetters, str]] = ..., dead_letter_queue: _Optional[str] = ..., max_batch: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., retention_ms: _Optional[int] = ..., max_backlog: _Optional[int] = ..., max_in_flight: _Optional[int] = ..., ordered: _Optional[bool] = ...) -> None: ...

class DefineQueue(_message.Message):
    __slots__ = ("name", "policy")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    name: str
    policy: bytes
    def __init__(self, name: _Optional[str] = ..., policy: _Optional[bytes] = ...) -> None: ...

class RemoveQueue(_message.Message):
    __slots__ = ("name", "limit", "after")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    name: str
    limit: int
    after: bytes
    def __init__(self, name: _Optional[str] = ..., limit: _Optional[int] = ..., after: _Optional[bytes] = ...) -> None: ...

class PauseQueue(_message.Message):
    __slots__ = ("name", "paused")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    paused: bool
    def __init__(self, name: _Optional[str] = ..., paused: _Optional[bool] = ...) -> None: ...

class Purge(_message.Message):
    __slots__ = ("queue", "dead", "limit", "after")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    queue: str
    dead: bool
    limit: int
    after: bytes
    def __init__(self, queue: _Optional[str] = ..., dead: _Optional[bool] = ..., limit: _Optional[int] = ..., after: _Optional[bytes] = ...) -> None: ...

class Requeue(_message.Message):
    __slots__ = ("queue", "message_ids", "limit", "to_origin", "after")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TO_ORIGIN_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    queue: str
    message_ids: _containers.RepeatedScalarFieldContainer[bytes]
    limit: int
    to_origin: bool
    after: bytes
    def __init__(self, queue: _Optional[str] = ..., message_ids: _Optional[_Iterable[bytes]] = ..., limit: _Optional[int] = ..., to_origin: _Optional[bool] = ..., after: _Optional[bytes] = ...) -> None: ...

class DefineTopic(_message.Message):
    __slots__ = ("name", "retention_ms", "remove")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    retention_ms: int
    remove: bool
    def __init__(self, name: _Optional[str] = ..., retention_ms: _Optional[int] = ..., remove: _Optional[bool] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("topic", "queue", "since_ms", "remove")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: str
    since_ms: int
    remove: bool
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[str] = ..., since_ms: _Optional[int] = ..., remove: _Optional[bool] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("cron", "time_zone", "message", "misfire", "grace_ms")
    CRON_FIELD_NUMBER: _ClassVar[int]
    TIME_ZONE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MISFIRE_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    cron: str
    time_zone: str
    message: Enqueue
    misfire: Misfire
    grace_ms: int
    def __init__(self, cron: _Optional[str] = ..., time_zone: _Optional[str] = ..., message: _Optional[_Union[Enqueue, _Mapping]] = ..., misfire: _Optional[_Union[Misfire, str]] = ..., grace_ms: _Optional[int] = ...) -> None: ...

class DefineSchedule(_message.Message):
    __slots__ = ("name", "definition", "next_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    definition: bytes
    next_ms: int
    def __init__(self, name: _Optional[str] = ..., definition: _Optional[bytes] = ..., next_ms: _Optional[int] = ...) -> None: ...

class Tick(_message.Message):
    __slots__ = ("schedule", "tick_ms", "next_ms", "skip")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    TICK_MS_FIELD_NUMBER: _ClassVar[int]
    NEXT_MS_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    schedule: str
    tick_ms: int
    next_ms: int
    skip: bool
    def __init__(self, schedule: _Optional[str] = ..., tick_ms: _Optional[int] = ..., next_ms: _Optional[int] = ..., skip: _Optional[bool] = ...) -> None: ...

class KeyScope(_message.Message):
    __slots__ = ("prefix", "read", "write")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    prefix: bytes
    read: bool
    write: bool
    def __init__(self, prefix: _Optional[bytes] = ..., read: _Optional[bool] = ..., write: _Optional[bool] = ...) -> None: ...

class QueueScope(_message.Message):
    __slots__ = ("name", "prefix", "send", "receive", "manage")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_FIELD_NUMBER: _ClassVar[int]
    MANAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    prefix: bool
    send: bool
    receive: bool
    manage: bool
    def __init__(self, name: _Optional[str] = ..., prefix: _Optional[bool] = ..., send: _Optional[bool] = ..., receive: _Optional[bool] = ..., manage: _Optional[bool] = ...) -> None: ...

class Scopes(_message.Message):
    __slots__ = ("keys", "queues", "admin", "operations_per_s", "connections")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_PER_S_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[KeyScope]
    queues: _containers.RepeatedCompositeFieldContainer[QueueScope]
    admin: bool
    operations_per_s: int
    connections: int
    def __init__(self, keys: _Optional[_Iterable[_Union[KeyScope, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[QueueScope, _Mapping]]] = ..., admin: _Optional[bool] = ..., operations_per_s: _Optional[int] = ..., connections: _Optional[int] = ...) -> None: ...

class PutToken(_message.Message):
    __slots__ = ("id", "secret", "overlap_ms", "name", "scopes", "expire_in_ms", "disabled")
    ID_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_MS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_IN_MS_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    secret: bytes
    overlap_ms: int
    name: str
    scopes: bytes
    expire_in_ms: int
    disabled: bool
    def __init__(self, id: _Optional[bytes] = ..., secret: _Optional[bytes] = ..., overlap_ms: _Optional[int] = ..., name: _Optional[str] = ..., scopes: _Optional[bytes] = ..., expire_in_ms: _Optional[int] = ..., disabled: _Optional[bool] = ...) -> None: ...

class RemoveToken(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    def __init__(self, id: _Optional[bytes] = ...) -> None: ...

class SwitchAuth(_message.Message):
    __slots__ = ("on",)
    ON_FIELD_NUMBER: _ClassVar[int]
    on: bool
    def __init__(self, on: _Optional[bool] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("principal", "writes", "open_session", "close_sessions", "sweep", "lease", "release", "init_cluster", "define_queue", "remove_queue", "pause_queue", "purge", "requeue", "define_topic", "subscribe", "define_schedule", "tick", "put_token", "remove_token", "switch_auth")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    OPEN_SESSION_FIELD_NUMBER: _ClassVar[int]
    CLOSE_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    INIT_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    DEFINE_QUEUE_FIELD_NUMBER: _ClassVar[int]
    REMOVE_QUEUE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_QUEUE_FIELD_NUMBER: _ClassVar[int]
    PURGE_FIELD_NUMBER: _ClassVar[int]
    REQUEUE_FIELD_NUMBER: _ClassVar[int]
    DEFINE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    DEFINE_SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    PUT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REMOVE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SWITCH_AUTH_FIELD_NUMBER: _ClassVar[int]
    principal: bytes
    writes: WriteGroup
    open_session: OpenSession
    close_sessions: CloseSessions
    sweep: Sweep
    lease: Lease
    release: Release
    init_cluster: InitCluster
    define_queue: DefineQueue
    remove_queue: RemoveQueue
    pause_queue: PauseQueue
    purge: Purge
    requeue: Requeue
    define_topic: DefineTopic
    subscribe: Subscribe
    define_schedule: DefineSchedule
    tick: Tick
    put_token: PutToken
    remove_token: RemoveToken
    switch_auth: SwitchAuth
    def __init__(self, principal: _Optional[bytes] = ..., writes: _Optional[_Union[WriteGroup, _Mapping]] = ..., open_session: _Optional[_Union[OpenSession, _Mapping]] = ..., close_sessions: _Optional[_Union[CloseSessions, _Mapping]] = ..., sweep: _Optional[_Union[Sweep, _Mapping]] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., init_cluster: _Optional[_Union[InitCluster, _Mapping]] = ..., define_queue: _Optional[_Union[DefineQueue, _Mapping]] = ..., remove_queue: _Optional[_Union[RemoveQueue, _Mapping]] = ..., pause_queue: _Optional[_Union[PauseQueue, _Mapping]] = ..., purge: _Optional[_Union[Purge, _Mapping]] = ..., requeue: _Optional[_Union[Requeue, _Mapping]] = ..., define_topic: _Optional[_Union[DefineTopic, _Mapping]] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., define_schedule: _Optional[_Union[DefineSchedule, _Mapping]] = ..., tick: _Optional[_Union[Tick, _Mapping]] = ..., put_token: _Optional[_Union[PutToken, _Mapping]] = ..., remove_token: _Optional[_Union[RemoveToken, _Mapping]] = ..., switch_auth: _Optional[_Union[SwitchAuth, _Mapping]] = ...) -> None: ...

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

class PointReads(_message.Message):
    __slots__ = ("id", "keys", "consistency", "max_age_ms", "min_versionstamp")
    ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSIONSTAMP_FIELD_NUMBER: _ClassVar[int]
    id: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    consistency: Consistency
    max_age_ms: int
    min_versionstamp: bytes
    def __init__(self, id: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ..., consistency: _Optional[_Union[Consistency, str]] = ..., max_age_ms: _Optional[int] = ..., min_versionstamp: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ("id", "queue", "credits", "concurrency", "held", "take", "expiring")
    ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    EXPIRING_FIELD_NUMBER: _ClassVar[int]
    id: int
    queue: str
    credits: int
    concurrency: int
    held: _containers.RepeatedCompositeFieldContainer[HeldLease]
    take: bool
    expiring: bool
    def __init__(self, id: _Optional[int] = ..., queue: _Optional[str] = ..., credits: _Optional[int] = ..., concurrency: _Optional[int] = ..., held: _Optional[_Iterable[_Union[HeldLease, _Mapping]]] = ..., take: _Optional[bool] = ..., expiring: _Optional[bool] = ...) -> None: ...

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

class Peek(_message.Message):
    __slots__ = ("queue", "kind", "limit", "after", "message_id")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    queue: str
    kind: PeekKind
    limit: int
    after: bytes
    message_id: bytes
    def __init__(self, queue: _Optional[str] = ..., kind: _Optional[_Union[PeekKind, str]] = ..., limit: _Optional[int] = ..., after: _Optional[bytes] = ..., message_id: _Optional[bytes] = ...) -> None: ...

class ListQueues(_message.Message):
    __slots__ = ("prefix", "limit", "after", "counts", "name", "one")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ONE_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    limit: int
    after: bytes
    counts: bool
    name: str
    one: bool
    def __init__(self, prefix: _Optional[str] = ..., limit: _Optional[int] = ..., after: _Optional[bytes] = ..., counts: _Optional[bool] = ..., name: _Optional[str] = ..., one: _Optional[bool] = ...) -> None: ...

class ListTopics(_message.Message):
    __slots__ = ("limit", "after")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    limit: int
    after: bytes
    def __init__(self, limit: _Optional[int] = ..., after: _Optional[bytes] = ...) -> None: ...

class ListSchedules(_message.Message):
    __slots__ = ("limit", "after")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    limit: int
    after: bytes
    def __init__(self, limit: _Optional[int] = ..., after: _Optional[bytes] = ...) -> None: ...

class ListTokens(_message.Message):
    __slots__ = ("limit", "after")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    limit: int
    after: bytes
    def __init__(self, limit: _Optional[int] = ..., after: _Optional[bytes] = ...) -> None: ...

class WhoAmI(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QueueCall(_message.Message):
    __slots__ = ("id", "define", "remove", "pause", "purge", "requeue", "topic", "subscribe", "schedule", "peek", "queues", "topics", "schedules", "put_token", "remove_token", "switch_auth", "tokens", "who_am_i")
    ID_FIELD_NUMBER: _ClassVar[int]
    DEFINE_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    PURGE_FIELD_NUMBER: _ClassVar[int]
    REQUEUE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    PEEK_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    PUT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REMOVE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SWITCH_AUTH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    WHO_AM_I_FIELD_NUMBER: _ClassVar[int]
    id: int
    define: DefineQueue
    remove: RemoveQueue
    pause: PauseQueue
    purge: Purge
    requeue: Requeue
    topic: DefineTopic
    subscribe: Subscribe
    schedule: DefineSchedule
    peek: Peek
    queues: ListQueues
    topics: ListTopics
    schedules: ListSchedules
    put_token: PutToken
    remove_token: RemoveToken
    switch_auth: SwitchAuth
    tokens: ListTokens
    who_am_i: WhoAmI
    def __init__(self, id: _Optional[int] = ..., define: _Optional[_Union[DefineQueue, _Mapping]] = ..., remove: _Optional[_Union[RemoveQueue, _Mapping]] = ..., pause: _Optional[_Union[PauseQueue, _Mapping]] = ..., purge: _Optional[_Union[Purge, _Mapping]] = ..., requeue: _Optional[_Union[Requeue, _Mapping]] = ..., topic: _Optional[_Union[DefineTopic, _Mapping]] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., schedule: _Optional[_Union[DefineSchedule, _Mapping]] = ..., peek: _Optional[_Union[Peek, _Mapping]] = ..., queues: _Optional[_Union[ListQueues, _Mapping]] = ..., topics: _Optional[_Union[ListTopics, _Mapping]] = ..., schedules: _Optional[_Union[ListSchedules, _Mapping]] = ..., put_token: _Optional[_Union[PutToken, _Mapping]] = ..., remove_token: _Optional[_Union[RemoveToken, _Mapping]] = ..., switch_auth: _Optional[_Union[SwitchAuth, _Mapping]] = ..., tokens: _Optional[_Union[ListTokens, _Mapping]] = ..., who_am_i: _Optional[_Union[WhoAmI, _Mapping]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("attempt", "at_ms", "kind", "reason")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    at_ms: int
    kind: FailureKind
    reason: str
    def __init__(self, attempt: _Optional[int] = ..., at_ms: _Optional[int] = ..., kind: _Optional[_Union[FailureKind, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Origin(_message.Message):
    __slots__ = ("queue", "message_id", "enqueued_at_ms", "died_at_ms", "attempts")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DIED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    message_id: bytes
    enqueued_at_ms: int
    died_at_ms: int
    attempts: int
    def __init__(self, queue: _Optional[str] = ..., message_id: _Optional[bytes] = ..., enqueued_at_ms: _Optional[int] = ..., died_at_ms: _Optional[int] = ..., attempts: _Optional[int] = ...) -> None: ...

class MessageInfo(_message.Message):
    __slots__ = ("message_id", "queue", "state", "enqueued_at_ms", "due_ms", "attempt", "payload", "headers", "group", "dedup_id", "session", "consumer", "failures", "origin", "expires_ms")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DEDUP_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    message_id: bytes
    queue: str
    state: MessageState
    enqueued_at_ms: int
    due_ms: int
    attempt: int
    payload: bytes
    headers: bytes
    group: str
    dedup_id: bytes
    session: bytes
    consumer: int
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    origin: Origin
    expires_ms: int
    def __init__(self, message_id: _Optional[bytes] = ..., queue: _Optional[str] = ..., state: _Optional[_Union[MessageState, str]] = ..., enqueued_at_ms: _Optional[int] = ..., due_ms: _Optional[int] = ..., attempt: _Optional[int] = ..., payload: _Optional[bytes] = ..., headers: _Optional[bytes] = ..., group: _Optional[str] = ..., dedup_id: _Optional[bytes] = ..., session: _Optional[bytes] = ..., consumer: _Optional[int] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., origin: _Optional[_Union[Origin, _Mapping]] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class QueueInfo(_message.Message):
    __slots__ = ("name", "policy", "defined", "paused", "messages", "leased", "dead", "ready", "scheduled", "waiting", "oldest_ms", "sent", "delivered", "done", "failed", "lost", "died", "expired", "duplicates", "consumers", "sent_per_s", "done_per_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    DEFINED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    OLDEST_MS_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    DIED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    SENT_PER_S_FIELD_NUMBER: _ClassVar[int]
    DONE_PER_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    policy: bytes
    defined: bool
    paused: bool
    messages: int
    leased: int
    dead: int
    ready: int
    scheduled: int
    waiting: int
    oldest_ms: int
    sent: int
    delivered: int
    done: int
    failed: int
    lost: int
    died: int
    expired: int
    duplicates: int
    consumers: int
    sent_per_s: float
    done_per_s: float
    def __init__(self, name: _Optional[str] = ..., policy: _Optional[bytes] = ..., defined: _Optional[bool] = ..., paused: _Optional[bool] = ..., messages: _Optional[int] = ..., leased: _Optional[int] = ..., dead: _Optional[int] = ..., ready: _Optional[int] = ..., scheduled: _Optional[int] = ..., waiting: _Optional[int] = ..., oldest_ms: _Optional[int] = ..., sent: _Optional[int] = ..., delivered: _Optional[int] = ..., done: _Optional[int] = ..., failed: _Optional[int] = ..., lost: _Optional[int] = ..., died: _Optional[int] = ..., expired: _Optional[int] = ..., duplicates: _Optional[int] = ..., consumers: _Optional[int] = ..., sent_per_s: _Optional[float] = ..., done_per_s: _Optional[float] = ...) -> None: ...

class TopicInfo(_message.Message):
    __slots__ = ("name", "retention_ms", "queues", "retained", "retained_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    RETAINED_FIELD_NUMBER: _ClassVar[int]
    RETAINED_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    retention_ms: int
    queues: _containers.RepeatedScalarFieldContainer[str]
    retained: int
    retained_bytes: int
    def __init__(self, name: _Optional[str] = ..., retention_ms: _Optional[int] = ..., queues: _Optional[_Iterable[str]] = ..., retained: _Optional[int] = ..., retained_bytes: _Optional[int] = ...) -> None: ...

class ScheduleInfo(_message.Message):
    __slots__ = ("name", "definition", "next_ms", "last_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    definition: bytes
    next_ms: int
    last_ms: int
    def __init__(self, name: _Optional[str] = ..., definition: _Optional[bytes] = ..., next_ms: _Optional[int] = ..., last_ms: _Optional[int] = ...) -> None: ...

class TokenInfo(_message.Message):
    __slots__ = ("id", "name", "scopes", "created_ms", "expires_ms", "disabled", "old_secret_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    OLD_SECRET_MS_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    name: str
    scopes: bytes
    created_ms: int
    expires_ms: int
    disabled: bool
    old_secret_ms: int
    def __init__(self, id: _Optional[bytes] = ..., name: _Optional[str] = ..., scopes: _Optional[bytes] = ..., created_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ..., disabled: _Optional[bool] = ..., old_secret_ms: _Optional[int] = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("on", "known", "root", "token")
    ON_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    on: bool
    known: bool
    root: bool
    token: TokenInfo
    def __init__(self, on: _Optional[bool] = ..., known: _Optional[bool] = ..., root: _Optional[bool] = ..., token: _Optional[_Union[TokenInfo, _Mapping]] = ...) -> None: ...

class QueueReply(_message.Message):
    __slots__ = ("id", "status", "message", "count", "messages", "queues", "topics", "schedules", "after", "time_ms", "tokens", "identity")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    id: int
    status: ReadStatus
    message: str
    count: int
    messages: _containers.RepeatedCompositeFieldContainer[MessageInfo]
    queues: _containers.RepeatedCompositeFieldContainer[QueueInfo]
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    schedules: _containers.RepeatedCompositeFieldContainer[ScheduleInfo]
    after: bytes
    time_ms: int
    tokens: _containers.RepeatedCompositeFieldContainer[TokenInfo]
    identity: Identity
    def __init__(self, id: _Optional[int] = ..., status: _Optional[_Union[ReadStatus, str]] = ..., message: _Optional[str] = ..., count: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[MessageInfo, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[QueueInfo, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ..., schedules: _Optional[_Iterable[_Union[ScheduleInfo, _Mapping]]] = ..., after: _Optional[bytes] = ..., time_ms: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[TokenInfo, _Mapping]]] = ..., identity: _Optional[_Union[Identity, _Mapping]] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ("traceparent", "write", "read", "queue_call")
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CALL_FIELD_NUMBER: _ClassVar[int]
    traceparent: str
    write: int
    read: int
    queue_call: int
    def __init__(self, traceparent: _Optional[str] = ..., write: _Optional[int] = ..., read: _Optional[int] = ..., queue_call: _Optional[int] = ...) -> None: ...

class ClientFrame(_message.Message):
    __slots__ = ("hello", "writes", "reads", "watches", "stop_watches", "open_session", "consumers", "stop_consumers", "started", "goodbye", "ping", "queue_calls", "point_reads", "traces")
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
    QUEUE_CALLS_FIELD_NUMBER: _ClassVar[int]
    POINT_READS_FIELD_NUMBER: _ClassVar[int]
    TRACES_FIELD_NUMBER: _ClassVar[int]
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
    queue_calls: _containers.RepeatedCompositeFieldContainer[QueueCall]
    point_reads: _containers.RepeatedCompositeFieldContainer[PointReads]
    traces: _containers.RepeatedCompositeFieldContainer[Trace]
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., writes: _Optional[_Union[WriteGroup, _Mapping]] = ..., reads: _Optional[_Iterable[_Union[Read, _Mapping]]] = ..., watches: _Optional[_Iterable[_Union[StartWatch, _Mapping]]] = ..., stop_watches: _Optional[_Iterable[int]] = ..., open_session: _Optional[_Union[OpenSession, _Mapping]] = ..., consumers: _Optional[_Iterable[_Union[StartConsumer, _Mapping]]] = ..., stop_consumers: _Optional[_Iterable[int]] = ..., started: _Optional[_Iterable[_Union[Started, _Mapping]]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., ping: _Optional[int] = ..., queue_calls: _Optional[_Iterable[_Union[QueueCall, _Mapping]]] = ..., point_reads: _Optional[_Iterable[_Union[PointReads, _Mapping]]] = ..., traces: _Optional[_Iterable[_Union[Trace, _Mapping]]] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("protocol", "cluster_id", "node_id", "leader", "point_reads", "traces")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    POINT_READS_FIELD_NUMBER: _ClassVar[int]
    TRACES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    cluster_id: bytes
    node_id: str
    leader: Leader
    point_reads: bool
    traces: bool
    def __init__(self, protocol: _Optional[int] = ..., cluster_id: _Optional[bytes] = ..., node_id: _Optional[str] = ..., leader: _Optional[_Union[Leader, _Mapping]] = ..., point_reads: _Optional[bool] = ..., traces: _Optional[bool] = ...) -> None: ...

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

class PointAnswers(_message.Message):
    __slots__ = ("id", "status", "read_versionstamp", "message", "rows")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    READ_VERSIONSTAMP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    id: int
    status: ReadStatus
    read_versionstamp: bytes
    message: str
    rows: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, id: _Optional[int] = ..., status: _Optional[_Union[ReadStatus, str]] = ..., read_versionstamp: _Optional[bytes] = ..., message: _Optional[str] = ..., rows: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("kind", "entry")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    kind: ChangeKind
    entry: KvEntry
    def __init__(self, kind: _Optional[_Union[ChangeKind, str]] = ..., entry: _Optional[_Union[KvEntry, _Mapping]] = ...) -> None: ...

class WatchEvent(_message.Message):
    __slots__ = ("id", "entries", "read_versionstamp", "error", "retryable", "changes", "through", "oldest", "status")
    ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    READ_VERSIONSTAMP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    id: int
    entries: _containers.RepeatedCompositeFieldContainer[KvEntry]
    read_versionstamp: bytes
    error: str
    retryable: bool
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    through: bytes
    oldest: bytes
    status: ReadStatus
    def __init__(self, id: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[KvEntry, _Mapping]]] = ..., read_versionstamp: _Optional[bytes] = ..., error: _Optional[str] = ..., retryable: _Optional[bool] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., through: _Optional[bytes] = ..., oldest: _Optional[bytes] = ..., status: _Optional[_Union[ReadStatus, str]] = ...) -> None: ...

class SessionOpened(_message.Message):
    __slots__ = ("session", "status", "message")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    status: ReadStatus
    message: str
    def __init__(self, session: _Optional[bytes] = ..., status: _Optional[_Union[ReadStatus, str]] = ..., message: _Optional[str] = ...) -> None: ...

class ConsumerEnded(_message.Message):
    __slots__ = ("consumer", "status", "message")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    consumer: int
    status: ReadStatus
    message: str
    def __init__(self, consumer: _Optional[int] = ..., status: _Optional[_Union[ReadStatus, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("consumer", "message_id", "lease_id", "attempt", "payload", "queue", "enqueued_at_ms", "headers", "group", "origin", "failures", "taken", "lease_ms")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    consumer: int
    message_id: bytes
    lease_id: bytes
    attempt: int
    payload: bytes
    queue: str
    enqueued_at_ms: int
    headers: bytes
    group: str
    origin: Origin
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    taken: bool
    lease_ms: int
    def __init__(self, consumer: _Optional[int] = ..., message_id: _Optional[bytes] = ..., lease_id: _Optional[bytes] = ..., attempt: _Optional[int] = ..., payload: _Optional[bytes] = ..., queue: _Optional[str] = ..., enqueued_at_ms: _Optional[int] = ..., headers: _Optional[bytes] = ..., group: _Optional[str] = ..., origin: _Optional[_Union[Origin, _Mapping]] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., taken: _Optional[bool] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class ServerFrame(_message.Message):
    __slots__ = ("hello", "results", "reads", "watches", "session", "deliveries", "leader", "pong", "error", "error_is_final", "queue_replies", "point_answers", "ended_consumers")
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
    QUEUE_REPLIES_FIELD_NUMBER: _ClassVar[int]
    POINT_ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ENDED_CONSUMERS_FIELD_NUMBER: _ClassVar[int]
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
    queue_replies: _containers.RepeatedCompositeFieldContainer[QueueReply]
    point_answers: _containers.RepeatedCompositeFieldContainer[PointAnswers]
    ended_consumers: _containers.RepeatedCompositeFieldContainer[ConsumerEnded]
    def __init__(self, hello: _Optional[_Union[HelloReply, _Mapping]] = ..., results: _Optional[_Iterable[_Union[ResultGroup, _Mapping]]] = ..., reads: _Optional[_Iterable[_Union[ReadResult, _Mapping]]] = ..., watches: _Optional[_Iterable[_Union[WatchEvent, _Mapping]]] = ..., session: _Optional[_Union[SessionOpened, _Mapping]] = ..., deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ..., leader: _Optional[_Union[Leader, _Mapping]] = ..., pong: _Optional[int] = ..., error: _Optional[str] = ..., error_is_final: _Optional[bool] = ..., queue_replies: _Optional[_Iterable[_Union[QueueReply, _Mapping]]] = ..., point_answers: _Optional[_Iterable[_Union[PointAnswers, _Mapping]]] = ..., ended_consumers: _Optional[_Iterable[_Union[ConsumerEnded, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("node_id", "cluster_id", "role", "term", "leader", "commit_index", "applied_index", "last_log_index", "durable_index", "state_hash", "peers", "version", "uptime_ms", "statistics", "wall_ms", "time_ms")
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
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
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
    wall_ms: int
    time_ms: int
    def __init__(self, node_id: _Optional[str] = ..., cluster_id: _Optional[bytes] = ..., role: _Optional[str] = ..., term: _Optional[int] = ..., leader: _Optional[_Union[Leader, _Mapping]] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., last_log_index: _Optional[int] = ..., durable_index: _Optional[int] = ..., state_hash: _Optional[bytes] = ..., peers: _Optional[_Iterable[_Union[PeerStatus, _Mapping]]] = ..., version: _Optional[str] = ..., uptime_ms: _Optional[int] = ..., statistics: _Optional[_Mapping[str, float]] = ..., wall_ms: _Optional[int] = ..., time_ms: _Optional[int] = ...) -> None: ...

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

class BackupRequest(_message.Message):
    __slots__ = ("stale",)
    STALE_FIELD_NUMBER: _ClassVar[int]
    stale: bool
    def __init__(self, stale: _Optional[bool] = ...) -> None: ...

class BackupPart(_message.Message):
    __slots__ = ("data", "size")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    size: int
    def __init__(self, data: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class BackupHeader(_message.Message):
    __slots__ = ("format", "cluster_id", "index", "term", "time_ms", "stamp_base", "bookmark", "content_hash", "data_format", "size", "state_hash", "node_id", "version", "made_ms")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    STAMP_BASE_FIELD_NUMBER: _ClassVar[int]
    BOOKMARK_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    DATA_FORMAT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MADE_MS_FIELD_NUMBER: _ClassVar[int]
    format: int
    cluster_id: bytes
    index: int
    term: int
    time_ms: int
    stamp_base: int
    bookmark: bytes
    content_hash: bytes
    data_format: int
    size: int
    state_hash: bytes
    node_id: str
    version: str
    made_ms: int
    def __init__(self, format: _Optional[int] = ..., cluster_id: _Optional[bytes] = ..., index: _Optional[int] = ..., term: _Optional[int] = ..., time_ms: _Optional[int] = ..., stamp_base: _Optional[int] = ..., bookmark: _Optional[bytes] = ..., content_hash: _Optional[bytes] = ..., data_format: _Optional[int] = ..., size: _Optional[int] = ..., state_hash: _Optional[bytes] = ..., node_id: _Optional[str] = ..., version: _Optional[str] = ..., made_ms: _Optional[int] = ...) -> None: ...

class SegmentHeader(_message.Message):
    __slots__ = ("format", "cluster_id", "first", "last", "prev_term", "last_term", "first_time_ms", "last_time_ms", "stamp_base", "content_hash", "skipped", "node_id", "version", "made_ms")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    PREV_TERM_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    STAMP_BASE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MADE_MS_FIELD_NUMBER: _ClassVar[int]
    format: int
    cluster_id: bytes
    first: int
    last: int
    prev_term: int
    last_term: int
    first_time_ms: int
    last_time_ms: int
    stamp_base: int
    content_hash: bytes
    skipped: _containers.RepeatedCompositeFieldContainer[Skipped]
    node_id: str
    version: str
    made_ms: int
    def __init__(self, format: _Optional[int] = ..., cluster_id: _Optional[bytes] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., prev_term: _Optional[int] = ..., last_term: _Optional[int] = ..., first_time_ms: _Optional[int] = ..., last_time_ms: _Optional[int] = ..., stamp_base: _Optional[int] = ..., content_hash: _Optional[bytes] = ..., skipped: _Optional[_Iterable[_Union[Skipped, _Mapping]]] = ..., node_id: _Optional[str] = ..., version: _Optional[str] = ..., made_ms: _Optional[int] = ...) -> None: ...

class Skipped(_message.Message):
    __slots__ = ("index", "number")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    index: int
    number: int
    def __init__(self, index: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class FileEnd(_message.Message):
    __slots__ = ("frames", "size", "hash")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    frames: int
    size: int
    hash: bytes
    def __init__(self, frames: _Optional[int] = ..., size: _Optional[int] = ..., hash: _Optional[bytes] = ...) -> None: ...
