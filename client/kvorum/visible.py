"""Texts of others on terminals and in logs: names, keys, values and reasons hold what their writers like, escape
sequences too, with which a terminal is told to move, to erase or to answer."""

import re
from typing import Final

_ODD: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # all that terminals obey, but tabs and ends of lines
    "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of reading, so that a text looks like another
    "\u2028\u2029"  # more ends of lines
    "\ud800-\udfff]"  # lone surrogates, which have no UTF-8
)


def visible(text: str) -> str:
    """The text with such characters as JSON and Python escape them. Tabs and ends of lines stay."""
    return _ODD.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
