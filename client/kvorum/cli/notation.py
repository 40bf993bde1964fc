"""How keys and values are written in a shell: what is printed can be pasted back. No I/O.

**Keys** are JSON arrays of strings, numbers (JavaScript's numbers, a Python `float`), booleans, `{"int": "1"}` for a
bigint (a Python `int`) and `{"b64": "AQI="}` for bytes. A number that JSON cannot write is `{"float": "NaN"}`.

**Values** are JSON. What JSON has no notation for is an object with one member whose name begins with `$`, e.g.
`{"$b64": "AQI="}`; a real object of that form is written as `{"$object": {…}}`, so nothing is ambiguous. An integer of
thousands of digits is `{"$hex": "0x…"}`: neither Python nor most other programs read it in decimal.

With `--py` both are Python literals; what has no literal is printed by its `repr`, which then cannot be pasted back.
"""

import ast
import base64
import binascii
import json
import math
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from kvorum.errors import InvalidArgument, shown
from kvorum.keys import Key, KeyPart
from kvorum.kvu64 import KvU64

MAX_DEPTH: Final = 100
"""Levels of nesting that are read and written."""
MAX_DECIMAL: Final = 14_000
"""Bits of an integer that is written in decimal."""


def parse_key(text: str, *, python: bool = False) -> Key:
    """A key from the command line. Errors: InvalidArgument, which says what is expected."""
    if python:
        key = _literal(text, "a key")
        if not isinstance(key, (tuple, list)):
            raise InvalidArgument(f"a key is a Python tuple such as ('users', 1), got {text}")
        return tuple(key)
    parts = _json(text, "a key")
    if not isinstance(parts, list):
        raise InvalidArgument(f'a key is a JSON array such as ["users", {{"int": "1"}}], got {text}')
    return tuple(_read_part(part) for part in parts)


def show_key(key: Key, *, python: bool = False) -> str:
    """A key as it can be pasted back."""
    if python:
        return repr(key)
    return json.dumps(key_json(key), ensure_ascii=False)


def key_json(key: Key) -> list[object]:
    """A key as JSON data."""
    return [_write_part(part) for part in key]


def parse_value(text: str, *, python: bool = False) -> object:
    """A value from the command line. Errors: InvalidArgument."""
    if python:
        return _literal(text, "a value")
    return _read_value(_json(text, "a value"), 1)


def show_value(value: object, *, python: bool = False) -> str:
    """A value in one line."""
    if python:
        try:
            return repr(value)
        except ValueError:
            return shown(value)
    return json.dumps(value_json(value), ensure_ascii=False)


def value_json(value: object, depth: int = 1) -> object:
    """A value as JSON data."""
    if depth > MAX_DEPTH:
        return {"$repr": "…"}
    match value:
        case None | bool() | str():
            return value
        case KvU64():
            return {"$u64": str(int(value))}
        case int():
            return int(value) if value.bit_length() <= MAX_DECIMAL else {"$hex": hex(value)}
        case float():
            return value if math.isfinite(value) else {"$float": _float_name(value)}
        case bytes() | bytearray():
            return {"$b64": base64.b64encode(value).decode()}
        case datetime():
            return {"$date": value.isoformat()}
        case list() | tuple():
            return [value_json(item, depth + 1) for item in value]
        case set() | frozenset():
            return {"$set": [value_json(item, depth + 1) for item in value]}
        case dict() if all(isinstance(name, str) for name in value):
            content = {name: value_json(item, depth + 1) for name, item in value.items()}
            return {"$object": content} if len(content) == 1 and next(iter(content)).startswith("$") else content
        case dict():
            return {
                "$map": [[value_json(name, depth + 1), value_json(item, depth + 1)] for name, item in value.items()]
            }
        case _:
            return {"$repr": shown(value, 10_000)}


# ---- reading


def _json(text: str, what: str) -> object:
    word = text if re.fullmatch(r"[\w.-]{1,40}", text) else "hello"

    def refuse(constant: str) -> object:
        raise InvalidArgument(f"{constant} is not JSON, in {what}: {text}")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        hint = f"; a key is an array, as in '[\"{word}\"]'"
        if what == "a value":
            hint = f"; strings need double quotes, as in '\"{word if word == text else 'text'}\"'"
        raise InvalidArgument(f"{what} is written as JSON: {error.msg} at character {error.pos + 1}{hint}") from None
    except InvalidArgument:
        raise  # it is a ValueError too
    except RecursionError:
        raise InvalidArgument(f"{what} cannot be read: it is nested too deeply") from None
    except ValueError:
        raise InvalidArgument(f'{what} cannot be read: so large an integer is written {{"$hex": "0x…"}}') from None


def _literal(text: str, what: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise InvalidArgument(f"{what} with --py is a Python literal, got {text}") from None


def _read_part(part: object) -> bytes | str | float | bool:
    match part:
        case bool() | str():
            return part
        case int() | float():
            return _number(part)
        case {"int": str(digits), **rest} if not rest:
            try:
                return int(digits)
            except ValueError:
                raise InvalidArgument(f'{{"int": "{digits}"}} in a key is not an integer') from None
        case {"b64": str(text), **rest} if not rest:
            return _bytes(text)
        case {"float": str(name), **rest} if not rest:
            return _special_float(name)
    got = json.dumps(part, ensure_ascii=False)
    raise InvalidArgument(
        f'a key part is a string, a number, a boolean, {{"int": "1"}} or {{"b64": "AQI="}}, got {got}'
    )


def _number(number: float) -> float:
    try:
        exact = float(number)
    except OverflowError:
        exact = math.inf
    if exact != number or not math.isfinite(exact):
        raise InvalidArgument(f'{number} is no JavaScript number; a bigint is written {{"int": "{number}"}}')
    return exact


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"{text!r} is not base64") from None


def _special_float(name: str) -> float:
    try:
        return {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}[name]
    except KeyError:
        raise InvalidArgument(f"a special float is NaN, Infinity or -Infinity, got {name!r}") from None


def _read_value(data: object, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise InvalidArgument(f"a value is nested deeper than {MAX_DEPTH} levels")
    if isinstance(data, list):
        return [_read_value(item, depth + 1) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) == 1:
        ((name, content),) = data.items()
        if name.startswith("$"):
            return _read_special(name, content, depth)
    return {name: _read_value(item, depth + 1) for name, item in data.items()}


def _read_special(name: str, content: object, depth: int) -> object:
    reader = _SPECIAL.get(name)
    if reader is not None:
        try:
            return reader(content, depth + 1)
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidArgument(f"{json.dumps({name: content}, ensure_ascii=False)}: {error}") from None
    known = ", ".join(_SPECIAL)
    raise InvalidArgument(f'{name} is none of {known}; an object with such a member is {{"$object": {{…}}}}')


def _text(content: object) -> str:
    if not isinstance(content, str):
        raise TypeError("a string is expected")
    return content


def _items(content: object, depth: int) -> list[Any]:
    if not isinstance(content, list):
        raise TypeError("an array is expected")
    return [_read_value(item, depth) for item in content]


def _read_date(content: object, depth: int) -> datetime:
    return datetime.fromisoformat(_text(content))


def _read_object(content: object, depth: int) -> dict[str, object]:
    if not isinstance(content, dict):
        raise TypeError("an object is expected")
    return {name: _read_value(item, depth) for name, item in content.items()}


def _read_map(content: object, depth: int) -> dict[Any, object]:
    pairs = _items(content, depth)
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise TypeError("pairs are expected")
    return dict(pairs)


_SPECIAL: Final[dict[str, Callable[[object, int], object]]] = {
    "$b64": lambda content, _: _bytes(_text(content)),
    "$hex": lambda content, _: int(_text(content), 16),
    "$u64": lambda content, _: KvU64(int(_text(content))),
    "$float": lambda content, _: _special_float(_text(content)),
    "$date": _read_date,
    "$set": lambda content, depth: set(_items(content, depth)),
    "$map": _read_map,
    "$object": _read_object,
}


# ---- writing


def _float_name(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _write_part(part: KeyPart) -> object:
    match part:
        case bool() | str():
            return part
        case int():
            return {"int": str(part)}
        case float():
            return part if math.isfinite(part) else {"float": _float_name(part)}
        case _:
            return {"b64": base64.b64encode(part).decode()}
