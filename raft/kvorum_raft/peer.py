"""One other node, as the transport knows it."""

import asyncio
from dataclasses import dataclass, field

from pysyncobj.node import Node

from kvorum_raft.connection import Inbound, Outbound


@dataclass(slots=True)
class Peer:
    """A member, or a guest; see `transport`."""

    node_id: str
    guest: bool = False
    said: str = ""
    """Peer address that it names itself; so with the next two: host:port, or nothing."""
    configured: str = ""
    filed: str = ""
    node: Node = field(init=False)
    retry: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: dial now."""
    task: "asyncio.Task[None] | None" = None
    outbound: Outbound | None = None
    """Open."""
    dialling: Outbound | None = None
    """The newest that was dialled, in whatever state."""
    inbound: Inbound | None = None
    incarnation: bytes = b""
    """Of the folder that dialled us last."""
    held_until: float = 0.0
    """Loop time up to which that folder keeps the name."""
    heard_at: float = 0.0
    timer: asyncio.TimerHandle | None = None
    """Ends a guest that stays away."""
    gone: bool = False

    def __post_init__(self) -> None:
        self.node = Node(self.node_id)

    @property
    def addresses(self) -> list[str]:
        """To be tried in this order."""
        return list(dict.fromkeys(one for one in (self.said, self.configured, self.filed) if one))

    def end_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
