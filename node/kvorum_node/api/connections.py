"""Connections that gRPC has, looked at from outside: its server has no way to end one of them."""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Set
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

FILES: Final = Path("/proc/self/fd")
RECEIVED: Final = slice(128, 136)
"""Where `tcp_info` of Linux has `tcpi_bytes_received`."""


def shut(port: int, peers: Set[str]) -> int:
    """Shut the connections of these peers, named as gRPC names them, to a port of this process. Returns how many there
    were.

    gRPC finds that its client has gone, and lets go of everything that it had for it. Takes some microseconds for each
    file of the process. Any thread may call it: what is shut is a copy of the descriptor, so it cannot have become
    another's meanwhile.
    """
    wanted = {unquote(peer) for peer in peers}
    count = 0
    for name, connection in _connections(port):
        if name in wanted:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def received(port: int) -> dict[str, int]:
    """Bytes that have come by each connection to a port of this process, TLS and all, by the peers' names (with what
    gRPC quotes in them as it is). Without those of which the system does not tell. Takes as long, and may be called
    from anywhere, as `shut`."""
    found = {}
    for name, connection in _connections(port):
        with contextlib.suppress(OSError):
            told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RECEIVED.stop)
            if len(told) == RECEIVED.stop:
                found[name] = int.from_bytes(told[RECEIVED], sys.byteorder)
    return found


def _connections(port: int) -> Iterator[tuple[str, socket.socket]]:
    """Peers' names, and copies that are closed again."""
    for name in _sockets():
        # It may have been closed meanwhile, or it listens.
        with contextlib.suppress(OSError), _copy_of(name) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getsockname()[1] == port:
                yield _name_of(connection.getpeername()), connection


def _sockets() -> list[int]:
    """Descriptors; none where nobody tells, or where there is none left to look with."""
    found: list[int] = []
    try:
        entries = list(os.scandir(FILES))
    except OSError:
        return found
    for entry in entries:
        with contextlib.suppress(OSError):
            if os.readlink(entry.path).startswith("socket:"):  # noqa: PTH115  # half the time of a Path's
                found.append(int(entry.name))
    return found


def _copy_of(descriptor: int) -> socket.socket:
    """Raises OSError."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _name_of(address: Any) -> str:
    """As gRPC names it."""
    host, port = address[:2]
    if len(address) == 2:
        return f"ipv4:{host}:{port}"
    mapped = IPv6Address(host.partition("%")[0]).ipv4_mapped
    return f"ipv6:[{host}]:{port}" if mapped is None else f"ipv4:{mapped}:{port}"
