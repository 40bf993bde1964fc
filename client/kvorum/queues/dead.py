"""Dead letters that are kept with their queue."""

from collections.abc import AsyncIterator, Callable, Iterable
from itertools import islice

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.durations import Duration
from kvorum.errors import InvalidArgument, KvorumError
from kvorum.misuse import ReadByAsyncFor
from kvorum.queues.desk import Desk
from kvorum.queues.infos import MessageInfo, peeked
from kvorum.queues.verdicts import message_id


class DeadLetters(ReadByAsyncFor):
    """Messages of a queue that failed for good, in the order in which they died. Made by `Queue.dead`.

    For `async for`, which reads them page by page.
    """

    _how = "use `async for info in queue.dead`"

    def __init__(self, desk: Desk, queue: str) -> None:
        self._desk = desk
        self._queue = queue

    def __aiter__(self) -> AsyncIterator[MessageInfo]:
        return peeked(self._desk, self._queue, "dead", None)

    async def peek(self, *, limit: int = 10, timeout: Duration | None = None) -> list[MessageInfo]:
        """The first of them. Errors: InvalidArgument, DataError."""
        return [info async for info in peeked(self._desk, self._queue, "dead", timeout, limit)]

    async def requeue(
        self,
        ids: Iterable[str] | None = None,
        *,
        where: Callable[[MessageInfo], bool] | None = None,
        timeout: Duration | None = None,
    ) -> int:
        """Make them messages again, behind all others, with new ids and all their attempts; returns how many.

        All of them, those of `ids`, or those for which `where` is true; in commits of up to 256. `timeout` is for each.

        Errors: InvalidArgument, DataError.
        """
        if ids is not None and where is not None:
            raise InvalidArgument("requeue takes ids or where, not both")
        if ids is None and where is None:
            return (await self._desk.call(timeout, requeue=pb.Requeue(queue=self._queue))).count
        if isinstance(ids, str):
            raise InvalidArgument("ids is a list of messages' ids, got one str")
        if ids is not None:
            names = [message_id(id) for id in ids]
        else:
            assert where is not None
            found = peeked(self._desk, self._queue, "dead", timeout)
            names = [message_id(info.id) async for info in found if where(info)]
        count, left = 0, iter(names)
        while chunk := list(islice(left, limits.QUEUE_CHUNK)):
            call = pb.Requeue(queue=self._queue, message_ids=chunk)
            try:
                count += (await self._desk.call(timeout, requeue=call)).count
            except KvorumError as error:
                if count:
                    error.add_note(f"{count:,} messages had been requeued before")
                raise
        return count

    async def purge(self, *, timeout: Duration | None = None) -> int:
        """Delete them all; returns how many."""
        return (await self._desk.call(timeout, purge=pb.Purge(queue=self._queue, dead=True))).count
