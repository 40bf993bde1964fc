"""Backups of three real nodes under load, and what is restored from them."""

import asyncio
import json
import os
from pathlib import Path

import pytest

import kvorum
from kvorum import Kv
from tests.integration.backup.conftest import BackedUp, wait_for
from tests.integration.backup.history import History, all_of, until

WRITERS = 8


async def under_load(cluster: BackedUp, history: History, work: "asyncio.Future[None]") -> None:
    """Write all the time while something else is done, and for a while before and after it."""
    async with await kvorum.open_kv(cluster.url) as kv:
        writers = [asyncio.create_task(history.writer(kv, number, 40)) for number in range(WRITERS)]
        try:
            await until(None, history, 400)
            await work
            await until(None, history, history.writes + 400)
        finally:
            history.stopping = True
            await asyncio.gather(*writers)


async def send_some(kv: Kv) -> None:
    """A few messages."""
    for number in range(5):
        await kv.queue("jobs").send(number)


def test_p25_saved_under_load_wiped_and_restored(cluster: BackedUp, tmp_path: Path) -> None:
    """P25: backup to a file under load, wipe, restore → equal to the state at the printed bookmark."""
    file, history = tmp_path / "db.bak", History()
    told: list[dict[str, object]] = []

    async def save() -> None:
        told.append(await asyncio.to_thread(cluster.told, "backup", "save", str(file)))

    async def load() -> None:
        async with await kvorum.open_kv(cluster.url) as kv:
            await send_some(kv)
        await under_load(cluster, history, save())  # type: ignore[arg-type]

    before = cluster.leader()
    asyncio.run(load())
    bookmark = bytes.fromhex(str(told[0]["bookmark"]))
    expected = history.at(bookmark)
    assert history.writes > sum(stamp <= bookmark for versions in history.versions.values() for stamp, _ in versions)
    verified = json.loads(cluster.kvorum("backup", "verify", str(file), "--json"))
    assert verified["content_hash"] == told[0]["content_hash"]
    assert verified["verified"] is True
    if cluster.leader() == before:  # nobody else has led meanwhile
        assert verified["node"] != f"n{before + 1}"  # a follower by preference

    old_id = cluster.status(0).cluster_id
    cluster.wipe_all()
    made = cluster.told("backup", "restore", str(file), "--config", str(cluster.config(0)))
    assert made["content_hash"] == told[0]["content_hash"]
    cluster.regrow()
    assert asyncio.run(all_of(cluster.url)) == expected
    asyncio.run(_goes_on(cluster, history.newest))
    assert {cluster.status(number).cluster_id for number in range(3)} == {bytes.fromhex(made["cluster"])}
    assert cluster.status(0).cluster_id != old_id
    for number in (0, 1, 2):  # any of the three may go
        cluster.kill(number)
        cluster.leader()
        cluster.start(number)


async def _goes_on(cluster: BackedUp, newest: bytes) -> None:
    """New versionstamps are larger than all that the old cluster gave, also after the backup; messages are there."""
    async with await kvorum.open_kv(cluster.url) as kv:
        done = await kv.atomic().set(("after",), 1).commit()
        assert bytes.fromhex(str(done.versionstamp)) > newest
        jobs = kv.queue("jobs")
        assert (await jobs.stats()).messages == 5


def test_a_follower_that_is_down_is_no_obstacle_and_files_are_not_overwritten(
    cluster: BackedUp, tmp_path: Path
) -> None:
    file = tmp_path / "db.bak"
    asyncio.run(_set(cluster, 1))
    for number in cluster.followers()[:1]:
        cluster.kill(number)
    first = cluster.told("backup", "save", str(file))
    assert "is there already" in cluster.kvorum("backup", "save", str(file), status=2)
    named = f"n{cluster.leader() + 1}"
    second = cluster.told("backup", "save", str(file), "--overwrite", "--node", named)
    assert second["node"] == named
    assert second["content_hash"] == first["content_hash"] or second["entry"] > first["entry"]  # type: ignore[operator]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster", "db.bak"]
    assert "not a member" in cluster.kvorum("backup", "save", str(tmp_path / "x"), "--node", "n9", status=2)


def test_without_a_majority_only_what_a_node_has(cluster: BackedUp, tmp_path: Path) -> None:
    """A backup says what was acknowledged before it, or says that it may not."""
    file = tmp_path / "db.bak"
    asyncio.run(_set(cluster, 1))
    keep = cluster.followers()[0]
    for number in range(3):
        if number != keep:
            cluster.kill(number)
    line = cluster.kvorum("backup", "save", str(file), "--timeout", "1s", "--node", f"n{keep + 1}", status=3)
    assert "--stale" in line
    assert not file.exists()
    told = cluster.told("backup", "save", str(file), "--timeout", "1s", "--node", f"n{keep + 1}", "--stale")
    assert told["node"] == f"n{keep + 1}"
    cluster.kvorum("backup", "verify", str(file))


async def _set(cluster: BackedUp, value: int) -> None:
    async with await kvorum.open_kv(cluster.url) as kv:
        await kv.set(("w", 1), value)


def _largest_part(folder: Path) -> int:
    """Bytes that have come of a backup."""
    return max((path.stat().st_size for path in folder.glob(".*.part")), default=0)


@pytest.mark.parametrize("how", ["killed", "two at once"])
def test_a_node_that_dies_midway_and_two_backups_at_once(cluster: BackedUp, tmp_path: Path, how: str) -> None:
    """Of a state that takes seconds to be sent."""

    async def fill() -> None:
        async with await kvorum.open_kv(cluster.url) as kv:
            for number in range(40):
                operation = kv.atomic()
                for part in range(10):
                    operation = operation.set(("w", number * 10 + part), os.urandom(65_000))
                await operation.commit()

    asyncio.run(fill())
    node = cluster.followers()[0]

    async def run() -> list[str | BaseException]:
        saves = [
            asyncio.to_thread(
                cluster.kvorum,
                *("backup", "save", str(tmp_path / f"{number}.bak"), "--node", f"n{node + 1}"),
                status=3 if how == "killed" else 0,
            )
            for number in range(2)
        ]
        work = asyncio.gather(*saves, return_exceptions=True)
        if how == "killed":
            await asyncio.to_thread(wait_for, lambda: _largest_part(tmp_path) > 1 << 20)
            await asyncio.to_thread(cluster.kill, node)
        return await work

    found = asyncio.run(run())
    if how == "killed":
        assert all("no backup was made" in str(line) for line in found), found
        assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster"]
        cluster.start(node)
        assert list((cluster.data_dir(node) / "backup").iterdir()) == []
        return
    assert not [error for error in found if isinstance(error, BaseException)]
    for number in range(2):
        cluster.kvorum("backup", "verify", str(tmp_path / f"{number}.bak"))
