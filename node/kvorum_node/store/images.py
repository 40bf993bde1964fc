"""Whole states as files: the image that a checkpoint is made of, and the private copy of one that becomes the state.

An image is a read transaction (rules A4). LMDB copies what that transaction sees, compacted, however far the live state
has gone on meanwhile; what is in the copy is read through the same transaction. A prepared state is a folder of its
own, under a uuid of its own, with its own proof: a byte copy or a reflink, since writing to the checkpoint itself, or
through a hard link to it, would change it (rules A2).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb

from kvorum_raft.seams import StateFacts

from . import checked, records, scrubbing
from .environment import Environment
from .errors import Damaged
from .holders import Holder

OpenEnv = Callable[..., Any]
_SCRUB_SLICE: Final = 4_096


class Image:
    """`kvorum_raft.seams.StateImage`. The caller has entered the holder; closing leaves it."""

    __slots__ = ("_holder", "_open", "_txn", "facts")

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._open = False
        try:
            self._txn: lmdb.Transaction[bytes] = holder.env.begin()
            self._open = True
            self.facts = _facts(self._txn)
        except BaseException:
            self.close() if self._open else holder.leave()
            raise

    def copy_to(self, fd: int) -> None:
        try:
            self._holder.env.copyfd(fd, compact=True, txn=self._txn)
        except lmdb.Error as error:
            raise OSError(f"the state cannot be copied: {self._holder.judge(error)}") from error

    def close(self) -> None:
        if self._open:
            self._open = False
            self._txn.abort()
            self._holder.leave()


class Prepared:
    """`kvorum_raft.seams.PreparedState`. `environment` is None once it was adopted or discarded."""

    __slots__ = ("environment", "facts")

    def __init__(self, environment: Environment) -> None:
        self.environment: Environment | None = environment
        with environment.env.begin() as txn:
            self.facts = _facts(txn)

    def take(self) -> Environment:
        """Hand the folder over, once."""
        environment, self.environment = self.environment, None
        if environment is None:
            raise ValueError("the prepared state was adopted or discarded before")
        return environment

    def discard(self) -> None:
        if self.environment is not None:
            self.take().destroy()


class FileFacts(NamedTuple):
    """What the file of a state says of itself."""

    facts: StateFacts
    data_format: int
    cluster_id: bytes
    """16 bytes; empty in a state without a cluster."""
    stamp_base: int


def inspect(file: Path, open_env: OpenEnv) -> StateFacts:
    """What is in a file that `Image.copy_to` has written. Raises ValueError."""
    with _opened(file, open_env) as txn:
        return _facts(txn)


def describe(file: Path, open_env: OpenEnv, *, scrub: bool = False) -> FileFacts:
    """The same and more; `scrub` reads every row over, and compares them all with the content hash: as slow as the
    file is large. Raises ValueError."""
    with _opened(file, open_env) as txn:
        facts = _facts(txn)
        row, cluster = checked.get(txn, records.STATE_KEY), checked.get(txn, records.CLUSTER_KEY)
        if scrub:
            for _ in scrubbing.scrub(txn, _SCRUB_SLICE):
                pass
        cluster_id, stamp_base = (b"", 0) if cluster is None else records.unpack_cluster(cluster)
        return FileFacts(facts, records.state_format(row or b""), cluster_id, stamp_base)


@contextmanager
def _opened(file: Path, open_env: OpenEnv) -> "Iterator[lmdb.Transaction[bytes]]":
    try:
        env = open_env(str(file), subdir=False, readonly=True, lock=False, max_dbs=0, readahead=False)
    except lmdb.Error as error:
        raise ValueError(f"{file} is not a state: {error}") from error
    try:
        # reading behind the end of a file that was cut would end the process (SIGBUS)
        needed, size = (env.info()["last_pgno"] + 1) * env.stat()["psize"], file.stat().st_size
        if size < needed:
            raise ValueError(f"{file} is cut: it has {size:,} bytes of {needed:,}")
        with env.begin() as txn:
            yield txn
    except (lmdb.Error, Damaged) as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    finally:
        env.close()


def _facts(txn: "lmdb.Transaction[bytes]") -> StateFacts:
    row = checked.get(txn, records.STATE_KEY)
    if row is None:
        raise ValueError("the file holds no state")
    version = records.state_format(row)
    if version not in records.KNOWN_FORMATS:
        raise ValueError(
            f"the state has data format {version}; this version of kvorum knows {records.KNOWN_FORMATS[-1]}"
        )
    state = records.unpack_state(row)
    return StateFacts(state.applied_index, state.time_ms, state.digest.to_bytes(16, "big"))
