"""Verdicts on messages by their ids, without a lease: of those that are in nobody's hands."""

from typing import Final

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.durations import Duration, milliseconds
from kvorum.errors import InvalidArgument, shown

ID_DIGITS: Final = 24


def message_id(text: str) -> bytes:
    """The 12 bytes of a message's id. Errors: InvalidArgument."""
    if isinstance(text, str) and len(text) == ID_DIGITS and text.isascii() and text.isalnum():
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise InvalidArgument(f"a message's id is {ID_DIGITS} hex digits, got {shown(text)}")


def cancel_settle(id: str) -> pb.Settle:
    """Errors: InvalidArgument."""
    return pb.Settle(message_id=message_id(id), kind=pb.SETTLE_KIND_CANCEL)


def reschedule_settle(id: str, delay: Duration) -> pb.Settle:
    """Errors: InvalidArgument, LimitExceeded."""
    delay_ms = milliseconds(delay, "delay", "MAX_ENQUEUE_DELAY", limits.MAX_ENQUEUE_DELAY)
    return pb.Settle(message_id=message_id(id), kind=pb.SETTLE_KIND_RESCHEDULE, delay_ms=delay_ms)
