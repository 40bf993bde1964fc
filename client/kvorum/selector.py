"""Which keys a list walks over: selectors, the byte ranges that they mean, and cursors into them.

A prefix selects what lies below it, not the prefix itself: between `prefix ‖ 00` and `prefix ‖ ff`, since the tag of
the next part is neither. A cursor is the last key that was seen, without what all keys of the selector have in common,
in base64url with padding: the format of Deno, so that a cursor that one program gave out means the same to another.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import NamedTuple

from kvorum import limits
from kvorum.errors import InvalidArgument, InvalidKey, LimitExceeded, shown
from kvorum.keys import KeyPart, encode_key


class KeyRange(NamedTuple):
    """Encoded bounds of a selector."""

    start: bytes
    """Inclusive."""
    end: bytes
    """Exclusive."""
    common: bytes
    """What every key of the selector begins with, and cursors leave out."""
    low: bytes
    """Lowest position that a cursor may lead to: an explicit start, or empty."""
    high: bytes | None
    """Highest position that a cursor may lead to: an explicit end, or None."""


def select(
    prefix: Sequence[KeyPart] | None, start: Sequence[KeyPart] | None, end: Sequence[KeyPart] | None
) -> KeyRange:
    """The range of a selector: a prefix, a prefix with a start or an end, or start and end. None = not given.

    Errors: InvalidKey, LimitExceeded.
    """
    if prefix is None:
        if start is None or end is None:
            raise InvalidKey("Selector must specify either 'prefix' or both 'start' and 'end' key")
        return _between(encode_key(start), encode_key(end))
    if start is not None and end is not None:
        raise InvalidKey("Selector can not specify both 'start' and 'end' key when specifying 'prefix'")
    base = encode_key(prefix)
    low = b"" if start is None else encode_key(start)
    high = None if end is None else encode_key(end)
    if start is not None and not _below(low, base):
        raise InvalidKey("Start key is not in the keyspace defined by prefix")
    if high is not None and not _below(high, base):
        raise InvalidKey("End key is not in the keyspace defined by prefix")
    first = base + b"\0" if start is None else low
    return _checked(KeyRange(first, base + b"\xff" if high is None else high, base, low, high))


def _below(key: bytes, prefix: bytes) -> bool:
    # A string that goes on with U+0000 has `00 ff` where the prefix ends with `00`: it is another key, not one below.
    return len(key) > len(prefix) and key.startswith(prefix) and key[len(prefix)] != 0xFF


def _between(start: bytes, end: bytes) -> KeyRange:
    if start > end:
        raise InvalidKey("Start key is greater than end key")
    return _checked(KeyRange(start, end, _common(start, end), start, end))


def _common(one: bytes, other: bytes) -> bytes:
    size = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        size += 1
    return one[:size]


def _checked(selected: KeyRange) -> KeyRange:
    size = max(len(selected.start), len(selected.end))
    if size > limits.MAX_READ_KEY_SIZE:
        raise LimitExceeded("MAX_READ_KEY_SIZE", limits.MAX_READ_KEY_SIZE, size, "selector key")
    return selected


def cursor_at(selected: KeyRange, key: bytes) -> str:
    """The cursor behind a key of the selector."""
    return base64.urlsafe_b64encode(key[len(selected.common) :]).decode("ascii")


def resume(selected: KeyRange, cursor: str, *, reverse: bool) -> tuple[bytes, bytes]:
    """Start and end of what is left of a selector behind a cursor; an empty cursor means all of it.

    Errors: InvalidArgument: not a cursor, or one that leads out of the selector.
    """
    if not isinstance(cursor, str):
        raise InvalidArgument(f"invalid cursor: {shown(cursor)}")
    if not cursor:
        return selected.start, selected.end
    try:
        text = cursor.encode("ascii")
        rest = base64.urlsafe_b64decode(text)
    except (UnicodeEncodeError, binascii.Error):
        raise InvalidArgument(f"invalid cursor: {shown(cursor)}") from None
    if base64.urlsafe_b64encode(rest) != text:  # the decoder passes over what does not belong there
        raise InvalidArgument(f"invalid cursor: {shown(cursor)}")
    key = selected.common + rest
    if len(key) > limits.MAX_WRITE_KEY_SIZE:
        raise InvalidArgument("cursor out of bounds")
    start, end = (selected.start, key) if reverse else (key + b"\0", selected.end)
    if start < selected.low or (selected.high is not None and end > selected.high):
        raise InvalidArgument("cursor out of bounds")
    # A made-up cursor may lie behind the prefix: what is there (`a\0…` behind `a`) is not the selector's to show.
    return start, min(end, selected.end)
