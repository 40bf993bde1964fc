"""What the store asks the operating system about its folder: facts that prove that unsynced data is still what was
written."""

import ctypes
import os
import uuid
from pathlib import Path
from typing import Final, NamedTuple, Protocol

_AT_FDCWD: Final = -100
_STATX_MNT_ID_UNIQUE: Final = 0x4000
_STATX_SIZE: Final = 256
_STATX_MNT_ID_AT: Final = 144
_STATFS_SIZE: Final = 256

_REMOTE: Final = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x65735546: "FUSE",
    0x01021997: "9P",
    0x5346414F: "AFS",
    0x6B414653: "kAFS",
    0x00C36400: "Ceph",
    0x73757245: "Coda",
    0x564C: "NCP",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x786F4256: "VirtualBox shared folder",
    0xBACBACBC: "VMware shared folder",
}
"""Magic numbers of file systems that are not, or may not be, in this machine's hands alone (statfs(2))."""


class FileId(NamedTuple):
    device: int
    inode: int


class Host(Protocol):
    """The questions; tests answer them differently."""

    def boot_id(self) -> str | None:
        """Id of this boot of the machine; None = not known."""
        ...

    def mount_id(self, path: Path) -> int | None:
        """An id of the mount that holds `path`, never used twice in a boot; None = not known."""
        ...

    def file_id(self, path: Path) -> FileId: ...

    def remote_kind(self, path: Path) -> str | None:
        """Name of the network or user-space file system that holds `path`; None = a local one."""
        ...

    def sync_file(self, path: Path) -> None:
        """fsync of a file or folder; OSError if it fails."""
        ...

    def new_uuid(self) -> str: ...


class LinuxHost:
    """The real answers. Without /proc, statx or the unique mount id (Linux before 6.8) they are None, which costs a
    rebuild at each start."""

    def boot_id(self) -> str | None:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip() or None
        except OSError:
            return None

    def mount_id(self, path: Path) -> int | None:
        # Python 3.11 has no os.statx; the wrapper is in glibc since 2.28 and in musl since 1.2
        try:
            statx = ctypes.CDLL(None, use_errno=True).statx
        except (OSError, AttributeError):
            return None
        buffer = ctypes.create_string_buffer(_STATX_SIZE)
        if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_MNT_ID_UNIQUE, buffer) != 0:
            return None
        answered = ctypes.c_uint32.from_buffer(buffer).value
        if not answered & _STATX_MNT_ID_UNIQUE:
            return None
        return ctypes.c_uint64.from_buffer(buffer, _STATX_MNT_ID_AT).value

    def file_id(self, path: Path) -> FileId:
        status = path.stat()
        return FileId(status.st_dev, status.st_ino)

    def remote_kind(self, path: Path) -> str | None:
        try:
            statfs = ctypes.CDLL(None, use_errno=True).statfs
        except (OSError, AttributeError):
            return None
        buffer = ctypes.create_string_buffer(_STATFS_SIZE)
        if statfs(os.fsencode(path), buffer) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        return _REMOTE.get(ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF)

    def sync_file(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def new_uuid(self) -> str:
        return uuid.uuid4().hex
