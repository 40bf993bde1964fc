"""The session that one stream keeps alive, and the sessions that it asks for."""

import asyncio

from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import Unauthenticated
from kvorum_raft.errors import RaftError

from ..service import NodeService
from .endings import ProtocolError
from .guard import StreamGuard
from .outbox import Outbox
from .queues import StreamQueues

MAX_SESSION_REQUESTS = 16
SESSION_SIZE = 10


class StreamSession:
    """`id` is the session that the stream speaks for; empty: none."""

    def __init__(self, service: NodeService, outbox: Outbox, guard: StreamGuard, queues: StreamQueues) -> None:
        self._service = service
        self._outbox = outbox
        self._guard = guard
        self._queues = queues
        self._clock = asyncio.get_running_loop().time
        self.id = b""
        self.claimed = b""
        """A session that the client goes on with, and that is not known here yet, or its token is not; or it is
        closed."""
        self.heard_at = self._clock()
        """When the client's last frame came."""
        self._requests = 0
        self._closed = False

    def close(self) -> None:
        """The stream has ended: it keeps no session alive any more."""
        self._closed = True
        self._attach(b"")

    def use(self, session: bytes) -> None:
        """The client goes on with a session. Raises ProtocolError if it is another token's."""
        if len(session) != SESSION_SIZE:
            raise ProtocolError(f"a session id has {SESSION_SIZE} bytes, got {len(session)}")
        if self._service.access.on:
            owned = self._guard.owns(session)
            self.claimed = b"" if owned else session
            if not owned:
                if session == self.id:
                    self._attach(b"")  # it was let in before tokens were asked for
                return
        self._attach(session)

    def look_again(self) -> None:
        """The client may say something in the session's name. Whether it may was perhaps not asked, or not known, when
        the session was named."""
        if self.claimed or (self.id and self._guard.doubts(self.id)):
            self.use(self.claimed or self.id)

    def confirmed(self) -> bytes:
        """`id`; after a round of what is claimed, too, which is closed if it is not known now."""
        if self.claimed:
            self.use(self.claimed)
        return self.id or self.claimed

    def open(self, request: pb.OpenSession) -> None:
        """Open a session, and keep it alive."""
        if self._requests >= MAX_SESSION_REQUESTS:
            raise ProtocolError(f"more than {MAX_SESSION_REQUESTS} sessions are asked for at once")
        principal = b""
        if self._service.consensus.is_leader:
            try:
                principal = self._service.access.stamp(self._guard.caller)
            except Unauthenticated as error:
                self._outbox.put_session(b"", pb.READ_STATUS_UNAUTHENTICATED, str(error))
                return
        if over := self._guard.over(1):
            self._outbox.put_session(b"", pb.READ_STATUS_OVERLOADED, over)
            return
        self._requests += 1
        self._service.open_session(request.client[:256], self._opened, principal)

    def _opened(self, session: bytes, error: RaftError | None) -> None:
        self._requests -= 1
        if self._closed:
            return
        if error is not None:
            self._outbox.put_leader(self._service.leader)
        elif session:
            self.claimed = b""
            self._attach(session)
        self._outbox.put_session(session)

    def _attach(self, session: bytes) -> None:
        """This connection keeps `session` alive from now on, and no other one any more."""
        old, self.id = self.id, session
        if session and session != old:
            self._service.connected(session)
        if old and session != old:
            self._queues.stop_consumers()
            self._service.disconnected(old, self._clock() - self.heard_at)
