"""What one stream's caller may watch and consume, while tokens are asked for.

A refusal by this node's state may be the state's fault: the token is perhaps newer than what was applied here. So it is
said only after a ReadIndex round, when this node has seen everything that was acknowledged before.
"""

from collections.abc import Callable
from functools import partial

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.errors import RaftError

from ..access import Refusal
from ..service import NodeService
from ..store.rights import READ, RECEIVE, Rights, for_keys, for_queue, for_range
from .endings import ProtocolError

MAX_JUDGED: int = 1_000
"""Watches and consumers of one stream that wait for such a round."""

Missing = Callable[[Rights], str]
Refuse = Callable[[Refusal | None], None]


class StreamGuard:
    """`caller` is who the stream's Hello said."""

    def __init__(
        self, service: NodeService, changed: Callable[[], None], broken: Callable[[ProtocolError], None]
    ) -> None:
        """`changed` is called when the rights of callers have changed, once `listen` was; `broken` for what is found
        wrong only after a round, when no reader hears of it."""
        self._service = service
        self._access = service.access
        self._changed = changed
        self._broken = broken
        self.caller = service.access.caller("")
        self._waiting: dict[tuple[str, int], object] = {}
        """Watches and consumers that wait to be judged."""
        self._stop_listening: Callable[[], None] | None = None
        self._rights: Rights | None = None
        """By which all that is open was judged."""
        self._owned = b""
        """The session that was found to be this caller's, while tokens were asked for."""
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._access.leave(self.caller)
        self._waiting.clear()
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None

    def listen(self) -> None:
        """Something is open that may lose its right."""
        if self._stop_listening is None and not self._closed:
            self._stop_listening = self._access.listen(self._changed)

    def unchanged(self) -> bool:
        """Whether what is open may stay, as nothing has changed for this caller."""
        if not self._access.on:
            self._rights = None
            return True
        try:
            rights = self._access.rights(self.caller)
        except errors.Unauthenticated:
            self._rights = None
            return False
        before, self._rights = self._rights, rights
        return rights is before

    def refusal(self, missing: Missing) -> Refusal | None:
        return self._access.refusal(self.caller, missing)

    def owns(self, session: bytes) -> bool:
        """Whether this caller may keep a session alive and speak for it; False: this node's state knows no such session
        or no such token, or not yet. Raises ProtocolError if it is another's.

        A session's id is its place in the log, so whoever was let in before it is opened would have guessed it.
        """
        self._owned = b""
        try:
            principal = self._access.stamp(self.caller)
        except errors.Unauthenticated:
            return False
        store = self._service.store
        if not store.session_exists(session):
            return False
        with store.snapshot() as snapshot:
            owner = snapshot.session_owner(session)
        if owner and owner != principal:
            raise ProtocolError("this session belongs to another token")
        self._owned = session
        return True

    def doubts(self, session: bytes) -> bool:
        """Whether nobody has looked yet whose session this is: it was named before tokens were asked for."""
        return self._access.on and session != self._owned

    def over(self, count: int) -> str:
        """See `Access.over`."""
        return self._access.over(self.caller, count) if self._access.on else ""

    def start_watch(self, start: pb.StartWatch, begin: Callable[[], None], refuse: Refuse) -> None:
        """Begin a watch if its token may read what it is of. It begins with a read."""
        if over := self.over(max(1, len(start.keys))):
            refuse((pb.READ_STATUS_OVERLOADED, over))
            return
        missing: Missing = partial(for_keys, keys=start.keys)
        if start.end:
            missing = partial(for_range, right=READ, start=start.start, end=start.end)
        self._start(("watch", start.id), missing, begin, refuse)

    def start_consumer(
        self, request: pb.StartConsumer, begin: Callable[[], None], refuse: Refuse, *, later: bool = False
    ) -> None:
        """The same of a queue. `later`: only after a round, since its session is not known here yet."""
        missing = partial(for_queue, right=RECEIVE, name=request.queue)
        self._start(("consumer", request.id), missing, begin, refuse, later=later)

    def forget_watch(self, number: int) -> None:
        self._waiting.pop(("watch", number), None)

    def forget_consumer(self, number: int) -> None:
        self._waiting.pop(("consumer", number), None)

    def _start(
        self, what: tuple[str, int], missing: Missing, begin: Callable[[], None], refuse: Refuse, *, later: bool = False
    ) -> None:
        """`later`: in any case after a round."""
        if not later and self.refusal(missing) is None:
            begin()
            return
        if len(self._waiting) >= MAX_JUDGED:
            raise ProtocolError(f"more than {MAX_JUDGED:,} watches and consumers wait to be judged on one connection")
        mark = self._waiting[what] = object()
        self._service.barrier.wait(partial(self._judge, what, mark, missing, begin, refuse))

    def _judge(
        self,
        what: tuple[str, int],
        mark: object,
        missing: Missing,
        begin: Callable[[], None],
        refuse: Refuse,
        error: RaftError | None,
    ) -> None:
        if self._waiting.get(what) is not mark:
            return  # it was taken back meanwhile, or the stream is gone
        del self._waiting[what]
        if error is not None:
            refuse(None)
            return
        refusal = self.refusal(missing)
        if refusal is not None:
            refuse(refusal)
            return
        try:
            begin()
        except ProtocolError as wrong:  # others wait for the same round
            self._broken(wrong)
