"""What delivery needs of the state and of an entry's result."""

from collections.abc import Sequence
from typing import Any, Protocol

from kvorum._proto import kvorum_pb2 as pb


class LeaseRow(Protocol):
    """A leased message as the store lists it."""

    @property
    def message_id(self) -> bytes: ...
    @property
    def lease_id(self) -> bytes: ...
    @property
    def queue(self) -> str: ...
    @property
    def session(self) -> bytes: ...
    @property
    def consumer(self) -> int: ...
    @property
    def lease_ms(self) -> int: ...


class GrantRow(Protocol):
    """A lease granted by an entry."""

    @property
    def session(self) -> bytes: ...
    @property
    def consumer(self) -> int: ...
    @property
    def delivery(self) -> pb.Delivery: ...


class QueueResult(Protocol):
    """What delivery reads of an entry's result."""

    @property
    def time_ms(self) -> int: ...
    @property
    def granted(self) -> Sequence[Any]: ...
    @property
    def ended(self) -> Sequence[bytes]: ...
    @property
    def extended(self) -> Sequence[tuple[bytes, int]]: ...
    @property
    def ready(self) -> dict[str, int]: ...
    @property
    def policies_changed(self) -> set[str]: ...


class Facts(Protocol):
    """What a queue's policy says now, as far as delivery goes."""

    @property
    def lease_ms(self) -> int:
        """0 = not said."""
        ...

    @property
    def max_in_flight(self) -> int:
        """0 = any number."""
        ...

    @property
    def paused(self) -> bool: ...
    @property
    def leased(self) -> int:
        """Messages in hands now."""
        ...


class QueueStore(Protocol):
    """What delivery reads of the state."""

    def next_due_ms(self, queue: str) -> int | None: ...
    def queue_facts(self, name: str) -> Facts: ...
    def leases(self, after: bytes = b"", limit: int | None = None) -> Sequence[Any]: ...
    def delivery(self, message_id: bytes, lease_id: bytes) -> pb.Delivery | None: ...
    def session_exists(self, session: bytes) -> bool: ...
