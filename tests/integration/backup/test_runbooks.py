"""The steps of docs/operations.md about backups, as they stand there: each command line is run, in order, with other
addresses and folders."""

import asyncio
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvorum
from kvorum_node.backup.targets import open_target
from tests.integration.backup.conftest import BackedUp, wait_for
from tests.integration.backup.runbook import section
from tests.integration.backup.test_pitr import has_begun, reaches


def steps(heading: str) -> list[str]:
    """Command lines of a section."""
    found = [
        line for block in re.findall(r"```sh\n(.*?)```", section(heading), re.DOTALL) for line in block.splitlines()
    ]
    assert found, heading
    return found


class Operator:
    """Types what the page says, on the right machine."""

    def __init__(self, cluster: BackedUp, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self.bookmark = ""
        self.said: list[str] = []

    def _moved(self, word: str) -> str:
        cluster = self.cluster
        word = word.replace("/mnt/archive/kvorum", str(self._folder / "archive"))
        word = word.replace("app.bak", str(self._folder / "app.bak"))
        word = word.replace("00000000000004d2ffff", self.bookmark)
        word = re.sub(r"^n(\d)\.toml$", lambda found: str(cluster.config(int(found[1]) - 1)), word)
        for number in range(3):
            place = cluster.place(number)
            word = word.replace(f"10.0.0.{number + 1}:7403", place[1]).replace(f"10.0.0.{number + 1}:7401", place[3])
        return word

    def type(self, line: str) -> str:
        words = [self._moved(word) for word in shlex.split(line)]
        assert words.pop(0) == "kvorum"
        if words[0] == "node":
            self._start(words)
            return ""
        said = self.cluster.kvorum(*words)
        self.said.append(said)
        return said

    def _start(self, words: list[str]) -> None:
        """As a supervisor would, which does not wait for the node's end."""
        cluster = self.cluster
        number = next(one for one in range(3) if words[2] == str(cluster.config(one)))
        cluster.nodes = number + 1
        if words[3:] == ["--join"]:
            cluster.set_key(number, "join", "true")
            cluster.start(number)
        else:
            assert words[3:] == []
            cluster.start(number)
            cluster.leader()


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    (tmp_path / "archive").mkdir()
    with BackedUp(tmp_path, archive=str(tmp_path / "archive"), archive_every_s=1) as cluster:
        cluster.archive, cluster.target = str(tmp_path / "archive"), open_target(tmp_path / "archive")
        wait_for(lambda: has_begun(cluster))
        yield Operator(cluster, tmp_path)


async def fill(url: str, until: int) -> None:
    async with await kvorum.open_kv(url) as kv:
        for number in range(until):
            await kv.set(("users", number), number)


async def users(url: str) -> list[object]:
    async with await kvorum.open_kv(url) as kv:
        return [entry.value async for entry in kv.list(prefix=("users",))]


async def delete_users(url: str) -> None:
    async with await kvorum.open_kv(url) as kv:
        await kv.delete_prefix(("users",))


def test_backup_and_restore(operator: Operator) -> None:
    cluster = operator.cluster
    asyncio.run(fill(cluster.url, 20))
    for line in steps("Backup"):
        operator.type(line)
    cluster.wipe_all()
    for line in steps("Restore"):
        operator.type(line)
    assert cluster.nodes == 3
    assert asyncio.run(users(cluster.url)) == [*range(20)]
    assert {row["voter"] for row in cluster.members().values()} == {True}
    assert len(cluster.members()) == 3


def test_lost_quorum(operator: Operator) -> None:
    cluster = operator.cluster
    asyncio.run(fill(cluster.url, 20))
    lines = steps("Lost quorum")
    applied = cluster.status(cluster.leader()).applied_index
    wait_for(lambda: cluster.status(2).applied_index >= applied)
    for number in (0, 1):
        cluster.kill(number)
        cluster.wipe(number)
    for line in lines[:2]:
        operator.type(line)
    cluster.kill(2)
    cluster.wipe(2)
    for line in lines[2:]:
        operator.type(line)
    assert asyncio.run(users(cluster.url)) == [*range(20)]


def test_point_in_time_restore(operator: Operator, tmp_path: Path) -> None:
    cluster = operator.cluster
    asyncio.run(fill(cluster.url, 20))
    # an object store is another target of the same commands: test_pitr has it
    lines = [line for line in steps("Point-in-time restore") if "s3://" not in line]
    assert lines[0] == "kvorum pitr bookmark"
    operator.bookmark = operator.type(lines.pop(0)).strip()
    asyncio.run(delete_users(cluster.url))
    reached = cluster.status(cluster.leader()).applied_index
    wait_for(lambda: reaches(operator.cluster, reached))
    while "restore" not in lines[0]:
        operator.type(lines.pop(0))
    assert operator.said[-1].strip().endswith("0 problems")
    planned, done, everything, start = lines
    assert "20 keys would be set" in operator.type(planned)
    assert asyncio.run(users(cluster.url)) == []
    assert "20 keys were set" in operator.type(done)
    assert asyncio.run(users(cluster.url)) == [*range(20)]
    cluster.wipe_all()
    operator.type(everything)
    operator.type(start)
    assert asyncio.run(users(cluster.url)) == [*range(20)]
