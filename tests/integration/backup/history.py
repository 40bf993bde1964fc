"""Writers that note what was acknowledged, so that any moment's state can be told from it."""

import asyncio
from dataclasses import dataclass, field

import kvorum
from kvorum import Kv

Version = tuple[bytes, int]


@dataclass
class History:
    """`versions`: versionstamp and value of each acknowledged write, by key, in order."""

    versions: dict[tuple[str, int], list[Version]] = field(default_factory=dict)
    stopping: bool = False

    @property
    def writes(self) -> int:
        return sum(map(len, self.versions.values()))

    @property
    def newest(self) -> bytes:
        return max(versions[-1][0] for versions in self.versions.values())

    async def writer(self, kv: Kv, number: int, keys: int) -> None:
        """Write to keys of its own, in turn, until told to stop; some writes have two keys."""
        value = 0
        while not self.stopping:
            value += 1
            first, second = ("w", number * 1_000 + value % keys), ("w", number * 1_000 + (value + 1) % keys)
            operation = kv.atomic().set(first, value)
            if value % 3 == 0:
                operation = operation.set(second, value)
            stamp = bytes.fromhex((await operation.commit()).versionstamp)
            self._note(first, stamp, value)
            if value % 3 == 0:
                self._note(second, stamp, value)

    def _note(self, key: tuple[str, int], stamp: bytes, value: int) -> None:
        self.versions.setdefault(key, []).append((stamp, value))

    def at(self, bookmark: bytes) -> dict[tuple[str, int], Version]:
        """Every key as it was after the commit of that versionstamp, and all before it."""
        found = {}
        for key, versions in self.versions.items():
            until = [version for version in versions if version[0] <= bookmark]
            if until:
                found[key] = until[-1]
        return found


async def all_of(url: str) -> dict[tuple[str, int], Version]:
    """What the writers' keys are now."""
    found: dict[tuple[str, int], Version] = {}
    async with await kvorum.open_kv(url) as kv:
        async for entry in kv.list(prefix=("w",)):
            stamp = bytes.fromhex(str(entry.versionstamp))
            found[entry.key] = (stamp, entry.value)  # type: ignore[index,assignment]
    return found


async def until(condition: "asyncio.Future[None] | None", history: History, writes: int) -> None:
    """Wait until so many writes were acknowledged."""
    while history.writes < writes:
        if condition is not None and condition.done():
            return
        await asyncio.sleep(0.01)
