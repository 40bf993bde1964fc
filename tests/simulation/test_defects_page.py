"""docs/consensus-defects.md is complete, and the tests that it names exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.defects import DEFECTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "consensus-defects.md").read_text()
ROWS = [
    f"{letter}{number}"
    for letter, count in (("S", 11), ("D", 7), ("L", 10), ("X", 3), ("P", 3))
    for number in range(1, count + 1)
]
CASES = ["P30", "P32", "P33", "P36", "P41", "P42", "P43", "P44", "P45", "P57", "P66"]
FOLDERS = {
    "sim": "tests/simulation",
    "unit": "tests/unit/raft",
    "real": "tests/integration/raft",
    "store": "tests/unit/store",
    "node": "tests/integration/node",
    "chaos": "tests/integration/chaos",
}
TABLE = {
    cells[0]: cells[1:]
    for line in PAGE.splitlines()
    if line.startswith("| ")
    and re.match(r"[SDLXP]\d+$", (cells := [cell.strip() for cell in line.strip("|").split("|")])[0])
}


def _named(text: str) -> list[str]:
    found = re.findall(r"`(\w+)/(\w+\.py)::(\w+(?:\[[^\]`]+\])?)`", text)
    return [f"{FOLDERS[folder]}/{file}::{test}" for folder, file, test in found]


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """All tests of the files that the page names, with and without their parameters."""
    files = sorted({name.partition("::")[0] for name in _named(PAGE)})
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert listed.returncode == 0, listed.stdout[-3000:]
    ids = {line for line in listed.stdout.splitlines() if "::" in line}
    return ids | {one.partition("[")[0] for one in ids}


def test_each_row_is_there_once() -> None:
    assert list(TABLE) == ROWS + CASES
    assert len(re.findall(r"^\| [SDLXP]\d+ \|", PAGE, re.MULTILINE)) == len(ROWS + CASES)


@pytest.mark.parametrize("row", ROWS + CASES)
def test_each_row_names_tests_that_exist(row: str, collected: set[str]) -> None:
    cells = TABLE[row]
    assert all(cells)
    for cell in cells[2:] if row in ROWS else cells[-1:]:
        names = _named(cell)
        assert len(names) == cell.count("`") // 2 > 0, "an id in another form"
        assert [name for name in names if name not in collected] == []


def test_rows_with_a_schedule_for_both_kinds_name_it() -> None:
    for row in DEFECTS:
        library, ours = TABLE[row][2:]
        assert f"test_the_plain_core_still_breaks_it[{row}]" in library
        assert f"test_our_core_keeps_the_promise[{row}]" in ours


def test_tests_outside_the_tables_exist(collected: set[str]) -> None:
    prose = "\n".join(line for line in PAGE.splitlines() if not line.startswith("|"))
    assert [name for name in _named(prose) if name not in collected] == []
    assert len(_named(prose)) == 2
