"""What `kvorum doctor` looks at on this machine: the data folder and its disk, ports, limits of the process."""

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kvorum.cli.findings import Finding, State, graded
from kvorum.ports import TAKEN, port_problem

SYNCS: Final = 60
"""Syncs that are timed at most."""
SYNC_SECONDS: Final = 5.0
"""Seconds after which no further one is begun."""
SYNC_BYTES: Final = 4_096
SLOW_SYNC: Final = 0.05
"""Seconds of a sync (p99) from which on writers notice."""
BAD_SYNC: Final = 0.5
"""Seconds of a sync after which a leader hands leadership over."""
FEW_FILES: Final = 1_024
ENOUGH_FILES: Final = 8_192
"""Each client has a connection, each connection a descriptor."""
ARCHIVE_SHARE: Final = 0.05
"""Part of the archive's disk that is better free."""
_NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre")
_MOUNTS: Final = 1 << 20
"""Bytes of /proc/self/mountinfo that are read at most."""
_MARKERS: Final = {
    "REFUSED": "the cluster has refused this folder for good: put an empty one in its place (docs/operations.md)",
    "FAULT": "the disk or the state had a fault when the node ran last: look at its log, then start it again",
    "REBUILD": "the state differed from the majority's; the next start rebuilds it",
}


def check_folder(folder: Path, least_free: Callable[[int], int]) -> list[Finding]:
    """The folder, its file system, how long a sync takes, and how much room there is.

    `least_free` makes the bytes to be kept free from the disk's size. A folder that is not there yet is not made: the
    nearest one above it, on whose disk it will be, is looked at.
    """
    where = str(folder)
    place = _nearest(folder)
    if place is None or not place.is_dir():
        return [Finding("data folder", where, "FAIL", "it cannot be made", "give data_dir a path that can be made")]
    if not os.access(place, os.W_OK | os.X_OK):
        return [Finding("data folder", where, "FAIL", f"{place} cannot be written to", "mend its owner or mode")]
    exists = place == folder.absolute()
    findings = [Finding("data folder", where, "ok", "it is there" if exists else f"it will be made in {place}")]
    findings += [
        Finding("data folder", where, "FAIL" if name == "REFUSED" else "warn", f"it has the marker {name}", todo)
        for name, todo in _MARKERS.items()
        if (folder / "raft" / name).exists()
    ]
    return [*findings, check_file_system(place), check_sync(place), check_space(place, least_free)]


def check_archive(folder: Path, data_dir: Path) -> list[Finding]:
    """The folder that the log is archived in: there, writable, and not lost with the disk of the data folder."""
    where = str(folder)
    if not folder.is_dir():
        return [Finding("archive", where, "FAIL", "it is not there", "mount it, or make it")]
    if not os.access(folder, os.W_OK | os.X_OK):
        return [Finding("archive", where, "FAIL", "it cannot be written to", "mend its owner or mode")]
    usage = shutil.disk_usage(folder)
    told = f"{shown_bytes(usage.free)} of {shown_bytes(usage.total)} free"
    if usage.free < ARCHIVE_SHARE * usage.total:
        return [Finding("archive", where, "warn", told, "make room, or lower archive_keep_days")]
    place = _nearest(data_dir)
    if place is not None and place.stat().st_dev == folder.stat().st_dev:
        told += "; on the same file system as data_dir"
        return [Finding("archive", where, "warn", told, "use another disk: one that is lost takes both")]
    return [Finding("archive", where, "ok", told)]


def bucket_finding(where: str, problem: str) -> Finding:
    """The same of a place in an S3-compatible store."""
    if problem:
        return Finding("archive", where, "FAIL", problem, "mend it: the log is kept until it can be archived")
    return Finding("archive", where, "ok", "the store answers")


def _nearest(folder: Path) -> Path | None:
    folder = folder.absolute()
    return next((place for place in (folder, *folder.parents) if place.exists()), None)


def check_file_system(folder: Path) -> Finding:
    """Its type: what is in memory is gone with the machine, and a network's locks and syncs are not to be trusted."""
    kind = file_system_of(folder.resolve(), _mount_table())
    if kind in _NETWORK or kind.startswith("fuse"):
        told = f"{kind} is a network or user-space file system"
        return Finding("file system", str(folder), "FAIL", told, "use a local disk: a node refuses this one")
    if kind in ("tmpfs", "ramfs"):
        return Finding("file system", str(folder), "warn", f"{kind} is memory", "use a disk: this one forgets all")
    return Finding("file system", str(folder), "ok", kind or "of unknown type")


def _mount_table() -> str:
    try:
        with Path("/proc/self/mountinfo").open() as source:
            return source.read(_MOUNTS)
    except OSError:
        return ""


def file_system_of(folder: Path, table: str) -> str:
    """The type of the file system that holds a folder, by the text of /proc/self/mountinfo; empty: not known."""
    found, longest = "", -1
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = Path(fields[4].replace("\\040", " "))
        # A later line of the same mount point covers the earlier one.
        if (point == folder or point in folder.parents) and len(point.parts) >= longest:
            found, longest = after.split(" ")[0], len(point.parts)
    return found


def check_sync(folder: Path) -> Finding:
    """A bounded number of writes and fdatasyncs of a small file, which is deleted again."""
    try:
        times = sync_times(folder)
    except OSError as error:
        told = f"a file there cannot be written and synced: {error.strerror}"
        return Finding("disk sync", str(folder), "FAIL", told, "mend the disk, its mount or its mode")
    times.sort()
    half, most = times[len(times) // 2], times[min(len(times) - 1, round(0.99 * len(times)))]
    told = f"p50 {half * 1000:.2f} ms, p99 {most * 1000:.2f} ms of {len(times)} syncs of {SYNC_BYTES // 1024} KiB"
    state = graded(most, SLOW_SYNC, BAD_SYNC)
    todo = "every write waits for a sync on a majority: use a faster disk, or one that nothing else writes to"
    return Finding("disk sync", str(folder), state, told, todo if state != "ok" else "")


def sync_times(folder: Path, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Seconds of each sync. Raises OSError."""
    times: list[float] = []
    began = clock()
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        while len(times) < SYNCS and (not times or clock() - began < SYNC_SECONDS):
            file.write(bytes(SYNC_BYTES))
            at = clock()
            os.fdatasync(file.fileno())
            times.append(clock() - at)
    return times


def check_space(folder: Path, least_free: Callable[[int], int]) -> Finding:
    """Free space against the reserve below which growth is refused."""
    usage = shutil.disk_usage(folder)
    return space_finding(str(folder), usage.free, usage.total, least_free(usage.total))


def space_finding(where: str, free: int, size: int, least: int) -> Finding:
    """Bytes free of `size`, of which `least` are kept."""
    told = f"{shown_bytes(free)} of {shown_bytes(size)} free; below {shown_bytes(least)} growth is refused"
    if free < least:
        return Finding("free space", where, "FAIL", told, "free space on this disk, or delete keys")
    if free < 2 * least:
        return Finding("free space", where, "warn", told, "make room before writes are refused")
    return Finding("free space", where, "ok", told)


def shown_bytes(number: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1_024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1_024
    return f"{number:.1f} TiB"


def check_files() -> Finding:
    """How many files a process that is started as this one may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return files_finding("this shell", soft, hard)


def files_finding(where: str, soft: int, hard: int = 0) -> Finding:
    """`soft` is the limit that counts, `hard` how far the process may raise it itself (0: not known)."""
    if soft < 0:
        return Finding("open files", where, "ok", "no limit")
    more = f" (up to {hard:,} may be asked for)" if hard > soft else ""
    told = f"at most {soft:,}{more}"
    todo = f"raise it to {ENOUGH_FILES:,} or more: ulimit -n, LimitNOFILE= of systemd; each client takes one"
    state: State = "FAIL" if soft < FEW_FILES else "warn" if soft < ENOUGH_FILES else "ok"
    return Finding("open files", where, state, told, todo if state != "ok" else "")


def check_port(what: str, host: str, port: int, *, own: bool) -> Finding:
    """Whether a node could listen there. `own`: the node that this is for runs, so it has the port."""
    where = f"{host}:{port}"
    problem = port_problem(host, port)
    if problem is None:
        if own:
            return Finding(
                "port", where, "warn", f"free, but the node runs ({what})", "it listens elsewhere: see its log"
            )
        return Finding("port", where, "ok", f"free ({what})")
    if own and problem == TAKEN:
        return Finding("port", where, "ok", f"taken by the node itself ({what})")
    if problem == TAKEN:
        return Finding("port", where, "FAIL", f"taken by another process ({what})", "end it, or choose another port")
    return Finding("port", where, "FAIL", f"{problem} ({what})", "give an address that this machine has")


def check_loopback(listens: Sequence[str], others: Sequence[str]) -> list[Finding]:
    """Addresses (host) that a node listens on, and those under which its partners are: a node that others should reach
    does not listen on loopback only."""
    far = [host for host in others if not _is_loopback(host)]
    near = [host for host in listens if _is_loopback(host)]
    if not far or not near:
        return []
    told = f"it listens on {near[0]}, and other members are at {far[0]}"
    return [Finding("configuration", near[0], "FAIL", told, "listen on an address that the others reach")]


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")
