"""The cluster that is attacked: a development cluster whose nodes may have a network namespace and a disk each."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import grpc

from kvorum_node.dev_cluster import HOST, DevCluster, free_ports

from .disks import LoopDisk
from .network import Lab, Seat
from .shim import Shim, environment_with

CLIENT_PORT: Final = 7401
PEER_PORT: Final = 7403
"""Of every node that has an address of its own."""
_CHANNEL: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
    # What it says is less than what it does: an attempt gets so long. Nodes on a busy machine need it.
    ("grpc.min_reconnect_backoff_ms", 1_000),
)
VOTERS: Final = 3
"""Members of a new cluster; further nodes are there to join it."""


class Arena(DevCluster):
    """With a lab, each node runs in a seat of it; with `disks`, each node's data is on a file system of its own.

    `crews` seats are made for clients. `other` is PYTHONPATH for the code of another version, with which all nodes
    begin. `shims` is the library of wrong clocks and bad syncs, if nodes are to get it. `nodes` beyond the first three
    are not members of the new cluster. Methods raise, besides ClusterFailed, OSError and CalledProcessError where
    network or disks do not obey.
    """

    def __init__(
        self,
        base_dir: Path,
        *,
        nodes: int = VOTERS,
        lab: Lab | None = None,
        disks: bool = False,
        crews: int = 1,
        shims: Path | None = None,
        other: str = "",
        settings: Mapping[str, int | str] | None = None,
    ) -> None:
        super().__init__(base_dir, nodes=nodes, settings=settings)
        self._text = dict(settings or {})
        self.lab = lab
        self.seats: list[Seat] = [] if lab is None else [lab.seat() for _ in range(nodes)]
        self.crew_seats: list[Seat | None] = [None if lab is None else lab.seat() for _ in range(crews)]
        free = free_ports(2 * nodes, self) if lab is None else []
        self._addresses = [(f"{seat.address}:{CLIENT_PORT}", f"{seat.address}:{PEER_PORT}") for seat in self.seats] or [
            (f"{HOST}:{free[2 * at]}", f"{HOST}:{free[2 * at + 1]}") for at in range(nodes)
        ]
        self._with_disks = disks
        self.disks: list[LoopDisk] = []
        self._library = shims
        self.shims: list[Shim] = []
        self.killed = 0
        """Processes of nodes that died of our SIGKILL."""
        self._joining = set(range(VOTERS, nodes))
        self.present = list(range(min(VOTERS, nodes)))
        """Numbers of the members, which run unless something was done to them."""
        self._other = other
        self.others: set[int] = set(range(nodes)) if other else set()
        """Nodes that start with the code of the other version."""
        self.may_end: set[int] = set()
        """Nodes that may end by themselves."""

    # ---- what is where

    def data_dir(self, number: int) -> Path:
        folder = super().data_dir(number)
        return folder / "data" if self._with_disks else folder

    def peer_address(self, number: int) -> str:
        """host:port."""
        return self._addresses[number][1]

    def reached_at(self, number: int) -> str:
        """Where clients find the node, host:port."""
        return self._addresses[number][0]

    @property
    def url(self) -> str:
        """Of the first members."""
        return "kvorum://" + ",".join(client for client, _ in self._addresses[:VOTERS])

    def start_all(self) -> None:
        """As ever; the nodes that are no members wait."""
        self.write_configs()
        for number in range(min(self.nodes, VOTERS)):
            if not self.pid(number):
                self._spawn(number)
        self.leader()

    def write_configs(self) -> None:
        """Configurations, and file systems."""
        self.base_dir.mkdir(parents=True, exist_ok=True)
        if self.config(0).exists():
            return
        if self._with_disks:
            for number in range(self.nodes):
                mount = super().data_dir(number)
                self.disks.append(LoopDisk(self.base_dir / f"n{number + 1}.ext4", mount))
        if self._library is not None:
            for number in range(self.nodes):
                self.shims.append(Shim(self._library, self.base_dir / f"n{number + 1}.shim"))
        for number in range(self.nodes):
            self.config(number).write_text(self._config_text(number))

    def _config_text(self, number: int) -> str:
        client, peer = self._addresses[number]
        lines = [f'node_id = "n{number + 1}"', f'data_dir = "{self.data_dir(number).relative_to(self.base_dir)}"']
        lines += [f'client_listen = "{client}"', f'peer_listen = "{peer}"', 'http_listen = "off"']
        lines += ["insecure = true"]  # the network is this program's own; what is tested is what happens inside
        lines += [f"{key} = {value!r}".replace("'", '"') for key, value in self._text.items()]
        if number in self._joining:
            lines += ["join = true"]
        for other, (its_client, its_peer) in enumerate(self._addresses):
            if other < VOTERS or other == number:
                lines += ["", "[[members]]", f'id = "n{other + 1}"', f'peer = "{its_peer}"', f'client = "{its_client}"']
        return "\n".join(lines) + "\n"

    def let_join(self, number: int) -> None:
        """At its next start the node forms no cluster, but waits to be let in."""
        self._joining.add(number)
        self.config(number).write_text(self._config_text(number))

    # ---- power

    def cut_power(self, numbers: Sequence[int], *, frozen: bool, seconds: float = 0.0) -> None:
        """Take the power from these nodes, at once as far as that can be had.

        A frozen node notices nothing, as in a real power cut. Else it finds its disk dead, and is given some seconds
        to do whatever it does then. Nothing comes back before `restore_power`.
        """
        for number in numbers:
            pid = self.pid(number)
            self.may_end.add(number)
            if frozen and pid:
                os.kill(pid, signal.SIGSTOP)
        for number in numbers:
            self.disks[number].cut()
            if self.lab is not None and frozen:
                self.lab.unplug(self.seats[number])  # a node without power says no farewell to its peers
        time.sleep(seconds)
        for number in numbers:
            self.kill(number)

    @property
    def losses(self) -> int:
        """Power cuts so far that have lost something; known when the power is back."""
        return sum(disk.cuts - disk.harmless for disk in self.disks)

    def restore_power(self, number: int) -> None:
        """The node can be started again; what it had not synced is gone."""
        self.disks[number].restore()
        self.may_end.discard(number)
        if self.lab is not None:
            self.lab.plug(self.seats[number])

    def release(self, number: int) -> int | None:
        """The node may have ended by itself: then start it. Returns its exit status; negative: it died of a signal."""
        child = self._children.get(number)
        status = None if child is None else child.poll()
        self.may_end.discard(number)
        if status is not None:
            self.kill(number)
        self.start(number)
        return status

    # ---- life

    def kill(self, number: int) -> None:
        """SIGKILL, and wait until it is gone; also one that has ended by itself."""
        child = self._children.pop(number, None)  # first of all: others must not take it for one that ended itself
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            self.killed += child.wait() == -signal.SIGKILL
            self._pid_file(number).unlink(missing_ok=True)
        self.forget(number)

    def spawn(self, number: int) -> None:
        """Start a node, and do not wait for anything."""
        self._spawn(number)

    def hashes(self) -> list[tuple[int, bytes]]:
        """Of the members."""
        found = [self.status(number) for number in self.present]
        return [(answer.applied_index, answer.state_hash) for answer in found]

    def stop(self) -> None:
        """End all nodes, and give back disks."""
        for number in range(self.nodes):
            pid = self.pid(number)
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        try:
            super().stop()
        finally:
            for disk in self.disks:
                disk.close()

    def forget(self, number: int) -> None:
        """Connect anew when its status is wanted next: after a cut an old connection wakes up only slowly."""
        earlier = self._channels.get(number)
        self._channels[number] = grpc.insecure_channel(self._addresses[number][0], options=_CHANNEL)
        if earlier is not None:
            earlier.close()

    def popen(self, command: Sequence[str], seat: Seat | None, **options: object) -> subprocess.Popen[bytes]:
        """A process, in a seat if there is one. It begins in a session of its own."""
        kept: Iterable[int] = () if seat is None else (seat.namespace,)
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]  # options are what Popen takes
            list(command) if seat is None else seat.command(*command),
            pass_fds=kept,
            start_new_session=True,
            **options,
        )

    def _check_expected(self, number: int) -> None:
        if number in self.may_end or number not in self._children:
            self.kill(number)
        else:
            super()._check_expected(number)

    def _agreed_leader(self) -> int | None:
        """By the votes of the members that the leader itself knows."""
        answers = {number: answer for number in range(self.nodes) if (answer := self._status(number)) is not None}
        for number, own in answers.items():
            if own.role != "leader" or own.leader.node_id != own.node_id:
                continue
            voters = {own.node_id, *(peer.node_id for peer in own.peers if peer.voter)}
            behind = [other for other in answers.values() if other.node_id in voters and other.leader == own.leader]
            if len(behind) * 2 > len(voters) and all(other.term == own.term for other in behind):
                return number
        return None

    def _spawn(self, number: int) -> None:
        seat = self.seats[number] if self.seats else None
        if seat is None:
            self._check_ports(number)
        command = [sys.executable, "-m", "kvorum_node", "--config", str(self.config(number))]
        environment = environment_with(self.shims[number] if self.shims else None)
        if number in self.others:
            environment["PYTHONPATH"] = self._other
        with self.log(number).open("ab") as log:
            self._children[number] = self.popen(
                command, seat, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.base_dir, env=environment
            )
        self._pid_file(number).write_text(f"{self._children[number].pid}\n")
        self.forget(number)
