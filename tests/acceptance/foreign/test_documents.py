"""The programs of docs/deno.md, as they stand there but for the address."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum_node.dev_cluster import DevCluster

from .process import CLIENTS, PATIENCE, deno, environment

PAGE = Path(__file__).parents[3] / "docs" / "deno.md"


@pytest.fixture
def programs(nodes: DevCluster, clients_installed: None, tmp_path: Path) -> list[str]:
    (tmp_path / "node_modules").symlink_to(CLIENTS / "node_modules")
    found = re.findall(r"^```ts\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 3
    assert all(text.count('http://n1:7402"') == 1 for text in found)
    return [text.replace('http://n1:7402"', f'{nodes.http_url(0)}"') for text in found]


def lines(command: list[str], folder: Path) -> Iterator[str]:
    """What a program prints; it is ended with the iterator."""
    with subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield from process.stdout
        finally:
            process.kill()


@pytest.mark.timeout(4 * PATIENCE)
def test_the_programs_run(programs: list[str], tmp_path: Path) -> None:
    (tmp_path / "app.ts").write_text(programs[0])
    watched = lines([*deno(), "app.ts"], tmp_path)
    assert re.match(r"\[Deno\.KvU64: \d+n\]$", next(watched).strip())
    watched.close()  # it would go on watching
    for name, program in zip(("app.mjs", "kit.mjs"), programs[1:], strict=True):
        (tmp_path / name).write_text(program)
        assert list(lines(["node", name], tmp_path)) == ["{ born: 1933 }\n"]
