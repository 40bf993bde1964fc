"""What the words mean in which nodes say that a token lacks a right."""

from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import InvalidKey, KvorumError, PermissionDenied, Unauthenticated
from kvorum.keys import decode_key

_VERBS = {
    "read": "read",
    "write": "write",
    "send": "send to",
    "receive": "receive from",
    "manage": "manage",
}


def denied(missing: str) -> PermissionDenied:
    """The error for what a node says is missing, such as `write key 026100`."""
    right, _, rest = missing.partition(" ")
    kind, _, name = rest.partition(" ")
    if right == "admin":
        return PermissionDenied("this token has no admin right", right="admin")
    verb = _VERBS.get(right, right)
    if kind == "key":
        return PermissionDenied(f"this token may not {verb} the key {_key(name)}", right=right)
    if kind == "range":
        start, _, end = name.partition(" ")
        where = f"the whole range from {_key(start)} to {_key(end)}"
        return PermissionDenied(f"this token may not {verb} {where}", right=right)
    if kind == "queue":
        return PermissionDenied(f"this token may not {verb} the queue or topic {name!r}", right=right)
    return PermissionDenied(f"this token lacks a right: {missing}", right=right)


def refused(status: int, message: str) -> KvorumError | None:
    """The error for a status of a read, a call, a watch, a session or a consumer; None if it is not about rights."""
    if status == pb.READ_STATUS_DENIED:
        return denied(message)
    if status == pb.READ_STATUS_UNAUTHENTICATED:
        return Unauthenticated(message or "the node knows no such token")
    return None


def _key(text: str) -> str:
    """A key as people write it, as far as the node has told it."""
    cut = text.endswith("+")
    try:
        data = bytes.fromhex(text.removesuffix("+"))
        return f"that begins with 0x{data.hex()}" if cut else repr(decode_key(data))
    except (ValueError, InvalidKey):
        return f"0x{text}"
