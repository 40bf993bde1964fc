"""Sections of docs/operations.md, whose steps tests type."""

from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[3] / "docs" / "operations.md"


def section(heading: str) -> str:
    """What stands below a heading of the second level, up to the next one; empty if there is none."""
    return PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
