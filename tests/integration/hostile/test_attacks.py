"""Each attack for a few seconds: good clients go on, the leader stays, and nothing is left of it. The bounds are wide,
since the attackers share the machine with the nodes; `scripts/hostile` prints what it really is.
"""

import asyncio
from collections.abc import Iterator

import pytest

from kvorum_node.dev_cluster import DevCluster
from tests.integration.cluster_fixture import PATIENT

from .grpc_attacks import ATTACKS
from .siege import Siege, describe, unnoticed

SECONDS = 1.5
SCALE = {"idle_connections": 0.8, "tiny_pieces": 0.1}
"""Some need their number; of some a little is enough."""
USUAL_SCALE = 0.5
SLOW = 10.0
"""Seconds within which a good client is answered, whatever goes on."""
LOG = 50_000
"""Bytes that a node may log of it: what others can cause at will is told once in a while."""
MEMORY = 600 << 20
"""Bytes that a node may grow by: what it may hold of requests and answers is less, but for `unnoticed`."""


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    """A cluster of its own, whose leader is attacked; at the end all nodes must still end in order."""
    cluster = DevCluster(tmp_path_factory.mktemp("hostile"), settings=PATIENT)
    try:
        cluster.start_all()
        made = Siege(cluster, cluster.leader())
        asyncio.run(made.fill())
        yield made
        assert [cluster.terminate(number) for number in range(cluster.nodes)] == [0, 0, 0]
    finally:
        cluster.stop()


@pytest.mark.parametrize("name", ATTACKS)
async def test_good_clients_go_on(siege: Siege, name: str) -> None:
    siege.number = siege.cluster.leader()
    outcome = await siege.run(name, seconds=SECONDS, scale=SCALE.get(name, USUAL_SCALE))
    told = describe(outcome)
    print(told)
    assert sum(outcome.counts.values()), "nothing was attacked"
    assert not outcome.log, told
    assert not outcome.left, told
    assert outcome.term_changes <= outcome.stalls, told
    assert outcome.memory < MEMORY + unnoticed(outcome, SECONDS), told
    assert outcome.log_bytes < LOG, told
    assert outcome.grpc.times, told
    assert not outcome.grpc.refused, told
    assert outcome.grpc.worst < SLOW, told
    assert outcome.connect.times, told
    assert outcome.connect.worst < SLOW, told
    # A node that is full says so; everything else would be an error to a program.
    assert all(problem.startswith("503 ") for problem in outcome.connect.refused), told
