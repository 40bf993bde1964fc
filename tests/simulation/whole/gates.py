"""Tokens that are switched on and off, given and taken while everything else goes on (P58).

Two clients of one process: the *boss* has the root token and changes what there is, the *guest* has a token and writes
and reads counters. What the guest hears must be what it may: of a call that lay wholly between two changes of the boss,
both known to have been made, it is known whether it had to be refused. And what was refused was not applied: in the end
each counter stands between what was acknowledged and that with what is unknown.

All other clients have the root token, so that nothing of what they do may change. That replicas do not differ, the
judge sees by their hashes.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from kvorum import errors, tokens
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.client import ClusterBackend
from tests.simulation.whole.clock import Clock, ProcessLoop
from tests.simulation.whole.judge import Judge
from tests.simulation.whole.network import Network
from tests.simulation.whole.rpc import ROOT, SimConnection

SHARE: Final = 0.3
"""Of the seeds."""
KEYS: Final = (b"\x02ga\x00", b"\x02gb\x00", b"\x02gc\x00")
"""Of which the last one is never the guest's."""
_ID: Final = bytes(range(8))
_SECRET: Final = bytes(range(32))
_TIMEOUT: Final = 2.0
_ONE: Final = (1).to_bytes(8, "little")

Rights = frozenset[tuple[str, bytes]]


class Gates:
    """See the module. Does nothing unless its chance says so."""

    def __init__(self, clock: Clock, network: Network, nodes: list[str], judge: Judge, seed: str) -> None:
        self._rng = random.Random(f"{seed}-gates")
        self.open = self._rng.random() < SHARE
        self._clock, self._network, self._nodes, self._judge = clock, network, nodes, judge
        self._working = True
        self._running = 0
        self._changes = 0
        """Calls of the boss that have begun."""
        self._on: bool | None = False
        """Whether tokens are asked for; None: nobody knows."""
        self._rights: Rights | None = frozenset()
        """What the guest's token may; None: nobody knows."""
        self.done: Counter[bytes] = Counter()
        self.unknown: Counter[bytes] = Counter()

    @property
    def idle(self) -> bool:
        return not self._running

    def begin(self) -> None:
        if self.open:
            self._loop = ProcessLoop(
                self._clock, "gates", self._network, began=self._rng.uniform(10, 1e6), on_error=self._judge.error
            )
            for part in (self._boss, self._guest, self._guest):
                self._running += 1
                self._loop.run(self._spawn, part)

    def finish(self) -> None:
        self._working = False

    def kill(self) -> None:
        if self.open:
            self._loop.kill()

    def bury(self) -> None:
        if self.open:
            self._loop.bury()

    def judge_counters(self, read: Callable[[bytes], int]) -> None:
        """In the end, `read` tells a counter of the final state."""
        for key in KEYS:
            found, least = read(key), self.done[key]
            if not least <= found <= least + self.unknown[key]:
                self._judge.broken(
                    f"the guest's counter {key!r} is {found}: {least} were acknowledged, {self.unknown[key]} unknown"
                )

    def _spawn(self, main: Callable[[], object]) -> None:
        async def guarded() -> None:
            try:
                await main()  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001  whatever comes out of the client is a finding
                if not self._loop.dead:
                    self._judge.broken(f"the gates failed: {type(error).__name__}: {error}")
            finally:
                self._running -= 1

        self._loop.create_task(guarded())

    async def _opened(self, token: str) -> ClusterBackend:
        while True:
            backend = ClusterBackend(
                [(node, 2) for node in self._nodes],
                token=token,
                rng=random.Random(self._rng.randbytes(8)),
                connect=partial(SimConnection, self._network),
            )
            backend._keeper._client_name = "gates"
            with contextlib.suppress(errors.ConnectFailed):
                await backend.open(30.0)
                return backend

    # ---- the boss

    async def _boss(self) -> None:
        backend = await self._opened(ROOT)
        while self._working:
            await asyncio.sleep(self._rng.expovariate(1 / 0.4))
            await self._rng.choice((self._switch, self._give, self._take))(backend)
        await backend.close()

    async def _call(self, backend: ClusterBackend, call: pb.QueueCall) -> bool:
        """Whether it was made for certain."""
        self._changes += 1
        try:
            await backend.queue_call(call, timeout=_TIMEOUT)
        except (errors.Unauthenticated, errors.PermissionDenied, errors.InvalidArgument) as error:
            self._judge.broken(f"the boss was refused: {error}")
        except errors.KvorumError:
            return False
        finally:
            self._changes += 1
        return True

    async def _switch(self, backend: ClusterBackend) -> None:
        on = self._rng.random() < 0.7
        self._on = None
        if await self._call(backend, pb.QueueCall(switch_auth=pb.SwitchAuth(on=on))):
            self._on = on
            self._judge.counters["auth switched"] += 1

    async def _give(self, backend: ClusterBackend) -> None:
        rights = frozenset((right, key) for key in KEYS[:2] for right in ("read", "write") if self._rng.random() < 0.6)
        scopes = pb.Scopes()
        for key in KEYS[:2]:
            scopes.keys.add(prefix=key, read=("read", key) in rights, write=("write", key) in rights)
        made = pb.PutToken(id=_ID, secret=tokens.hash_of(_SECRET), name="guest", scopes=scopes.SerializeToString())
        self._rights = None
        if await self._call(backend, pb.QueueCall(put_token=made)):
            self._rights = rights
            self._judge.counters["auth given"] += 1

    async def _take(self, backend: ClusterBackend) -> None:
        self._rights = None
        if await self._call(backend, pb.QueueCall(remove_token=pb.RemoveToken(id=_ID))):
            self._rights = frozenset()
            self._judge.counters["auth taken"] += 1

    # ---- the guest

    async def _guest(self) -> None:
        backend = await self._opened(tokens.text_of(_ID, _SECRET))
        while self._working:
            await asyncio.sleep(self._rng.expovariate(1 / 0.05))
            await self._rng.choice((self._write, self._write, self._read))(backend)
        await backend.close()

    async def _write(self, backend: ClusterBackend) -> None:
        key = self._rng.choice(KEYS)
        op = pb.AtomicWrite()
        op.mutations.add(key=key, type=pb.MUTATION_TYPE_SUM, value=_ONE, encoding=pb.VALUE_ENCODING_LE64)
        expected = self._expected("write", key)
        try:
            outcome = (await backend.write(op.SerializeToString(), timeout=_TIMEOUT)).result.outcome
        except errors.Unauthenticated:
            self._heard("write", key, expected, "refused")
        except errors.KvorumError as error:
            self.unknown[key] += error.outcome == "unknown"
        else:
            self.done[key] += outcome == pb.OUTCOME_DONE
            self._heard("write", key, expected, "done" if outcome == pb.OUTCOME_DONE else "refused")

    async def _read(self, backend: ClusterBackend) -> None:
        key = self._rng.choice(KEYS)
        expected = self._expected("read", key)
        try:
            await backend.read(pb.Read(keys=[key]), timeout=_TIMEOUT)
        except (errors.Unauthenticated, errors.PermissionDenied):
            self._heard("read", key, expected, "refused")
        except errors.KvorumError:
            return
        else:
            self._heard("read", key, expected, "done")

    def _expected(self, right: str, key: bytes) -> tuple[int, str]:
        """When a call begins: the changes so far, and what is to be heard; empty: nobody knows."""
        if self._on is None or self._rights is None or self._changes % 2:
            return -1, ""
        allowed = not self._on or (right, key) in self._rights
        return self._changes, "done" if allowed else "refused"

    def _heard(self, right: str, key: bytes, expected: tuple[int, str], heard: str) -> None:
        changes, what = expected
        self._judge.counters[f"auth {heard}"] += 1
        if changes == self._changes and what != heard:
            self._judge.broken(f"the guest's {right} of {key!r} was {heard}, and should have been {what}")
