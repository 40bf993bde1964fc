"""Messages on their way out: options, their limits, and what goes over the wire."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.durations import Duration, milliseconds
from kvorum.errors import InvalidArgument, InvalidValue, LimitExceeded, shown
from kvorum.keys import KeyPart
from kvorum.mutation import check_list, write_key
from kvorum.values import encode_payload

_BACKOFF_STEP_SIZE: Final = 4
RESERVED: Final = "\0"
"""First character of headers, and of queues, that are this package's own."""
ERROR_HEADER: Final = RESERVED + "error"
"""Of an answer: its value is the text of an error."""


class SendOptions(TypedDict, total=False):
    """How a message is sent. Durations are a timedelta or milliseconds."""

    delay: Duration | None
    """Delivered no earlier (≤ 366 days)."""
    dedup_id: str | None
    """A message with an id that the queue remembers is not taken again; see `dedup_window`."""
    dedup_window: Duration | None
    """How long the id is remembered (≤ 31 days); None: until its message is done, dead, cancelled or expired."""
    group: str | None
    """Messages of one group are delivered strictly one after the other, over retries too."""
    headers: Mapping[str, str]
    """Text that goes along with the value (≤ 4 KiB)."""
    ttl: Duration | None
    """The message is dropped if it is not done by then; None: the retention of its queue."""
    backoff_schedule: Sequence[Duration] | None
    """Pauses before it is tried again, one retry for each; None: the queue's, else 100 ms, 1 s, 5 s, 30 s, 60 s."""
    keys_if_undelivered: Sequence[Sequence[KeyPart]]
    """Keys (≤ 10) under which the value is stored if it cannot be delivered; it is no dead letter then."""


@dataclass(frozen=True, kw_only=True)
class _Options:
    delay: Duration | None = None
    dedup_id: str | None = None
    dedup_window: Duration | None = None
    group: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    ttl: Duration | None = None
    backoff_schedule: Sequence[Duration] | None = None
    keys_if_undelivered: Sequence[Sequence[KeyPart]] = ()


@dataclass(frozen=True)
class Outgoing(_Options):
    """A message of a batch with options of its own: `mail.send_batch([v1, Outgoing(v2, group="a")])`.

    The options are those of `SendOptions`.
    """

    value: Any = field(kw_only=False)


_DEFAULTS: Final = _Options()


def outgoing(value: object, queue: str, options: SendOptions) -> pb.Enqueue:
    """A message for a queue. Errors: InvalidKey, InvalidValue, InvalidArgument, LimitExceeded; they name the option."""
    message = pb.Enqueue(queue=queue_name(queue), payload=encode_payload(value))
    if options:
        fill(message, _Options(**_known(options)))
    return message


def outgoing_to_topic(value: object, topic: str, options: SendOptions) -> pb.Enqueue:
    """As `outgoing`, for the subscriptions of a topic."""
    message = pb.Enqueue(topic=topic_name(topic), payload=encode_payload(value))
    if options:
        fill(message, _Options(**_known(options)))
    return message


def outgoing_batch(values: Sequence[object], queue: str, common: SendOptions) -> list[pb.Enqueue]:
    """Messages of one commit; `common` is for those without options of their own. Errors name the message's index."""
    check_list(values, "messages")
    if len(values) > limits.MAX_BATCH:
        raise LimitExceeded("MAX_BATCH", limits.MAX_BATCH, len(values), "messages of a batch")
    made = []
    for at, value in enumerate(values):
        try:
            if isinstance(value, Outgoing):
                own: Any = {
                    name: given for name in _NAMES if (given := getattr(value, name)) != getattr(_DEFAULTS, name)
                }
                made.append(outgoing(value.value, queue, {**common, **own}))
            else:
                made.append(outgoing(value, queue, common))
        except InvalidArgument as error:
            raise _at(error, f"messages[{at}]") from error
    return made


def enqueue_message(
    value: object,
    queue: str,
    delay: Duration | None,
    keys_if_undelivered: Sequence[Sequence[KeyPart]],
    backoff_schedule: Sequence[Duration] | None,
) -> pb.Enqueue:
    """A message with what Deno's API knows of. Errors: as `outgoing`."""
    message = pb.Enqueue(queue=queue_name(queue), payload=encode_payload(value))
    _fill_old(message, delay, keys_if_undelivered, backoff_schedule)
    return message


def size_of(message: pb.Enqueue) -> int:
    """What it counts for in the size of an atomic operation."""
    size = len(message.payload) + _BACKOFF_STEP_SIZE * len(message.backoff.delays_ms)
    size += len(message.headers) + len(message.dedup_id) + len(message.group.encode())
    size += len(message.queue.encode()) + len(message.topic.encode())
    return size + sum(map(len, message.keys_if_undelivered))


def fill(message: pb.Enqueue, options: _Options) -> None:
    """Put options into a message. Errors: as `outgoing`."""
    _fill_old(message, options.delay, options.keys_if_undelivered, options.backoff_schedule)
    if options.group is not None:
        message.group = _text(options.group, "group", "MAX_GROUP_SIZE", limits.MAX_GROUP_SIZE)
    if options.dedup_id is not None:
        name = _text(options.dedup_id, "dedup_id", "MAX_DEDUP_ID_SIZE", limits.MAX_DEDUP_ID_SIZE)
        if not name:
            raise InvalidArgument("dedup_id must not be empty; None is none")
        message.dedup_id = name.encode()
    if options.dedup_window is not None:
        if options.dedup_id is None:
            raise InvalidArgument("a dedup_window needs a dedup_id")
        message.dedup_window_ms = _some(
            options.dedup_window, "dedup_window", "MAX_DEDUP_WINDOW", limits.MAX_DEDUP_WINDOW
        )
    if options.ttl is not None:
        message.ttl_ms = _some(options.ttl, "ttl", "MAX_RETENTION", limits.MAX_RETENTION)
    if options.headers:
        set_headers(message, _headers(options.headers))


def set_headers(message: pb.Enqueue, headers: pb.Headers) -> None:
    """Errors: LimitExceeded."""
    data = headers.SerializeToString(deterministic=True)
    if len(data) > limits.MAX_HEADERS_SIZE:
        raise LimitExceeded("MAX_HEADERS_SIZE", limits.MAX_HEADERS_SIZE, len(data), "headers")
    message.headers = data


def queue_name(queue: str) -> str:
    """The name, if it can be one. Errors: InvalidArgument, LimitExceeded."""
    if not isinstance(queue, str):
        raise InvalidArgument(f"a queue's name is a str, got {type(queue).__name__}")
    if queue.startswith(RESERVED):
        raise InvalidArgument(f"a queue's name cannot begin with U+0000, such names are reserved: got {shown(queue)}")
    return _text(queue, "a queue's name", "MAX_QUEUE_NAME_SIZE", limits.MAX_QUEUE_NAME_SIZE, "queue name")


def topic_name(topic: str) -> str:
    """The name, if it can be one. Errors: InvalidArgument, LimitExceeded."""
    if not isinstance(topic, str):
        raise InvalidArgument(f"a topic's name is a str, got {type(topic).__name__}")
    if not topic:
        raise InvalidArgument("a topic's name must not be empty")
    return _text(topic, "a topic's name", "MAX_QUEUE_NAME_SIZE", limits.MAX_QUEUE_NAME_SIZE, "topic name")


def backoff_delays(schedule: Sequence[Duration], name: str = "backoff_schedule") -> list[int]:
    """The steps in milliseconds. Errors, which name the step: InvalidArgument, LimitExceeded."""
    check_list(schedule, name)
    if len(schedule) > limits.MAX_BACKOFF_STEPS:
        raise LimitExceeded("MAX_BACKOFF_STEPS", limits.MAX_BACKOFF_STEPS, len(schedule), name)
    return [
        milliseconds(step, f"{name}[{at}]", "MAX_BACKOFF_INTERVAL", limits.MAX_BACKOFF_INTERVAL)
        for at, step in enumerate(schedule)
    ]


# ---- inside

_NAMES: Final = tuple(SendOptions.__annotations__)


def _known(options: SendOptions) -> Any:
    unknown = [name for name in options if name not in _NAMES]
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r} of a message; there are {', '.join(_NAMES)}")
    return options


def _fill_old(
    message: pb.Enqueue,
    delay: Duration | None,
    keys_if_undelivered: Sequence[Sequence[KeyPart]],
    backoff_schedule: Sequence[Duration] | None,
) -> None:
    if delay is not None:
        message.delay_ms = milliseconds(delay, "delay", "MAX_ENQUEUE_DELAY", limits.MAX_ENQUEUE_DELAY)
    check_list(keys_if_undelivered, "keys_if_undelivered")
    if len(keys_if_undelivered) > limits.MAX_UNDELIVERED_KEYS:
        count = len(keys_if_undelivered)
        raise LimitExceeded("MAX_UNDELIVERED_KEYS", limits.MAX_UNDELIVERED_KEYS, count, "keys_if_undelivered")
    for at, key in enumerate(keys_if_undelivered):
        try:
            message.keys_if_undelivered.append(write_key(key))
        except InvalidArgument as error:
            raise _at(error, f"keys_if_undelivered[{at}]") from None
    if backoff_schedule is not None:
        message.backoff.delays_ms.extend(backoff_delays(backoff_schedule))
        message.backoff.SetInParent()  # an empty schedule means no retry, an absent one the default


def _some(duration: Duration, name: str, limit: str, allowed: int) -> int:
    """Milliseconds of something that cannot be zero."""
    number = milliseconds(duration, name, limit, allowed)
    if not number:
        raise InvalidArgument(f"{name} must be above zero: received 0 ms")
    return number


def _text(text: str, name: str, limit: str, allowed: int, what: str = "") -> str:
    if not isinstance(text, str):
        raise InvalidArgument(f"{name} must be a str, got {type(text).__name__}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} cannot have lone surrogates") from None
    if size > allowed:
        raise LimitExceeded(limit, allowed, size, what or name)
    return text


def _headers(headers: Mapping[str, str]) -> pb.Headers:
    if not isinstance(headers, Mapping):
        raise InvalidArgument(f"headers must be a mapping of str to str, got {type(headers).__name__}")
    made = pb.Headers()
    for name, text in headers.items():
        for part, what in ((name, "a header's name"), (text, f"headers[{shown(name)}]")):
            _text(part, what, "MAX_HEADERS_SIZE", limits.MAX_HEADERS_SIZE)
        if name.startswith(RESERVED):
            raise InvalidArgument(f"headers[{shown(name)}]: names that begin with U+0000 are reserved")
        made.fields[name] = text
    return made


def _at(error: InvalidArgument, where: str) -> InvalidArgument:
    """The same error, with the place in a batch."""
    if isinstance(error, LimitExceeded):
        return error.within(where)
    if isinstance(error, InvalidValue):
        return InvalidValue(error.problem, f"{where}: {error.path}")
    return type(error)(f"{where}: {error}")
