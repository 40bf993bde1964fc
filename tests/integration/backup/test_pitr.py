"""An archive that three real nodes write under load and faults, and moments that are restored from it."""

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import kvorum
from kvorum_node.backup.catalog import clusters
from kvorum_node.backup.places import S3Place
from kvorum_node.backup.targets import open_target
from tests.integration.backup.conftest import BackedUp, wait_for
from tests.integration.backup.history import History, all_of, until
from tests.s3_server import CREDENTIALS, REGION, Request, s3_server

WRITERS = 8


@pytest.fixture(params=["folder", "s3"])
def archived(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BackedUp]:
    """Each node archives to a place of its own in one folder, or in one bucket of a store that often fails."""
    (tmp_path / "archive").mkdir()
    with contextlib.ExitStack() as stack:
        settings: dict[str, int | str] = {"lease_ms": 1_000, "archive": str(tmp_path / "archive"), "archive_every_s": 1}
        place: Path | S3Place = tmp_path / "archive"
        env: dict[str, str] = {}
        if request.param == "s3":
            server = stack.enter_context(s3_server())
            server.fault = Shaky()
            place = server.place()
            settings |= {"archive": str(place), "archive_s3_endpoint": server.url, "archive_s3_region": REGION}
            env = {**CREDENTIALS, "KVORUM_ARCHIVE_S3_ENDPOINT": server.url}
        started = stack.enter_context(BackedUp(tmp_path, **settings))
        started.archive, started.target, started.env = str(place), open_target(place), env
        wait_for(lambda: has_begun(started))
        yield started


class Shaky:
    """Each ninth request fails, and of each twelfth the answer is lost."""

    def __init__(self) -> None:
        self._count = itertools.count(1)

    def __call__(self, request: Request) -> Iterable[bytes] | None:
        number = next(self._count)
        if number % 9 == 0:
            return request.refuse(503, "SlowDown")
        return request.lost() if number % 12 == 0 else None


def has_begun(cluster: BackedUp) -> bool:
    """Whether some node's archive has a base: only what comes after it can be restored."""
    try:
        return bool(cluster.catalog.bases)
    except ValueError as error:
        if "there are no files of one" in str(error):
            return False
        raise


def reaches(archived: BackedUp, entry: int, cluster: str = "") -> bool:
    """Whether the archive leads up to that entry from each of its bases: a node that is slower than others leaves a gap
    for a moment."""
    catalog = archived.catalog_of(cluster)
    ends = [([segment.last for segment in catalog.chain(base.entry)] or [base.entry])[-1] for base in catalog.bases]
    return bool(catalog.segments) and min(ends) >= entry


@pytest.mark.timeout(600)
def test_p25_any_moment_of_a_history_with_faults(archived: BackedUp, tmp_path: Path) -> None:
    """Leaders are killed meanwhile; then everything is lost, and a moment in the middle of it is restored."""
    cluster, history = archived, History()
    bookmarks: list[str] = []

    async def load() -> None:
        async with await kvorum.open_kv(cluster.url) as kv:
            writers = [asyncio.create_task(history.writer(kv, number, 40)) for number in range(WRITERS)]
            try:
                await until(None, history, 300)
                for _ in range(2):
                    leader = await asyncio.to_thread(cluster.leader)
                    await asyncio.to_thread(cluster.kill, leader)
                    await until(None, history, history.writes + 300)
                    bookmarks.append((await asyncio.to_thread(cluster.kvorum, "pitr", "bookmark")).strip())
                    await until(None, history, history.writes + 300)
                    await asyncio.to_thread(cluster.start, leader)
            finally:
                history.stopping = True
                await asyncio.gather(*writers)

    asyncio.run(load())
    stamps = sorted(stamp for versions in history.versions.values() for stamp, _ in versions)
    last = max(cluster.status(number).applied_index for number in range(3))
    wait_for(lambda: reaches(cluster, last))
    found = cluster.kvorum("pitr", "verify", cluster.archive, "--replay")
    assert found.strip().endswith("0 problems")
    cluster.wipe_all()

    # a commit in the middle of its entry, if any has several, else any
    several = [one for one, after in pairwise(stamps) if one[:8] == after[:8] and one < after]
    assert several
    exact = several[len(several) // 2]
    words = ("pitr", "restore", cluster.archive, "--to")
    for number, moment in enumerate((bytes.fromhex(bookmarks[0]), exact)):
        folder = tmp_path / f"{number}.kv"
        cluster.kvorum(*words, moment.hex(), "--embedded", "--data-dir", str(folder))
        assert asyncio.run(all_of(str(folder))) == history.at(moment)
    made = cluster.told(*words, bookmarks[1], "--config", str(cluster.config(0)))
    cluster.regrow()
    assert asyncio.run(all_of(cluster.url)) == history.at(bytes.fromhex(bookmarks[1]))

    # the new cluster archives as well, beside the old one's files
    wait_for(lambda: len(clusters(cluster.target.names(""))) == 2)
    asyncio.run(_write_one(cluster))
    reached = cluster.status(0).applied_index
    wait_for(lambda: reaches(cluster, reached, made["cluster"]))
    refused = cluster.kvorum(*words, bookmarks[1], "--embedded", "--data-dir", str(tmp_path / "c.kv"), status=2)
    assert "which cluster?" in refused
    assert bytes.fromhex(cluster.kvorum("pitr", "bookmark").strip()) > stamps[-1]


async def _write_one(cluster: BackedUp) -> None:
    async with await kvorum.open_kv(cluster.url) as kv:
        await kv.set(("after",), 1)


def test_one_prefix_into_the_cluster_that_goes_on(archived: BackedUp) -> None:
    """The operator's steps after somebody has deleted too much."""
    cluster = archived

    async def fill() -> None:
        async with await kvorum.open_kv(cluster.url) as kv:
            for number in range(20):
                await kv.set(("users", number), {"name": f"user {number}"})
                await kv.set(("orders", number), number)

    async def spoil() -> None:
        async with await kvorum.open_kv(cluster.url) as kv:
            await kv.delete_prefix(("users",))
            await kv.set(("users", 99), "came later")
            await kv.set(("orders", 3), "changed meanwhile, and meant")

    async def look() -> tuple[list[object], object]:
        async with await kvorum.open_kv(cluster.url) as kv:
            users = [entry.key[1] async for entry in kv.list(prefix=("users",))]
            return users, (await kv.get(("orders", 3))).value

    asyncio.run(fill())
    bookmark = cluster.kvorum("pitr", "bookmark").strip()
    entry = int(bookmark[:16], 16)
    asyncio.run(spoil())
    wait_for(lambda: reaches(cluster, entry))
    words = ("pitr", "restore", cluster.archive, "--to", bookmark, "--prefix", '["users"]')
    planned = cluster.told(*words, "--into", cluster.url, "--dry-run")
    assert planned == {"set": 20, "deleted": 1, "same": 0, "expired": 0, "done": False}
    assert asyncio.run(look())[0] == [99]
    assert cluster.told(*words, "--into", cluster.url) == {**planned, "done": True}
    assert asyncio.run(look()) == ([*range(20)], "changed meanwhile, and meant")
    listed = cluster.kvorum("pitr", "list", cluster.archive)
    assert "log: entries" in listed
    assert "GAP" not in listed
