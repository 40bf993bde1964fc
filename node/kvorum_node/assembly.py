"""A node of a cluster, put together: store, consensus, service and API, in the order in which they start and end."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from kvorum import tokens
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster import Address, ClusterBackend
from kvorum.cluster.connection import Connection
from kvorum_raft import Limits, RaftConfig, RaftNode, Timing
from kvorum_raft.config import split_address
from kvorum_raft.errors import ConfigurationError, RaftFault
from kvorum_raft.faults import REBUILD_MARKER, exit_process, has_marker, kind_of, write_marker
from kvorum_raft.tls import PeerTls

from . import quarantine
from .api.server import ApiServer
from .backup.archiver import Archiver, ArchiveSettings
from .backup.saving import Backups
from .backup.targets import open_target
from .config import NodeConfig
from .front import Front
from .handover import HandOver
from .http.port import HttpPort
from .loopback import LoopbackConnection
from .port_tls import PortTls
from .replica_store import ReplicaStore
from .scrub import Scrubber
from .service import NodeService, ServiceSettings
from .space import SpaceWatch, reserve
from .store import DATA_VERSION, Store, StoreFault
from .writeback import Writeback

logger = logging.getLogger("kvorum.node")

PROVED_AFTER: Final = 5.0
"""Seconds that a node must run before what its start has left behind for a second try may go. What makes a process
crash later than that leaves a trace, see `crashes`."""
DRAIN_PATIENCE: Final = 2.0
"""Seconds that writes under way get to be answered when the node ends."""


class Replica:
    """`async with Replica(config) as replica:` serves; call `retire` before an orderly end.

    Entering raises RaftFault for damage, ConfigurationError and OSError with one line for the operator.
    """

    def __init__(self, config: NodeConfig, *, crashed: bool = False) -> None:
        """`crashed`: the process before this one died of a fault of its own, so the state is not to be trusted."""
        self._config = config
        self._crashed = crashed
        self._stack = contextlib.AsyncExitStack()
        self._http: HttpPort | None = None

    async def __aenter__(self) -> "Replica":
        async with self._stack:
            await self._start()
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def retire(self) -> None:
        """Let another node lead, then answer what is under way. The process ends next."""
        await self._hand_over.now()
        if self._http is not None:
            await self._http.drain(DRAIN_PATIENCE)
        await self._service.drain(DRAIN_PATIENCE)

    async def _start(self) -> None:
        config, stack = self._config, self._stack
        loop = asyncio.get_running_loop()
        self._open(loop)
        archiver = self._archiver()
        service = self._service = self._make_service(loop, archiver)
        api = self._api = self._make_api(service)
        self._writeback.start()
        stack.callback(self._writeback.stop)
        self._space.start()
        stack.callback(self._space.stop)
        await service.start()
        stack.push_async_callback(service.stop)
        stack.push_async_callback(self._hand_over.stop)
        await api.start()
        stack.push_async_callback(api.stop)
        if archiver is not None:
            archiver.start()
            stack.push_async_callback(archiver.stop)
        stack.callback(self._backups.halt)
        if config.http_listen:
            await self._start_http(service)
        if config.scrub_interval_s:
            self._scrubber.start()
            stack.callback(self._scrubber.stop)
        proof = loop.call_later(PROVED_AFTER, self._store.proved_good)
        stack.callback(proof.cancel)

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        """The state, the consensus layer, and what looks after the disk; nothing of it runs yet."""
        config, stack = self._config, self._stack
        self._tls = PortTls(config) if config.tls_cert is not None else None
        self._peer_tls = _peer_tls(config)
        store = self._store = _open_store(config, crashed=self._crashed)
        stack.callback(store.close)
        space = self._space = SpaceWatch(config.data_dir, loop, store.space, least=self._least)
        timing = self._timing = Timing(
            election_min=config.election_timeout_min_ms / 1000,
            election_max=config.election_timeout_max_ms / 1000,
            heartbeat=config.heartbeat_ms / 1000,
        )
        raft = self._raft = RaftNode(
            _raft_config(config, timing, self._peer_tls), store, first_payload=_first_payload, low_space=space.low
        )
        self._hand_over = HandOver(raft, raft, loop, patience=timing.election_max, too_late=timing.election_min / 2)
        self._scrubber = Scrubber(store, config.scrub_interval_s, self._damaged, rng=random.Random())
        self._writeback = Writeback(store.data_file)
        self._backups = Backups(
            store,
            config.data_dir / "backup",
            node_id=config.node_id,
            term_at=self._term_at,
            latency=raft.log_latency,
            least=self._least,
        )
        stack.callback(self._backups.stop)

    def _make_service(self, loop: asyncio.AbstractEventLoop, archiver: Archiver | None) -> NodeService:
        config, raft = self._config, self._raft
        return NodeService(
            self._store,
            raft,
            loop,
            ServiceSettings(
                slow_operation=config.slow_operation_ms / 1000,
                unread_answers=config.unread_answers_mb << 20,
                unfinished_requests=config.unfinished_requests_mb << 20,
                lease=config.lease_ms / 1000,
                session_idle=config.session_idle_ms / 1000,
                max_election_timeout=self._timing.election_max,
            ),
            no_space=self._no_space,
            unreadable=self._unreadable,
            common_data_version=raft.common_data_version,
            root_hash=tokens.hash_of(config.root_token.encode()) if config.root_token else b"",
            on_late=self._hand_over.late,
            more_statistics=(
                lambda: {"state_rebuilt": float(self._store.rebuilt), **self._api.statistics()},
                self._space.statistics,
                self._hand_over.statistics,
                self._scrubber.statistics,
                self._writeback.statistics,
                self._backups.statistics,
                *(() if archiver is None else (archiver.statistics,)),
                *(() if self._tls is None else (self._tls.statistics,)),
                self._expiry,
            ),
        )

    def _make_api(self, service: NodeService) -> ApiServer:
        config = self._config
        # A frozen consumer must be noticed early enough that its messages move on about a lease after its last sign
        # of life.
        keepalive = min(5.0, max(0.5, config.lease_ms / 4000))
        return ApiServer(
            service,
            config.node_id,
            config.client_listen,
            keepalive=keepalive,
            administration=self._raft,
            backups=self._backups,
            credentials=None if self._tls is None else self._tls.server_credentials(),
        )

    async def _start_http(self, service: NodeService) -> None:
        config = self._config
        # This node always knows where the leader is, as far as it can be known: no other address is needed.
        own = _reachable(*split_address(config.client_listen))
        known_as = [
            split_address(member.client_address) for member in config.members if member.node_id == config.node_id
        ]

        to_nodes = None if self._tls is None else self._tls.to_nodes()

        def connect(address: Address, loop: asyncio.AbstractEventLoop, _: object) -> Connection:
            if address == own or address in known_as:
                return LoopbackConnection(service, config.node_id, address, loop)
            return Connection(address, loop, to_nodes)

        def open_client(addresses: Sequence[Address], token: str = "") -> ClusterBackend:
            # What KV Connect's own token may do is everything: its writes go on in the root token's name.
            return ClusterBackend(addresses, connect=connect, token=token or config.root_token)

        front = Front(service, [own], connect=open_client)
        http = self._http = HttpPort(service, front, config, grace=self._timing.election_max, tls=self._tls)
        self._stack.push_async_callback(front.close)
        await http.start()
        self._stack.push_async_callback(http.stop)

    def _archiver(self) -> Archiver | None:
        config = self._config
        if config.archive is None:
            return None
        archiver = Archiver(
            self._store,
            lambda: None if self._raft.hollow else self._raft.log,
            self._backups,
            open_target(config.archive),
            config.node_id,
            ArchiveSettings(
                every=config.archive_every_s,
                segment_bytes=config.archive_segment_mb << 20,
                base_every=config.archive_base_hours * 3600,
                keep=config.archive_keep_days * 86_400,
            ),
            tight=self._space.tight,
            skipped=quarantine.read(config.data_dir),
        )
        self._raft.hold_log(archiver.bound)
        return archiver

    def _term_at(self, index: int) -> int:
        log = self._raft.log
        return 0 if log is None else log.term_at(index)

    def _expiry(self) -> dict[str, float]:
        """Seconds until the first of this node's certificates expires; nothing if it has none."""
        left = [tls.expires_in() for tls in (self._tls, self._peer_tls) if tls is not None]
        return {"tls_cert_expiry_seconds": min(left)} if left else {}

    def _least(self, disk: int) -> int:
        """Bytes to be kept free: a reserve, and room for a checkpoint."""
        return _reserve(self._config.min_free_mb)(disk) + self._store.size()

    def _damaged(self, fault: StoreFault) -> None:
        """In the scrubber's thread. The store has left its mark: the next start does not trust the state. A checkpoint
        may be a copy of the damage, so none is used either if others have the content."""
        folder = self._config.data_dir / "raft"
        if self._raft.others_vote:
            write_marker(folder, REBUILD_MARKER, str(fault))
        exit_process(folder)(RaftFault(str(fault)))

    def _unreadable(self) -> str:
        """Why nobody may read this node's state, whatever consistency was asked for."""
        if self._raft.hollow:
            return "this node's state was lost, and the cluster's has not come yet"
        return "" if self._store.cluster_id else "this node is in no cluster yet"

    def _no_space(self) -> str:
        """Why the cluster takes no growth now: the message that clients get."""
        node_id = self._raft.cluster_low_on_space()
        if node_id is None:
            return ""
        what = self._space.problem() if node_id == self._config.node_id else ""
        return f"node {node_id}: {what or 'its disk is nearly full'}; free space there, or delete keys"


def _reachable(host: str, port: int) -> tuple[str, int]:
    """Where this process reaches what it listens on."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host), port


def _open_store(config: NodeConfig, *, crashed: bool) -> Store:
    try:
        skipped = quarantine.read(config.data_dir)
        # What differs from the majority's must not be used again. The mark goes when the checkpoints are gone as well.
        rebuild = crashed or has_marker(config.data_dir / "raft", REBUILD_MARKER)
        return ReplicaStore.open(config.data_dir / "state", durable=False, force_rebuild=rebuild, quarantine=skipped)
    except quarantine.QuarantineError as error:
        raise ConfigurationError(str(error)) from error
    except StoreFault as fault:
        raise kind_of(fault, config.data_dir)(str(fault)) from fault


def _raft_config(config: NodeConfig, timing: Timing, tls: PeerTls | None) -> RaftConfig:
    return RaftConfig(
        config.node_id,
        list(config.members),
        config.data_dir,
        listen=config.peer_listen,
        join=config.join,
        data_version=DATA_VERSION,
        timing=timing,
        tls=tls,
        tls_required=config.peer_tls == "require",
        limits=Limits(checkpoint_log=config.checkpoint_log_mb << 20),
    )


def _peer_tls(config: NodeConfig) -> PeerTls | None:
    if config.peer_cert is None or config.peer_key is None or config.peer_ca is None:
        return None
    return PeerTls(config.node_id, config.peer_cert, config.peer_key, config.peer_ca)


def _first_payload(cluster_id: bytes) -> bytes:
    batch = pb.Batch(data_version=1)
    batch.commands.add().init_cluster.cluster_id = cluster_id
    return batch.SerializeToString()


def _reserve(megabytes: int) -> Callable[[int], int]:
    return (lambda _: megabytes << 20) if megabytes else reserve
