"""Small steps that several tests take."""

import asyncio

from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster import ClusterBackend


async def value(backend: ClusterBackend, key: bytes) -> bytes:
    """A key's value, by a strong read."""
    result = await backend.read(pb.Read(keys=[key]), timeout=5)
    return result.entries[0].value


async def until(condition: asyncio.Event) -> None:
    """Wait for an event, but not for ever."""
    await asyncio.wait_for(condition.wait(), 60)
