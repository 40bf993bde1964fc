"""Walks over the messages of a queue, for commands. What is found is collected before it is touched, since touching
moves it from under the cursor."""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from .. import checked
from ..records import DEAD, GROUPED, LEASED, MESSAGE, MESSAGE_ID_SIZE
from . import messages
from .formats import WAITING_STATE, named, ready_prefix, unpack_payload

if TYPE_CHECKING:
    import lmdb

    from ..entry import Entry


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


def _is_wanted(entry: "Entry", message_id: bytes, with_origin: bool) -> bool:
    return not with_origin or unpack_payload(messages.load_payload_row(entry.rows.txn, message_id)).origin is not None


def idle(entry: "Entry", queue: bytes, limit: int, *, with_origin: bool = False) -> Generator[None, None, list[bytes]]:
    """Ids of messages in nobody's hands, those that are due first first, then those that wait behind a leased head of
    their group; `with_origin`: that have died elsewhere only."""
    txn = entry.rows.txn
    found: list[bytes] = []
    for name in keys_below(txn, ready_prefix(queue)):
        if _is_wanted(entry, name[-MESSAGE_ID_SIZE:], with_origin):
            found.append(name[-MESSAGE_ID_SIZE:])
            if len(found) == limit:
                return found
        if entry.spend():
            yield
    for name in keys_below(txn, GROUPED + named(queue)):
        message_id = name[-MESSAGE_ID_SIZE:]
        message = messages.load(txn, message_id)
        if message is None:
            raise checked.missing(MESSAGE + message_id)
        if message.state == WAITING_STATE and _is_wanted(entry, message_id, with_origin):
            found.append(message_id)
            if len(found) == limit:
                return found
        if entry.spend():
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


def held(entry: "Entry", queue: bytes, limit: int) -> Generator[None, None, list[bytes]]:
    """Ids of messages in somebody's hands. They stand together with those of all queues."""
    txn = entry.rows.txn
    found: list[bytes] = []
    for name in keys_below(txn, LEASED):
        message = messages.load(txn, name[1:])
        if message is None:
            raise checked.damaged(name)
        if message.queue == queue:
            found.append(name[1:])
            if len(found) == limit:
                break
        if entry.spend():
            yield
    return found
