"""Whether a node's state is behind what it knows to be committed."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import Node

FOREVER = 600.0
"""Seconds: whoever waits for longer than a test takes does not end by patience."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


async def test_a_state_that_has_everything_is_not_behind(node: Node) -> None:
    assert await node.service.behind(FOREVER) == ""


async def test_it_is_waited_for_until_it_is_applied(node: Node) -> None:
    index = node.service.store.applied_index
    node.consensus.unapplied = 2
    both = [asyncio.ensure_future(node.service.behind(FOREVER)) for _ in range(2)]
    await asyncio.sleep(0)
    node.consensus.apply(b"")
    await asyncio.sleep(0)
    assert not any(task.done() for task in both)
    node.consensus.unapplied = 1000  # what is committed later is nobody's business
    node.consensus.apply(b"")
    assert await asyncio.gather(*both) == ["", ""]
    assert node.service.store.applied_index == index + 2
    assert not node.service._reached


async def test_with_no_patience_it_says_what_is_missing(node: Node) -> None:
    node.consensus.unapplied = 2
    index = node.service.store.applied_index
    assert await node.service.behind(0.0) == (
        f"entry {index + 2} is committed, and the state of this node is at entry {index}"
    )
    node.consensus.install(b"", b"")  # a snapshot brings it
    assert not node.service._reached
    node.consensus.unapplied = 0
    assert await node.service.behind(0.0) == ""
