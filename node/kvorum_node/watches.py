"""Key watches: snapshots of a few keys, the newest at once and then whenever one of them was touched.

A watch holds no events. An applied entry marks the watches of its keys as dirty, and whoever serves a watch *takes*
its snapshot when it can send one. So a slow watcher costs one flag and gets the newest state, never a backlog, and
all keys of an event come from one snapshot.

Many watchers of one key share the work: rows read for one event are kept until the state moves on.

When a snapshot has become the state, nobody knows which keys it changed: every watch then compares what it last sent
with what is there now (rules E1), a slice of them in each turn of the loop.

Rejected: comparing versionstamps to suppress events of entries (a delete of a deleted key must be seen by raw watchers;
extra events are allowed).
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from kvorum._proto import kvorum_pb2 as pb

from .store import Snapshot, Store
from .timers import Timers

MAX_CACHED_ROWS = 1_024
SLICE_KEYS = 256
"""Keys compared in one turn of the loop after a snapshot was installed: about 2 ms."""


class Watch:
    """Keys under watch. `notify` is called on the loop when there is something to take; not again before it was
    taken.
    """

    __slots__ = ("_notify", "dirty", "ended", "keys", "open", "seen")

    def __init__(self, keys: Sequence[bytes], notify: "Callable[[Watch], None]") -> None:
        self.keys = tuple(keys)
        self.dirty = False
        self.open = False
        """The first snapshot may be taken: the state is known to be new enough."""
        self.seen: tuple[bytes, ...] = ()
        """Versionstamps of the keys as they were last taken."""
        self.ended = ""
        """Why there will be no more events; the watcher should start again."""
        self._notify = notify

    def touch(self) -> None:
        """There is something new."""
        if self.open and not self.dirty:
            self.dirty = True
            self._notify(self)

    def begin(self) -> None:
        """Let the first snapshot go out."""
        if not self.open and not self.ended:
            self.open = True
            self.touch()

    def end(self, reason: str) -> None:
        if not self.ended:
            self.ended = reason
            self._notify(self)


class ChangeHub:
    """Knows who watches which keys."""

    def __init__(self, store: Store, timers: Timers) -> None:
        self._store = store
        self._timers = timers
        # Dicts without values, where sets would do: watchers are told in the order in which they came.
        self._by_key: dict[bytes, dict[Watch, None]] = {}
        self._watches: dict[Watch, None] = {}
        self._cached_at = b""
        self._cache: dict[bytes, pb.KvEntry] = {}
        self._unsure: deque[Watch] = deque()
        """Watches to be compared with a state that came as a snapshot."""
        self._comparing = False
        self._events = 0

    def add(self, keys: Sequence[bytes], notify: Callable[[Watch], None]) -> Watch:
        """Watch keys (duplicates allowed). Nothing comes before `Watch.begin`."""
        watch = Watch(keys, notify)
        self._watches[watch] = None
        for key in watch.keys:
            self._by_key.setdefault(key, {})[watch] = None
        return watch

    def remove(self, watch: Watch) -> None:
        """Idempotent."""
        self._watches.pop(watch, None)
        for key in watch.keys:
            watchers = self._by_key.get(key)
            if watchers is not None:
                watchers.pop(watch, None)
                if not watchers:
                    del self._by_key[key]

    def applied(self, changed_keys: Iterable[bytes]) -> None:
        """An entry has touched these keys."""
        by_key = self._by_key
        if not by_key:
            return
        for key in changed_keys:
            watchers = by_key.get(key)
            if watchers:
                for watch in watchers:
                    watch.touch()

    def take(self, watch: Watch) -> tuple[list[pb.KvEntry], bytes]:
        """The watched keys now, in order, and the versionstamp of the state that was read."""
        watch.dirty = False
        self._events += 1
        with self._store.snapshot() as snapshot:
            stamp = self._turn_to(snapshot)
            rows = [self._row(snapshot, key) for key in watch.keys]
        watch.seen = tuple(row.versionstamp for row in rows)
        return rows, stamp

    def installed(self) -> None:
        """A snapshot became the state: find out who must hear of it."""
        self._unsure = deque(self._watches)
        if self._unsure and not self._comparing:
            self._comparing = True
            self._timers.call_soon(self._compare)

    def _compare(self) -> None:
        self._comparing = False
        left = SLICE_KEYS
        changed = []
        with self._store.snapshot() as snapshot:
            self._turn_to(snapshot)
            while self._unsure and left > 0:
                watch = self._unsure.popleft()
                if watch.dirty or not watch.open or watch not in self._watches:
                    continue  # it will take what is there now anyway, or nothing more
                left -= len(watch.keys)
                if any(
                    self._row(snapshot, key).versionstamp != seen
                    for key, seen in zip(watch.keys, watch.seen, strict=True)
                ):
                    changed.append(watch)
        for watch in changed:
            watch.touch()
        if self._unsure and not self._comparing:
            self._comparing = True
            self._timers.call_soon(self._compare)

    def end_all(self, reason: str) -> None:
        """Tell every watcher to start again, elsewhere or later."""
        for watch in list(self._watches):
            self.remove(watch)
            watch.end(reason)

    def statistics(self) -> dict[str, float]:
        return {"watches": len(self._watches), "watched_keys": len(self._by_key), "watch_events": self._events}

    def _turn_to(self, snapshot: Snapshot) -> bytes:
        """Rows are kept while the state is that of `snapshot`; returns its versionstamp."""
        stamp = snapshot.versionstamp
        if stamp != self._cached_at or len(self._cache) > MAX_CACHED_ROWS:
            self._cached_at = stamp
            self._cache.clear()
        return stamp

    def _row(self, snapshot: Snapshot, key: bytes) -> pb.KvEntry:
        entry = self._cache.get(key)
        if entry is None:
            entry = self._cache[key] = snapshot.get(key)
        return entry
