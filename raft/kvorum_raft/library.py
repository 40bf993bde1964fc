"""What the core takes of PySyncObj: private state by name, settings; and the ways through it that are closed."""

from typing import Any

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from kvorum_raft.config import Timing
from kvorum_raft.errors import RaftFault
from kvorum_raft.upstream import PINNED


class _NoPoller:
    """The library's poller is not used; sockets belong to asyncio."""

    def poll(self, timeout: float) -> None:
        """Nothing to wait for."""


class Library(SyncObj):  # type: ignore[misc]  # PySyncObj is untyped
    """The library, without what it does by itself: timers, sockets, storage."""

    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__votedForNodeId: str | None
    _SyncObj__raftLeader: Node | None
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__noopIDx: int | None
    _SyncObj__newAppendEntriesTime: float

    def __init__(self, node_id: str, transport: Transport, timing: Timing) -> None:
        if VERSION != PINNED:
            raise RaftFault(f"kvorum replaces private methods of PySyncObj {PINNED}; {VERSION} is installed")
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,  # creates no pipe; sending is ours
            appendEntriesPeriod=timing.heartbeat,
            raftMinTimeout=timing.election_min,
            raftMaxTimeout=timing.election_max,
            connectionTimeout=timing.election_max + 1,
            fullDumpFile=None,
            journalFile=None,
            useFork=False,
            pollerType="select",
            commandsQueueSize=1,
        )
        super().__init__(Node(node_id), [], conf, nodeClass=Node, transport=transport)
        for message in ("status", "add", "remove", "set_version", "transfer"):
            transport.setOnUtilityMessageCallback(message, None)
        self._poller = _NoPoller()

    def _closed(self, *_arguments: Any, **_options: Any) -> Any:
        raise RaftFault("this way through PySyncObj is closed in kvorum")

    _applyCommand = _closed
    _checkCommandsToApply = _closed
    _autoTickThread = _closed
    _addNodeToCluster = _closed
    _removeNodeFromCluster = _closed
    _setCodeVersion = _closed
    _transferLeadership = _closed
    addNodeToCluster = _closed
    removeNodeFromCluster = _closed
    setCodeVersion = _closed
    transferLeadership = _closed
    forceLogCompaction = _closed
    _SyncObj__changeCluster = _closed
    _SyncObj__doChangeCluster = _closed
    _SyncObj__parseChangeClusterRequest = _closed
    _SyncObj__updateClusterConfiguration = _closed
    _SyncObj__loadDumpFile = _closed
    _SyncObj__tryLogCompaction = _closed
    _SyncObj__deleteEntriesTo = _closed
    _SyncObj__sendNextNodeIdx = _closed
    _SyncObj__onReadonlyNodeConnected = _closed
    _SyncObj__onReadonlyNodeDisconnected = _closed
