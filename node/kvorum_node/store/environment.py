"""The folder of the state: an LMDB environment, and the proof that it may be trusted (rules A1).

A cluster node does not sync its state: the synced log is the truth, and what the state lost can be replayed. After
`kill -9` an unsynced environment is sound, because the page cache outlives the process. After a power cut it may be
torn, in ways that LMDB does not notice, up to a SIGBUS on first use. So it must not even be opened unless it is proven
that everything written to it can still be read back, by one of

* CLEAN: written after a successful sync at the end of a run, and removed (durably) before the next run writes anything;
* RUN: written (durably) before a run's first write, names this boot, this mount, this file and this environment. If all
  of them are still the same, no page cache was lost in between.

Everything else means: delete it, and start at index 0 (later: at a checkpoint). An embedded database is its own truth,
so its environment is synced at each commit, needs no proof, and is never deleted.

Proof is not enough where the pages themselves are damaged: LMDB may end the process when it meets them, and so would
each start that follows. So a run that trusts a state after an unclean end is counted, durably, before it opens it; the
count ends when the run has proved itself for a while or ends cleanly, and at three the state is no longer trusted. And
damage that is noticed leaves the marker DAMAGED, with the same effect.

Files: FORMAT (format version, environment uuid, kind, whether making it was completed), data.mdb, lock.mdb, RUN, CLEAN,
STARTS, DAMAGED, LOCK (held while open, names the process).
"""

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lmdb

from kvorum.errors import DatabaseCorrupt, InvalidArgument
from kvorum_raft.environments import LOCK_TABLE, open_environment

from . import checked, records
from .errors import DAMAGE, Damaged, StoreFault
from .files import Pause, copy_file, lock_folder, read_json, remove_folder, shorten_file, write_json
from .host import Host

_log = logging.getLogger(__name__)

_FORMAT: Final = "FORMAT"
DATA: Final = "data.mdb"
_RUN: Final = "RUN"
_CLEAN: Final = "CLEAN"
_STARTS: Final = "STARTS"
_DAMAGED: Final = "DAMAGED"
_LOCK: Final = "LOCK"
_ENV_OPTIONS: Final = {"max_dbs": 0, "readahead": False, "writemap": False, "meminit": True}
MAX_STARTS: Final = 10
"""Starts in a row that may end uncleanly, and before they proved themselves, until the state is no longer trusted."""
_LEFTOVER: Final = re.compile(r"\.(new|old-\d+)")


class Environment:
    """An open folder. `env` is the LMDB environment, `rebuilt` says that a state which was there could not be trusted
    and was deleted."""

    def __init__(
        self,
        path: Path,
        *,
        durable: bool,
        map_size: int,
        max_readers: int,
        host: Host,
        open_env: Callable[..., Any] = open_environment,
    ) -> None:
        self._lmdb_open = open_env
        self.path = path
        self.durable = durable
        self.rebuilt = False
        self._map_size = map_size
        self._max_readers = max_readers
        self._host = host
        self._lock: int | None = None
        self._uuid = ""
        self._complete = False
        """An embedded database was made here: from then on a missing state is damage, not a first start."""
        self._env: lmdb.Environment | None = None
        self._marked = False

    @property
    def env(self) -> lmdb.Environment:
        if self._env is None:
            raise StoreFault(f"{self.path}: the store is closed")
        return self._env

    @property
    def uuid(self) -> str:
        """Names this incarnation of the data file."""
        return self._uuid

    def open(self, *, force_rebuild: bool) -> None:
        """Open, trusting what is there or starting anew.

        Errors: DatabaseLocked, DatabaseCorrupt (newer format, or a folder of the other kind), InvalidArgument (a file
        system that is not local), StoreFault, OSError.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        remote = self._host.remote_kind(self.path)
        if remote is not None:
            raise InvalidArgument(
                f"{self.path} is on a network or user-space file system ({remote}); the store needs a local one"
            )
        self._lock = lock_folder(self.path / _LOCK)
        try:
            if not self.durable:
                self._remove_leftovers()
            self._open(force_rebuild)
        except BaseException:
            self._close_env()
            self._unlock()
            raise

    def _remove_leftovers(self) -> None:
        """Delete what a crash left of states that were prepared or given up: nothing of them is needed. Only of a
        replica; beside an embedded database there may be anything."""
        for sibling in self.path.parent.iterdir():
            if sibling.name.startswith(self.path.name) and _LEFTOVER.fullmatch(sibling.name, len(self.path.name)):
                remove_folder(sibling)

    def open_copy(self, file: Path, pause: Pause | None) -> None:
        """Make the folder, with a copy of a checkpoint's file in it, under a new uuid; see `copy_file`. Raises
        ValueError if the file is not a whole state of this format; OSError."""
        self._open_new(lambda: self._fill(file, pause))

    def open_empty(self) -> None:
        """Make the folder, with an empty state in it."""
        self._open_new(self._fill_empty)

    def _open_new(self, fill: Callable[[], None]) -> None:
        remove_folder(self.path)
        self.path.mkdir()
        self._lock = lock_folder(self.path / _LOCK)
        try:
            self._begin_anew()
            fill()
            self._start_run()
        except BaseException:
            self.destroy()
            raise

    def _fill(self, file: Path, pause: Pause | None) -> None:
        copy_file(file, self.path / DATA, self._host, pause=pause)
        self._open_env()
        if self._read_state() is None:
            raise DatabaseCorrupt(f"{file} holds no state")
        with self.env.begin(write=True) as txn:
            txn.put(records.UUID_KEY, self._uuid.encode())

    def _fill_empty(self) -> None:
        self._open_env()
        self._create()

    def move(self, target: Path) -> None:
        """Rename the folder, open as it is."""
        self.path.rename(target)
        self.path = target

    def sync_parent(self) -> None:
        """Make the folder's name outlast a power cut."""
        self._host.sync_file(self.path.parent)

    def _open(self, force_rebuild: bool) -> None:
        known = self._read_format()
        has_data = (self.path / DATA).exists()
        if known is None and has_data:
            # FORMAT is made durable before the data file is: without it, the data file is not ours to judge
            raise DatabaseCorrupt(
                f"{self.path} has a {DATA} but no {_FORMAT} file: not a folder of this program, or a damaged one"
            )
        if known is not None:
            self._uuid = known
        if self.durable:
            self._open_durable(known is not None, has_data)
            return
        trusted = known is not None and has_data and not force_rebuild and self._proven() and self._open_trusted()
        if not trusted:
            self.rebuilt = known is not None
            if self.rebuilt:
                _log.warning("the state in %s is not proven to be whole: starting anew from the log", self.path)
            self._begin_anew()
            self._open_env()
        self._start_run()
        if not trusted:
            self._create()

    def _open_trusted(self) -> bool:
        """Open what is there; False if it turns out to be damaged or is not this folder's."""
        try:
            self._open_env()
            if self._has_state():
                return True
        except Damaged as damage:
            _log.warning("%s", damage)
        self._close_env()
        return False

    def _open_durable(self, known: bool, has_data: bool) -> None:
        """Open the embedded database, or make it; a first start that was cut off midway is made again."""
        if not known:
            self._begin_anew()
        if self._complete and not has_data:
            raise DatabaseCorrupt(f"{self.path / DATA} is missing: the database was here, and its data file is gone")
        if self._complete:
            self._refuse_cut_file()
        try:
            self._open_env()
            found = self._has_state()
        except Damaged as damage:
            raise DatabaseCorrupt(str(damage)) from damage
        if not found:
            if self._complete:
                raise DatabaseCorrupt(f"{self.path / DATA} does not belong to the {_FORMAT} file beside it")
            self._create()
        self._refuse_older_state()
        if not self._complete:
            self._complete = True
            self._write_format()

    def _refuse_cut_file(self) -> None:
        """A data file never shrinks, so one that is smaller than when it was last closed was cut, e.g. by a copy that
        did not end. LMDB would map it all the same, and reading behind its end kills the process (SIGBUS)."""
        clean, size = read_json(self.path / _CLEAN), (self.path / DATA).stat().st_size
        known = clean.get("size") if clean is not None and clean.get("uuid") == self._uuid else None
        if isinstance(known, int) and size < known:
            raise DatabaseCorrupt(
                f"{self.path / DATA} is damaged: it has {size:,} bytes, and had {known:,} when it was last closed"
            )

    def _refuse_older_state(self) -> None:
        """LMDB has no checksum of its two roots: one changed bit, and it takes the one before for the newest."""
        clean = read_json(self.path / _CLEAN)
        known = clean.get("index") if clean is not None and clean.get("uuid") == self._uuid else None
        found = self._index()
        if isinstance(known, int) and (found is None or found < known):
            raise DatabaseCorrupt(
                f"{self.path / DATA} is damaged: it ends at entry {found}, and ended at {known} when it was last closed"
            )

    def _index(self) -> int | None:
        """The applied index in the environment; None if it cannot be read."""
        try:
            with self.env.begin() as txn:
                row = checked.get(txn, records.STATE_KEY)
        except (Damaged, lmdb.Error):
            return None
        return None if row is None else records.unpack_state(row).applied_index

    def _open_env(self) -> None:
        """Open it, as the only process that does: so LMDB begins with an empty table of readers, and slots that a
        killed process held are free. Raises Damaged, StoreFault."""
        try:
            self._env = self._lmdb_open(
                str(self.path),
                map_size=self._map_size,
                max_readers=self._max_readers,
                sync=self.durable,
                metasync=self.durable,
                **_ENV_OPTIONS,
            )
        except DAMAGE as error:
            raise Damaged(f"{self.path / DATA} is damaged: {error}") from error
        except lmdb.Error as error:
            raise StoreFault(f"cannot open {self.path} with a map of {self._map_size:,} bytes: {error}") from error
        # the data file's name must outlast a power cut as well as its content
        self._host.sync_file(self.path)

    def _has_state(self) -> bool:
        """True if the environment holds this folder's state. Raises Damaged; DatabaseCorrupt for another format."""
        own = self._read_state()
        return own is not None and own == self._uuid.encode()

    def _read_state(self) -> bytes | None:
        """The uuid in the environment; None = there is no state in it. Raises as `_has_state`."""
        try:
            with self.env.begin() as txn:
                row = checked.get(txn, records.STATE_KEY)
                checked.get(txn, records.CLUSTER_KEY)
                own = txn.get(records.UUID_KEY, b"")
        except (Damaged, lmdb.Error) as error:
            raise Damaged(f"{self.path / DATA} is damaged: {error}") from error
        if row is None:
            return None
        self._check_format(records.state_format(row), DATA, records.KNOWN_FORMATS)
        return own

    def _create(self) -> None:
        """The first transaction of a new environment."""
        with self.env.begin(write=True) as txn:
            txn.put(records.UUID_KEY, self._uuid.encode())
            checked.put(txn, records.STATE_KEY, records.pack_state(records.State()))

    # ---- FORMAT

    def _read_format(self) -> str | None:
        """The environment's uuid; None = a new folder."""
        fields = read_json(self.path / _FORMAT)
        if fields is None:
            if (self.path / _FORMAT).exists():
                raise DatabaseCorrupt(f"{self.path / _FORMAT} cannot be read")
            return None
        version, own, durable = fields.get("format"), fields.get("uuid"), fields.get("durable")
        self._complete = fields.get("complete") is True
        if not isinstance(version, int) or not isinstance(own, str) or not isinstance(durable, bool):
            raise DatabaseCorrupt(f"{self.path / _FORMAT} cannot be understood")
        self._check_format(version, _FORMAT, (records.DATA_FORMAT,))
        if durable != self.durable:
            found, wanted = (
                ("an embedded database", "a cluster node") if durable else ("a cluster node", "an embedded database")
            )
            raise DatabaseCorrupt(f"{self.path} holds the state of {found} and cannot be opened as that of {wanted}")
        return own

    def _check_format(self, version: int, name: str, known: tuple[int, ...]) -> None:
        if version not in known:
            raise DatabaseCorrupt(
                f"{self.path / name} has data format {version}; this version of kvorum knows {known[-1]}"
                " (use a newer version of kvorum, nothing was changed)"
            )

    def _begin_anew(self) -> None:
        """An empty folder with a new uuid. FORMAT goes last: before, the old uuid matches nothing that could be
        trusted."""
        for name in (_CLEAN, _RUN, DATA, LOCK_TABLE, _STARTS, _DAMAGED):  # the proofs first, the doubts last
            self._remove(name)
        self._uuid = self._host.new_uuid()
        self._write_format()

    def _write_format(self) -> None:
        fields = {
            "format": records.DATA_FORMAT,
            "uuid": self._uuid,
            "durable": self.durable,
            "complete": self._complete,
        }
        self._write(_FORMAT, fields)

    # ---- RUN and CLEAN

    def _proven(self) -> bool:
        """True if everything that was ever written to the data file can be read back, and nothing speaks against what
        is in it."""
        data = self.path / DATA
        if (self.path / _DAMAGED).exists():
            return False
        clean = read_json(self.path / _CLEAN)
        run = read_json(self.path / _RUN)
        if clean is None or clean != self._clean_fields():
            now = self._run_fields()
            if now is None or run != now:
                return False
            if not self._count_start():
                return False
        try:
            self._host.sync_file(data)
        except OSError as error:
            _log.warning("cannot sync %s: %s", data, error)
            return False
        return True

    def _count_start(self) -> bool:
        """Count a start after an unclean end; False if there were too many in a row that did not prove themselves. Only
        what is known for certain counts: a damaged counter means that something is wrong here."""
        fields = read_json(self.path / _STARTS)
        if fields is None and not (self.path / _STARTS).exists():
            fields = {"count": 0}
        count = None if fields is None else fields.get("count")
        if not isinstance(count, int) or count >= MAX_STARTS:
            _log.warning("%s starts in a row ended early", count)
            return False
        self._write(_STARTS, {"count": count + 1})
        return True

    def proved_good(self) -> None:
        """The run has gone well for long enough: earlier unclean ends are forgiven."""
        if (self.path / _STARTS).exists():
            self._remove(_STARTS)

    def mark_damaged(self, what: str) -> None:
        """Leave a durable mark that the state is damaged. An embedded database has nothing to be rebuilt from, and gets
        none."""
        if self.durable or self._marked:
            return
        self._marked = True
        try:
            self._write(_DAMAGED, {"what": what})
        except OSError as error:
            _log.warning("cannot mark %s as damaged: %s", self.path, error)

    def _clean_fields(self) -> dict[str, object]:
        """What CLEAN holds. The size, because opening a copy that was cut short could end in a SIGBUS."""
        return {"uuid": self._uuid, "size": (self.path / DATA).stat().st_size}

    def _run_fields(self) -> dict[str, object] | None:
        """What RUN holds for this run; None if any of it cannot be known."""
        data = self.path / DATA
        boot, mount = self._host.boot_id(), self._host.mount_id(data)
        if boot is None or mount is None:
            return None
        file = self._host.file_id(data)
        return {"boot": boot, "mount": mount, "device": file.device, "inode": file.inode, "uuid": self._uuid}

    def _start_run(self) -> None:
        """From here on the state may be written. CLEAN must be gone for good first: with it, what this run loses would
        be trusted."""
        self._remove(_CLEAN)
        fields = self._run_fields()
        if fields is None:
            self._remove(_RUN)
        else:
            self._write(_RUN, fields)

    # ---- files

    def _write(self, name: str, fields: dict[str, object]) -> None:
        write_json(self.path, name, fields, self._host)

    def _remove(self, name: str) -> None:
        """Remove a file, durably."""
        (self.path / name).unlink(missing_ok=True)
        self._host.sync_file(self.path)

    def close(self, *, clean: bool = True) -> None:
        """Sync and close. `clean=False` leaves the folder as a killed process would."""
        if self._env is None:
            return
        try:
            index = self._index() if clean and self.durable else None
            if clean:
                self._env.sync(True)
            self._close_env()
            if clean:
                self.proved_good()
                self._write(_CLEAN, self._clean_fields() | ({} if index is None else {"index": index}))
        finally:
            self._close_env()
            self._unlock()

    def destroy(self, *, gradually: bool = False) -> None:
        """Close without a sync, and delete the folder; `gradually` if others want the disk meanwhile."""
        self._close_env()
        if gradually:
            shorten_file(self.path / DATA)
        remove_folder(self.path)
        self._unlock()

    def _close_env(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
