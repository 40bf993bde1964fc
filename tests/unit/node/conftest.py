from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node.harness import Node


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def make(**settings: Any) -> Node:
        node = Node(tmp_path / f"node{len(nodes)}", **settings)
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    return make_node()
