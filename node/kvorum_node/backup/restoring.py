"""Folders made of a state: of the first node of a new cluster, or of an embedded database.

What is made has its name only when it is whole and on the disk, so that a restore which was cut off leaves a folder
`restoring` and nothing that a node would take for its own; the next one deletes it.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple
from uuid import uuid4

from kvorum_raft.checkpoints import sync_path
from kvorum_raft.founding import CHECKPOINTS, RAFT, found
from kvorum_raft.seams import Member

from ..store import DEFAULT_MAP_SIZE, Store
from ..store.environment import Environment
from ..store.host import LinuxHost
from ..store.refounding import stamp_base_at
from .files import Progress, check_state, no_progress, unpack
from .saving import bookmark

WORK: Final = "restoring"
_ALLOWED: Final = (WORK, "lost+found")

Build = Callable[[Path], Store]
"""Makes the state in an empty folder. The caller closes it."""


class Restored(NamedTuple):
    """What a new cluster, or database, begins with."""

    cluster_id: bytes
    stamp_base: int
    entry: int
    """Index of the last entry that is in it."""
    time_ms: int
    keys: int
    messages: int
    bookmark: bytes
    """10 bytes: the highest versionstamp of the old cluster that can be in it."""
    old_hash: bytes
    """Content hash before the cluster's id was changed and its sessions were dropped: what the old cluster had."""


def from_backup(source: BinaryIO, progress: Progress = no_progress) -> Build:
    """The state that is in a backup's file. Raises what `check` raises when it is called."""

    def build(work: Path) -> Store:
        copy = work / "backup"
        check_state(copy, unpack(source, copy, progress))
        return adopted(copy, work)

    return build


def adopted(file: Path, work: Path) -> Store:
    """A state of one's own made of a file, which is deleted. Raises ValueError, OSError, StoreFault."""
    store = Store.open(work / "state", durable=False, run_aside=lambda job: job())
    try:
        store.adopt(store.prepare(file))
        file.unlink()
    except BaseException:
        store.close(clean=False)
        raise
    return store


def restore_node(build: Build, data_dir: Path, member: Member, now_ms: int) -> Restored:
    """Make `data_dir`, which must be missing or empty, the folder of the only node of a new cluster. Raises ValueError,
    OSError, StoreFault, RaftError."""
    _require_empty(data_dir)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _work_in(data_dir) as work:
        store = build(work)
        try:
            restored = _refound(store, now_ms)
            made = work / "node"
            made.mkdir()
            found(made, member, restored.cluster_id, store)
        finally:
            store.close(clean=False)
        # the log goes last: without it the checkpoint belongs to nobody, and is deleted at the next start
        for name in (CHECKPOINTS, RAFT):
            (made / name).rename(data_dir / name)
            sync_path(data_dir)
    sync_path(data_dir.parent)
    return restored


def restore_embedded(build: Build, folder: Path, now_ms: int) -> Restored:
    """Make `folder`, which must be missing or empty, an embedded database. Raises ValueError, OSError, StoreFault,
    KvorumError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _require_empty(folder, allowed=())
    beside = folder.with_name(f".{folder.name}.{WORK}")
    _delete(beside)
    beside.mkdir(mode=0o700)
    try:
        store = build(beside)
        try:
            restored = _refound(store, now_ms)
            copy = beside / "copy"
            _write_image(store, copy)
        finally:
            store.close(clean=False)
        _make_embedded(copy, beside / "database")
        (beside / "database").replace(folder)
        sync_path(folder.parent)
    finally:
        _delete(beside)
    return restored


def _refound(store: Store, now_ms: int) -> Restored:
    old_hash, old_bookmark = store.state_hash(), bookmark(store.applied_index + store.stamp_base)
    cluster_id, stamp_base = uuid4().bytes, stamp_base_at(now_ms)
    store.refound(cluster_id, stamp_base)
    if store.recompute_hash() != store.state_hash():
        raise ValueError("the restored state does not have its own content hash: it cannot be used")
    numbers = store.statistics()
    return Restored(
        cluster_id,
        stamp_base,
        store.applied_index,
        store.applied_time_ms,
        int(numbers["keys"]),
        int(numbers["messages"]),
        old_bookmark,
        old_hash,
    )


def _write_image(store: Store, target: Path) -> None:
    image = store.image()
    try:
        with target.open("xb") as file:
            image.copy_to(file.fileno())
    finally:
        image.close()


def _make_embedded(copy: Path, folder: Path) -> None:
    """Through the same code that makes one, so that all its proofs are there."""
    environment = Environment(folder, durable=True, map_size=DEFAULT_MAP_SIZE, max_readers=16, host=LinuxHost())
    environment.open_copy(copy, None)
    environment.close()
    copy.unlink()
    Store.open(folder, durable=True).close()


@contextlib.contextmanager
def _work_in(folder: Path) -> Iterator[Path]:
    """An empty folder in it, for a while."""
    work = folder / WORK
    _delete(work)
    work.mkdir(mode=0o700)
    try:
        yield work
    finally:
        _delete(work)


def _require_empty(folder: Path, allowed: Sequence[str] = _ALLOWED) -> None:
    """Raises ValueError."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file")
    names = (path.name for path in folder.iterdir()) if folder.exists() else iter(())
    strange = min((name for name in names if name not in allowed), default=None)
    if strange is not None:
        raise ValueError(f"{folder} is not empty (it has {strange}): nothing is restored over what is there")


def _delete(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
