"""What is written past the page cache is what was to be written, on every kind of file system."""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvorum_raft.direct import BLOCK, DirectWriter, blocks_of, keep_whole, shorten, write_at

SIZES = [0, 1, 4_096, BLOCK - 1, BLOCK, BLOCK + 4_096, 3 * BLOCK + 5]


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    yield descriptor
    os.close(descriptor)


def is_direct(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


def write(fd: int, content: bytes, tmp_path: Path) -> int:
    (tmp_path / "source").write_bytes(content)
    source = os.open(tmp_path / "source", os.O_RDONLY)
    try:
        with DirectWriter(fd) as out:
            while block := out.read(source):
                out.write(block)
        return out.size
    finally:
        os.close(source)


def refuse_direct(monkeypatch: pytest.MonkeyPatch, *, when: str) -> None:
    """As file systems do: some when the flag is set, others when a block comes."""
    control = fcntl.fcntl

    def fcntl_without(fd: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETFL and argument & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct access")
        return control(fd, command, argument)

    def refusing(real: Callable[..., int]) -> Callable[..., int]:
        def call(fd: int, *arguments: Any) -> int:
            if is_direct(fd):
                raise OSError(errno.EINVAL, "not this way")
            return real(fd, *arguments)

        return call

    if when == "flag":
        monkeypatch.setattr("kvorum_raft.direct.fcntl.fcntl", fcntl_without)
    elif when == "block":
        for name in ("pwrite", "preadv"):
            monkeypatch.setattr(f"kvorum_raft.direct.os.{name}", refusing(getattr(os, name)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("when", ["", "flag", "block"])
def test_all_of_it_is_written_and_read(
    fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, when: str
) -> None:
    content = os.urandom(size)
    refuse_direct(monkeypatch, when=when)
    assert write(fd, content, tmp_path) == size
    assert (tmp_path / "file").read_bytes() == content
    assert b"".join(bytes(block) for block in blocks_of(fd)) == content
    assert not is_direct(fd), "as it was before"


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSPC])
def test_room_need_not_be_there_ahead(fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def cannot(*arguments: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("kvorum_raft.direct.os.posix_fallocate", cannot)
    content = os.urandom(BLOCK + 17)
    write(fd, content, tmp_path)
    assert (tmp_path / "file").read_bytes() == content


def test_a_failing_disk_is_no_reason_for_another_attempt(
    fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr("kvorum_raft.direct.os.pwrite", broken)
    with pytest.raises(OSError, match="broken"):
        write(fd, b"x" * BLOCK, tmp_path)


def test_buffered_writes_are_synced_in_small_steps(fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_direct(monkeypatch, when="flag")
    synced: list[int] = []
    monkeypatch.setattr("kvorum_raft.direct.os.fdatasync", synced.append)
    write(fd, bytes(8 * BLOCK), tmp_path)
    assert len(synced) == 8


def test_a_short_write_is_gone_on_with(fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr("kvorum_raft.direct.os.pwrite", lambda fd, data, offset: real(fd, bytes(data[:5_000]), offset))
    refuse_direct(monkeypatch, when="flag")
    content = os.urandom(20_000)
    write(fd, content, tmp_path)
    assert (tmp_path / "file").read_bytes() == content


def test_pieces_are_written_where_they_belong(fd: int, tmp_path: Path) -> None:
    content = os.urandom(300_000)
    buffer = mmap.mmap(-1, 65_536)
    offset = 0
    for size in (65_536, 4_096, 65_536, 1, 65_535, 65_536):
        write_at(fd, content[offset : offset + size], offset, buffer)
        offset += size
        assert os.fstat(fd).st_size == offset, "the length says how much has arrived"
    assert (tmp_path / "file").read_bytes() == content[:offset]
    assert not is_direct(fd)


def test_a_large_file_is_given_back_piece_by_piece(fd: int, tmp_path: Path) -> None:
    os.ftruncate(fd, 100 << 20)
    sizes = []
    shorten(tmp_path / "file", lambda size: sizes.append(os.fstat(fd).st_size))
    assert sizes == [(100 - 16 * step) << 20 for step in range(1, 7)]


def test_what_is_read_under_a_lock_stays_whole(fd: int, tmp_path: Path) -> None:
    os.ftruncate(fd, 100 << 20)
    reading = os.open(tmp_path / "file", os.O_RDONLY)
    keep_whole(reading)
    shorten(tmp_path / "file", lambda size: None)
    assert os.fstat(fd).st_size == 100 << 20
    os.close(reading)
    shorten(tmp_path / "file", lambda size: None)
    assert os.fstat(fd).st_size <= 16 << 20
