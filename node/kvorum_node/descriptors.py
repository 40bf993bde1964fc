"""File descriptors: connections must not take those that the log and the state need.

Whoever reaches a port can open connections until a process has no descriptors left; then its next file cannot be opened
either. So each port has a part of what the process may have, and what is left is the node's own.
"""

import contextlib
import resource
from typing import Final

WANTED: Final = 65_536
"""Enough for all ports at their limits, many times over."""


def raise_limit() -> None:
    """Let this process have what it may have; a soft limit of 1024 is for programs of another age."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def at_most(connections: int, sixteenths: int) -> int:
    """So many connections, or fewer: that part of the limit of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, soft * sixteenths // 16))
