"""A message in the hands of a queue's listener."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.values import decode_payload

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True, eq=False)
class Message:
    """A message, as a handler with `with_message=True` gets it."""

    value: Any
    queue: str
    attempt: int
    """Number of this delivery, from 1."""
    enqueued_at: datetime
    """In the cluster's time, UTC."""
    message_id: bytes
    lease_id: bytes = field(repr=False)
    acknowledged: bool = False
    """Whether a commit of its handler acknowledged it."""

    @property
    def id(self) -> str:
        """24 hex digits, the same at each delivery."""
        return self.message_id.hex()


def message_of(delivery: pb.Delivery) -> Message:
    """Errors: DataError if the payload cannot be decoded."""
    return Message(
        value=decode_payload(delivery.payload),
        queue=delivery.queue,
        attempt=delivery.attempt,
        enqueued_at=_EPOCH + timedelta(milliseconds=delivery.enqueued_at_ms),
        message_id=delivery.message_id,
        lease_id=delivery.lease_id,
    )
