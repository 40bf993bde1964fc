"""The steps of docs/operations.md about members and restarts, as they stand there: each command line is typed, in
order, with other addresses and folders, and answered as the page says. Those about backups: tests/integration/backup.
"""

import asyncio
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvorum
from kvorum_node.dev_cluster import HOST, in_thread
from tests.integration.backup.conftest import BackedUp, wait_for
from tests.integration.backup.runbook import section
from tests.integration.node.test_dev_cluster import free_block

REFUSED = 78


def steps(heading: str) -> list[tuple[str, str]]:
    """Command lines of a section, each with what stands below it."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"```\n(\$ .*?)```", section(heading), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], ""))
            else:
                found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    assert found, heading
    return found


class Operator:
    """Types what the page says, on the right machine."""

    def __init__(self, cluster: BackedUp, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self.places: dict[str, str] = {}
        """Addresses of the page, and where they are here."""
        for number in range(3):
            _, peer, _, client = cluster.place(number)
            self.places |= {f"10.0.0.{number + 1}:7403": peer, f"10.0.0.{number + 1}:7401": client}

    def moved(self, text: str) -> str:
        """A text of the page as it has to be here."""
        for there, here in self.places.items():
            text = text.replace(there, here)
        return text.replace("/var/lib/kvorum", str(self.cluster.base_dir))

    def follow(self, heading: str) -> None:
        """All steps of a section; the answers are those of the page."""
        for line, answer in steps(heading):
            self._type(shlex.split(self.moved(line), comments=True), self.moved(answer))

    def _type(self, words: list[str], answer: str) -> None:
        cluster = self.cluster
        match words:
            case ["rm", "-rf", folder]:
                shutil.rmtree(folder)
            case ["cat", file]:
                (cluster.base_dir / file).write_text(answer)
            case ["kvorum", "node", "--config", file, *flags]:
                number = int(re.fullmatch(r"n(\d)\.toml", file)[1]) - 1  # type: ignore[index]
                if flags == ["--join"]:
                    cluster.set_key(number, "join", "true")
                else:
                    assert flags == []
                cluster.nodes = max(cluster.nodes, number + 1)
                cluster.start(number)
            case ["kvorum", *rest]:
                assert cluster.kvorum(*rest) == answer
            case _:
                raise AssertionError(f"nobody knows how to type {words}")


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    with BackedUp(tmp_path) as cluster:
        yield Operator(cluster, tmp_path)


async def write(url: str, name: str) -> None:
    async with kvorum.open_kv(url) as kv:
        await asyncio.gather(*(kv.set((name, number), number) for number in range(50)))


async def count(url: str, name: str) -> int:
    async with kvorum.open_kv(url) as kv:
        return await kv.count((name,))


def starts_not(cluster: BackedUp, number: int) -> str:
    """A start that is refused; returns what the node says."""
    before = len(cluster.log(number).read_text())
    cluster._spawn(number)
    assert cluster._children.pop(number).wait(60) == REFUSED
    return cluster.log(number).read_text()[before:]


def test_a_wiped_node(operator: Operator) -> None:
    cluster = operator.cluster
    asyncio.run(write(cluster.url, "before"))
    if cluster.leader() == 1:
        cluster.kvorum("cluster", "transfer", "n3")
    cluster.kill(1)
    cluster.wipe(1)
    assert "n2" in starts_not(cluster, 1), "an emptied folder is refused"
    assert (cluster.data_dir(1) / "raft" / "REFUSED").exists()
    assert "was refused by its cluster and must be replaced" in starts_not(cluster, 1)
    operator.follow("A wiped node")
    assert {row["voter"] for row in cluster.members().values()} == {True}
    cluster.kill(0)
    asyncio.run(write(cluster.url, "after"))
    assert asyncio.run(count(cluster.url, "before")) == 50


def test_adding_and_removing_a_node(operator: Operator) -> None:
    cluster = operator.cluster
    asyncio.run(write(cluster.url, "before"))
    port = free_block()
    operator.places |= {"10.0.0.4:7401": f"{HOST}:{port}", "10.0.0.4:7403": f"{HOST}:{port + 2}"}
    operator.follow("Adding a node")
    assert {name: row["voter"] for name, row in cluster.members().items()} == dict.fromkeys(
        ("n1", "n2", "n3", "n4"), True
    )
    operator.follow("Removing a node")
    cluster.wait_until_gone(3)
    assert "n4" not in cluster.members()
    starts_not(cluster, 3)
    cluster.nodes = 3
    cluster.leader()
    asyncio.run(write(cluster.url, "after"))


def test_moving_a_node(operator: Operator) -> None:
    cluster = operator.cluster
    asyncio.run(write(cluster.url, "before"))
    assert cluster.terminate(0) == 0
    cluster.write_joining(0)
    _, peer, _, client = cluster.place(0)
    operator.places |= {"10.0.1.1:7403": peer, "10.0.1.1:7401": client}
    cluster.start(0)
    operator.follow("Moving a node to another address")
    row = cluster.members()["n1"]
    assert (row["peer_address"], row["client_address"], row["voter"]) == (peer, client, True)
    asyncio.run(write(cluster.url, "after"))


async def test_a_rolling_restart(operator: Operator) -> None:
    """One node after the other ends by SIGTERM, and comes back before the next one; whoever writes sees no error."""
    cluster = operator.cluster
    ended = asyncio.Event()

    async def work(kv: kvorum.Kv, caller: int) -> int:
        done = 0
        while not ended.is_set():
            await kv.set(("work", caller, done), done)
            done += 1
        return done

    def is_back(number: int) -> bool:
        row = cluster.members()[f"n{number + 1}"]
        return bool(row["connected"]) and row["lag"] < 100

    async with kvorum.open_kv(cluster.url) as kv:
        working = [asyncio.create_task(work(kv, caller)) for caller in range(4)]
        for number in range(3):
            assert await in_thread(cluster.terminate, number) == 0
            await in_thread(cluster.start, number)
            await in_thread(wait_for, lambda number=number: is_back(number))
        ended.set()
        done = sum(await asyncio.gather(*working))
        assert await kv.count(("work",)) == done > 0
