"""A small network of namespaces on one bridge, whose cables and ways can be cut.

Runs inside a network namespace of its own (see `isolation`), which has no way out. Each *seat* is a further namespace
with an address on the bridge; processes are started in it. Seats outlive their processes, so a cut stays while a node
is killed and started.

A one-way cut gives the sender a wrong hardware address for the receiver: its frames reach the bridge, and nobody takes
them. That needs nothing but iproute2 (packet filters and traffic control are modules that a kernel may lack), and for
the sender it looks like the real thing: no error, no answer. Only what `links` does needs packet filters as well.
"""

import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "198.19.0"
"""Of addresses; reserved for tests of networks, so nobody is reached by mistake."""
OWN: Final = f"{PREFIX}.254"
"""Address of who runs the lab: on the bridge itself, never cut."""
NOWHERE: Final = "02:00:00:00:00:01"
"""A hardware address that nobody has."""
PATIENCE: Final = 10.0
_BRIDGE: Final = "br0"


@dataclass(frozen=True, slots=True)
class Seat:
    """A place in the network for processes."""

    address: str
    cable: str
    """Name of the bridge's end."""
    namespace: int
    """Descriptor that keeps the namespace; children must inherit it."""

    def command(self, *command: str) -> list[str]:
        """The command that runs another one here; the process id is the same."""
        return ["nsenter", f"--net=/proc/self/fd/{self.namespace}", "--", *command]


class Lab:
    """See the module. Errors of all methods: OSError, CalledProcessError."""

    def __init__(self) -> None:
        self._seats: list[Seat] = []
        self._cuts: set[tuple[Seat, Seat]] = set()
        self._unplugged: set[Seat] = set()
        _run(
            ["ip", "-batch", "-"],
            f"link set lo up\nlink add {_BRIDGE} type bridge\nlink set {_BRIDGE} up\naddr add {OWN}/24 dev {_BRIDGE}\n",
        )

    def seat(self) -> Seat:
        """A new place, connected to all others."""
        number = len(self._seats) + 1
        # Something has to live in the namespace until we hold it by a descriptor.
        with subprocess.Popen(["unshare", "--net", "--", "cat"], stdin=subprocess.PIPE) as holder:
            namespace = _opened_namespace(holder.pid)
            seat = Seat(f"{PREFIX}.{number}", f"cable{number}", namespace)
            _run(
                ["ip", "-batch", "-"],
                f"link add {seat.cable} type veth peer name eth0 netns {holder.pid}\n"
                f"link set {seat.cable} master {_BRIDGE} up\n",
            )
            self._ip(seat, f"addr add {seat.address}/24 dev eth0\nlink set eth0 up\nlink set lo up\n")
        self._seats.append(seat)
        return seat

    def cut(self, ways: Iterable[tuple[Seat, Seat]]) -> None:
        """From now on what the first of a pair sends to the second is lost; the other direction goes on."""
        new = [way for way in ways if way not in self._cuts]
        self._cuts.update(new)
        for sender in {sender for sender, _ in new}:
            self._ip(
                sender,
                "".join(
                    f"neigh replace {receiver.address} lladdr {NOWHERE} nud permanent dev eth0\n"
                    for one, receiver in new
                    if one == sender
                ),
            )

    def split(self, groups: Sequence[Iterable[Seat]]) -> None:
        """Cut all ways between seats of different groups."""
        members = [(number, seat) for number, group in enumerate(groups) for seat in group]
        self.cut((one, other) for here, one in members for there, other in members if here != there)

    def unplug(self, seat: Seat) -> None:
        """Pull the cable."""
        self._unplugged.add(seat)
        _run(["ip", "link", "set", seat.cable, "nomaster"])

    def plug(self, seat: Seat) -> None:
        """Put it back."""
        self._unplugged.discard(seat)
        _run(["ip", "link", "set", seat.cable, "master", _BRIDGE])

    def reset(self, seat: Seat) -> int:
        """Break every open connection of a seat; both ends are told so. Returns how many."""
        told = _run(seat.command("ss", "--no-header", "--kill", "--tcp", "state", "established"), seat=seat)
        return len(told.splitlines())

    def sent_again(self) -> int:
        """TCP segments that all seats so far had to send again, because nobody acknowledged them: lost ones."""
        return sum(_retransmitted(_run(seat.command("cat", "/proc/net/snmp"), seat=seat)) for seat in self._seats)

    def filter(self, seat: Seat, rules: Iterable[Sequence[str]]) -> None:
        """Rules of iptables for what a seat sends and gets, until `unfilter`."""
        text = "".join(f"-A {' '.join(rule)}\n" for rule in rules)
        _run(seat.command("iptables-restore", "-w", "--noflush"), f"*filter\n{text}COMMIT\n", seat)

    def unfilter(self, seat: Seat) -> int:
        """Take all rules away. Returns how many packets they have met."""
        told = _run(seat.command("iptables", "-w", "-nvxL"), seat=seat)
        _run(seat.command("iptables", "-w", "-F"), seat=seat)
        rows = (line.split() for line in told.splitlines())
        return sum(int(row[0]) for row in rows if row and row[0].isdigit())

    def heal(self) -> None:
        """Every cable and every way is whole again."""
        for seat in list(self._unplugged):
            self.plug(seat)
        for sender in {sender for sender, _ in self._cuts}:
            gone = [receiver for one, receiver in self._cuts if one == sender]
            self._ip(sender, "".join(f"neigh del {receiver.address} dev eth0\n" for receiver in gone))
        self._cuts.clear()

    def close(self) -> None:
        """Take everything down; processes that still run in a seat keep a network without cables."""
        for seat in self._seats:
            _run(["ip", "link", "del", seat.cable])
            os.close(seat.namespace)
        self._seats.clear()
        _run(["ip", "link", "del", _BRIDGE])

    def _ip(self, seat: Seat, batch: str) -> None:
        _run(seat.command("ip", "-batch", "-"), batch, seat)


def _opened_namespace(pid: int) -> int:
    own = os.stat("/proc/self/ns/net").st_ino  # noqa: PTH116 - a link without a target in the file system
    deadline = time.monotonic() + PATIENCE
    while True:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        if os.fstat(namespace).st_ino != own:
            return namespace
        os.close(namespace)
        if time.monotonic() > deadline:
            raise OSError("no network namespace came up")
        time.sleep(0.001)


def _retransmitted(snmp: str) -> int:
    """A field of /proc/net/snmp."""
    names, values = (line.split() for line in snmp.splitlines() if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def _run(command: Sequence[str], text: str = "", seat: Seat | None = None) -> str:
    """What it says."""
    kept = () if seat is None else (seat.namespace,)
    done = subprocess.run(
        command, input=text, text=True, check=True, capture_output=True, timeout=PATIENCE, pass_fds=kept
    )
    return done.stdout
