"""Names that mean something to a shell, a file system, a log, a terminal or a page of metrics: to a node they are
names.
"""

import asyncio
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import kvorum
from kvorum import errors
from kvorum_node.dev_cluster import in_thread
from kvorum_node.metrics.table import FAMILIES
from tests.integration.cluster_fixture import ThreeNodes
from tests.integration.kv_connect.wire import Http1

QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
MARK = "intruder"
"""Stands in each name, so that its traces can be told from all else."""
NAMES = (
    f'{MARK}" level=critical node="n9" message="forged',
    f"{MARK}\ntime=2030-01-01T00:00:00.000Z level=critical node=n9 logger=kvorum.node message=forged",
    f"{MARK}\r\nforged",
    f"{MARK}\u2028forged\u0085forged",
    f"{MARK}\x1b[2J\x1b]0;forged\x07",
    f"{MARK}\0forged",
    f"../../../../{MARK}",
    f"/tmp/{MARK}",
    f"$(touch {MARK})",
    f"`touch {MARK}`; touch {MARK} | touch {MARK} && touch {MARK}",
    f"%2e%2e%2f{MARK}",
    f'{MARK}"}} 1\nkvorum_raft_is_leader 7\nx{{queue="',
    f"{MARK}\\",
    f"{MARK}\u202elive",
    MARK + "n" * (256 - len(MARK)),
)


async def _try(name: str, kv: kvorum.Kv) -> None:
    """Everything that takes a name of a client's choice, in nobody's right."""
    for call in (
        kv.enqueue(1, queue=name),
        kv.queue(name).define(max_attempts=3),
        kv.queue(name).purge(),
        kv.topic(name).send(1),
        kv.set((name,), name),
        kv.get((name,)),
    ):
        with pytest.raises(errors.KvorumError):
            await call


@pytest.fixture
async def named(cluster: ThreeNodes, root: kvorum.Kv) -> ThreeNodes:
    """A cluster in which all of them have been used, by who may and by who may not."""
    made = await root.auth.create("nobody", read=[("other",)])
    async with kvorum.open_kv(cluster.url, token=made.text) as nobody:
        for name in NAMES:
            await _try(name, nobody)
            await root.enqueue(1, queue=name)
            await root.queue(name).define(max_attempts=3)
            await root.topic(name).define()
            await root.topic(name).subscribe(name)
            await root.schedule(name, "0 6 * * *", queue=name, value=1)
            with pytest.raises(errors.InvalidArgument):
                await root.schedule(f"{name[:200]}2", "0 6 * * *", queue=name, value=1, time_zone=name)
            await root.set((name,), name)
    return cluster


async def test_names_stay_names(named: ThreeNodes) -> None:
    log = "".join(named.log(number).read_text(errors="replace") for number in range(3))
    lines = re.split("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", log)
    marked = [line for line in lines if MARK in line]
    assert len(marked) >= len(NAMES), "refusals are logged"
    for line in lines:
        assert line.isprintable(), line
        assert not line or re.match(r"time=\S+ level=(debug|info|warning|error|critical) node=n[123] ", line), line
        told = QUOTED.sub("", line)  # what stands in quotes is a text, whatever it looks like
        assert not re.search("level=critical|node=n9|message=forged|" + MARK, told), line
    # nothing was made of them outside the database
    for place in (named.base_dir.parent, Path("/tmp"), Path.cwd()):
        assert not [path for path in await in_thread(_below, place) if MARK in str(path)]
    for number in range(3):
        assert named.status(number).node_id == f"n{number + 1}"


def _below(place: Path) -> list[Path]:
    return list(place.rglob("*") if place != Path("/tmp") else place.iterdir())


async def test_a_page_of_metrics_stays_one(named: ThreeNodes) -> None:
    async with asyncio.timeout(60):
        while True:  # queues are looked at now and then
            async with Http1(named.http_address(named.leader())) as client:
                page = (await client.request("GET", "/metrics")).text
            samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
            if set(NAMES) <= {sample.labels.get("queue") for sample in samples}:
                break
            await asyncio.sleep(0.2)
    assert [sample.value for sample in samples if sample.name == "kvorum_raft_is_leader"] == [1.0]
    known = {label for family in FAMILIES.values() for label in family.labels}
    assert {name for sample in samples for name in sample.labels} <= {*known, "le"}
