"""What a token may do: the judgement of names, keys and ranges, without any state.

A key scope is the interval of all keys that begin with the scope's parts: from the prefix itself up to the prefix and
FF. Compared as bytes, without the upper end, a prefix ("a",) would also hold the key ("a\\0b",), since a zero byte
within a text is written as 00 FF, and the text's end as 00.

What is missing is said in words that are a part of the format: sessions remember the answers of writes, so that they
are in the content hash. `kvorum.rights` makes sentences of them.
"""

from collections.abc import Callable, Iterable
from typing import Final

from google.protobuf.message import DecodeError

from kvorum._proto import kvorum_pb2 as pb

from .queues.delivery import IDLE_KINDS

READ: Final = 1
WRITE: Final = 2

SEND: Final = 1
RECEIVE: Final = 2
MANAGE: Final = 4

ADMIN_MISSING: Final = "admin"
_KEY_VERBS: Final = {READ: "read", WRITE: "write"}
_QUEUE_VERBS: Final = {SEND: "send", RECEIVE: "receive", MANAGE: "manage"}
_SHOWN: Final = 64
"""Bytes of a key."""
_RESERVED: Final = "\0"
"""Inboxes of those who wait for answers, and other names that clients make for themselves. They are random: who knows
one was given it."""
_DELETE_RANGE: Final = int(pb.MUTATION_TYPE_DELETE_RANGE)

QueueOf = Callable[[bytes, int], str | None]
"""The queue of a message that a settle of this kind is about; None: there is no such message."""


class Rights:
    """`may_…` say yes or no. Made of `pb.Scopes`; immutable."""

    __slots__ = ("_exact", "_keys", "_prefixes", "admin", "connections", "operations_per_s")

    def __init__(self, scopes: pb.Scopes) -> None:
        self.admin = scopes.admin
        self.operations_per_s = scopes.operations_per_s
        self.connections = scopes.connections
        keys: list[tuple[bytes, bytes, int]] = []
        for scope in scopes.keys:
            mask = scope.read * READ | scope.write * WRITE
            keys.append((scope.prefix, scope.prefix + b"\xff" if scope.prefix else b"", mask))
        exact: dict[str, int] = {}
        prefixes: list[tuple[str, int]] = []
        for queue in scopes.queues:
            mask = queue.send * SEND | queue.receive * RECEIVE | queue.manage * MANAGE
            if queue.prefix:
                prefixes.append((queue.name, mask))
            else:
                exact[queue.name] = exact.get(queue.name, 0) | mask
        if scopes.admin:
            prefixes.append(("", MANAGE))
        self._keys = tuple(keys)
        self._exact = exact
        self._prefixes = tuple(prefixes)

    def may_key(self, right: int, key: bytes) -> bool:
        """`right`: READ or WRITE."""
        for start, end, mask in self._keys:  # noqa: SIM110 - any() takes twice as long, for each key that is written
            if mask & right and start <= key and (not end or key < end):
                return True
        return False

    def may_range(self, right: int, start: bytes, end: bytes) -> bool:
        """Every key from `start` on and before `end`; one scope must hold all of it."""
        return any(mask & right and low <= start and (not high or end <= high) for low, high, mask in self._keys)

    def may_queue(self, right: int, name: str) -> bool:
        """`right`: one of SEND, RECEIVE, MANAGE, or several, of which one is enough."""
        if self._exact.get(name, 0) & right:
            return True
        if name.startswith(_RESERVED) and right & (SEND | RECEIVE):
            return True
        return any(mask & right and name.startswith(prefix) for prefix, mask in self._prefixes)

    def may_see(self, right: int, name: str) -> bool:
        """The same of a list. What is known only to those who were told of it is shown to who manages it."""
        return self.may_queue(right & ~(SEND | RECEIVE) if name.startswith(_RESERVED) else right, name)


ALL: Final = Rights(
    pb.Scopes(
        keys=[pb.KeyScope(read=True, write=True)],
        queues=[pb.QueueScope(prefix=True, send=True, receive=True, manage=True)],
        admin=True,
    )
)
"""Of the root token."""


# ---- what is missing; empty: nothing


def for_key(rights: Rights, right: int, key: bytes) -> str:
    return "" if rights.may_key(right, key) else f"{_KEY_VERBS[right]} key {_shown(key)}"


def for_range(rights: Rights, right: int, start: bytes, end: bytes) -> str:
    if rights.may_range(right, start, end):
        return ""
    return f"{_KEY_VERBS[right]} range {_shown(start)} {_shown(end)}"


def for_queue(rights: Rights, right: int, name: str) -> str:
    return "" if rights.may_queue(right, name) else f"{_QUEUE_VERBS[right]} queue {name}"


def for_admin(rights: Rights) -> str:
    return "" if rights.admin else ADMIN_MISSING


def for_keys(rights: Rights, *, keys: Iterable[bytes]) -> str:
    """What reading all of some keys needs."""
    for key in keys:
        if missing := for_key(rights, READ, key):
            return missing
    return ""


def for_read(rights: Rights, read: pb.Read) -> str:
    """What a read needs."""
    if missing := for_keys(rights, keys=read.keys):
        return missing
    for selected in read.ranges:
        if missing := for_range(rights, READ, selected.start, selected.end):
            return missing
    return ""


def for_message(rights: Rights, message: pb.Enqueue) -> str:
    """What sending a message needs: where it cannot be delivered, it becomes values."""
    if missing := for_queue(rights, SEND, message.topic or message.queue):
        return missing
    for key in message.keys_if_undelivered:
        if missing := for_key(rights, WRITE, key):
            return missing
    return ""


def for_schedule(rights: Rights, definition: bytes) -> str:
    """What a recurring message needs: it is sent in nobody's name later on, so who has to do with it must manage where
    it goes. A definition that cannot be decoded needs nothing: it is refused anyway."""
    try:
        message = pb.Schedule.FromString(definition).message
    except DecodeError:
        return ""
    return for_queue(rights, MANAGE, message.topic or message.queue) or for_message(rights, message)


def for_write(rights: Rights, write: pb.AtomicWrite, queue_of: QueueOf) -> str:
    """What a write needs: a check reads."""
    for check in write.checks:
        if missing := for_key(rights, READ, check.key):
            return missing
    for verdict in write.settles:
        kind = verdict.kind
        queue = queue_of(verdict.message_id, kind)
        if queue is not None and (missing := for_queue(rights, MANAGE if kind in IDLE_KINDS else RECEIVE, queue)):
            return missing
    for mutation in write.mutations:
        if mutation.type == _DELETE_RANGE:
            missing = for_range(rights, WRITE, mutation.key, mutation.end)
        else:
            missing = for_key(rights, WRITE, mutation.key)
        if missing:
            return missing
    for message in write.enqueues:
        if missing := for_message(rights, message):
            return missing
    return ""


def _shown(key: bytes) -> str:
    return key.hex() if len(key) <= _SHOWN else f"{key[:_SHOWN].hex()}+"
