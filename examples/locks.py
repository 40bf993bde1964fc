"""A lock with a lease, and a leader that is elected by it: a key that expires, and checks of its versionstamp.

Whoever has the lock may lose it without knowing, to a pause that is longer than the lease. So each commit made under it
checks the lock's versionstamp, which no later holder has: what comes too late is refused, not done twice.

python -m examples.locks [TARGET]
"""

import asyncio
import uuid
from contextlib import suppress
from datetime import timedelta

import kvorum
from examples.stage import beside, play, shown
from kvorum.errors import KvorumError

LEASE = timedelta(seconds=2)


class Lock:
    """A lock by the name of a key. `async with` waits for it, keeps it while the block runs, and gives it back."""

    def __init__(self, kv: kvorum.Kv, key: kvorum.Key, lease: timedelta = LEASE) -> None:
        self._kv = kv
        self._key = key
        self._lease = lease
        self._me = uuid.uuid4().hex
        self._stamp = ""
        self._renewing: asyncio.Task[None] | None = None

    def fence(self, operation: kvorum.AtomicOperation) -> kvorum.AtomicOperation:
        """Let an operation happen only while this holder has the lock; if it has lost it, the commit is false."""
        return operation.check(self._key, self._stamp)

    async def __aenter__(self) -> "Lock":
        while True:
            taking = self._kv.atomic().check(self._key, exists=False)
            done = await taking.set(self._key, self._me, expire_in=self._lease).commit()
            if done.versionstamp is not None:
                self._stamp = done.versionstamp
                self._renewing = asyncio.create_task(self._renew())
                return self
            await shown(self._kv, self._key, lambda holder: holder is None)  # until it is given back, or lapses

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease.total_seconds() / 3)
            # touch changes the expiry only: the versionstamp, which all checks of this holder name, stays.
            operation = self._kv.atomic().check(self._key, self._stamp).touch(self._key, expire_in=self._lease)
            with suppress(KvorumError):  # no leader, say: there is time for another try
                if not await operation.commit():
                    return  # it is lost: from here on `fence` lets nothing happen

    async def __aexit__(self, *_: object) -> None:
        assert self._renewing is not None
        self._renewing.cancel()
        await asyncio.wait([self._renewing])  # not `await self._renewing`: whose cancellation would that be?
        with suppress(KvorumError):  # if it does not come to that, the key expires
            await self._kv.atomic().check(self._key, self._stamp).delete(self._key).commit()


async def example(kv: kvorum.Kv) -> str:
    await kv.delete_prefix(("locks",))
    lock, ticks, led = ("locks", "cron"), ("locks", "ticks"), ("locks", "led")

    # Three workers want to be the one that ticks. Each leads for two ticks, then lets others have it.
    async def worker(name: str) -> None:
        while True:
            async with Lock(kv, lock) as mine:
                for _ in range(2):
                    await mine.fence(kv.atomic()).sum(ticks, 1).sum((*led, name), 1).commit()

    async with beside(*(worker(f"worker {number}") for number in range(3))):
        await shown(kv, ticks, lambda count: count is not None and count >= 12)
    counts = {entry.key[-1]: int(entry.value) async for entry in kv.list(led)}
    assert (await kv.get(ticks)).value == sum(counts.values())

    # A holder that stands still for longer than its lease: its key lapses, another one takes over.
    slow = Lock(kv, lock, timedelta(milliseconds=100))
    await slow.__aenter__()
    assert slow._renewing is not None
    slow._renewing.cancel()  # as a process that is stopped, or cut off
    async with Lock(kv, lock) as mine:
        late = await slow.fence(kv.atomic()).sum(ticks, 1).commit()
        in_time = await mine.fence(kv.atomic()).sum(ticks, 1).commit()
    assert (late.ok, in_time.ok) == (False, True)
    return f"locks: ok, {sum(counts.values())} ticks under the lock; what came after its lease was refused"


if __name__ == "__main__":
    play(example)
