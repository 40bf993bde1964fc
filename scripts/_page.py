"""A page of the documentation that is made from the source."""

import sys
from pathlib import Path


def write(page: Path, made: str, source: str, command: str) -> None:
    """Write the page, or with `--check` only compare it. Errors: SystemExit if it is not what the source says."""
    if "--check" not in sys.argv[1:]:
        page.write_text(made)
    elif not page.exists() or page.read_text() != made:
        raise SystemExit(f"docs/{page.name} is not what {source}: run {command}")
