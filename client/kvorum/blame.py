"""Which mutations an error of a sum is about: what nodes say names no key, and is the same for all clients."""

from collections.abc import Iterable
from typing import Final

from kvorum import v8
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import shown
from kvorum.keys import decode_key

_NAMES: Final = {
    pb.MUTATION_TYPE_ADD: "sum",
    pb.MUTATION_TYPE_SUM: "sum",
    pb.MUTATION_TYPE_MIN: "min",
    pb.MUTATION_TYPE_MAX: "max",
}
_SHOWN: Final = 3
_SIZE: Final = 120
"""Characters of a key."""
_UNSUPPORTED: Final = "unsupported value type"
_BEYOND: Final = "The result of a Sum operation would exceed its range limit"


def blame(mutations: Iterable[pb.Mutation], problem: str) -> str:
    """The problem of an operation, with the mutations that it can be about; empty if it can be about none of them."""
    numeric = [one for one in mutations if one.type in _NAMES]
    if not numeric:
        return ""
    keys = list(dict.fromkeys(one.key for one in numeric))
    more = f" … ({len(keys)} keys)" if len(keys) > _SHOWN else ""
    where = " or ".join(map(_shown_key, keys[:_SHOWN])) + more
    calls = list(dict.fromkeys(map(_shown_call, numeric)))
    what = f"{' or '.join(calls)}: " if len(calls) <= _SHOWN else ""
    hint = " (what is stored there is no number: int, float or KvU64)" if problem == _UNSUPPORTED else ""
    if problem == _BEYOND and any(map(_is_open, numeric)):
        hint = " (a KvU64, which a sum makes of an absent key, holds 0 to 2**64-1)"
    return f"{where}: {what}{problem}{hint}"


def _shown_key(key: bytes) -> str:
    text = repr(decode_key(key))
    return text if len(text) <= _SIZE else f"{text[:_SIZE]}…"


def _shown_call(mutation: pb.Mutation) -> str:
    """Operand and bounds."""
    little = mutation.encoding == pb.VALUE_ENCODING_LE64
    operand = int.from_bytes(mutation.value, "little") if little else v8.loads(mutation.value)
    bounds = [
        f" with {name} {shown(v8.loads(data))}"
        for name, data in (("minimum", mutation.sum_min), ("maximum", mutation.sum_max))
        if data
    ]
    return f"{_NAMES[mutation.type]} of {shown(operand)}{''.join(bounds)}"


def _is_open(mutation: pb.Mutation) -> bool:
    """Whether a sum goes towards a side on which it was given no bound."""
    if mutation.type != pb.MUTATION_TYPE_ADD:
        return False
    operand = v8.loads(mutation.value)
    assert isinstance(operand, int | float)
    return not (mutation.sum_min if operand < 0 else mutation.sum_max)
