"""Upgrades and downgrades under load: a node is stopped in order, and goes on with the code of another version.

All nodes begin with the other version, as before an upgrade. What stands in the log must be what the oldest of them can
apply, and a node that was stopped in order must leave a log that the version before it can open.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from kvorum_node.dev_cluster import in_thread

from .arena import Arena
from .cuts import name

CODE: Final = ("client", "node", "raft")
"""Folders of a checkout from which a node takes its modules."""
OUTAGE: Final = (0.0, 0.5)
"""Seconds for which a node is away."""


class SwapFailed(Exception):
    """A node did not end in order before it was to change its version."""


def code_of(checkout: Path) -> str:
    """For PYTHONPATH. Errors: ValueError if that is no checkout."""
    folders = [checkout.resolve() / name for name in CODE]
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        raise ValueError(f"{checkout} is no checkout of kvorum: {', '.join(missing)} is not there")
    return ":".join(map(str, folders))


class Versions:
    """Errors of `swap`: SwapFailed, and those of `Arena`."""

    def __init__(self, arena: Arena, rng: Random, say: Callable[[str], None]) -> None:
        self._arena = arena
        self._rng = rng
        self._say = say

    async def swap(self) -> int:
        """Stop a node, which may lead, and start it with the version that it did not have. Returns 1."""
        arena = self._arena
        victim = self._rng.choice(arena.present)
        arena.others ^= {victim}
        self._say(
            f"{name(victim)} is stopped, and goes on with {'the other' if victim in arena.others else 'this'} version"
        )
        arena.may_end.add(victim)
        status = await in_thread(arena.terminate, victim)
        arena.may_end.discard(victim)
        if status:
            raise SwapFailed(f"{name(victim)} ended with status {status} after SIGTERM")
        await asyncio.sleep(self._rng.uniform(*OUTAGE))
        await in_thread(arena.start, victim)
        return 1
