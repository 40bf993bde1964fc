"""Connections that gRPC has, looked at from outside: its server has no way to end one of them."""

import contextlib
import os
import socket
from collections.abc import Set
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

FILES: Final = Path("/proc/self/fd")


def shut(port: int, peers: Set[str]) -> int:
    """Shut the connections of these peers, named as gRPC names them, to a port of this process. Returns how many there
    were.

    gRPC finds that its client has gone, and lets go of everything that it had for it. Takes some microseconds for each
    file of the process. Any thread may call it: what is shut is a copy of the descriptor, so it cannot have become
    another's meanwhile.
    """
    wanted = {unquote(peer) for peer in peers}
    count = 0
    for name in _sockets():
        # It may have been closed meanwhile, or it listens.
        with contextlib.suppress(OSError), _copy_of(name) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
                continue
            if _name_of(connection.getpeername()) in wanted:
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def _sockets() -> list[int]:
    """Descriptors."""
    found = []
    for entry in FILES.iterdir() if FILES.is_dir() else ():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
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
