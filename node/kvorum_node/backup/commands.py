"""What the commands `kvorum backup …` and `kvorum pitr …` do besides talking with a cluster and printing."""

import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.config import split_address
from kvorum_raft.copier import PipeCopier
from kvorum_raft.errors import ConfigurationError, RaftError
from kvorum_raft.seams import Member

from ..config import load
from ..store import Snapshot, Store, StoreFault
from .catalog import Catalog, Goal, check_chain, clusters, open_catalog
from .files import Checked, NewFile, Progress, check, no_progress, read_header
from .frames import BACKUP, Decoder
from .places import AWS, S3Place, Service, is_s3, parse_s3
from .prefixes import Counts as Counts
from .prefixes import PutBack as PutBack
from .replaying import from_archive, rebuilt
from .restoring import Build, Restored, from_backup, restore_embedded, restore_node
from .saving import StoreFacts, spool
from .targets import open_target

if TYPE_CHECKING:
    from .s3 import Bucket

STANDARD: str = "-"
_FASTEST = 1e12
_BOOKMARK = re.compile(r"[0-9a-fA-F]{20}\Z")

DAMAGE = (ValueError, StoreFault)
PROBLEMS = (ValueError, StoreFault, RaftError, OSError)
"""What goes wrong with files and folders: one line each."""


class Output(Protocol):
    """Where a backup goes."""

    def write(self, data: bytes) -> None: ...
    def keep(self) -> None:
        """It is whole."""
        ...


class _Pipe:
    """Standard output: whoever reads it must look at the exit status."""

    def write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)

    def keep(self) -> None:
        sys.stdout.buffer.flush()


def _object_at(name: str, store: Service) -> "tuple[Bucket, str] | None":
    """The bucket and key that are meant by `s3://bucket/key`; None: it is a file of this machine. Raises ValueError,
    OSError."""
    if not is_s3(name):
        return None
    from .s3 import Bucket

    place = _parsed(name, store)
    if not place.prefix:
        raise ValueError(f"{name} is a bucket: say s3://bucket/name")
    return Bucket(place), place.prefix


def _parsed(text: str, store: Service) -> S3Place:
    try:
        return parse_s3(text, store)
    except ValueError as error:
        raise ValueError(f"a place in a store {error}") from None


def is_there(name: str, store: Service = AWS) -> bool:
    """Whether an output would have to take a file's place. Raises ValueError, OSError."""
    if (found := _object_at(name, store)) is not None:
        bucket, key = found
        return bucket.head(key) is not None
    return name != STANDARD and Path(name).exists()


@contextlib.contextmanager
def output(name: str, store: Service = AWS, *, replace: bool = False) -> Iterator[Output]:
    """A file, `s3://bucket/key`, or `-`. Raises ValueError, OSError."""
    if name == STANDARD:
        yield _Pipe()
        return
    if (found := _object_at(name, store)) is not None:
        from .s3_objects import NewObject

        with NewObject(*found, replace=replace) as made:
            yield made
        return
    with NewFile(Path(name), replace=replace) as file:
        yield file


@contextlib.contextmanager
def source(name: str, store: Service = AWS) -> Iterator[BinaryIO]:
    """A file, `s3://bucket/key`, or `-`. Raises ValueError, OSError."""
    if name == STANDARD:
        yield sys.stdin.buffer
        return
    if (found := _object_at(name, store)) is not None:
        from .s3_objects import read_object

        with read_object(*found) as read:
            yield read
        return
    with Path(name).open("rb") as file:
        yield file


class Saver:
    """Takes a backup's bytes as they come from a node: checks them, and passes them on. Errors are BadFile, OSError."""

    def __init__(self, target: Output) -> None:
        self._target = target
        self._decoder = Decoder(BACKUP, pb.BackupHeader)
        self.size = 0

    def take(self, data: bytes) -> None:
        """The next ones."""
        for _ in self._decoder.feed(data):
            pass
        self._target.write(data)
        self.size += len(data)

    def finish(self) -> pb.BackupHeader:
        """They were all."""
        header = self._decoder.finish()
        self._target.keep()
        return header


def save_folder(folder: Path, target: Output, progress: Progress = no_progress) -> pb.BackupHeader:
    """Back up an embedded database that nobody has open. Raises KvorumError, ValueError, OSError, StoreFault."""
    if (folder / "raft").is_dir():
        raise ValueError(f"{folder} is the folder of a cluster's node: back up the cluster, by --url kvorum://…")
    if not (folder / "FORMAT").exists():
        raise ValueError(f"{folder} is no embedded database")
    saver = Saver(target)
    store = Store.open(folder, durable=True)
    try:
        image, facts = store.image(), StoreFacts(store)
        try:
            copied = spool(image, facts, folder.parent, PipeCopier(_FASTEST))
        finally:
            image.close()
    finally:
        store.close()
    try:
        for part in copied.parts():
            saver.take(part)
            progress(saver.size, copied.header.size)
    finally:
        copied.close()
    return saver.finish()


def verify(name: str, scratch: Path | None = None, progress: Progress = no_progress, store: Service = AWS) -> Checked:
    """See `files.check`."""
    with source(name, store) as file:
        return check(file, _scratch(name, scratch), progress)


def _scratch(name: str, wanted: Path | None) -> Path:
    if wanted is not None:
        return wanted
    beside = Path(name).absolute().parent
    return (
        beside if name != STANDARD and not is_s3(name) and os.access(beside, os.W_OK) else Path(tempfile.gettempdir())
    )


def show(name: str, store: Service = AWS) -> pb.BackupHeader:
    """The header of a backup. Raises BadFile, ValueError, OSError."""
    with source(name, store) as file:
        return read_header(file)


def restore(
    name: str,
    data_dir: Path,
    member: Member | None,
    *,
    progress: Progress = no_progress,
    store: Service = AWS,
) -> Restored:
    """Make a folder of a backup: a node's, or an embedded database's without a member."""
    with source(name, store) as file:
        return restore_from(from_backup(file, progress), data_dir, member)


def restore_from(build: Build, data_dir: Path, member: Member | None) -> Restored:
    """The same of any state."""
    now_ms = time.time_ns() // 1_000_000
    if member is None:
        return restore_embedded(build, data_dir, now_ms)
    return restore_node(build, data_dir, member, now_ms)


def place_of(archive: Path | str, store: Service = AWS) -> Path | S3Place:
    """What is meant by a folder or `s3://bucket/prefix`. Raises ValueError."""
    return _parsed(archive, store) if isinstance(archive, str) and is_s3(archive) else Path(archive)


def archive(place: Path | S3Place, cluster: str = "") -> Catalog:
    """What is in an archive. Raises ValueError, OSError."""
    if isinstance(place, Path) and not place.is_dir():
        raise ValueError(f"there is no archive at {place}")
    return open_catalog(open_target(place), cluster)


def archived_clusters(place: Path | S3Place) -> list[Catalog]:
    """The same of all clusters in it."""
    target = open_target(place)
    return [Catalog(target, cluster_id, files) for cluster_id, files in sorted(clusters(target.names("")).items())]


def goal(to: str, moment_ms: int | None, *, latest: bool) -> Goal:
    """What is to be restored; exactly one of the three is said. Raises ValueError."""
    if (bool(to) + (moment_ms is not None) + latest) != 1:
        raise ValueError("say how far: --to BOOKMARK, --time TIME or --latest")
    if not to:
        return Goal(time_ms=moment_ms)
    if not _BOOKMARK.match(to):
        raise ValueError(f"a bookmark is a versionstamp of 20 hexadecimal digits, got {to!r:.100}")
    return Goal(stamp=bytes.fromhex(to))


def restore_archive(
    catalog: Catalog, wanted: Goal, data_dir: Path, member: Member | None, progress: Progress = no_progress
) -> Restored:
    """Make a folder of the state of a moment."""
    restored = restore_from(from_archive(catalog, wanted, progress), data_dir, member)
    return restored._replace(bookmark=min(restored.bookmark, wanted.stamp or restored.bookmark))


@contextlib.contextmanager
def state_of(
    catalog: Catalog, wanted: Goal, scratch: Path | None, progress: Progress = no_progress
) -> Iterator[Snapshot]:
    """The state of a moment, to be read from."""
    folder = scratch if scratch is not None else Path(tempfile.gettempdir())
    with rebuilt(from_archive(catalog, wanted, progress), folder) as store, store.snapshot() as snapshot:
        yield snapshot


def verify_archive(
    catalog: Catalog, scratch: Path | None, *, replay: bool, progress: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Read all of it; one line for each problem. With `replay` the oldest base is brought up to the newest entry, and
    compared with what the nodes had at the end of each segment. Raises OSError."""
    problems = []
    folder = scratch if scratch is not None else Path(tempfile.gettempdir())
    for base in catalog.bases:
        progress(base.name)
        try:
            with catalog.target.get(base.name) as file:
                check(file, folder)
        except ValueError as error:
            problems.append(f"{base.name}: {error}")
    problems += check_chain(catalog, catalog.segments, lambda segment: progress(segment.name))
    if replay and not problems:
        progress("replay")
        problems += _replayed(catalog, folder)
    return problems


def _replayed(catalog: Catalog, folder: Path) -> list[str]:
    """From the oldest base of each unbroken run to that run's end."""
    problems: list[str] = []
    reached = -1
    for base in catalog.bases:
        if base.entry <= reached:
            continue
        reached = max([base.entry, *(segment.last for segment in catalog.chain(base.entry))])
        alone = Catalog(catalog.target, catalog.cluster_id, [base, *catalog.segments])
        try:
            with rebuilt(from_archive(alone, Goal()), folder) as store:
                reached = store.applied_index
        except (ValueError, StoreFault) as error:
            problems.append(f"from {base.name} on: {error}")
    return problems


def place(
    config: Path | None, data_dir: Path | None, node_id: str, peer_address: str, client_address: str
) -> tuple[Path, Member]:
    """The folder and the node that are meant: by a configuration file, or by what is said; what is said wins. Raises
    ValueError."""
    found: dict[str, str] = {}
    if config is not None:
        try:
            loaded = load(config, os.environ, {})
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        own = next(one for one in loaded.members if one.node_id == loaded.node_id)
        found = {"node_id": own.node_id, "peer_address": own.peer_address, "client_address": own.client_address}
        data_dir = data_dir or loaded.data_dir
    said = {"node_id": node_id, "peer_address": peer_address, "client_address": client_address}
    found |= {key: value for key, value in said.items() if value}
    missing = [f"--{key.replace('_', '-')}" for key in said if key not in found]
    if data_dir is None or missing:
        raise ValueError(f"give --config, or {', '.join([*([] if data_dir else ['--data-dir']), *missing])}")
    for key in ("peer_address", "client_address"):
        _check_address(found[key])
    return data_dir, Member(found["node_id"], found["peer_address"], found["client_address"])


def _check_address(text: str) -> None:
    try:
        host, port = split_address(text)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    if not host or host in ("0.0.0.0", "::") or not port:
        raise ValueError(f"{text!r} is no address that others can reach")
