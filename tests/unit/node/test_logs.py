"""What a node's log says of others: nothing that is secret, on any level."""

import logging
from collections.abc import Iterator

import pytest
from hpack import Decoder, Encoder

from kvorum_node.logs import GRPC, LEVELS, OWN, set_up

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Loggers are everybody's."""
    root = logging.getLogger()
    handlers, levels = root.handlers[:], {name: logging.getLogger(name).level for name in (None, *OWN)}
    yield
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def _take_headers_apart() -> None:
    """As the HTTP port does with each request of HTTP/2."""
    for huffman in (True, False):
        Decoder().decode(Encoder().encode([("authorization", "Bearer hidden")], huffman=huffman))


def test_headers_are_not_shown_by_the_library_that_takes_them_apart(capsys: Capture) -> None:
    set_up("n1", "debug", "text")
    _take_headers_apart()
    assert capsys.readouterr().err == ""


def test_the_library_would_show_them(capsys: Capture) -> None:
    """So the test above is one."""
    set_up("n1", "debug", "text")
    logging.getLogger().setLevel("DEBUG")
    _take_headers_apart()
    assert "Bearer hidden" in capsys.readouterr().err


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_that_of_our_own_loggers(capsys: Capture, level: str) -> None:
    set_up("n1", level, "text")
    own = ("kvorum.node", "kvorum.audit", "kvorum_node.store.home")
    for name in LEVELS:
        for logger in (*own, "any.other"):
            logging.getLogger(logger).log(logging.getLevelNamesMapping()[name.upper()], "said")
    said = [line.split("logger=")[1].split()[0] for line in capsys.readouterr().err.splitlines()]
    heard = len(LEVELS) - LEVELS.index(level)
    assert [said.count(logger) for logger in own] == [heard] * 3
    assert said.count("any.other") == min(heard, 2)


def test_clients_that_go_are_no_errors(capsys: Capture) -> None:
    set_up("n1", "info", "text")
    grpc = logging.getLogger(GRPC)
    grpc.error("ExecuteBatchError raised in core by servicer method [%s]", "/kvorum.v1.Kv/Stream")
    assert capsys.readouterr().err == ""
    grpc.error("Unexpected [%s] raised by servicer method", "ValueError")
    assert "Unexpected [ValueError]" in capsys.readouterr().err
