"""Who makes room for a new connection when there is none, and what looking for it costs."""

from typing import Any, cast

from kvorum_node.http.app import App
from kvorum_node.http.connection import Connection
from kvorum_node.http.server import CANDIDATES, SPARED, HttpServer


class _Connection:
    """Idle for so many seconds."""

    def __init__(self, idle: float) -> None:
        self.idle = idle
        self.looks = 0
        self.aborted = False

    def idle_for(self, now: float) -> float:
        self.looks += 1
        return self.idle

    def abort(self) -> None:
        self.aborted = True


def _server(*connections: _Connection) -> HttpServer:
    server = HttpServer(cast(App, None), "127.0.0.1", 0, max_connections=len(connections))
    for connection in connections:
        assert server.made(cast(Connection, connection))
    return server


def _new(server: HttpServer) -> bool:
    return server.made(cast(Any, _Connection(0.0)))


async def test_one_that_never_asked_goes_first_and_then_the_quietest() -> None:
    busy, quiet, quieter, silent = (_Connection(idle) for idle in (0.0, SPARED + 1, SPARED + 2, float("inf")))
    server = _server(busy, quiet, quieter, silent)
    for expected in (silent, quieter, quiet):
        assert _new(server)
        assert expected.aborted
    assert not _new(server), "what is used, or was a moment ago, stays"
    assert not busy.aborted
    assert server.statistics()["http_connections_turned_away"] == 1


async def test_a_look_is_at_a_few_and_at_others_each_time() -> None:
    connections = [_Connection(0.0) for _ in range(10 * CANDIDATES)]
    connections[-1].idle = float("inf")
    server = _server(*connections)
    found = [_new(server) for _ in range(10)]
    assert found == [False] * 9 + [True]
    assert connections[-1].aborted
    assert sum(connection.looks for connection in connections) <= 10 * (CANDIDATES + 1)
