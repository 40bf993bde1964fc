"""The write that sends a message without options: its bytes, joined by hand.

They are those that protobuf makes of `AtomicWrite(enqueues=[Enqueue(queue=…, payload=…)])`; a test compares them.
Fields of a message are (number << 3 | 2), length, content.
"""

from typing import Final

from kvorum.v8.writing import varint

_ENQUEUE: Final = b"\x1a"
"""AtomicWrite.enqueues = 3."""
_QUEUE: Final = b"\x0a"
"""Enqueue.queue = 1."""
_PAYLOAD: Final = b"\x12"
"""Enqueue.payload = 2."""


def plain_head(queue: str) -> bytes:
    """What all messages to a queue begin with."""
    name = queue.encode()
    return b"".join((_QUEUE, varint(len(name)), name, _PAYLOAD)) if name else _PAYLOAD


def join_plain(head: bytes, payload: bytes) -> bytes:
    """The write, of what `plain_head` made and an encoded value, which is not empty."""
    size = varint(len(payload))
    return b"".join((_ENQUEUE, varint(len(head) + len(size) + len(payload)), head, size, payload))
