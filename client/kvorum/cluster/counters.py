"""What a cluster client counts about itself."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Plain counts since the client was opened."""

    frames: int = 0
    """Frames sent, Hello excluded."""
    operations: int = 0
    """Writes and reads put on a stream, repeats included."""
    retries: int = 0
    """Writes and reads put on a stream once more."""
    unknown: int = 0
    """Writes whose caller was told OutcomeUnknown."""
    connections: int = 0
    """Connections that came to be used, each with a node that led at the time."""
    failed_connections: int = 0
    sessions: int = 0
    """Sessions opened."""
    deliveries: int = 0
    redeliveries: int = 0
    """Deliveries whose attempt is above 1."""
    duplicate_deliveries: int = 0
    """Deliveries of a lease that was in hand or settled already; they are dropped."""
    late_deliveries: int = 0
    """Deliveries to a consumer that was closed meanwhile; they are returned to the queue."""

    def figures(self) -> dict[str, float]:
        """All counts by name, with those derived from them."""
        return {
            "frames": self.frames,
            "operations": self.operations,
            "operations_per_frame": self.operations / self.frames if self.frames else 0.0,
            "retries": self.retries,
            "unknown": self.unknown,
            "reconnects": max(0, self.connections - 1),
            "failed_connections": self.failed_connections,
            "sessions": self.sessions,
            "deliveries": self.deliveries,
            "redeliveries": self.redeliveries,
            "duplicate_deliveries": self.duplicate_deliveries,
            "late_deliveries": self.late_deliveries,
        }
