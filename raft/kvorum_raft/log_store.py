"""The log on disk: one LMDB environment, fully synced, with the entries, the hard state and the node's identity; and
before it a small write-ahead file (`kvorum_raft.write_ahead`) with the newest entries.

Why LMDB and not a file of our own: a transaction of it is atomic, so that a cut, the entries behind it, term and vote
and the commit bound can never disagree, and a torn write at the end needs no repair. What it does not have are
checksums; each entry and the hard state carry their own, and the start reads everything back from the disk, not from
the page cache, before this node says a word to others. And its commit flushes the disk twice. So what only appends,
which is nearly everything, is made durable by the write-ahead file, and moves into the environment many batches at a
time; the end does that too. What a start finds in the file stays there until the first batch: a start writes nothing
before all of the log was verified, so that damage is neither made worse nor hidden.

One thread writes (`kvorum_raft.log_disk`): it takes all batches that queued up during its last sync and makes them
durable together. A failed write or sync is never repeated, since after a failed sync the kernel may have dropped the
pages and the next sync would succeed without them: it is reported once as a RaftFault, and nothing is written after it.
"""

import contextlib
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import lmdb

from kvorum_raft.base import Base
from kvorum_raft.entry import DamagedRecord, Entry, parse
from kvorum_raft.environments import open_environment
from kvorum_raft.errors import ConfigurationError, RaftFault
from kvorum_raft.faults import kind_of
from kvorum_raft.journal import Batch, HardState, Stored
from kvorum_raft.log_scan import Scan, key_of
from kvorum_raft.write_ahead import EPOCH_SIZE, File, SyncedFile, WriteAhead, frames, leading_frames

FORMAT: Final = 2
"""1: everything is in the environment. 2: the newest entries may be in the write-ahead file. A log that was closed is
of format 1 again, so that a version that knows no such file can open it."""
_CLOSED_FORMAT: Final = 1
_FORMATS: Final = [str(known).encode() for known in range(1, FORMAT + 1)]
_STATE_FORMAT: Final = 1
_FORMAT_KEY: Final = b"format"
_EPOCH_KEY: Final = b"epoch"
_AHEAD_NAME: Final = "write-ahead"
_STATE_KEY: Final = b"state"
_BASE_KEY: Final = b"base"
_STATE: Final = struct.Struct(">BxH4xQQQQQ")
_log = logging.getLogger("kvorum.raft")


def _only_appends(batch: Batch, last: HardState) -> bool:
    """Terms and votes are few, and none of them may be lost: a frame that rots while it is the newest one is taken for
    one that was torn. Who lost an entry so is refused by the leader; who lost a vote could give another one."""
    return (
        not (batch.reset or batch.records)
        and batch.truncate_from is None
        and batch.base is None
        and (batch.state.term, batch.state.vote) == (last.term, last.vote)
    )


def _same_but_longer(state: HardState, before: HardState) -> bool:
    """Whether only appends lie between the two."""
    return state == before._replace(commit_bound=state.commit_bound, last_index=state.last_index)


def encode_state(state: HardState) -> bytes:
    vote = state.vote.encode()
    numbers = (state.term, state.commit_bound, state.last_index, state.base_index, state.base_term)
    body = _STATE.pack(_STATE_FORMAT, len(vote), *numbers) + vote
    return body + zlib.crc32(body).to_bytes(4, "big")


def decode_state(record: bytes) -> HardState:
    """Raises DamagedRecord, or ConfigurationError for a newer format."""
    body, checksum = record[:-4], record[-4:]
    if len(body) < _STATE.size or zlib.crc32(body).to_bytes(4, "big") != checksum:
        raise DamagedRecord("wrong checksum in the record of term and vote")
    version, vote_size, term, bound, last, base_index, base_term = _STATE.unpack_from(body)
    if version > _STATE_FORMAT:
        raise ConfigurationError(
            f"the hard state has format {version}; this version knows formats up to {_STATE_FORMAT}"
        )
    vote = body[_STATE.size :]
    if len(vote) != vote_size:
        raise DamagedRecord("the record of term and vote has a wrong length")
    return HardState(term, vote.decode(), bound, last, base_index, base_term)


class LogStore:
    """The opened environment. `open` is synchronous and meant for the start, before the event loop has anything else to
    do."""

    def __init__(self, path: Path, env: lmdb.Environment, new_epoch: Callable[[int], bytes]) -> None:
        self.path = path
        self._env = env
        # Where the file is, the tables were: missing ones are damage, and none are made in their place.
        create = not (path / _AHEAD_NAME).exists()
        self._log = env.open_db(b"log", create=create)
        self._meta = env.open_db(b"meta", create=create)
        self._new_epoch = new_epoch
        self._file: File | None = None
        self._ahead: WriteAhead | None = None
        """Where frames go; none do before the first transaction has moved what was found there at the start."""
        self._waiting: list[Batch] = []
        """What is durable by the write-ahead file and not in the environment yet. Replaced when it has moved, so that
        `read` may look at it from another thread."""
        self._last = HardState()
        """What was written last."""
        self._failed = False

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        map_size: int,
        open_env: Callable[..., lmdb.Environment] = open_environment,
        open_file: Callable[[Path, bool], File] = SyncedFile,
        new_epoch: Callable[[int], bytes] = os.urandom,
    ) -> "LogStore":
        """Open or create. `open_env` has the signature of `lmdb.open`; simulations bring another one, and another
        `open_file` for the write-ahead file and `new_epoch` for random bytes.

        Raises RaftFault (disk) or ConfigurationError (newer format, not usable).
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            data = path / "data.mdb"
            with contextlib.ExitStack() as opened:
                if data.exists():
                    _forget_cached_pages(data)
                elif (path / _AHEAD_NAME).exists():
                    raise DamagedRecord("it has a write-ahead file and no data.mdb")
                else:
                    opened.callback(_unmake, path)
                env = open_env(str(path), map_size=map_size, max_dbs=4, readahead=True, mode=0o600)
                opened.callback(env.close)
                _fill_up(env, data)
                store = cls(path, env, new_epoch)
                opened.callback(store._close_file)
                store._open_ahead(open_file, store._check_format())
                _sync_folder(path.parent)
                opened.pop_all()
        except (
            *(lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError),
            *(lmdb.NotFoundError, DamagedRecord),
        ) as error:
            raise RaftFault(f"the log in {path} is damaged: {error}") from error
        except (PermissionError, lmdb.ReadonlyError) as error:  # which no restart mends, nor another disk
            raise ConfigurationError(
                f"the log in {path} cannot be opened: {error}; the node's user must be allowed to write to all in it"
            ) from error
        except (lmdb.Error, OSError) as error:
            raise kind_of(error, path.parent)(f"the log in {path} cannot be opened: {error}") from error
        return store

    def _check_format(self) -> int:
        with self._env.begin() as txn:
            found = txn.get(_FORMAT_KEY, db=self._meta)
            entries = txn.stat(self._log)["entries"]
        if found is None:
            if entries or (self.path / _AHEAD_NAME).exists():
                what = "entries" if entries else "a write-ahead file"
                raise DamagedRecord(f"it has {what} and no format")
            state = encode_state(HardState())
            self.put_now({_FORMAT_KEY: str(_CLOSED_FORMAT).encode(), _STATE_KEY: state})
            _sync_folder(self.path)  # no power cut leaves a write-ahead file alone
            return _CLOSED_FORMAT
        if found not in _FORMATS:
            raise ConfigurationError(
                f"the log in {self.path} has format {found.decode(errors='replace')}; "
                f"this version knows formats up to {FORMAT}"
            )
        return int(found)

    def _open_ahead(self, open_file: Callable[[Path, bool], File], format_found: int) -> None:
        """Read what the write-ahead file holds. Raises DamagedRecord, ConfigurationError, lmdb.Error or OSError."""
        used = format_found == FORMAT
        epoch = self.get(_EPOCH_KEY) or b""
        if used and len(epoch) != EPOCH_SIZE:
            raise DamagedRecord("it has a write-ahead file of no epoch")
        self._file = open_file(self.path / _AHEAD_NAME, used)
        _sync_folder(self.path)  # once the environment says that the file is used, a power cut must not take it away
        with contextlib.suppress(DamagedRecord):  # `verify` says so
            self._last = decode_state(self.get(_STATE_KEY) or b"")
        content = self._file.content()
        for frame in frames(content, epoch) if used else []:
            self._last = decode_state(frame.state)
            self._waiting.append(Batch(0, self._last, entries=[parse(record) for record in frame.entries]))
        if not self._waiting:
            self._check_void(content)

    def _check_void(self, content: bytes) -> None:
        """Frames of another epoch have moved. If the log does not hold their entries, the environment is older than
        they are, or its epoch or format is damaged, which have no checksums: within a term no log becomes shorter."""
        void = leading_frames(content)
        try:
            state = decode_state(void[-1].state if void else b"")
        except (DamagedRecord, ConfigurationError):  # there are none, or another version wrote them
            return
        if state.last_index > self._last.last_index and _same_but_longer(state, self._last):
            raise DamagedRecord(
                f"it ends at entry {self._last.last_index}, and its write-ahead file goes on to entry "
                f"{state.last_index} of the same term, in another epoch"
            )

    def get(self, key: bytes) -> bytes | None:
        """A small record."""
        with self._env.begin(db=self._meta) as txn:
            return _owned(txn.get(key))

    def records(self, prefix: bytes) -> list[bytes]:
        """The small records whose keys begin so."""
        found = []
        with self._env.begin(db=self._meta) as txn, txn.cursor() as cursor:
            if cursor.set_range(prefix):
                for key, value in cursor:
                    if not key.startswith(prefix):
                        break
                    found.append(bytes(value))
        return found

    def put_now(self, records: dict[bytes, bytes]) -> None:
        """Store small records and sync, before the writer runs. Raises RaftFault."""
        try:
            with self._env.begin(write=True, db=self._meta) as txn:
                for key, value in records.items():
                    txn.put(key, value)
        except (lmdb.Error, OSError) as error:
            raise kind_of(error, self.path)(f"cannot write to {self.path}: {error}") from error

    def verify(self, *, cache: int) -> Stored:
        """Read the whole log back and check it; returns what the journal starts from, with at most about `cache` bytes
        of entries.

        Raises RaftFault with one line that names the damage.
        """
        try:
            with self._env.begin() as txn:
                return self._scan(txn, cache)
        except (DamagedRecord, lmdb.Error) as error:
            raise RaftFault(f"the log in {self.path} is damaged: {error}") from error

    def _scan(self, txn: Any, cache: int) -> Stored:
        first = state = decode_state(txn.get(_STATE_KEY, db=self._meta) or b"")
        base = self._base(txn, state)
        scan = Scan(state, base, cache)
        with txn.cursor(db=self._log) as cursor:
            for key, value in cursor:
                scan.take(bytes(key), bytes(value))
        scan.end(state, txn.stat(self._log)["entries"])
        for batch in self._waiting:
            for entry in batch.entries:
                scan.take(key_of(entry.index), entry.record)
            state = batch.state
            if not _same_but_longer(state, first):
                raise DamagedRecord(f"its write-ahead file holds {state}, its environment {first}")
            scan.end(state, scan.last_index - state.base_index)
        return Stored(state, scan.runs, scan.tail, scan.configurations, scan.first_command, base, scan.size)

    def _base(self, txn: Any, state: HardState) -> Base | None:
        record = txn.get(_BASE_KEY, db=self._meta)
        if record is None and not state.base_index:
            return None
        try:
            base = Base.decode(record or b"")
            parse(base.configuration)
        except ValueError as error:
            raise DamagedRecord(str(error)) from error
        if (base.index, base.term) != (state.base_index, state.base_term):
            raise DamagedRecord(
                f"it begins behind entry {state.base_index} of term {state.base_term}, "
                f"or behind entry {base.index} of term {base.term}"
            )
        return base

    def read(self, first: int, count: int, max_bytes: int) -> list[Entry]:
        """Entries from `first` on, at least one if it exists; fewer than asked for where those in the environment end.
        From any thread."""
        # What is in neither moved from the one to the other in between.
        found = (
            self._read_env(first, count, max_bytes)
            or self._read_waiting(first, count, max_bytes)
            or self._read_env(first, count, max_bytes)
        )
        if any(entry.index != first + offset for offset, entry in enumerate(found)):
            raise RaftFault(f"the log in {self.path} is damaged: entries from {first} on are not in order")
        return found

    def _read_env(self, first: int, count: int, max_bytes: int) -> list[Entry]:
        found: list[Entry] = []
        size = 0
        try:
            with self._env.begin(db=self._log) as txn, txn.cursor() as cursor:
                if cursor.set_key(key_of(first)):
                    for value in cursor.iternext(keys=False, values=True):
                        size += len(value)
                        if found and size > max_bytes:
                            break
                        found.append(parse(bytes(value)))
                        if len(found) == count:
                            break
        except (DamagedRecord, lmdb.Error) as error:
            raise RaftFault(f"the log in {self.path} is damaged: {error}") from error
        return found

    def _read_waiting(self, first: int, count: int, max_bytes: int) -> list[Entry]:
        found: list[Entry] = []
        size = 0
        for batch in tuple(self._waiting):
            for entry in batch.entries:
                if entry.index < first:
                    continue
                if entry.index > first and not found:
                    return []  # it has moved, and what waits now came after it
                size += entry.size
                if found and (size > max_bytes or len(found) == count):
                    return found
                found.append(entry)
        return found

    def write(self, batches: list[Batch]) -> None:
        """Durable, all of them together, when it returns. Raises lmdb.Error or OSError."""
        if self._failed or self._file is None:
            raise lmdb.Error("the log is closed, or writing it has failed before")
        self._failed = True
        state = encode_state(batches[-1].state)
        frame = None
        if self._ahead is not None and all(_only_appends(batch, self._last) for batch in batches):
            entries = [entry for batch in batches for entry in batch.entries]
            for index, entry in enumerate(entries, self._last.last_index + 1):
                if entry.index != index:
                    raise lmdb.KeyExistsError(f"entry {entry.index} cannot follow entry {index - 1}")
            frame = self._ahead.frame(state, [entry.record for entry in entries])
        if self._ahead is not None and frame is not None:
            self._ahead.append(frame)
            self._waiting += batches
        else:
            self._commit([*self._waiting, *batches], state)
        self._last = batches[-1].state
        self._failed = False

    def _commit(self, batches: list[Batch], state: bytes | None, *, closing: bool = False) -> None:
        """One synced transaction, after which the write-ahead file holds nothing."""
        assert self._file is not None
        epoch = self._new_epoch(EPOCH_SIZE)
        with self._env.begin(write=True) as txn:
            for batch in batches:
                if batch.reset:
                    txn.drop(self._log, delete=False)
                if batch.truncate_from is not None:
                    self._cut(txn, batch.truncate_from)
                self._append(txn, ((entry.index, entry.record) for entry in batch.entries))
                if batch.base is not None:
                    self._cut_before(txn, batch.base)
                for key, value in batch.records.items():
                    if value:
                        txn.put(key, value, db=self._meta)
                    else:
                        txn.delete(key, db=self._meta)
            if state is not None:
                txn.put(_STATE_KEY, state, db=self._meta)
            txn.put(_EPOCH_KEY, epoch, db=self._meta)
            txn.put(_FORMAT_KEY, str(_CLOSED_FORMAT if closing else FORMAT).encode(), db=self._meta)
        self._waiting = []
        self._ahead = WriteAhead(self._file, epoch)

    def _append(self, txn: Any, records: Iterable[tuple[int, bytes]]) -> None:
        for index, record in records:
            # False instead of an error: the entry would be taken for durable without being there
            if not txn.put(key_of(index), record, db=self._log, append=True):
                raise lmdb.KeyExistsError(f"entry {index} would not be the last one")

    def _cut(self, txn: Any, index: int) -> None:
        with txn.cursor(db=self._log) as cursor:
            found = cursor.set_range(key_of(index))
            while found:
                found = cursor.delete()

    def _cut_before(self, txn: Any, base: Base) -> None:
        last = key_of(base.index)
        with txn.cursor(db=self._log) as cursor:
            found = cursor.first()
            while found and cursor.key() <= last:
                found = cursor.delete()
        txn.put(_BASE_KEY, base.encode(), db=self._meta)

    def size(self) -> int:
        """Bytes of the environment's file."""
        return (self.path / "data.mdb").stat().st_size

    def close(self) -> None:
        """Everything moves into the environment, unless nothing was written since the start, or a write has failed;
        whatever else prevents that, it stays as after a kill."""
        if self._ahead is not None and not self._failed:
            self._failed = True  # nothing is written any more
            state = encode_state(self._waiting[-1].state) if self._waiting else None
            try:
                self._commit(self._waiting, state, closing=True)
            except (lmdb.Error, OSError) as error:
                _log.warning("the log in %s stays as after a kill: %s", self.path, error)
        try:
            self._close_file()
        finally:
            self._env.close()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _unmake(path: Path) -> None:
    """Of a log that could not be made: what there is of it may be cut short, which a later start would call damage."""
    for name in (_AHEAD_NAME, "data.mdb"):
        (path / name).unlink(missing_ok=True)


def _forget_cached_pages(data: Path) -> None:
    """What is read afterwards comes from the disk."""
    fd = os.open(data, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _fill_up(env: lmdb.Environment, data: Path) -> None:
    """A file that is shorter than its pages say would end the process by SIGBUS when it is read.

    It need not be damaged: pages that a transaction took and gave back are never written. So it gets its length, and
    if something is missing, `verify` reads zeros where an entry should be.
    """
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if data.stat().st_size < needed:
        os.truncate(data, needed)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _owned(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
