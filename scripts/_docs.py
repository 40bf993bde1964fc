"""Builds the pages of docs/ with mkdocs, and looks at what came out: no page may load anything from elsewhere.

`scripts/docs` writes site/; `scripts/docs --check` builds into a folder that is thrown away.
"""

import os
import re
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOADING = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "link": "href",
}
"""Elements that make a browser load something, with the attribute that says what."""
HARMLESS = {"canonical", "next", "prev", "edit", "alternate"}
"""Links that only tell."""


class Loads(HTMLParser):
    """Addresses that a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See `HTMLParser`."""
        values = dict(attrs)
        address = values.get(LOADING.get(tag, "")) or ""
        if tag == "link" and set((values.get("rel") or "").split()) & HARMLESS:
            return
        if re.match(r"(?:[a-z]+:)?//", address):
            self.found.append(address)


def foreign(folder: Path) -> list[str]:
    """What pages and style sheets load from other hosts, with the file that does."""
    found = []
    for page in sorted(folder.rglob("*.html")):
        loads = Loads()
        loads.feed(page.read_text())
        found += [f"{page.relative_to(folder)}: {address}" for address in loads.found]
    for sheet in sorted(folder.rglob("*.css")):
        addresses = re.findall(r"(?:@import|url\()\s*['\"]?((?:https?:)?//[^'\")\s]+)", sheet.read_text())
        found += [f"{sheet.relative_to(folder)}: {address}" for address in addresses]
    return found


def build(folder: Path) -> None:
    """Errors: SystemExit, with what mkdocs said."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the documentation cannot be built:\n{done.stdout}{done.stderr}")
    elsewhere = foreign(folder)
    if elsewhere:
        raise SystemExit("pages load from other hosts:\n" + "\n".join(elsewhere))


def main() -> None:
    if "--check" in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            build(Path(folder))
    else:
        build(ROOT / "site")
        print("docs: site/index.html")


if __name__ == "__main__":
    main()
