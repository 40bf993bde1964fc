"""Three real node processes for one test."""

from pathlib import Path
from types import TracebackType

from kvorum_node.dev_cluster import DevCluster
from tests.pace import Pace

Address = tuple[str, int]
PATIENT = {"election_timeout_min_ms": 1_500, "election_timeout_max_ms": 3_000}
"""For clusters under attack: nodes, clients and attackers share few cores. A loop that an attack keeps busy for more
than three quarters of a second still costs the leader its office."""


def pace_of(cluster: DevCluster) -> Pace:
    """Seconds from now on, but for those in which the test or a node waited for a core."""
    return Pace(lambda: map(cluster.pid, range(cluster.nodes)))


class ThreeNodes(DevCluster):
    """A started cluster: `with ThreeNodes(tmp_path) as cluster`. `settings` are keys of the nodes' configuration."""

    def __init__(self, folder: Path, **settings: int | str) -> None:
        super().__init__(folder / "cluster", settings=settings)

    def __enter__(self) -> "ThreeNodes":
        try:
            self.start_all()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def followers(self) -> list[int]:
        """Numbers of the nodes that do not lead."""
        leader = self.leader()
        return [number for number in range(self.nodes) if number != leader]

    @property
    def addresses(self) -> list[Address]:
        """For `kvorum.cluster.connect`."""
        found = []
        for number in range(self.nodes):
            host, _, port = self.client_address(number).rpartition(":")
            found.append((host, int(port)))
        return found
