"""Formats of the rows and index keys of topics: TOPIC, SUBSCRIPTION, RETAINED. See `formats`."""

import struct
from typing import Final, NamedTuple

from ..records import RETAINED, STAMP_SIZE, SUBSCRIPTION
from .formats import named


class Topic(NamedTuple):
    topic_id: bytes
    """The stamp of the commit that made it."""
    retention_ms: int
    retained: int = 0
    """Messages."""
    retained_size: int = 0
    timer_ms: int = 0
    """When its RETENTION_TIMER is due; 0 = there is none."""
    subscriptions: int = 0
    filling: int = 0
    """Subscriptions that still get copies of retained messages: until they have all, everything is retained."""


_TOPIC: Final = struct.Struct(">10sQQQQII")


def pack_topic(topic: Topic) -> bytes:
    return _TOPIC.pack(*topic)


def unpack_topic(row: bytes) -> Topic:
    return Topic(*_TOPIC.unpack(row))


def subscription_prefix(topic_id: bytes) -> bytes:
    return SUBSCRIPTION + topic_id


class Subscription(NamedTuple):
    topic: bytes
    """Its name."""
    filling: bool = False
    """Retained messages are still to be copied."""
    timer_ms: int = 0
    """FILLING: when its FILL_TIMER is due."""
    after: bytes = b""
    """FILLING: a key of RETAINED; what comes after it is still to be copied."""


def pack_subscription(subscription: Subscription) -> bytes:
    row = named(subscription.topic)
    return row + subscription.timer_ms.to_bytes(8, "big") + subscription.after if subscription.filling else row


def unpack_subscription(row: bytes) -> Subscription:
    at = 2 + int.from_bytes(row[:2], "big")
    if at == len(row):
        return Subscription(row[2:])
    return Subscription(row[2:at], True, int.from_bytes(row[at : at + 8], "big"), row[at + 8 :])


def retained_prefix(topic_id: bytes) -> bytes:
    return RETAINED + topic_id


def retained_key(topic_id: bytes, at_ms: int, message_id: bytes) -> bytes:
    return RETAINED + topic_id + at_ms.to_bytes(8, "big") + message_id


def retained_at(name: bytes) -> int:
    begin = 1 + STAMP_SIZE
    return int.from_bytes(name[begin : begin + 8], "big")
