"""Three nodes, and a real Prometheus that scrapes them with the shipped configuration and rules."""

import asyncio
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kvorum
from kvorum_node.dev_cluster import DevCluster
from kvorum_node.metrics.table import FAMILIES
from tests.integration.cluster_fixture import ThreeNodes

from .server import ROOT, Server, config_for, running
from .test_alerts import rules

GRAFANA = ROOT / "deploy" / "grafana"
UP = 'sum(up{job="kvorum"})'


@dataclass
class Watched:
    cluster: DevCluster
    server: Server


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A cluster that has done something of everything."""
    folder = tmp_path_factory.mktemp("watched")
    with ThreeNodes(folder) as cluster, running(folder / "prometheus", config_for(cluster.http_addresses)) as server:
        asyncio.run(use(cluster.url))
        server.until("all nodes are scraped", lambda: server.value(UP) == 3)
        yield Watched(cluster, server)


async def use(url: str) -> None:
    async with kvorum.open_kv(url) as kv:
        await kv.set(("a",), 1)
        assert not await kv.atomic().check(kvorum.Entry(("b",), None, "0" * 20)).set(("b",), 1).commit()
        await kv.get(("a",))
        assert [entry.key async for entry in kv.list(())] == [("a",)]
        await kv.enqueue({"to": "nobody"}, queue="mail", backoff_schedule=[])
        for message in await kv.queue("mail").receive_batch(max=1, wait=10_000):
            await message.reject()


def queries() -> dict[str, str]:
    """Title → PromQL, of all charts."""
    dashboard = json.loads((GRAFANA / "dashboards" / "kvorum.json").read_text())
    found: dict[str, str] = {}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$job", "kvorum").replace("$instance", ".*")
            found[f"{panel['title']} {target['refId']}"] = query.replace("$__rate_interval", "30s")
    return found


def names_in(query: str) -> set[str]:
    return set(re.findall(r"\bkvorum_\w+", re.sub(r'"[^"]*"', "", query)))


def test_two_of_three_are_killed_and_the_alert_fires(watched: Watched) -> None:
    """Last of what the others leave behind, first in the file: it starts and ends with three nodes."""
    cluster, server = watched.cluster, watched.server
    assert "KvorumNoLeader" not in server.firing()
    for number in (0, 1):
        cluster.kill(number)
    server.until("two are down", lambda: server.value(UP) == 1)
    server.until("the alert fires", lambda: "KvorumNoLeader" in server.firing())
    for number in (0, 1):
        cluster.start(number)
    cluster.leader()
    server.until("the alert ends", lambda: "KvorumNoLeader" not in server.firing())
    server.until("all nodes are scraped again", lambda: server.value(UP) == 3)
    # What it knows of a node is as old as its newest look at it, and not all looks are of one moment.
    server.until("one of them leads", lambda: server.value('sum(kvorum_raft_is_leader{job="kvorum"})') == 1)


def exported(watched: Watched) -> set[str]:
    """All names that nodes show, and those that they show only with settings that these do not have."""
    told: list[str] = watched.server.ask("label/__name__/values")
    optional = {family.shown for family in FAMILIES.values() if family.optional.startswith("with ")}
    return set(told) | optional | {"up"}


def test_every_query_of_the_dashboard_is_taken_and_asks_for_what_there_is(watched: Watched) -> None:
    server = watched.server
    asyncio.run(use(watched.cluster.url))  # nodes count from their start on, and some were killed
    server.until("queues are shown", lambda: server.value("max(kvorum_queue_died_total)") == 2)
    names = exported(watched)
    for title, query in queries().items():
        assert names_in(query) <= names, title
        # HTTP 400, an OSError, if Prometheus cannot parse it; a rate needs two samples
        server.until(f"{title} shows something", lambda asked=query: bool(server.ask("query", query=asked)["result"]))


def test_every_alert_asks_for_what_there_is(watched: Watched) -> None:
    names = exported(watched)
    for rule in rules():
        assert names_in(rule["expr"]) <= names, rule["alert"]
        watched.server.ask("query", query=rule["expr"])


def test_the_table_of_metrics_is_what_nodes_show(watched: Watched) -> None:
    """But for what belongs to settings that these nodes do not have."""
    names = exported(watched)
    for family in FAMILIES.values():
        shown = f"{family.shown}_count" if family.kind == "histogram" else family.shown
        assert shown in names, shown
    metadata: dict[str, Any] = watched.server.ask("metadata")
    for family in FAMILIES.values():
        told = metadata.get(family.shown)
        assert told is None or {one["type"] for one in told} == {family.kind}, family.shown


def test_the_dashboard_is_made_of_its_panels() -> None:
    spec = importlib.util.spec_from_file_location("build", GRAFANA / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert json.loads((GRAFANA / "dashboards" / "kvorum.json").read_text()) == module.dashboard()
    panels = [panel for panel in module.dashboard()["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in panels}) == len(panels) == len({panel["title"] for panel in panels}) + 1
    for source in (GRAFANA / "provisioning").rglob("*.yml"):
        assert "kvorum" in Path(source).read_text()
