"""Who leads, as clients are told it."""

from collections.abc import Callable

from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.seams import Consensus, Member

from .timers import Alarm, Timers


class LeaderNews:
    """`lost` is called when no leader has been known for `patience` seconds."""

    def __init__(self, consensus: Consensus, timers: Timers, *, patience: float, lost: Callable[[], None]) -> None:
        self._consensus = consensus
        self._patience = patience
        self._lost = lost
        self._leader: Member | None = None
        self._alarm = Alarm(timers, self._leaderless)
        self._listeners: list[Callable[[], None]] = []
        self.message = pb.Leader()
        """Without a node while nobody leads, and while this node leads but cannot serve yet."""

    def start(self) -> None:
        self._alarm.set(self._patience)

    def stop(self) -> None:
        self._alarm.cancel()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call back when `message` changes. Returns how to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def changed(self) -> None:
        """The consensus layer has another leader, or none."""
        leader = self._consensus.leader
        if leader is None:
            if self._leader is not None or not self._alarm.is_set:
                self._alarm.set(self._patience)
        else:
            self._alarm.cancel()
        self._leader = leader
        self.message = self._look()
        self.tell()

    def tell(self) -> None:
        for listener in list(self._listeners):
            listener()

    def _look(self) -> pb.Leader:
        consensus = self._consensus
        member, status = consensus.leader, consensus.status()
        if member is None or (member.node_id == status.node_id and not consensus.is_leader):
            return pb.Leader(term=status.term)
        return pb.Leader(node_id=member.node_id, address=member.client_address, term=status.term)

    def _leaderless(self) -> None:
        if self._consensus.leader is None:
            self._lost()
