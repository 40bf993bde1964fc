"""What must be refused before the log (rules B3) of commands about queues, topics and schedules. Cron expressions and
time zones are judged by whoever computes ticks from them."""

from typing import Final

from google.protobuf.message import DecodeError, Message

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import InvalidArgument, LimitExceeded
from kvorum.keys import decode_key

from . import auth
from .records import MESSAGE_ID_SIZE
from .validation import at_most, check_backoff, check_enqueue, check_queue_name, check_size

_FACTORS: Final = (100, 10_000)
_PERCENT: Final = 100


def validate_command(command: pb.Command) -> None:
    """Raise InvalidArgument or LimitExceeded (of `kvorum.errors`) if one of the commands that begin with data version 3
    or 4 can never be right; the message names the part. Unknown fields are refused, as in writes."""
    kind = command.WhichOneof("command")
    if kind is None or kind not in _CHECKS:
        raise InvalidArgument(f"{kind or 'nothing'} is no command about queues or tokens")
    _known(command, kind.replace("_", " "))
    _CHECKS[kind](command)


def _known(message: Message, what: str) -> None:
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise InvalidArgument(f"{what}: there are fields that this version does not know")


def _name(name: str, what: str, *, may_be_empty: bool = False) -> None:
    if not name and not may_be_empty:
        raise InvalidArgument(f"the name of {what} is empty")
    if name.startswith("\x00"):
        raise InvalidArgument(f"the name of {what} begins with U+0000, as those of inboxes do")
    check_size("MAX_QUEUE_NAME_SIZE", limits.MAX_QUEUE_NAME_SIZE, name, f"name of {what}")


def _within(name: str, got: int, least: int, most: int, limit: str) -> None:
    if got < least:
        raise InvalidArgument(f"{name}: {got:,} is below {least:,}")
    if got > most:
        raise LimitExceeded(limit, most, got, name)


# ---- queues


def _define_queue(command: pb.Command) -> None:
    made = command.define_queue
    _name(made.name, "a queue", may_be_empty=True)
    try:
        policy = pb.QueuePolicy.FromString(made.policy)
    except DecodeError as error:
        raise InvalidArgument(f"the policy cannot be decoded: {error}") from None
    _known(policy, "the policy")
    _numbers(policy)
    if policy.HasField("backoff") and policy.HasField("exponential"):
        raise InvalidArgument("a policy takes backoff or exponential, not both")
    check_backoff(policy.backoff, "the policy")
    if policy.HasField("exponential"):
        _exponential(policy.exponential)
    if policy.dead_letters not in pb.DeadLetters.values():
        raise InvalidArgument(f"dead_letters: unknown kind {policy.dead_letters}")
    if (policy.dead_letters == pb.DEAD_LETTERS_QUEUE) != bool(policy.dead_letter_queue):
        raise InvalidArgument("dead_letter_queue goes with dead_letters = QUEUE, and is needed there")
    if policy.dead_letter_queue:
        _name(policy.dead_letter_queue, "a dead letter queue")
        if policy.dead_letter_queue == made.name:
            raise InvalidArgument("a queue cannot be its own dead letter queue: they are kept there anyway (KEEP)")


def _numbers(policy: pb.QueuePolicy) -> None:
    for field, least, most, limit in (
        ("lease_ms", limits.MIN_LEASE, limits.MAX_LEASE, "MAX_LEASE"),
        ("max_attempts", 1, limits.MAX_ATTEMPTS, "MAX_ATTEMPTS"),
        ("max_batch", 1, limits.MAX_BATCH, "MAX_BATCH"),
        ("max_wait_ms", 0, limits.MAX_BATCH_WAIT, "MAX_BATCH_WAIT"),
        ("retention_ms", 1, limits.MAX_RETENTION, "MAX_RETENTION"),
        ("max_backlog", 1, limits.MAX_BACKLOG, "MAX_BACKLOG"),
        ("max_in_flight", 1, limits.MAX_BACKLOG, "MAX_BACKLOG"),
    ):
        if policy.HasField(field):
            _within(field, getattr(policy, field), least, most, limit)


def _exponential(backoff: pb.Exponential) -> None:
    _within("base of the backoff", backoff.base_ms, 1, limits.MAX_BACKOFF_INTERVAL, "MAX_BACKOFF_INTERVAL")
    _within("cap of the backoff", backoff.cap_ms, backoff.base_ms, limits.MAX_BACKOFF_INTERVAL, "MAX_BACKOFF_INTERVAL")
    least, most = _FACTORS
    if not least <= backoff.factor_percent <= most:
        raise InvalidArgument(f"factor of the backoff: {backoff.factor_percent} % is not within {least} and {most} %")
    if backoff.jitter_percent > _PERCENT:
        raise InvalidArgument(f"jitter of the backoff: {backoff.jitter_percent} % is above {_PERCENT} %")


def _remove_queue(command: pb.Command) -> None:
    check_queue_name(command.remove_queue.name)
    _chunk(command.remove_queue.limit)


def _pause_queue(command: pb.Command) -> None:
    _name(command.pause_queue.name, "a queue", may_be_empty=True)


def _chunk(limit: int) -> None:
    at_most("QUEUE_CHUNK", limits.QUEUE_CHUNK, limit, "messages of one command")


def _purge(command: pb.Command) -> None:
    check_queue_name(command.purge.queue)
    _chunk(command.purge.limit)


def _requeue(command: pb.Command) -> None:
    made = command.requeue
    check_queue_name(made.queue)
    _chunk(max(made.limit, len(made.message_ids)))
    for message_id in made.message_ids:
        if len(message_id) != MESSAGE_ID_SIZE:
            raise InvalidArgument(f"a message id has {MESSAGE_ID_SIZE} bytes, got {len(message_id)}")


# ---- topics and schedules


def _define_topic(command: pb.Command) -> None:
    made = command.define_topic
    _name(made.name, "a topic")
    at_most("MAX_RETENTION", limits.MAX_RETENTION, made.retention_ms, "retention of a topic")


def _subscribe(command: pb.Command) -> None:
    made = command.subscribe
    _name(made.topic, "a topic")
    check_queue_name(made.queue)
    at_most("MAX_RETENTION", limits.MAX_RETENTION, made.since_ms, "since of a subscription")


def _define_schedule(command: pb.Command) -> None:
    made = command.define_schedule
    _name(made.name, "a schedule")
    if not made.definition:
        return
    try:
        schedule = pb.Schedule.FromString(made.definition)
    except DecodeError as error:
        raise InvalidArgument(f"the schedule cannot be decoded: {error}") from None
    _known(schedule, "the schedule")
    check_size("MAX_CRON_SIZE", limits.MAX_CRON_SIZE, schedule.cron, "cron expression")
    check_size("MAX_CRON_SIZE", limits.MAX_CRON_SIZE, schedule.time_zone, "time zone")
    if schedule.misfire not in pb.Misfire.values():
        raise InvalidArgument(f"misfire: unknown kind {schedule.misfire}")
    at_most("MAX_RETENTION", limits.MAX_RETENTION, schedule.grace_ms, "grace of a schedule")
    if not schedule.HasField("message"):
        raise InvalidArgument("a schedule needs a message")
    check_enqueue(schedule.message, "a schedule's message")
    if schedule.message.delay_ms:
        raise InvalidArgument("a schedule's message takes no delay")


def _tick(command: pb.Command) -> None:
    check_queue_name(command.tick.schedule)


# ---- tokens


def _put_token(command: pb.Command) -> None:
    made = command.put_token
    _token_id(made.id)
    if len(made.secret) not in (0, auth.HASH_SIZE):
        raise InvalidArgument(f"the secret of a token comes as its SHA-256, {auth.HASH_SIZE} bytes")
    if made.HasField("name"):
        if not made.name or not made.name.isprintable():
            raise InvalidArgument(f"the name of a token is printable, and not empty, got {made.name!r:.150}")
        check_size("MAX_TOKEN_NAME_SIZE", limits.MAX_TOKEN_NAME_SIZE, made.name, "name of a token")
    for what, duration in (("overlap", made.overlap_ms), ("expire_in", made.expire_in_ms)):
        at_most("MAX_EXPIRE_IN", limits.MAX_EXPIRE_IN, duration, what)
    check_size("MAX_TOKEN_SIZE", limits.MAX_TOKEN_SIZE, made.scopes, "scopes of a token")
    try:
        scopes = pb.Scopes.FromString(made.scopes)
    except DecodeError as error:
        raise InvalidArgument(f"the scopes cannot be decoded: {error}") from None
    _known(scopes, "the scopes")
    at_most("MAX_SCOPES", limits.MAX_SCOPES, len(scopes.keys) + len(scopes.queues), "scopes of a token")
    for key in scopes.keys:
        check_size("MAX_WRITE_KEY_SIZE", limits.MAX_WRITE_KEY_SIZE, key.prefix, "key prefix")
        decode_key(key.prefix)
    for queue in scopes.queues:
        check_queue_name(queue.name)


def _remove_token(command: pb.Command) -> None:
    _token_id(command.remove_token.id)


def _token_id(token_id: bytes) -> None:
    if len(token_id) != auth.ID_SIZE:
        raise InvalidArgument(f"the id of a token has {auth.ID_SIZE} bytes, got {len(token_id)}")


def _switch_auth(_: pb.Command) -> None:
    """It is on or off."""


_CHECKS: Final = {
    "define_queue": _define_queue,
    "remove_queue": _remove_queue,
    "pause_queue": _pause_queue,
    "purge": _purge,
    "requeue": _requeue,
    "define_topic": _define_topic,
    "subscribe": _subscribe,
    "define_schedule": _define_schedule,
    "tick": _tick,
    "put_token": _put_token,
    "remove_token": _remove_token,
    "switch_auth": _switch_auth,
}
