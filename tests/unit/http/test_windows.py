"""Answers that wait for a window do not cost anything while others open."""

import asyncio
from typing import Any

from hyperframe.frame import SettingsFrame, WindowUpdateFrame

from kvorum_node.http.connection import PREFACE, Connection
from kvorum_node.http.server import HttpServer
from tests.fuzz.local_node import LocalNode, local_node
from tests.fuzz.wire import _head, _Transport

STREAMS, UPDATES = 50, 100
INITIAL_WINDOW = 4


def _numbers() -> range:
    return range(1, 2 * STREAMS, 2)


async def _rest(connection: Connection) -> None:
    """Until the connection has nothing to do."""
    quiet = 0
    while quiet < 20:
        await asyncio.sleep(0)
        quiet = 0 if connection.scheduled else quiet + 1


async def _wait_for_windows(node: LocalNode, app: Any) -> None:
    server, transport = HttpServer(app, "127.0.0.1", 0), _Transport()
    connection = Connection(server)
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.data_received(PREFACE + SettingsFrame(0, settings={INITIAL_WINDOW: 0}).serialize())
    for number in _numbers():
        connection.data_received(_head(number, b"/livez", end=True, method=b"GET").serialize())
    await _rest(connection)
    before, sent = server.statistics()["http_steps"], transport.written
    connection.data_received(WindowUpdateFrame(0, window_increment=1).serialize() * UPDATES)
    await _rest(connection)
    assert server.statistics()["http_steps"] - before < 2 * UPDATES, "each update woke every stream"
    assert transport.written == sent
    for number in _numbers():
        connection.data_received(WindowUpdateFrame(number, window_increment=100).serialize())
    await _rest(connection)
    assert transport.written - sent == STREAMS * (9 + len(b"ok\n")), "all of them are answered in the end"
    connection.connection_lost(None)


async def _wait_for_settings(node: LocalNode, app: Any) -> None:
    server, transport = HttpServer(app, "127.0.0.1", 0), _Transport()
    connection = Connection(server)
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.data_received(PREFACE + SettingsFrame(0, settings={INITIAL_WINDOW: 0}).serialize())
    connection.data_received(_head(1, b"/livez", end=True, method=b"GET").serialize())
    await _rest(connection)
    sent = transport.written
    connection.data_received(SettingsFrame(0, settings={INITIAL_WINDOW: 10}).serialize())
    await _rest(connection)
    assert transport.written - sent == 9 + 9 + len(b"ok\n"), "the settings are acknowledged, and the answer goes out"
    connection.connection_lost(None)


def test_the_window_of_the_connection_wakes_those_that_wait_for_it_only() -> None:
    with local_node() as node, node.app() as app:
        node.run(_wait_for_windows(node, app))


def test_new_settings_wake_all() -> None:
    with local_node() as node, node.app() as app:
        node.run(_wait_for_settings(node, app))
