"""Three nodes on this machine: for the demo, for tests, and to play with. Not for production: everything is lost with
one disk.

The folder holds everything: a configuration, a log file, a pid file and the data of each node, so that separate
invocations can go on where an earlier one stopped. Synchronous on purpose, and without state of its own beyond the
folder.
"""

import asyncio
import contextlib
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import time
import tomllib
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

import grpc

from kvorum._proto import kvorum_pb2 as pb
from kvorum.tls import ChannelTls

P = ParamSpec("P")
T = TypeVar("T")

HOST = "127.0.0.1"
FIRST_PORT = 7401
PORTS_PER_NODE = 10
"""With fixed ports: node 1 has 7401 to 7403 (clients, HTTP, peers), node 2 7411 to 7413, …"""
PATIENCE = 60.0
"""Seconds that starting, electing and ending may take on a busy machine."""
PAUSE = 0.02
TAIL = 2_000
"""Characters of a node's log shown when it has died."""


async def in_thread(call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Like `asyncio.to_thread`, but a cancelled wait ends after the thread: its nodes must not be left behind."""
    work = asyncio.ensure_future(asyncio.to_thread(call, *arguments, **options))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


class ClusterFailed(Exception):
    """A node did not do what was asked; the message has the end of its log."""


class DevCluster:
    """See the module. Node numbers count from 0.

    `ports` are (client, peer) for each node, and HTTP gets the port after the client's; free ones are taken by default.
    `settings` are further keys of the nodes' configuration, e.g. `{"lease_ms": 1000}`, `node_settings` those of one
    node each. All are used when the folder is new. `tls` is how the nodes are asked, if their settings have them speak
    TLS.
    """

    def __init__(
        self,
        base_dir: Path,
        nodes: int = 3,
        ports: Sequence[tuple[int, int]] | None = None,
        settings: Mapping[str, int | str] | None = None,
        node_settings: Sequence[Mapping[str, int | str]] = (),
        tls: ChannelTls | None = None,
    ) -> None:
        self.base_dir = Path(base_dir).resolve()
        self.nodes = nodes
        self._ports = list(ports) if ports is not None else None
        self._settings = dict(settings or {})
        self._node_settings = list(node_settings)
        self._tls = tls
        self._token = ""
        """The root token, if there is one."""
        if "root_token_file" in self._settings:
            with Path(str(self._settings["root_token_file"])).open() as source:
                self._token = source.read(4_096).strip()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._channels: dict[int, grpc.Channel] = {}

    # ---- what is where

    def config(self, number: int) -> Path:
        return self.base_dir / f"n{number + 1}.toml"

    def log(self, number: int) -> Path:
        return self.base_dir / f"n{number + 1}.log"

    def data_dir(self, number: int) -> Path:
        return self.base_dir / f"n{number + 1}"

    def client_address(self, number: int) -> str:
        """host:port."""
        with self.config(number).open("rb") as source:
            table = tomllib.load(source)
        return str(table["client_listen"])

    def http_address(self, number: int) -> str:
        """host:port."""
        with self.config(number).open("rb") as source:
            table = tomllib.load(source)
        return str(table["http_listen"])

    def http_url(self, number: int) -> str:
        """For `Deno.openKv` and other clients of KV Connect, which take any token; also of health and metrics."""
        return f"{'http' if self._tls is None else 'https'}://{self.http_address(number)}"

    @property
    def http_addresses(self) -> list[str]:
        """Those of all nodes, in order."""
        return [self.http_address(number) for number in range(self.nodes)]

    @property
    def url(self) -> str:
        """For `kvorum.open_kv`."""
        return "kvorum://" + ",".join(self.client_address(number) for number in range(self.nodes))

    def pid(self, number: int) -> int:
        """Process id of a running node; 0 if it does not run."""
        child = self._children.get(number)
        if child is not None:
            return child.pid if child.poll() is None else 0
        try:
            pid = int(self._pid_file(number).read_text())
        except (OSError, ValueError):
            return 0
        return pid if self._is_ours(pid, number) else 0

    def held(self, number: int) -> bool:
        """Whether any process, known to this folder's pid files or not, has the node's data open."""
        try:
            lock = os.open(self.data_dir(number) / "raft" / "LOCK", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    # ---- life

    def start_all(self) -> None:
        """Write configurations unless they are there, start every node that does not run, wait until a leader serves.

        Errors: ClusterFailed.
        """
        self.write_configs()
        for number in range(self.nodes):
            if not self.pid(number):
                self._spawn(number)
        self.leader()

    def write_configs(self) -> None:
        """Write what is missing."""
        self.base_dir.mkdir(parents=True, exist_ok=True)
        if all(self.config(number).exists() for number in range(self.nodes)):
            return
        if self._ports:
            ports = [(client, client + 1, peer) for client, peer in self._ports]
        else:
            free = free_ports(3 * self.nodes, self)
            ports = list(zip(free[::3], free[1::3], free[2::3], strict=True))
        members = "".join(
            f'\n[[members]]\nid = "n{number + 1}"\npeer = "{HOST}:{peer}"\nclient = "{HOST}:{client}"\n'
            for number, (client, _, peer) in enumerate(ports)
        )
        extra = "".join(f"{key} = {_toml(value)}\n" for key, value in self._settings.items())
        for number, (client, http, peer) in enumerate(ports):
            own = f'node_id = "n{number + 1}"\ndata_dir = "n{number + 1}"\n'
            own += f'client_listen = "{HOST}:{client}"\npeer_listen = "{HOST}:{peer}"\n'
            own += f'http_listen = "{HOST}:{http}"\n'
            for key, value in (self._node_settings[number] if self._node_settings else {}).items():
                own += f"{key} = {_toml(value)}\n"
            self.config(number).write_text(own + extra + members)

    def start(self, number: int) -> None:
        """Start a node and wait until it answers. Errors: ClusterFailed."""
        if not self.pid(number):
            self._spawn(number)
        deadline = time.monotonic() + PATIENCE
        while self._status(number) is None:
            self._check_alive(number)
            if time.monotonic() > deadline:
                raise ClusterFailed(f"node {number + 1} does not answer:\n{self._tail(number)}")
            time.sleep(PAUSE)

    def kill(self, number: int) -> None:
        """SIGKILL, and wait until it is gone."""
        self._end(number, signal.SIGKILL)

    def terminate(self, number: int) -> int | None:
        """SIGTERM, and wait until it has ended. Returns its exit status if it is known."""
        return self._end(number, signal.SIGTERM)

    def stop(self) -> None:
        """End every node in order; kill what does not end."""
        self._stop(range(self.nodes))

    def stop_started(self) -> None:
        """The same of the nodes that this object has started."""
        self._stop(sorted(self._children))

    def _stop(self, numbers: Sequence[int]) -> None:
        running = [number for number in numbers if self.pid(number)]
        for number in running:
            pid = self.pid(number)
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        for number in running:
            try:
                self._wait(number, PATIENCE / 2)
            except ClusterFailed:
                self.kill(number)
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    # ---- what they say

    def leader(self, timeout: float = PATIENCE) -> int:
        """Number of the node that leads and is acknowledged by a majority. Errors: ClusterFailed."""
        deadline = time.monotonic() + timeout
        while True:
            for number in range(self.nodes):
                if not self.pid(number) and self._children.get(number) is not None:
                    self._check_expected(number)
            found = self._agreed_leader()
            if found is not None:
                return found
            if time.monotonic() > deadline:
                tails = "\n".join(f"node {number + 1}:\n{self._tail(number)}" for number in range(self.nodes))
                raise ClusterFailed(f"no leader within {timeout:g} s\n{tails}")
            time.sleep(PAUSE)

    def peek(self, number: int) -> pb.StatusResponse | None:
        """The node's status; None if it does not answer within a second."""
        return self._status(number)

    def status(self, number: int) -> pb.StatusResponse:
        """Errors: ClusterFailed."""
        answer = self._status(number)
        if answer is None:
            raise ClusterFailed(f"node {number + 1} does not answer:\n{self._tail(number)}")
        return answer

    def hashes(self) -> list[tuple[int, bytes]]:
        """Applied index and content hash of each node. Errors: ClusterFailed."""
        found = [self.status(number) for number in range(self.nodes)]
        return [(answer.applied_index, answer.state_hash) for answer in found]

    # ---- inside

    def _agreed_leader(self) -> int | None:
        """A node that says it leads, and that a majority, itself included, names in its term.

        Others may name a dead one for a while.
        """
        answers = {number: answer for number in range(self.nodes) if (answer := self._status(number)) is not None}
        for number, own in answers.items():
            if own.role != "leader" or own.leader.node_id != own.node_id:
                continue
            followers = [other for other in answers.values() if other.leader == own.leader]
            if len(followers) * 2 > self.nodes:
                return number
        return None

    def _status(self, number: int) -> pb.StatusResponse | None:
        if not self.pid(number):
            return None
        channel = self._channels.get(number)
        if channel is None:
            options: tuple[tuple[str, int | str], ...] = (
                ("grpc.enable_http_proxy", 0),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.min_reconnect_backoff_ms", 1_000),  # also how long one attempt may take
                ("grpc.max_reconnect_backoff_ms", 100),
            )
            channel = self._channels[number] = self._open_channel(self.client_address(number), options)
        call = channel.unary_unary(
            "/kvorum.v1.Kv/Status",
            request_serializer=pb.StatusRequest.SerializeToString,
            response_deserializer=pb.StatusResponse.FromString,
        )
        try:
            metadata = (("authorization", f"Bearer {self._token}"),) if self._token else ()
            answer: pb.StatusResponse = call(pb.StatusRequest(), timeout=1.0, metadata=metadata)
        except grpc.RpcError:
            return None
        return answer

    def _open_channel(self, target: str, options: tuple[tuple[str, int | str], ...]) -> grpc.Channel:
        if self._tls is None:
            return grpc.insecure_channel(target, options=options)
        return grpc.secure_channel(target, self._tls.credentials(), options=(*options, *self._tls.options))

    def _check_ports(self, number: int) -> None:
        """Another program's node on this port would answer in place of ours."""
        config = tomllib.loads(self.config(number).read_text())
        for name in ("client_listen", "peer_listen", "http_listen"):
            address = config.get(name, "off")
            if address == "off":
                continue
            host, _, port = address.rpartition(":")
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, int(port)))
                except OSError as error:
                    raise ClusterFailed(f"node {number + 1} cannot use {address}: {error.strerror}") from error

    def _spawn(self, number: int) -> None:
        self._check_ports(number)
        with self.log(number).open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "kvorum_node", "--config", str(self.config(number))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.base_dir,
                # Ctrl-C in the terminal is for the program that owns the cluster; it ends its nodes in order.
                start_new_session=True,
            )
        self._children[number] = child
        self._pid_file(number).write_text(f"{child.pid}\n")
        channel = self._channels.pop(number, None)
        if channel is not None:
            channel.close()

    def _end(self, number: int, how: signal.Signals) -> int | None:
        pid = self.pid(number)
        if not pid:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)
        return self._wait(number, PATIENCE)

    def _wait(self, number: int, timeout: float) -> int | None:
        child = self._children.get(number)
        if child is not None:
            try:
                status = child.wait(timeout)
            except subprocess.TimeoutExpired:
                raise ClusterFailed(f"node {number + 1} does not end:\n{self._tail(number)}") from None
            del self._children[number]
            self._pid_file(number).unlink(missing_ok=True)
            return status
        deadline = time.monotonic() + timeout
        while self.pid(number) or self.held(number):  # a process loses its command line before its files
            if time.monotonic() > deadline:
                raise ClusterFailed(f"node {number + 1} does not end:\n{self._tail(number)}")
            time.sleep(PAUSE)
        self._pid_file(number).unlink(missing_ok=True)
        return None

    def _check_alive(self, number: int) -> None:
        if not self.pid(number):
            raise ClusterFailed(f"node {number + 1} has ended:\n{self._tail(number)}")

    def _check_expected(self, number: int) -> None:
        """A child that ended without being told to."""
        status = self._children.pop(number).poll()
        self._pid_file(number).unlink(missing_ok=True)
        raise ClusterFailed(f"node {number + 1} has ended with status {status}:\n{self._tail(number)}")

    def _tail(self, number: int) -> str:
        try:
            return self.log(number).read_text(errors="replace")[-TAIL:]
        except OSError:
            return "(no log)"

    def _pid_file(self, number: int) -> Path:
        return self.base_dir / f"n{number + 1}.pid"

    def _is_ours(self, pid: int, number: int) -> bool:
        """The pid may have been given to another program meanwhile."""
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        *_, option, config, _ = [b"", b"", *command.split(b"\0")]
        return option == b"--config" and os.path.realpath(os.fsdecode(config)) == str(self.config(number))


def _toml(value: int | str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def free_ports(count: int, holder: object = None) -> list[int]:
    """Ports that nobody listens on now, below those that the kernel gives to outgoing connections.

    While a node is down, such a connection (even one of its own peers, trying to reach it) could take its port. So
    could another cluster that looks for free ones: as long as there is a `holder`, the ports are bound, so that nobody
    else finds them, but may be listened on.
    """
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.SystemRandom().sample(range(10_000, _first_ephemeral_port()), 500):
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.append(port)
            if len(found) == count:
                if holder is not None:
                    weakref.finalize(holder, stack.pop_all().close)
                return found
    raise ClusterFailed(f"there are no {count} free ports on {HOST}")


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32_768
