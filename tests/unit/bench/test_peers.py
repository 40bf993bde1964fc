"""Peers that cannot be had are told with the reason."""

from pathlib import Path

import pytest

from bench import __main__ as program
from bench import peers


def test_without_package_managers_each_peer_is_missing_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = peers.install(("etcd", "deno"), tmp_path / "cache")
    assert not found.found
    assert "apt-get" in found.missing["etcd"]
    assert "npm" in found.missing["deno"]
    assert "apt-get" in found.wanting("etcd", "deno")
    assert peers.versions(found) == {}


def test_what_was_made_from_another_lock_file_is_made_anew(tmp_path: Path) -> None:
    lock, place = tmp_path / "lock", tmp_path / "place"
    lock.write_text("one")
    made: list[str] = []

    def make() -> None:
        made.append(lock.read_text())
        (place / "program").touch()

    def there() -> Path | None:
        return place / "program" if (place / "program").exists() else None

    for _ in range(2):
        assert peers._as_locked(place, [lock], there, make) == place / "program"
    lock.write_text("two")
    peers._as_locked(place, [lock], there, make)
    (place / "program").unlink()
    peers._as_locked(place, [lock], there, make)
    assert made == ["one", "two", "two"]


def test_a_command_that_fails_says_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(peers.NotToBeHad, match="status 3: no such package"):
        peers._run(["sh", "-c", "echo no such package >&2; exit 3"], tmp_path)


def test_a_memory_file_system_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "on_memory", lambda folder: True)
    with pytest.raises(SystemExit):
        program.options_of(["--dir", "/somewhere"])
    assert "memory file system" in capsys.readouterr().err
