"""Requests that have come only in part: how much of them a node holds, and whose go when that is too much.

gRPC hands over whole messages only. It opens the windows of a call for whatever the message says to be (a few MiB at
most) and tells nobody how much of it has come. There may be thousands of calls, so a few clients that leave out the
last bytes could have a node hold dozens of GiB.

What can be known of it: the kernel counts the bytes that a connection has received, and we those of the messages that
were heard from its calls. The difference grows by what is held, and by what HTTP/2, TLS and acknowledgements add to a
message, for which something is allowed (`FRAME`, `HEAD`, `SHARE`, `PULSE`); it never falls below zero, so nobody can
save up what is allowed. What came before all calls of a connection have said something is not held any more: so the
errors of such an account do not add up, but for connections with a call that says nothing for days. What they lose by
one is that call, which begins anew. A connection of which no call was taken yet counts as well, with all that came by
it: while the loop is behind, that is most of it.

While more than half of the limit is held, calls of which nothing was heard for some seconds are ended; at the limit
connections are shut, whatever they do, since a network is faster than any patience. Both begin with the connections
that hold most (the longest queue of a shared buffer drops first: Suter et al., 1999). So whoever has less than others,
as a client with a large write on a slow link has, is the last to notice.

To look costs some microseconds for each connection, so it is done now and then; at once when the memory of the process
has grown. Nothing is done for a message but to count it.

Rejected: gRPC's own quota of memory (its library for Python cannot set it, and it ends any calls); smaller windows
(gRPC opens them for each message, as far as it goes); a smaller limit of messages (there is one for all methods); a
time for each message (nobody is told that one has begun).
"""

import asyncio
import resource
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from kvorum_raft.quiet_log import QuietLog

from .connections import received

FRAME: Final = 64
"""Bytes that a message may take besides its own."""
HEAD: Final = 512
"""The same of a call."""
SHARE: Final = 32
"""The part of the bytes of large messages that their pieces may add."""
PULSE: Final = 32
"""Bytes a second for what keeps a connection alive."""
SETTLED: Final = 10.0
"""Seconds within which messages that have come are heard, however busy the loop is."""
SMALL: Final = 16_384
"""Bytes of a connection that are not looked at any closer."""
PATIENCE: Final = 10.0
"""Seconds for which nothing may be heard of a call while more than half is held."""
LOOK: Final = 0.1
"""Seconds between two looks at the memory, and at all connections while more than half is held."""
RARELY: Final = 5.0
"""Seconds between two looks at all connections else."""
IDLE: Final = 200
"""How many times longer than such a look takes it must be until the next."""
AT_ONCE: Final = 50
"""Calls that are ended in one look: each costs a good part of a millisecond."""
MEMORY: Final = Path("/proc/self/statm")

Task = asyncio.Task[Any]


class Call:
    """One call, as far as its client speaks."""

    __slots__ = ("heard", "seen", "since", "whole")

    def __init__(self, now: float) -> None:
        self.heard = self.seen = 0
        """Bytes of its messages, with what they may have taken besides; and as the last look found it."""
        self.since = now
        """When something was heard for the last time, as far as is known."""
        self.whole = False
        """It has said all that it will."""

    def says_all(self, size: int) -> None:
        """Its only message has come, of so many bytes."""
        self.heard += size + FRAME
        self.whole = True


class Connection:
    """What came by it."""

    __slots__ = ("calls", "ended", "heard", "held", "mark", "received", "since", "spoke")

    def __init__(self, now: float) -> None:
        self.calls: dict[Call, Task] = {}
        self.ended: set[Call] = set()
        """Those of them that were told to go."""
        self.heard = 0
        """Bytes of calls that have begun, or that were heard of those that are over, since the last look."""
        self.received = 0
        """Bytes, at the last look."""
        self.held = 0
        """Bytes of messages that may have come in part."""
        self.since = now
        """When it was looked at."""
        self.mark = now, 0
        """A time, and bytes received until then."""
        self.spoke = False
        """A call has begun."""

    def look(self, received: int, now: float) -> None:
        """`received`: bytes, by now."""
        if received < self.received:  # another one of the same name
            self.received = self.held = 0
            self.mark = now, 0
        heard, oldest = self.heard, None
        for call in self.calls:
            if call.heard != call.seen:
                heard += call.heard - call.seen
                call.seen, call.since = call.heard, now
            if not call.whole:
                oldest = call.since if oldest is None else min(oldest, call.since)
        more = received - self.received
        allowed = heard + heard // SHARE + int(PULSE * (now - self.since))
        self.held = max(0, self.held + more - allowed)
        self.received, self.since, self.heard = received, now, 0
        at, before = self.mark
        if not self.spoke:
            pass  # gRPC has it all: nobody has taken a call of it yet
        elif oldest is None:
            self.held = min(self.held, more)
        elif oldest > at + SETTLED:
            self.held = min(self.held, received - before)
            self.mark = now, received

    def silent(self) -> list[Call]:
        """Calls that may have said a part of something."""
        return [call for call in self.calls if not call.whole and call not in self.ended]


class Unfinished:
    """See the module. `limit` is bytes, for all connections together."""

    def __init__(
        self, limit: int, end: Callable[[Task, str], None], shut: Callable[[set[str]], object], quiet: QuietLog
    ) -> None:
        """`end` ends a call and tells its client why, `shut` shuts the connections of peers."""
        self.limit = limit
        self.high = limit // 2
        self.held = 0
        """Bytes, at the last look."""
        self.calls: dict[Task, Call] = {}
        """By the tasks that serve them."""
        self.ended = 0
        """Calls that were ended here."""
        self._end = end
        self._shut = shut
        self._quiet = quiet
        self._connections: dict[str, Connection] = {}

    def begin(self, task: Task, peer: str) -> None:
        """A call of this peer's, which has gone when its task has."""
        now = asyncio.get_running_loop().time()
        connection = self._connections.setdefault(unquote(peer), Connection(now))
        call = self.calls[task] = Call(now)
        connection.calls[call] = task
        connection.spoke = True
        connection.heard += HEAD
        task.add_done_callback(partial(self._gone, connection))

    async def watch(self, port: int) -> None:
        """Look at the connections to a port of this process until cancelled."""
        loop = asyncio.get_running_loop()
        low = memory()
        due = 0.0
        while low:
            pause, used = LOOK, memory()
            low = min(low, used)
            if used - low > self.limit // 8 or self.held > self.high or loop.time() >= due:
                begun, low = loop.time(), used
                self.look(await loop.run_in_executor(None, received, port), loop.time())
                cost = loop.time() - begun
                due = loop.time() + max(RARELY, IDLE * cost)
                # A look takes long where all have much to do, and then most comes until the next one.
                pause = LOOK if self.held > self.high else max(LOOK, cost)
            await asyncio.sleep(pause)

    def look(self, received: Mapping[str, int], now: float) -> None:
        """`received`: bytes, by the names of the connections that there are."""
        for name, count in received.items():
            connection = self._connections.get(name)
            if connection is None and count > SMALL:
                # The loop is behind: a network brings more in a second than many a limit is.
                connection = self._connections[name] = Connection(now)
            if connection is not None and not 0 <= count - connection.received <= SMALL - connection.held:
                connection.look(count, now)
        over = [name for name, connection in self._connections.items() if name not in received and not connection.calls]
        for name in over:
            del self._connections[name]
        self.held = sum(connection.held for connection in self._connections.values())
        if self.held > self.limit:
            self._shut_largest()
        elif self.held > self.high:
            self._end_silent(now)

    def statistics(self) -> dict[str, float]:
        return {"unfinished_bytes": self.held, "unfinished_limit": self.limit, "unfinished_ended": self.ended}

    def _gone(self, connection: Connection, task: Task) -> None:
        call = self.calls.pop(task)
        del connection.calls[call]
        connection.ended.discard(call)
        connection.heard += call.heard - call.seen

    def _why(self) -> str:
        return (
            f"this node holds {self.held:,} bytes of requests that have come only in part, of at most {self.limit:,}"
            " (MAX_UNFINISHED_SIZE, unfinished_requests_mb)"
        )

    def _largest(self) -> list[tuple[str, Connection]]:
        """Those that hold most come first."""
        found = [item for item in self._connections.items() if item[1].held]
        return sorted(found, key=lambda item: item[1].held, reverse=True)

    def _shut_largest(self) -> None:
        left, peers = self.held, set()
        for name, connection in self._largest():
            if left <= self.high:
                break
            left -= connection.held
            peers.add(name)
        self._quiet.warning("unfinished", f"{self._why()}: shutting the connections that hold most, {len(peers):,}")
        self._shut(peers)

    def _end_silent(self, now: float) -> None:
        """As many calls as need to go. Nobody's go for what came by connections of which no call was taken yet."""
        left, done = sum(connection.held for connection in self._connections.values() if connection.spoke), 0
        why = f"{self._why()}, and nothing was heard of this call for {PATIENCE:g} s: begin it anew"
        for _, connection in self._largest():
            silent = connection.silent()
            # What they hold each is not known.
            part = connection.held // max(1, len(silent) + len(connection.ended))
            left -= part * len(connection.ended)
            for call in silent:
                if left <= self.high or done == AT_ONCE:
                    break
                if call.since <= now - PATIENCE:
                    left -= part
                    done += 1
                    connection.ended.add(call)
                    self._end(connection.calls[call], why)
        if done:
            self.ended += done
            self._quiet.warning("ending", f"ending {done:,} calls: {why}")


def memory() -> int:
    """Bytes of anonymous memory of this process; 0: unknown."""
    try:
        with MEMORY.open() as source:
            _, resident, shared, *_ = source.read(1_024).split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()
