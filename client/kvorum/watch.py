"""Watches: the newest entries of a few keys, again and again.

Snapshots are fetched when they are asked for, so a slow reader skips what it missed and never holds a backlog. What
repeats the last emission in all versionstamps is left out, unless the watch is raw. A wait that is cancelled (by
`asyncio.timeout`, say) leaves the watch as it was: the fetch goes on, and the next wait takes it over.
"""

from collections.abc import Sequence
from typing import Final, Self

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.entry import Entry, answered, own_key
from kvorum.errors import LimitExceeded
from kvorum.fetching import Fetches
from kvorum.keys import Key, KeyPart
from kvorum.link import Link
from kvorum.misuse import ReadByAsyncFor
from kvorum.mutation import check_list, read_keys

_Snapshot = Sequence[pb.KvEntry]


class Watch(ReadByAsyncFor):
    """Lists of entries aligned with the watched keys, for `async for`. Made by `Kv.watch`."""

    _how = "use `async for entries in kv.watch(…)`"

    def __init__(self, keys: Sequence[Sequence[KeyPart]], link: Link, *, raw: bool = False) -> None:
        check_list(keys, "keys")
        if len(keys) > limits.MAX_WATCHED_KEYS:
            raise LimitExceeded("MAX_WATCHED_KEYS", limits.MAX_WATCHED_KEYS, len(keys), "watched keys")
        encoded = read_keys(keys)
        self._keys: Final[list[Key]] = [own_key(key) for key in keys]
        self._raw = bool(raw)
        self._snapshots: Fetches[_Snapshot] = Fetches(link.backend.watch(encoded) if keys else None, link)
        self._seen: list[bytes] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Entry]:
        entries = await self.next_emission()
        if entries is None:
            raise StopAsyncIteration
        return entries

    async def next_emission(self) -> list[Entry] | None:
        """The watched keys when they have changed; None when the watch or the client is closed.

        Errors: DataError, InvalidArgument, Unavailable.
        """
        while (snapshot := await self._snapshots.next()) is not None:
            seen = [row.versionstamp for row in snapshot]
            if self._raw or seen != self._seen:
                self._seen = seen
                return [answered(key, row) for key, row in zip(self._keys, snapshot, strict=True)]
        return None

    async def aclose(self) -> None:
        """End the watch, also for a task that waits for its next emission."""
        await self._snapshots.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
