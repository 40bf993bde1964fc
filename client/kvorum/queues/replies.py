"""Answers to requests, on their way."""

from typing import Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.queues.delivered import Delivered
from kvorum.queues.outgoing import ERROR_HEADER, set_headers

REPLY_TTL: Final = 60_000
"""Milliseconds for which an answer waits for whoever asked."""


def reply_to(message: Delivered, answer: bytes, error: str | None = None) -> pb.Enqueue:
    """The answer to a request, `answer` being an encoded value. The message must want one."""
    asked = message._own_headers()
    made = pb.Enqueue(queue=asked.reply_to, payload=answer, ttl_ms=REPLY_TTL)
    made.backoff.SetInParent()
    headers = pb.Headers(correlation=asked.correlation)
    if error is not None:
        headers.fields[ERROR_HEADER] = error
    set_headers(made, headers)
    return made
