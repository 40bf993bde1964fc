"""One backup restored into two clusters, beside the one that it was made of: three clusters with the same keys, nodes
of the same names, and nothing else in common."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvorum
from kvorum.errors import KvorumError, Unauthenticated, Unavailable, WrongCluster
from kvorum_node.dev_cluster import DevCluster
from tests.integration.backup.conftest import wait_for

ROOT = "0123456789abcdef-root"
LEASE = 1_000


class OneNode(DevCluster):
    """A cluster of one."""

    def __init__(self, folder: Path, **settings: int | str) -> None:
        super().__init__(folder, nodes=1, settings={"lease_ms": LEASE, **settings})
        self.write_configs()

    @property
    def cluster_id(self) -> str:
        return self.status(0).cluster_id.hex()

    def restore(self, file: Path) -> str:
        """Its folder made of a backup, and the node started; returns the id of the cluster."""
        made = json.loads(kvorum_says("", "backup", "restore", str(file), "--config", str(self.config(0)), "--json")[0])
        self.start_all()
        return str(made["cluster"])


def kvorum_says(url: str, *words: str, status: int = 0, token: str = "") -> tuple[str, str]:
    """What a command prints on standard output and on standard error."""
    environment = {"PATH": "", "KVORUM_URL": url} | ({"KVORUM_TOKEN": token} if token else {})
    done = subprocess.run(
        [sys.executable, "-m", "kvorum.cli", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, (words, done.stdout, done.stderr)
    return done.stdout, done.stderr


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[tuple[OneNode, OneNode, OneNode, Path]]:
    """The first one runs; the backup is not made yet, and the other two have no folders."""
    three = tuple(OneNode(tmp_path / name) for name in ("old", "new", "newer"))
    try:
        three[0].start_all()
        yield (*three, tmp_path / "db.bak")
    finally:
        for one in three:
            one.stop()


def test_each_is_a_cluster_of_its_own(clusters: tuple[OneNode, OneNode, OneNode, Path]) -> None:
    old, new, newer, file = clusters
    kvorum_says(old.url, "set", '["k"]', "1")
    kvorum_says(old.url, "backup", "save", str(file))
    told = [old.cluster_id, new.restore(file), newer.restore(file)]
    assert [one.cluster_id for one in (old, new, newer)] == told
    assert len(set(told)) == 3
    stamps = [kvorum_says(one.url, "set", '["k"]', "2")[0].strip() for one in (old, new, newer)]
    assert len(set(stamps)) == 3 and stamps[0] < min(stamps[1:])


def test_whoever_names_nodes_of_two_is_told(clusters: tuple[OneNode, OneNode, OneNode, Path]) -> None:
    old, new, _, file = clusters
    kvorum_says(old.url, "set", '["k"]', "1")
    kvorum_says(old.url, "backup", "save", str(file))
    ids = [old.cluster_id, new.restore(file)]
    both = f"{old.url},{new.url.removeprefix('kvorum://')}"
    for words in (("status",), ("status", "--json")):
        shown, warned = kvorum_says(both, *words)
        assert "WARNING: these nodes are of different clusters" in warned
        assert all(one in warned for one in ids)
    assert [json.loads(line)["cluster"] for line in shown.splitlines()] == ids
    for one in (old, new):
        assert kvorum_says(one.url, "status")[1] == ""
    shown, _ = kvorum_says(both, "doctor", "--json", status=1)
    (found,) = [row for row in map(json.loads, shown.splitlines()) if row["check"] == "cluster id"]
    assert found["state"] == "FAIL" and "different clusters" in found["told"]
    # Both have a node n1 that leads: a change must not go to either of them.
    for words in (("cluster", "members"), ("cluster", "set-time", "now"), ("backup", "save", f"{file}2")):
        _, line = kvorum_says(both, *words, status=2)
        assert "different clusters" in line and all(one in line for one in ids)
    assert not Path(f"{file}2").exists()


async def test_a_client_of_one_never_writes_to_another(clusters: tuple[OneNode, OneNode, OneNode, Path]) -> None:
    """Neither when it was given the addresses of both, nor when the other one has taken over the address."""
    old, new, _, file = clusters
    await asyncio.to_thread(kvorum_says, old.url, "set", '["k"]', '"old"')
    await asyncio.to_thread(kvorum_says, old.url, "backup", "save", str(file))
    both = f"{old.url},{new.url.removeprefix('kvorum://')}"
    async with kvorum.open_kv(both) as first, kvorum.open_kv(old.url) as second:
        await first.set(("k",), "first")
        await asyncio.to_thread(new.restore, file)
        await asyncio.to_thread(old.stop)
        with pytest.raises(KvorumError) as caught:
            await first.set(("k",), "astray", timeout=3_000)
        assert isinstance(caught.value, Unavailable | WrongCluster), caught.value
        # The same file restored at the old one's address: `second` is a client of what was there.
        await asyncio.to_thread(lambda: [path.rename(path.with_name("aside")) for path in [old.data_dir(0)]])
        await asyncio.to_thread(old.restore, file)
        with pytest.raises(WrongCluster, match="open a new client"):
            await second.set(("k",), "astray", timeout=10_000)
    for one in (old, new):
        async with kvorum.open_kv(one.url) as kv:
            assert (await kv.get(("k",))).value == "old"


def test_nodes_of_the_old_cluster_do_not_mix_with_a_restored_one(tmp_path: Path) -> None:
    """Against the advice of docs/operations.md two of three old nodes go on, and the folder of the third is made of a
    backup, at its old address."""
    old = DevCluster(tmp_path / "three")
    file = tmp_path / "db.bak"
    try:
        old.start_all()
        kvorum_says(old.url, "set", '["k"]', '"old"')
        kvorum_says(old.url, "backup", "save", str(file))
        first = old.status(0).cluster_id
        old.kill(0)
        old.data_dir(0).rename(tmp_path / "aside")
        kvorum_says("", "backup", "restore", str(file), "--config", str(old.config(0)))
        old.start(0)
        wait_for(lambda: old.status(0).role == "leader")
        wait_for(lambda: {old.status(number).leader.node_id for number in (1, 2)} <= {"n2", "n3"})
        alone = f"kvorum://{old.client_address(0)}"
        two = f"kvorum://{old.client_address(1)},{old.client_address(2)}"
        kvorum_says(alone, "set", '["k"]', '"new"')
        kvorum_says(two, "set", '["k"]', '"of the two"')
        assert [json.loads(kvorum_says(url, "get", '["k"]', "--json")[0])["value"] for url in (alone, two)] == [
            "new",
            "of the two",
        ]
        assert old.status(0).cluster_id != first == old.status(1).cluster_id == old.status(2).cluster_id
        assert len(json.loads(kvorum_says(alone, "cluster", "members", "--json")[0])["members"]) == 1
        assert "different clusters" in kvorum_says(old.url, "status")[1]
        for number in range(3):
            assert old.pid(number), "each of them goes on"
    finally:
        old.stop()


async def test_what_is_as_it_was_and_what_is_new(tmp_path: Path) -> None:
    """As docs/operations.md says of a restore: leases, delayed messages, schedules, expiry, tokens, sessions."""
    (tmp_path / "root").write_text(ROOT)
    file, token_file = tmp_path / "db.bak", str(tmp_path / "root")
    old, new = (OneNode(tmp_path / name, root_token_file=token_file) for name in ("old", "new"))
    try:
        await asyncio.to_thread(old.start_all)
        async with kvorum.open_kv(old.url, token=ROOT) as kv:
            app = await kv.auth.create("app", read=[("k",)])
            await kv.auth.on()
            await kv.set(("k", 1), "kept", expire_in=3_600_000)
            await kv.set(("k", 2), "expires", expire_in=1_000)
            await kv.queue("later").send("delayed", delay=3_600_000)
            await kv.queue("later").send("due", delay=1_000)
            await kv.queue("jobs").send("leased")
            await kv.schedule("daily", "0 6 * * *", queue="later", value="tick")
            before = await kv.schedules()
            (leased,) = await kv.queue("jobs").receive_batch(max=1, wait=10_000)
            await asyncio.to_thread(kvorum_says, old.url, "backup", "save", str(file), token=ROOT)
            await asyncio.to_thread(new.restore, file)
            assert (await kv.queue("jobs").stats()).leased == 1, "the old one's lease lives on"
            assert leased.attempt == 1
        async with kvorum.open_kv(new.url, token=ROOT) as kv:
            (again,) = await kv.queue("jobs").receive_batch(max=1, wait=30_000)
            assert (again.value, again.attempt) == ("leased", 2)
            await again.ack()
            (due,) = await kv.queue("later").receive_batch(max=1, wait=30_000)
            assert due.value == "due"
            await due.ack()
            assert (await kv.queue("later").stats()).messages == 1, "the delayed one is not due"
            assert await kv.schedules() == before
            assert (await kv.get(("k", 1))).value == "kept"
            left = await kv.expires_in(("k", 1))
            assert left is not None and 0 < left.total_seconds() <= 3_600
            async with asyncio.timeout(30):
                async for (entry,) in kv.watch([("k", 2)]):
                    if entry.versionstamp is None:
                        break
            assert [one.name for one in await kv.auth.list()] == ["app"]
        async with kvorum.open_kv(new.url, token=app.text) as kv:
            assert (await kv.get(("k", 1))).value == "kept"
        async with kvorum.open_kv(new.url) as kv:
            with pytest.raises(Unauthenticated):
                await kv.get(("k", 1))
    finally:
        old.stop()
        new.stop()
