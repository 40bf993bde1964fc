"""Admin.Backup: the bytes of a backup's file, as fast as the caller takes them and the node can spare."""

import asyncio
import contextlib
from typing import Any, Final, NoReturn

import grpc

from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.background import Stopping
from kvorum_raft.errors import RaftError

from ..backup.saving import Backups, Busy
from ..service import NodeService
from ..store import StoreFault
from ..store.rights import for_admin
from .endings import NotTaken
from .unary import parse, require

CONFIRM: Final = 5.0
"""Seconds that a leader gets to confirm what is committed."""
SIGN: Final = 2.0
"""Seconds between signs of life while there is nothing to be sent yet."""
PATIENCE: Final = 60.0
"""Seconds that a caller may take for one part."""


class BackupCall:
    """See the module. Without `backups` the call is UNIMPLEMENTED."""

    def __init__(self, service: NodeService, backups: Backups | None) -> None:
        self._service = service
        self._backups = backups

    def handler(self) -> Any:
        return grpc.unary_stream_rpc_method_handler(self.backup, response_serializer=pb.BackupPart.SerializeToString)

    async def backup(self, data: bytes, context: Any) -> None:
        """Answer one call."""
        request = await parse(pb.BackupRequest, data, context)
        await require(self._service, context, for_admin)
        if self._backups is None:
            await _abort(context, grpc.StatusCode.UNIMPLEMENTED, "this node makes no backups")
        unreadable = self._service.unreadable()
        if unreadable:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, unreadable)
        if not request.stale:
            await self._confirm(context)
        try:
            await self._send(self._backups, context)
        except Busy as error:
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except TimeoutError:
            raise NotTaken(f"the caller took nothing for {PATIENCE:g} s", grpc.StatusCode.ABORTED) from None
        except Stopping as error:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
        except (OSError, StoreFault) as error:
            await _abort(context, grpc.StatusCode.ABORTED, f"the state cannot be copied: {error}")

    async def _confirm(self, context: Any) -> None:
        """What was acknowledged before the call is in the state."""
        try:
            async with asyncio.timeout(CONFIRM):
                await self._service.consensus.read_index()
        except (TimeoutError, RaftError) as error:
            why = str(error) or f"no leader has answered for {CONFIRM:g} s"
            text = f"{why}: nobody can say whether this node's state is complete (`--stale` takes it as it is)"
            await _abort(context, grpc.StatusCode.UNAVAILABLE, text)

    @staticmethod
    async def _send(backups: Backups, context: Any) -> None:
        copied = asyncio.Event()
        signs = asyncio.create_task(_signs(backups, context, copied))
        try:
            async with backups.made() as made:
                copied.set()
                await signs
                async for data in backups.parts(made):
                    await _write(context, pb.BackupPart(data=data, size=made.header.size))
        finally:
            copied.set()
            if not signs.done():  # the caller is gone, or there is no backup to be sent
                await asyncio.wait([signs])


async def _signs(backups: Backups, context: Any, copied: asyncio.Event) -> None:
    """While the state is being copied, the caller hears that something goes on. What was begun to be written is written
    to its end: gRPC knows nothing of half a message."""
    while not copied.is_set():
        await _write(context, pb.BackupPart(size=backups.size))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SIGN):
                await copied.wait()


async def _write(context: Any, part: pb.BackupPart) -> None:
    """Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE):
        await context.write(part)


async def _abort(context: Any, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
    raise AssertionError("abort returns never")
