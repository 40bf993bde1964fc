"""What the documentation names exists."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvorum import limits

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def names_in(path: Path) -> set[str]:
    """Top-level functions and classes, and `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{part.name}"
                for part in node.body
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


def test_way_of_a_write_names_what_exists() -> None:
    text = (ROOT / "docs" / "way-of-a-write.md").read_text()
    named = re.findall(r"`([\w/]+\.py)` · `([\w.]+)`", text)
    assert len({file for file, _ in named}) >= 5
    for file, name in named:
        assert name in names_in(ROOT / file), f"{file} has no {name}"
    # Bare `Class.method`s belong to one of the files that the page names.
    known = set().union(*(names_in(ROOT / file) for file, _ in named))
    for name in re.findall(r"`([A-Z]\w+\.\w+)`", text):
        if name not in known:
            assert name == "Class.method", f"no {name} in the files that the page names"
    headings = re.findall(r"^## \d\. `([\w/]+\.py)`", text, re.MULTILINE)
    assert len(headings) == 5
    assert all((ROOT / heading).is_file() for heading in headings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_named_paths_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    scripts = [ROOT / script for script in re.findall(r"scripts/[a-z-]+", text)]
    missing = [str(path) for path in [*(page.parent / link for link in links), *scripts] if not path.exists()]
    assert not missing


def test_the_readme_program_runs_as_it_stands(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("{'name': 'Nina'} 0000")
    assert "sold" in lines
    assert lines[-1].startswith("9 ")


def test_queues_are_documented_with_their_limits() -> None:
    text = (ROOT / "docs" / "queues.md").read_text()
    rows = {row.split("|")[1].strip(): row for row in text.splitlines() if row.startswith("| `")}
    hour, day = 3_600_000, 86_400_000
    for name, said in (
        ("`lease`", f"| {limits.DEFAULT_LEASE // 1000} s ("),
        ("`lease`", f"| {limits.MIN_LEASE} ms … {limits.MAX_LEASE // hour} h |"),
        ("`backoff`", "100 ms, 1 s, 5 s, 30 s, 60 s"),
        ("`backoff`", f"≤ {limits.MAX_BACKOFF_STEPS} steps of ≤ {limits.MAX_BACKOFF_INTERVAL // hour} h"),
        ("`max_attempts`", f"| 1 … {limits.MAX_ATTEMPTS:,} |"),
        ("`max_batch`, `max_wait`", f"| {limits.DEFAULT_BATCH}, {limits.DEFAULT_BATCH_WAIT // 1000} s |"),
        ("`max_batch`, `max_wait`", f"| ≤ {limits.MAX_BATCH:,}, ≤ {limits.MAX_BATCH_WAIT // 1000} s |"),
        ("`retention`", f"| ≤ {limits.MAX_RETENTION // day} days |"),
        ("`max_backlog`", f"| ≤ {_power(limits.MAX_BACKLOG)} |"),
        ("`max_in_flight`", f"| ≤ {_power(limits.MAX_BACKLOG)} |"),
    ):
        assert said in rows[name]
    assert limits.DEFAULT_BACKOFF == (100, 1_000, 5_000, 30_000, 60_000)
    for said in (
        f"up to {limits.MAX_ENQUEUE_DELAY // day} days",
        f"A value is at most {limits.MAX_VALUE_SIZE // 1024} KiB encoded",
        f"a commit at most {limits.MAX_TOTAL_WRITE_SIZE // 1024} KiB, a batch at most {limits.MAX_BATCH:,} messages",
        f"later than `grace` ({limits.DEFAULT_GRACE // 1000} s)",
        f"(the last {limits.MAX_CATCH_UP:,})",
        f"{limits.MAX_TOPIC_SIZE >> 20} MiB and {limits.MAX_TOPIC_MESSAGES:,} of each topic",
        f"in commits of {limits.QUEUE_CHUNK} messages",
        "the first failure and\nthe last nine",
    ):
        assert said in text
    assert limits.MAX_FAILURES == 1 + 9


def _power(number: int) -> str:
    """10⁹."""
    zeros = len(str(number)) - 1
    assert number == 10**zeros
    return "10" + str(zeros).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
