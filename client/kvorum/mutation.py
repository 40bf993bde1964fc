"""Single mutations and checks as messages of the protocol, with their own limits checked.

Used by `Kv.set` and its like, which are one mutation, and by the builder of atomic operations.
"""

from collections.abc import Sequence
from typing import Final

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.durations import Duration, milliseconds
from kvorum.errors import InvalidArgument, InvalidKey, InvalidValue, LimitExceeded, shown
from kvorum.keys import KeyPart, encode_key
from kvorum.kvu64 import KvU64
from kvorum.selector import select
from kvorum.values import encode_number, encode_value

_SET: Final = pb.MUTATION_TYPE_SET
_ADD: Final = pb.MUTATION_TYPE_ADD
_SUFFIXED: Final = pb.MUTATION_TYPE_SET_SUFFIX_VERSIONSTAMPED_KEY
SUFFIX_SIZE: Final = 22
"""What a versionstamp adds to a key."""

# Of a serialised set: tags and lengths, each of one byte.
_ONE_BYTE: Final = 0x80
_AROUND: Final = 8
"""Bytes of a mutation besides key and value."""
_VALUES: Final = tuple(bytes((0x10, _SET, 0x1A, size)) for size in range(_ONE_BYTE))
"""Between key and value: kind, and size of the value."""
_ENCODINGS: Final = {encoding: bytes((0x20, encoding)) for encoding in pb.ValueEncoding.values()}


class CommitVersionstamp:
    """Stands for the versionstamp of the commit, as the last part of a key that is set; see `commit_versionstamp`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "commit_versionstamp()"


def commit_versionstamp() -> CommitVersionstamp:
    """A key part that becomes the versionstamp of the commit, as a string of 20 hex digits.

    Only as the last part of a key given to `set`: keys that sort in the order of their commits.
    """
    return CommitVersionstamp()


SetKey = Sequence[KeyPart | CommitVersionstamp]
"""A key whose last part may be `commit_versionstamp()`."""


def write_key(key: Sequence[KeyPart]) -> bytes:
    """The bytes of a key that is to be written or checked. Errors: InvalidKey, LimitExceeded."""
    data = encode_key(key)
    if not 0 < len(data) <= limits.MAX_WRITE_KEY_SIZE:
        raise _wrong_size(data)
    return data


def read_key(key: Sequence[KeyPart]) -> bytes:
    """The bytes of a key that is to be read; may be empty. Errors: InvalidKey, LimitExceeded."""
    data = encode_key(key)
    if len(data) > limits.MAX_READ_KEY_SIZE:
        raise too_long(data)
    return data


def too_long(key: bytes) -> LimitExceeded:
    """The error of a key that is to be read."""
    return LimitExceeded("MAX_READ_KEY_SIZE", limits.MAX_READ_KEY_SIZE, len(key), "key")


def read_keys(keys: Sequence[Sequence[KeyPart]]) -> list[bytes]:
    """As `read_key` for each."""
    check_keys(keys)
    return [read_key(key) for key in keys]


def check_keys(keys: Sequence[Sequence[KeyPart]]) -> None:
    """Tell a caller who gave one key in place of a list of them. Errors: InvalidKey."""
    for key in keys:
        if not isinstance(key, (tuple, list)):
            raise InvalidKey(
                f"takes a list of keys, each of them a tuple, as in [('users', 1), ('users', 2)]: got {shown(key)} in"
                " place of a key"
            )


def _wrong_size(data: bytes) -> InvalidKey | LimitExceeded:
    if not data:
        return InvalidKey("key cannot be empty")
    return LimitExceeded("MAX_WRITE_KEY_SIZE", limits.MAX_WRITE_KEY_SIZE, len(data), "key")


def add_set(write: pb.AtomicWrite, key: SetKey, value: object, expire_in: Duration | None) -> int:
    """Add a set to a write; returns what it counts for in its size. Nothing is added if an error is raised.

    Errors: InvalidKey, InvalidValue, InvalidArgument, LimitExceeded.
    """
    encoded, suffixed = _set_key(key)
    data, encoding = encode_value(value)
    _add_set(write, encoded, data, encoding, expire_in, suffixed=suffixed)
    return len(encoded) + len(data) + (SUFFIX_SIZE if suffixed else 0)


def set_write(key: SetKey, value: object, expire_in: Duration | None) -> bytes:
    """A set and nothing else, as a serialised operation. Errors: as `add_set`."""
    encoded, suffixed = _set_key(key)
    data, encoding = encode_value(value)
    key_size, value_size = len(encoded), len(data)
    size = key_size + value_size + _AROUND
    if size < _ONE_BYTE and data and expire_in is None and not suffixed:
        # As protobuf writes it (which leaves out an empty value), in 0.4 instead of 1.6 µs: each length is one byte.
        head = bytes((0x12, size, 0x0A, key_size))
        return b"".join((head, encoded, _VALUES[value_size], data, _ENCODINGS[encoding]))
    write = pb.AtomicWrite()
    _add_set(write, encoded, data, encoding, expire_in, suffixed=suffixed)
    return write.SerializeToString()


def _set_key(key: SetKey) -> tuple[bytes, bool]:
    """The bytes of a key that is to be set, and whether the versionstamp of the commit is to follow them."""
    if isinstance(key, (tuple, list)) and len(key) > 0 and isinstance(key[-1], CommitVersionstamp):
        encoded = encode_key(key[:-1])  # a second placeholder is refused there
        if not encoded:
            raise InvalidKey("key cannot be empty: commit_versionstamp() needs at least one part before it")
        if len(encoded) + SUFFIX_SIZE > limits.MAX_WRITE_KEY_SIZE:
            size = len(encoded) + SUFFIX_SIZE
            raise LimitExceeded("MAX_WRITE_KEY_SIZE", limits.MAX_WRITE_KEY_SIZE, size, "key with its versionstamp")
        return encoded, True
    encoded = encode_key(key)  # type: ignore[arg-type]  # placeholders elsewhere are refused there
    if not 0 < len(encoded) <= limits.MAX_WRITE_KEY_SIZE:
        raise _wrong_size(encoded)
    return encoded, False


def _add_set(
    write: pb.AtomicWrite, key: bytes, data: bytes, encoding: int, expire_in: Duration | None, *, suffixed: bool
) -> None:
    expire_in_ms = 0
    if expire_in is not None:
        expire_in_ms = milliseconds(expire_in, "expire_in", "MAX_EXPIRE_IN", limits.MAX_EXPIRE_IN)
    # In its place, and field by field: a message of its own, copied by appending it, takes 0.5 µs more.
    mutation = write.mutations.add()
    mutation.key = key
    mutation.type = _SUFFIXED if suffixed else _SET
    mutation.value = data
    mutation.encoding = encoding  # type: ignore[assignment]  # a number of pb.ValueEncoding
    if expire_in is not None:
        mutation.expire_in_ms = expire_in_ms


def delete_mutation(key: Sequence[KeyPart]) -> pb.Mutation:
    """Errors: InvalidKey, LimitExceeded."""
    return pb.Mutation(key=write_key(key), type=pb.MUTATION_TYPE_DELETE)


def touch_mutation(key: Sequence[KeyPart], expire_in: Duration | None) -> pb.Mutation:
    """Errors: InvalidKey, InvalidArgument, LimitExceeded."""
    mutation = pb.Mutation(key=write_key(key), type=pb.MUTATION_TYPE_TOUCH)
    if expire_in is not None:
        mutation.expire_in_ms = milliseconds(expire_in, "expire_in", "MAX_EXPIRE_IN", limits.MAX_EXPIRE_IN)
        if not mutation.expire_in_ms:
            raise InvalidArgument("expire_in of a touch must be above zero: received 0 ms; delete the key instead")
    return mutation


def touch_write(key: Sequence[KeyPart], expire_in: Duration | None) -> bytes:
    """A touch of a key that must be there, as a serialised operation. Errors: as `touch_mutation`."""
    mutation = touch_mutation(key, expire_in)
    check = pb.Check(key=mutation.key, kind=pb.CHECK_KIND_EXISTS)
    return pb.AtomicWrite(checks=(check,), mutations=(mutation,)).SerializeToString()


def delete_range_mutation(
    prefix: Sequence[KeyPart] | None,
    start: Sequence[KeyPart] | None,
    end: Sequence[KeyPart] | None,
    *,
    limit: int = 0,
) -> pb.Mutation:
    """The deletion of what a list with the same selector would show, or of the first `limit` keys of it.

    Errors: InvalidKey, LimitExceeded.
    """
    selected = select(prefix, start, end)
    return pb.Mutation(key=selected.start, type=pb.MUTATION_TYPE_DELETE_RANGE, end=selected.end, limit=limit)


def add_sum(
    write: pb.AtomicWrite,
    key: Sequence[KeyPart],
    number: int | float,
    minimum: int | float | None,
    maximum: int | float | None,
    clamp: bool,
) -> int:
    """Add a sum to a write; returns what it counts for in its size. Nothing is added if an error is raised.

    Errors: InvalidKey, InvalidValue, LimitExceeded.
    """
    encoded, data = write_key(key), encode_number(number)
    lowest = b"" if minimum is None else encode_number(minimum, "minimum")
    highest = b"" if maximum is None else encode_number(maximum, "maximum")
    mutation = write.mutations.add()  # in its place: see `_add_set`
    mutation.key = encoded
    mutation.type = _ADD
    mutation.value = data
    mutation.encoding = pb.VALUE_ENCODING_V8
    if lowest:
        mutation.sum_min = lowest
    if highest:
        mutation.sum_max = highest
    if clamp:
        mutation.sum_clamp = True
    return len(encoded) + len(data) + len(lowest) + len(highest)


def extremum_mutation(key: Sequence[KeyPart], number: int, *, largest: bool) -> pb.Mutation:
    """Errors: InvalidKey, InvalidValue, LimitExceeded."""
    if isinstance(number, bool):
        raise InvalidValue("min and max need an int, not bool", "operand")
    return pb.Mutation(
        key=write_key(key),
        type=pb.MUTATION_TYPE_MAX if largest else pb.MUTATION_TYPE_MIN,
        value=int(KvU64(number)).to_bytes(8, "little"),
        encoding=pb.VALUE_ENCODING_LE64,
    )


def check_list(items: object, name: str) -> None:
    """Raises InvalidArgument unless it is a list or tuple: text has a length too, and means something else."""
    if not isinstance(items, (list, tuple)):
        raise InvalidArgument(f"{name} must be a list or tuple, got {type(items).__name__}")
