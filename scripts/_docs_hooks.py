"""Hooks of mkdocs: a link from a page to a file of the source, which is no page, is shown as that file's name."""

import posixpath
import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """`[keys.py](../client/kvorum/keys.py)` → `keys.py` (`client/kvorum/keys.py`). tests/unit/test_docs.py sees to it
    that such files exist."""

    def shown(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), link[2]))
        return f"`{path}`" if link[1].strip("`") == path else f"{link[1]} (`{path}`)"

    return OUTSIDE.sub(shown, markdown)
