"""The state machine: entries of the log in, state and results out. Deterministic; no clock, no randomness, no I/O but
LMDB.

An entry is one LMDB write transaction, which also holds its index and the content hash, so that the state always stands
exactly at one entry. Within it each commit that has several parts runs in a child transaction: what is refused midway
leaves nothing. Applying is a generator that yields between slices of bounded work; what it returns is true only then,
after the transaction was committed.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import lmdb

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import MAX_HISTORY_ROWS, MAX_HISTORY_SIZE
from kvorum_raft.environments import open_environment
from kvorum_raft.seams import PreparedState, StateFacts

from . import auth, checked, expiry, history, queues, records, refounding, scrubbing, sessions
from .commands import Commands
from .entry import Entry
from .environment import DATA, Environment
from .errors import DAMAGE, Damaged, StoreFault
from .files import Pause
from .held import Held
from .history import Bounds
from .home import Home, Space, pages_in_use, run_in_thread
from .host import Host, LinuxHost
from .images import Image, Prepared
from .reads import Snapshot
from .records import CLUSTER_KEY, QUARANTINED, STATE_KEY
from .results import ApplyResult, Grant, LeaseInfo, QueueFacts
from .rows import Rows

_log = logging.getLogger(__name__)
_SLICE: Final = 256
"""Small commits in one slice of apply: about 2.5 ms."""

DEFAULT_MAP_SIZE: Final = 1 << 40
HISTORY_BOUNDS: Final = Bounds(MAX_HISTORY_SIZE, MAX_HISTORY_ROWS)


class Store:
    """The replicated state in one folder. See `open`.

    `apply` must be driven by one caller at a time, each entry in one thread; all else may be called from other threads
    meanwhile, and sees the state between two entries.
    """

    def __init__(
        self,
        home: Home,
        slice_size: int,
        quarantine: frozenset[tuple[int, int]] = frozenset(),
        bounds: Bounds = HISTORY_BOUNDS,
    ) -> None:
        self._home = home
        self._slice = slice_size
        self._quarantine: dict[int, frozenset[int]] = {}
        self.skip(quarantine)
        self._commands = Commands(bounds)
        self._held = Held()
        self._applying = False
        self.wants_deliveries = True
        """False: entries only say what was leased, not what is delivered with it, which takes a look at each message.
        A matter of this node alone. It counts when an entry begins."""
        self._load()

    def skip(self, commits: Iterable[tuple[int, int]]) -> None:
        """Commits of entries that are still to come, as `quarantine` of `open`: these as well."""
        for index, number in commits:
            self._quarantine[index] = self._quarantine.get(index, frozenset()) | {number}

    def _load(self) -> None:
        """Begin where the environment stands."""
        with self._reading() as txn:
            row = checked.get(txn, STATE_KEY)
            cluster = checked.get(txn, CLUSTER_KEY)
            self._state = records.State() if row is None else records.unpack_state(row)
            self.auth = auth.load(txn) if self._state.has_auth else auth.NONE
            """Who may do what, at `applied_index`. Replaced as a whole."""
        self._cluster = (b"", 0) if cluster is None else records.unpack_cluster(cluster)
        self._forget()

    def _forget(self) -> None:
        self._commands.forget()
        self._held.forget()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        durable: bool,
        map_size: int = DEFAULT_MAP_SIZE,
        max_readers: int = 512,
        force_rebuild: bool = False,
        slice_commits: int = _SLICE,
        quarantine: frozenset[tuple[int, int]] = frozenset(),
        history_bounds: Bounds = HISTORY_BOUNDS,
        host: Host | None = None,
        open_env: Callable[..., lmdb.Environment] | None = None,
        run_aside: Callable[[Callable[[], None]], None] = run_in_thread,
    ) -> "Store":
        """Open or create the state in folder `path`.

        durable=True syncs each entry: an embedded database, which is its own truth. durable=False does not: a replica,
        whose truth is the log; unless it is proven that nothing was lost, its state is deleted and `rebuilt` is True
        (`force_rebuild` does so at will). `map_size` bounds the state's size in bytes and never grows while it is open.
        `quarantine` names commits, (index of the entry, number in it), that are answered with INVALID and not executed;
        it must be the same on all nodes when they apply that entry, and `history_bounds` must be always. `open_env`
        replaces `open_environment` in simulations, `run_aside` the thread that deletes a state that was replaced.

        Errors: DatabaseLocked, DatabaseCorrupt, InvalidArgument (of `kvorum.errors`), StoreFault, OSError.
        """
        if durable and force_rebuild:
            raise ValueError("an embedded database has no log to be rebuilt from")
        host = host or LinuxHost()
        opener = open_environment if open_env is None else open_env

        def make(folder: Path) -> Environment:
            return Environment(
                folder, durable=durable, map_size=map_size, max_readers=max_readers, host=host, open_env=opener
            )

        home = Home(path, make, opener, run_aside)
        home.environment.open(force_rebuild=force_rebuild)
        try:
            return cls(home, slice_commits, quarantine, history_bounds)
        except BaseException:
            home.close(clean=False)
            raise

    # ---- where it stands

    @property
    def applied_index(self) -> int:
        """Index of the last applied entry, 0 before the first."""
        return self._state.applied_index

    @property
    def applied_time_ms(self) -> int:
        """Time of the last applied entry, Unix milliseconds."""
        return self._state.time_ms

    @property
    def cluster_id(self) -> bytes:
        """16 bytes; empty before the cluster was formed."""
        return self._cluster[0]

    @property
    def stamp_base(self) -> int:
        return self._cluster[1]

    @property
    def data_format(self) -> int:
        """Of the state, which grows with what is used."""
        return records.state_format(records.pack_state(self._state))

    @property
    def data_file(self) -> Path:
        """What the state is in now; when another one is adopted, that takes its name."""
        return self._home.path / DATA

    @property
    def rebuilt(self) -> bool:
        """The state that was in the folder could not be trusted and was deleted."""
        return self._environment.rebuilt

    @property
    def proved_version(self) -> int:
        """Apply semantics that the state proves: an entry of this data version, or of a later one, was applied, so
        every member knows it."""
        if self._state.has_auth:
            return auth.FIRST_VERSION
        if self._state.has_queues:
            return queues.FIRST_VERSION
        return history.FIRST_VERSION if self._state.oldest else 1

    def state_hash(self) -> bytes:
        """Content hash at `applied_index`, 16 bytes."""
        return self._state.digest.to_bytes(16, "big")

    def recompute_hash(self) -> bytes:
        """The content hash, from all rows: as slow as the state is large. Equals `state_hash()`, or the state is
        damaged. Raises StoreFault where a row is."""
        with self._reading() as txn:
            return scrubbing.content_hash(txn)

    def scrub(self, rows: int) -> Iterator[int]:
        """Read everything that is in the state now, and check it: each row against its checksum, indexes against what
        they index, all together against the content hash. Yields the number of rows looked at so far, after each `rows`
        rows; other work may be done in between, but all of it holds one read transaction, so close the iterator if it
        is given up. Raises StoreFault if anything is damaged or missing."""
        with self._reading() as txn:
            yield from scrubbing.scrub(txn, rows)

    def proved_good(self) -> None:
        """To be called once a run has gone well for a few seconds: until then, an unclean end counts against the state,
        which is no longer trusted after ten in a row."""
        try:
            self._environment.proved_good()
        except OSError as error:  # a full disk, say: the count stays, which costs a rebuild at worst
            _log.warning("cannot note that this start went well: %s", error)

    @property
    def _environment(self) -> Environment:
        return self._home.environment

    @property
    def _env(self) -> lmdb.Environment:
        return self._home.environment.env

    # ---- reads

    def snapshot(self) -> Snapshot:
        """A read transaction; use it with `with`."""
        return Snapshot(self._home.enter())

    @contextmanager
    def _reading(self) -> "Iterator[lmdb.Transaction[bytes]]":
        """A read transaction; errors of LMDB and damage in it come out as StoreFault."""
        holder = self._home.enter()
        with Snapshot(holder) as snapshot:
            try:
                yield snapshot.txn
            except (lmdb.Error, Damaged) as error:
                raise holder.judge(error) from error

    def next_expiry_ms(self) -> int | None:
        """Earliest time at which a sweep has something to do, Unix milliseconds."""
        with self._reading() as txn:
            return expiry.next_expiry(txn)

    def next_due_ms(self, queue: str) -> int | None:
        """Earliest due time among the ready and scheduled messages of a queue, Unix milliseconds."""
        with self._reading() as txn:
            return queues.next_due(txn, queue)

    def queue_facts(self, queue: str) -> QueueFacts:
        """What delivery must know of a queue before it hands anything out. Cheap."""
        with self._reading() as txn:
            return queues.reads.facts(txn, queue.encode())

    def leases(self, after: bytes = b"", limit: int | None = None) -> list[LeaseInfo]:
        """Leased messages in order of message ids: those after one, and so many; all of them by default."""
        with self._reading() as txn:
            return queues.leases(txn, after, limit)

    def delivery(self, message_id: bytes, lease_id: bytes) -> pb.Delivery | None:
        """What a consumer was given with a lease, to be pushed again; None if it is not the message's current lease."""
        with self._reading() as txn:
            return queues.held_delivery(txn, message_id, lease_id)

    def grants(self, result: ApplyResult) -> list[Grant]:
        """The grants of an entry, those that were only named as `leased` included: as far as they are current."""
        found = result.granted
        if result.leased:
            found = list(found)
            for session, consumer, message_id, lease_id in result.leased:
                delivery = self.delivery(message_id, lease_id)
                if delivery is not None:
                    found.append(Grant(session, consumer, delivery))
        return found

    def session_ids(self) -> list[bytes]:
        """Ids of all sessions, oldest first."""
        with self._reading() as txn:
            return sessions.session_ids(txn)

    def quarantined(self) -> list[tuple[int, int]]:
        """Commits that were not executed because the operator quarantined them: index of the entry, number in it."""
        with self._reading() as txn:
            names = [name[1:] for name, _ in checked.table(txn, QUARANTINED)]
        return [(int.from_bytes(name[:8], "big"), int.from_bytes(name[8:], "big")) for name in names]

    def session_exists(self, session: bytes) -> bool:
        """Whether a session is open."""
        with self._reading() as txn:
            return sessions.is_open(txn, session)

    def statistics(self) -> dict[str, float]:
        """Sizes in bytes, counts, where the state stands. `used_bytes` is the high-water mark of the data file; what
        was freed below it is used again."""
        info, stat = self._env.info(), self._env.stat()
        state = self._state
        return {
            "map_bytes": info["map_size"],
            "used_bytes": (info["last_pgno"] + 1) * stat["psize"],
            "rows": stat["entries"],
            "tree_depth": stat["depth"],
            "readers": info["num_readers"],
            "readers_limit": info["max_readers"],
            "snapshots": self._home.live.users,
            "keys": state.keys,
            "messages": state.messages,
            "sessions": state.sessions,
            "queues": state.queues,
            "topics": state.topics,
            "schedules": state.schedules,
            "tokens": state.tokens,
            "auth_on": self.auth.on,
            "history_rows": state.history_rows,
            "history_bytes": state.history_size,
            "applied_index": state.applied_index,
            "applied_time_ms": state.time_ms,
        }

    def close(self, *, clean: bool = True) -> None:
        """Sync and close; idempotent. An entry that is being applied is given up. `clean=False` leaves the folder as a
        kill would."""
        self._home.close(clean=clean)

    # ---- whole states (see `kvorum_raft.seams.StateMachine`)

    def size(self) -> int:
        """Bytes that a checkpoint would take, about: the pages in use, without the free ones."""
        return pages_in_use(self._env) * self._env.stat()["psize"]

    def space(self) -> Space:
        """How much of the map is used. Whoever writes must refuse growth while it is `low`: a full map is a fault."""
        return self._home.space()

    def image(self) -> Image:
        """Hold the state as it is now, until the image is closed; it outlives an `adopt`. Its `copy_to` may run in
        another thread."""
        return self._home.image()

    def inspect(self, file: Path) -> StateFacts:
        """What is in a file that `Image.copy_to` has written. Not for the event loop. Raises ValueError if it is not a
        whole state of this format."""
        return self._home.inspect(file)

    def prepare(self, file: Path, pause: Pause | None = None) -> Prepared:
        """Copy such a file to a folder beside the live state; where the file system cannot share the blocks, `pause` is
        called with the size of each. Not for the event loop. Raises ValueError, OSError, and what `pause` raises."""
        return self._home.prepare(file, pause)

    def adopt(self, prepared: PreparedState) -> None:
        """From now on this is the state, wherever it stands. Called between two entries; quick. Snapshots and images of
        the one before stay whole; when the last of them is closed, it is deleted. Raises StoreFault, ValueError."""
        if self._applying:
            raise StoreFault("a state was to be replaced in the middle of an entry")
        if not isinstance(prepared, Prepared):
            raise ValueError("the state was not prepared by this store")
        self._home.adopt(prepared)
        self._load()

    def discard_state(self) -> None:
        """Throw the state away: begin at index 0, with nothing. Quick. Raises StoreFault, OSError."""
        self.adopt(self._home.prepare_empty())

    def refound(self, cluster_id: bytes, stamp_base: int) -> None:
        """Make this the state of a new cluster, which goes on from here: a restore. Not while anybody else uses it.
        Raises ValueError if that cluster's versionstamps would not all be new; StoreFault."""
        try:
            refounding.refound(self._env, self._state, self.stamp_base, cluster_id, stamp_base)
        except (Damaged, *DAMAGE) as error:
            raise self._home.live.judge(error) from error
        self._load()

    # ---- apply

    def apply_now(self, index: int, time_ms: int, payload: bytes) -> ApplyResult:
        """Apply one entry without pauses."""
        steps = self.apply(index, time_ms, payload)
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                result: ApplyResult = stop.value
                return result

    def apply(self, index: int, time_ms: int, payload: bytes) -> Generator[bool | None, None, ApplyResult]:
        """Apply one entry, a serialised `pb.Batch`; an empty payload only moves index and time. Yields between slices,
        and True before its end, which is all that makes the entry visible.

        Any exception is a fault, and leaves the state at the entry before: StoreFault (an entry that this version
        cannot apply, or out of order), lmdb.Error, OSError, MemoryError. Closing the generator gives the entry up.
        """
        state = self._state
        if index <= state.applied_index:
            raise StoreFault(f"entry {index} comes after entry {state.applied_index} was applied")
        # The consensus layer keeps time from falling. The state does not depend on that: expiry and due times must
        # never be judged backwards.
        time_ms = max(time_ms, state.time_ms)
        txn = self._env.begin(write=True)
        committed = False
        self._applying = True
        try:
            rows = Rows(txn, state)
            skipped = self._quarantine.get(index, frozenset())
            entry = Entry(self._env, rows, index, time_ms, self._prefix(index), self._slice, skipped)
            entry.held = self._held
            entry.bare = not self.wants_deliveries
            entry.auth = self.auth
            entry.judging = self.auth.on
            if payload:
                yield from self._commands.run(entry, payload, self.proved_version)
            state = rows.state(index, time_ms)
            checked.put(txn, STATE_KEY, records.pack_state(state))
            cluster = checked.get(txn, CLUSTER_KEY)
            yield True
            txn.commit()
            committed = True
        except (Damaged, *DAMAGE) as error:
            raise self._home.live.judge(error) from error
        finally:
            self._applying = False
            if not committed:
                self._forget()
                if rows.txn is not txn:
                    rows.txn.abort()
                txn.abort()
        self._state = state
        self.auth = entry.auth
        if cluster is not None:
            self._cluster = records.unpack_cluster(cluster)
        return entry.result

    def _prefix(self, index: int) -> bytes:
        return (index + self._cluster[1]).to_bytes(8, "big")
