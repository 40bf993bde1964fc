"""The blocking client behind the asynchronous surface, so that one suite runs against both."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import kvorum
import kvorum.sync


class ListOverSync:
    def __init__(self, rows: kvorum.sync.ListIterator) -> None:
        self._rows = rows

    def __aiter__(self) -> "ListOverSync":
        return self

    async def __anext__(self) -> kvorum.Entry:
        entry = await asyncio.to_thread(next, self._rows, None)
        if entry is None:
            raise StopAsyncIteration
        return entry

    async def page(self) -> list[kvorum.Entry]:
        return await asyncio.to_thread(self._rows.page)

    @property
    def cursor(self) -> str:
        return self._rows.cursor

    @property
    def has_more(self) -> bool:
        return self._rows.has_more


class WatchOverSync:
    def __init__(self, watch: kvorum.sync.Watch) -> None:
        self._watch = watch

    def __aiter__(self) -> "WatchOverSync":
        return self

    async def __anext__(self) -> list[kvorum.Entry]:
        entries = await asyncio.to_thread(next, self._watch, None)
        if entries is None:
            raise StopAsyncIteration
        return entries

    async def aclose(self) -> None:
        await asyncio.to_thread(self._watch.close)


class RangesOverSync:
    """A range watch or a follower."""

    def __init__(self, made: Any) -> None:
        self._made = made

    @property
    def resume(self) -> str | None:
        return self._made.resume  # type: ignore[no-any-return]

    async def ready(self) -> str:
        return await asyncio.to_thread(self._made.ready)

    def __aiter__(self) -> "RangesOverSync":
        return self

    async def __anext__(self) -> Any:
        event = await asyncio.to_thread(next, self._made, None)
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        await asyncio.to_thread(self._made.close)


class AtomicOverSync:
    """Builders return themselves, also through this one."""

    def __init__(self, operation: kvorum.sync.AtomicOperation) -> None:
        self._operation = operation

    def __getattr__(self, name: str) -> Callable[..., "AtomicOverSync"]:
        method = getattr(self._operation, name)

        def call(*args: Any, **kwargs: Any) -> "AtomicOverSync":
            assert method(*args, **kwargs) is self._operation
            return self

        return call

    async def commit(self, **kwargs: Any) -> kvorum.CommitResult:
        return await asyncio.to_thread(self._operation.commit, **kwargs)


class TransactionOverSync:
    """Awaitable reads that do not wait for anything: they block, in a thread that is the transaction's own."""

    def __init__(self, transaction: kvorum.sync.Transaction) -> None:
        self._transaction = transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    async def get(self, key: Any) -> kvorum.Entry:
        return self._transaction.get(key)

    async def get_many(self, keys: Any) -> list[kvorum.Entry]:
        return self._transaction.get_many(keys)


class KvOverSync:
    """What the suite uses of `kvorum.Kv`."""

    def __init__(self, kv: kvorum.sync.Kv) -> None:
        self._kv = kv

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._kv, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(method, *args, **kwargs)

        return call

    def list(self, *args: Any, **kwargs: Any) -> ListOverSync:
        return ListOverSync(self._kv.list(*args, **kwargs))

    def watch(self, keys: Any, *, raw: bool = False) -> WatchOverSync:
        return WatchOverSync(self._kv.watch(keys, raw=raw))

    def watch_prefix(self, *args: Any, **kwargs: Any) -> RangesOverSync:
        return RangesOverSync(self._kv.watch_prefix(*args, **kwargs))

    def follow(self, *args: Any, **kwargs: Any) -> RangesOverSync:
        return RangesOverSync(self._kv.follow(*args, **kwargs))

    def atomic(self) -> AtomicOverSync:
        return AtomicOverSync(self._kv.atomic())

    def statistics(self) -> dict[str, float]:
        return self._kv.statistics()

    @property
    def closed(self) -> bool:
        return self._kv.closed

    async def transaction(self, function: Callable[[Any], Awaitable[Any]], **kwargs: Any) -> Any:
        """Functions of the suite are coroutine functions; each runs on a loop of its own, in the thread that called."""

        def blocking(transaction: kvorum.sync.Transaction) -> Any:
            async def run() -> Any:
                return await function(TransactionOverSync(transaction))

            return asyncio.run(run())

        return await asyncio.to_thread(lambda: self._kv.transaction(blocking, **kwargs))

    async def listen_queue(self, handler: Callable[[Any], object], **kwargs: Any) -> None:
        """Handlers of the suite may be coroutine functions; in their threads they run on the suite's loop."""
        loop = asyncio.get_running_loop()

        def blocking(message: Any) -> None:
            async def run() -> None:
                outcome = handler(message)
                if isinstance(outcome, Awaitable):
                    await outcome

            asyncio.run_coroutine_threadsafe(run(), loop).result()

        await asyncio.to_thread(lambda: self._kv.listen_queue(blocking, **kwargs))


async def open_over_sync(target: str) -> KvOverSync:
    return KvOverSync(await asyncio.to_thread(kvorum.sync.open_kv, target))
