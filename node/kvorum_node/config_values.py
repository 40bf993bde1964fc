"""What the settings of a node may say: each function takes the text of a variable or flag, or the file's value, and
returns what is meant. All of them raise ValueError, whose text goes behind the setting's name."""

import difflib
from collections.abc import Callable, Iterable
from typing import Any, Final

from kvorum_raft.seams import Member

from .backup import places

KEYS: Final = ("id", "peer", "client")
"""Of a member."""


def text(value: Any) -> str:
    """A text without control characters; the spaces around it go."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a text that is not empty, got {value!r:.60}")
    if any(character < " " or character == "\x7f" for character in value.strip()):
        raise ValueError(f"must not hold control characters, got {value.strip()!r}")
    return value.strip()


def _is_number(word: str) -> bool:
    """What int() takes is more, and what isdigit() takes is not always taken by int()."""
    return word.isascii() and word.isdigit() and len(word) <= 20


def milliseconds(value: Any) -> int:
    """From 1 ms to a day."""
    if isinstance(value, str) and _is_number(value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 86_400_000:
        raise ValueError(f"must be a whole number of milliseconds from 1 to 86400000, got {value!r:.60}")
    return value


def whole(least: int, most: int) -> Callable[[Any], int]:
    """A whole number within these bounds."""

    def parse(value: Any) -> int:
        if isinstance(value, str) and _is_number(value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}, got {value!r:.60}")
        return value

    return parse


def truth(value: Any) -> bool:
    """true or false."""
    if isinstance(value, bool):
        return value
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if not isinstance(value, str) or value.strip().lower() not in known:
        raise ValueError(f"must be true or false, got {value!r:.60}")
    return known[value.strip().lower()]


def choice(*choices: str) -> Callable[[Any], str]:
    """One of these words."""

    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, got {value!r:.60}")
        return str(value)

    return parse


def address(value: Any) -> str:
    """host:port."""
    found = text(value)
    host, colon, port = found.rpartition(":")
    if not colon or not host or not _is_number(port) or not 1 <= int(port) <= 65_535:
        raise ValueError(f"must be host:port, got {found!r}")
    return found


def address_or_off(value: Any) -> str:
    """host:port, or off."""
    return "off" if value == "off" else address(value)


def token(value: Any) -> str:
    """What fits into a header, and cannot be mistaken for its end. It is a secret: no message repeats it."""
    found = value.strip() if isinstance(value, str) else ""
    if not 0 < len(found) <= 1_024 or any(not "!" <= character <= "~" for character in found):
        raise ValueError("must be 1 to 1024 printable ASCII characters without spaces")
    return found


def archive(value: Any) -> str:
    """A folder, or s3://bucket/prefix."""
    found = text(value)
    if places.is_s3(found):
        places.parse_s3(found)
    elif found.partition("://")[1] and found.partition("://")[0].isalnum():
        raise ValueError("must be a folder or s3://bucket/prefix; the store's URL is archive_s3_endpoint")
    return found


def members(value: Any) -> tuple[Member, ...]:
    """The file's `[[members]]`, or the text `id=peer/client,…`."""
    if isinstance(value, str):
        return tuple(_member_of_text(part) for part in value.split(",") if part.strip())
    if not isinstance(value, list):
        raise ValueError("must be a list: [[members]] with id, peer and client")
    found = []
    for number, row in enumerate(value, 1):
        if not isinstance(row, dict):
            raise ValueError(f"number {number} must be a table with id, peer and client")
        for key in row:
            if key not in KEYS:
                hint = "" if "_" in key else did_you_mean(key, KEYS)  # with one it is a setting's name
                hint = hint or "; settings of the node stand above the first [[members]]"
                raise ValueError(f"number {number} has an unknown key {key!r}{hint}")
        missing = [key for key in KEYS if key not in row]
        if missing:
            raise ValueError(f"number {number} lacks {' and '.join(missing)}")
        found.append(Member(text(row["id"]), address(row["peer"]), address(row["client"])))
    return tuple(found)


def _member_of_text(part: str) -> Member:
    node_id, equals, addresses = part.strip().partition("=")
    peer, slash, client = addresses.partition("/")
    if not (equals and slash and node_id):
        raise ValueError(f"must be id=peer/client, e.g. n1=10.0.0.1:7403/10.0.0.1:7401, got {part.strip()!r}")
    return Member(node_id, address(peer), address(client))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What to add to a message about a name that nobody knows; empty if it is like none."""
    near = difflib.get_close_matches(name, list(known), 1, 0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
