"""Holds packets back for a while: `python -m chaos.delayer QUEUE MILLISECONDS JITTER`, in a seat of the lab.

The kernel's own means (netem) is often missing; a rule of iptables sends packets to a queue here in its place, and each
is let go after its time. Jitter reorders, as on real ways. Says `ready` when the queue is ours, and at its end, on
SIGTERM, how many packets it has held back.
"""

import heapq
import os
import random
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import Final

_NETFILTER: Final = 12
"""NETLINK_NETFILTER."""
_QUEUE: Final = 0x300
"""NFNL_SUBSYS_QUEUE; the kinds of messages follow."""
_PACKET, _VERDICT, _CONFIG = 0, 1, 2
_ACCEPT: Final = 1
_LENGTH: Final = 65_536
"""Packets that may wait; further ones are lost."""


class Queue:
    """A packet queue of the kernel's. Errors: OSError."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER)
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
        self._socket.setsockopt(270, 5, 1)  # NETLINK_NO_ENOBUFS: what does not fit is lost, as on a real way
        self._socket.bind((0, 0))
        self._configure(_attribute(1, struct.pack(">BBH", 1, 0, 0)))  # it is ours
        self._configure(_attribute(2, struct.pack(">IB", 0, 1)))  # packets stay in the kernel, we get their numbers
        self._configure(_attribute(3, struct.pack(">I", _LENGTH)))
        # Segments that the kernel has put together come whole.
        self._configure(_attribute(5, struct.pack(">I", 4)) + _attribute(4, struct.pack(">I", 4)))
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def arrived(self) -> Iterator[int]:
        """Numbers of packets that wait."""
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        at = 0
        while at + 16 <= len(data):
            size, kind = struct.unpack_from("=IH", data, at)
            if kind == _QUEUE | _PACKET:
                yield from _number_of(data[at + 20 : at + size])
            at += (size + 3) & ~3

    def let_go(self, packet: int) -> None:
        self._send(_VERDICT, _attribute(2, struct.pack(">II", _ACCEPT, packet)), flags=1)

    def _configure(self, body: bytes) -> None:
        self._send(_CONFIG, body, flags=5)
        code = -struct.unpack_from("=i", self._socket.recv(65_536), 16)[0]
        if code:
            raise OSError(code, os.strerror(code))

    def _send(self, kind: int, body: bytes, *, flags: int) -> None:
        head = struct.pack("=IHHIIBBH", 20 + len(body), _QUEUE | kind, flags, 0, 0, 0, 0, socket.htons(self._number))
        self._socket.send(head + body)


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _number_of(attributes: bytes) -> Iterator[int]:
    at = 0
    while at + 4 <= len(attributes):
        size, kind = struct.unpack_from("=HH", attributes, at)
        if kind & 0x3FFF == 1:
            yield struct.unpack_from(">I", attributes, at + 4)[0]
        at += max(4, (size + 3) & ~3)


class Ended(Exception):
    """SIGTERM."""


def hold_back(queue: Queue, seconds: float, jitter: float) -> int:
    """Until SIGTERM; returns the number of packets, all of which have been let go."""
    held: list[tuple[float, int]] = []
    count = 0
    try:
        while True:
            now = time.monotonic()
            while held and held[0][0] <= now:
                queue.let_go(heapq.heappop(held)[1])
            select.select([queue], [], [], held[0][0] - now if held else None)
            now = time.monotonic()
            for packet in queue.arrived():
                heapq.heappush(held, (now + max(0.0, seconds + random.uniform(-jitter, jitter)), packet))
                count += 1
    except Ended:
        for _, packet in held:
            queue.let_go(packet)
    return count


def main() -> None:
    """See the module."""

    def end(number: int, frame: object) -> None:
        raise Ended

    number, delay, jitter = int(sys.argv[1]), *map(float, sys.argv[2:4])
    queue = Queue(number)
    signal.signal(signal.SIGTERM, end)
    print("ready", flush=True)
    print(hold_back(queue, delay / 1_000, jitter / 1_000), flush=True)


if __name__ == "__main__":
    main()
