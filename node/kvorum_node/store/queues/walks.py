"""Walks over the messages of a queue, for commands. What is found is collected before it is touched, since touching
moves it from under the cursor."""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

from .. import checked
from ..entry import BYTES_SHIFT
from ..records import DEAD, GROUPED, LEASED, MESSAGE, MESSAGE_ID_SIZE, READY, TIMER
from ..results import Unfinished
from . import messages
from .formats import DYING_TIMER, WAITING_STATE, Message, has_origin, named, ready_prefix, unpack_timer

if TYPE_CHECKING:
    import lmdb

    from ..entry import Entry

MAX_WALK: Final = 4_096
"""Rows that one command looks at; what it reads of a message counts as well. Part of the data version."""
MAX_KEY: Final = 511
"""Bytes that LMDB takes."""


def keys_below(txn: "lmdb.Transaction[bytes]", prefix: bytes, after: bytes = b"") -> Iterator[bytes]:
    """Index keys below a prefix, in order, and after a given one."""
    with txn.cursor() as cursor:
        going = cursor.set_range(after or prefix)
        if going and after and cursor.key() == after:
            going = cursor.next()
        if going:
            for name in cursor.iternext(keys=True, values=False):
                if not name.startswith(prefix):
                    return
                yield name


class Walk:
    """What one command looks at: index rows below some prefixes, in this order, from where the command before has left
    off; so many at most, since what it looks for may be rare among them."""

    __slots__ = ("_left", "began", "cut", "entry", "full", "last")

    def __init__(self, entry: "Entry", after: bytes) -> None:
        self.entry = entry
        self.began = after if len(after) <= MAX_KEY else b""
        self.last = self.began
        self._left = MAX_WALK
        self.cut = False
        """It has ended because it was long."""
        self.full = False
        """It has ended because it had found enough."""

    def rows(self, *prefixes: bytes) -> Iterator[bytes]:
        """Names of index rows."""
        begin = next((at for at, prefix in enumerate(prefixes) if self.began.startswith(prefix)), None)
        if begin is None:
            self.began = b""
        after = self.began
        for prefix in prefixes[begin or 0 :]:
            for name in keys_below(self.entry.rows.txn, prefix, after):
                if self._left <= 0:
                    self.cut = True
                    return
                self._left -= 1
                self.last = name
                yield name
            after = b""

    def step(self, size: int = 0) -> bool:
        """A row was looked at, and so many bytes with it; True = yield now."""
        self._left -= size >> BYTES_SHIFT
        return self.entry.spend_bytes(size)

    def output(self, found: list[bytes], done: int) -> int | Unfinished:
        """What the command says after it has touched the first `done` of those found."""
        if done < len(found):
            return Unfinished(done, self.began) if self.began else done
        if self.cut or (self.full and (self.began or self._left < MAX_WALK // 2)):
            return Unfinished(done, self.last)
        return done


def idle(walk: Walk, queue: bytes, limit: int, *, with_origin: bool = False) -> Generator[None, None, list[bytes]]:
    """Ids of messages in nobody's hands, those that are due first first, then those that wait behind a leased head of
    their group; `with_origin`: that have died elsewhere only."""
    txn = walk.entry.rows.txn
    found: list[bytes] = []
    for name in walk.rows(ready_prefix(queue), GROUPED + named(queue)):
        message_id = name[-MESSAGE_ID_SIZE:]
        size = 0
        wanted = name.startswith(READY) or _waits(walk.entry, message_id)
        if wanted and with_origin:
            row = messages.load_payload_row(txn, message_id)
            size, wanted = len(row), has_origin(row)
        if wanted:
            found.append(message_id)
            if len(found) == limit:
                walk.full = True
                break
        if walk.step(size):
            yield
    return found


def first_dead(entry: "Entry", queue: bytes, limit: int) -> Generator[None, None, list[bytes]]:
    """Ids of the oldest dead letters."""
    found: list[bytes] = []
    for name in keys_below(entry.rows.txn, DEAD + named(queue)):
        found.append(name[-MESSAGE_ID_SIZE:])
        if len(found) == limit:
            break
        if entry.spend():
            yield
    return found


def everything(walk: Walk, queue: bytes, limit: int, *, with_leased: bool) -> Generator[None, None, list[bytes]]:
    """Ids of all messages of a queue, in whatever state. Leased and dying ones stand together with those of all
    queues."""
    found: list[bytes] = []
    own = ready_prefix(queue), GROUPED + named(queue), DEAD + named(queue)
    for name in walk.rows(*own, *((LEASED,) if with_leased else ()), TIMER):
        table, message_id = name[:1], name[-MESSAGE_ID_SIZE:]
        if table == TIMER:
            at_ms, kind, message_id = unpack_timer(name)
            if at_ms > walk.entry.time_ms:
                break
            wanted = kind == DYING_TIMER and _is_of(walk.entry, message_id, queue)
        elif table == LEASED:
            wanted = _is_of(walk.entry, message_id, queue)
        else:
            wanted = table != GROUPED or _waits(walk.entry, message_id)
        if wanted:
            found.append(message_id)
            if len(found) == limit:
                walk.full = True
                break
        if walk.step():
            yield
    return found


def _load(entry: "Entry", message_id: bytes) -> Message:
    message = messages.load(entry.rows.txn, message_id)
    if message is None:
        raise checked.missing(MESSAGE + message_id)
    return message


def _waits(entry: "Entry", message_id: bytes) -> bool:
    return _load(entry, message_id).state == WAITING_STATE


def _is_of(entry: "Entry", message_id: bytes, queue: bytes) -> bool:
    return _load(entry, message_id).queue == queue
