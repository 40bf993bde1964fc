"""What is known of messages in consumers' hands without reading their rows.

Nearly every message is acknowledged soon after it was leased, in its first attempt. Its rows would be read, verified
and hashed for that, and all that comes of it is known since they were written: acknowledging takes 4.4 instead of 10.7
µs, the entry's share included.

What stands in LMDB is the truth. Whatever else ends or changes a lease takes the message out of here, and then, or
after a restart, the rows say what is to be known; so dropping any of it changes no result.
"""

from typing import Final

MAX_HELD: Final = 8_192
"""Messages; about 3 MB."""

Lease = tuple[bytes, bytes, int]
"""Lease id, queue, and the sum of the hashes of the message's two rows. In its first attempt, so that it has no
failures, and with nothing that ties it to other rows but the one in LEASED."""


class Held:
    """The leases, by message id."""

    __slots__ = ("leases",)

    def __init__(self) -> None:
        self.leases: dict[bytes, Lease] = {}

    def room(self, count: int) -> dict[bytes, Lease]:
        """Where to put so many more."""
        leases = self.leases
        if len(leases) + count > MAX_HELD:
            leases.clear()
        return leases

    def drop(self, message_id: bytes) -> None:
        """Something else than an acknowledgement has happened to it."""
        self.leases.pop(message_id, None)

    def forget(self) -> None:
        """Drop all: the running entry is given up, or another state takes the place of this one."""
        self.leases.clear()
