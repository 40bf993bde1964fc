"""What the documentation names exists."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
