"""Watching one node over a stream of its own, whether it leads or not: the shipped client asks leaders only."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import grpc.aio

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from tests.simulation.whole.clock import ProcessLoop
from tests.simulation.whole.network import Network
from tests.simulation.whole.rpc import ROOT, Call, RpcError

_WATCH = 1
SILENCE = 2.0
"""Seconds without a word after which another node is asked."""


class AnyNode:
    """Source of range watches, as `ClusterBackend` is one: each watch is of the node that `choose` names then."""

    def __init__(self, network: Network, loop: ProcessLoop, choose: Callable[[], str]) -> None:
        self._network = network
        self._loop = loop
        self._choose = choose

    async def watch_range(
        self, start: bytes, end: bytes, *, since: bytes, keys_only: bool
    ) -> AsyncGenerator[pb.WatchEvent, None]:
        """Ends when the stream does. Errors: Compacted."""
        frame = pb.ClientFrame(hello=pb.Hello(protocol=1, client="a watcher", token=ROOT))
        frame.watches.add(id=_WATCH, start=start, end=end, since=since, min_versionstamp=since, keys_only=keys_only)
        call = Call(
            self._network,
            self._loop,
            f"{self._choose()}:2",
            pb.ClientFrame.SerializeToString,
            pb.ServerFrame.FromString,
        )
        try:
            await call.write(frame)
            while True:
                async with asyncio.timeout(SILENCE):
                    answer = await call.read()
                if answer is grpc.aio.EOF:
                    return
                for event in answer.watches:
                    if event.oldest:
                        raise errors.Compacted(event.oldest.hex())
                    if event.error:
                        return
                    yield event
        except (RpcError, TimeoutError, asyncio.InvalidStateError):
            return
        finally:
            call.cancel()
