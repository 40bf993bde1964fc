"""Who is asking, and what may be told him: the part of authorisation that is a node's own.

Writes and commands are judged in apply (see `store.auth`); here they only get the stamp of a principal that was
recognised. What is read, watched or delivered is judged here, by this node's applied state at the moment at which the
answer leaves: so by one at least as new as what is read. A watch or a consumer whose token has lost its right ends with
the entry that took it, or, if it was time that took it, within `LOOK` seconds.
"""

import hmac
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from kvorum import errors, tokens
from kvorum._proto import kvorum_pb2 as pb
from kvorum.rights import denied

from .store import Store
from .store.auth import NOBODY, ROOT, Auth, Token
from .store.rights import ALL, Rights
from .timers import Timers

LOOK: Final = 0.5
"""Seconds between two looks for tokens whose time is up, while anything depends on one."""
UNKNOWN: Final = "the token is unknown here, or its secret is another one"
MALFORMED: Final = "this is no token of kvorum's, or only a part of one: kvo_, 16 hex digits, _ and 43 characters"


class Caller:
    """Whoever shows a token, or none. Compares its secret once for each state of the tokens."""

    __slots__ = ("_hash", "_id", "_known_in", "_root", "_text_given", "_token", "entered")

    def __init__(self, text: str, root_hash: bytes) -> None:
        self._text_given = bool(text)
        parts = tokens.parse(text)
        self._id = b"" if parts is None else parts.id
        self._hash = b"" if parts is None else tokens.hash_of(parts.secret)
        given = tokens.hash_of(text.encode("utf-8", "surrogatepass"))
        self._root = bool(root_hash) and hmac.compare_digest(given, root_hash)
        self._known_in: Auth | None = None
        self._token: Token | None = None
        self.entered = b""
        """The token for which it was counted as a connection."""

    @property
    def is_root(self) -> bool:
        return self._root

    def token(self, auth: Auth, now_ms: int) -> Token | None:
        """The token that it is, if its secret is good now."""
        if self._known_in is not auth:
            self._known_in, self._token = auth, auth.tokens.get(self._id)
        token = self._token
        if token is None or not token.knows(self._hash, now_ms):
            return None
        return token

    def problem(self, auth: Auth, now_ms: int) -> str:
        """Why it is nobody; empty: it is somebody."""
        if self._root:
            return ""
        if not self._text_given:
            return NOBODY
        if not self._id:
            return MALFORMED
        token = self.token(auth, now_ms)
        return UNKNOWN if token is None else token.problem(now_ms)

    def principal(self, auth: Auth, now_ms: int) -> bytes:
        """For the log; empty: nobody."""
        if self._root:
            return ROOT
        return b"" if self.problem(auth, now_ms) else self._id


class Insider(Caller):
    """The node itself, or a program with a database of its own."""

    def __init__(self) -> None:
        super().__init__("", b"")
        self._root = True


INSIDER: Final = Insider()


class Access:
    """See the module. `root_hash`: SHA-256 of the root token; empty: there is none."""

    def __init__(self, store: Store, timers: Timers, now_ms: Callable[[], int], root_hash: bytes = b"") -> None:
        self._store = store
        self._timers = timers
        self._now_ms = now_ms
        self.root_hash = root_hash
        self._listeners: dict[Callable[[], None], None] = {}
        self._looking = False
        self._denied = 0
        self._spent: dict[bytes, tuple[float, float]] = {}
        """Operations that a token has left, and when that was counted."""
        self._connections: Counter[bytes] = Counter()
        self.audit = Audit(timers)

    # ---- who it is

    def caller(self, text: str) -> Caller:
        """Somebody who shows this; empty: nothing."""
        return Caller(text, self.root_hash)

    @property
    def on(self) -> bool:
        """Tokens are asked for."""
        return self._store.auth.on

    def stamp(self, caller: Caller) -> bytes:
        """The principal to be written into the log; empty: nobody's, while that is no matter. Raises
        Unauthenticated."""
        auth = self._store.auth
        if not auth.used:
            # What is on its way when the first switch is made shall not be nobody's.
            return ROOT if caller.is_root and caller is not INSIDER else b""
        now_ms = self._now_ms()
        if auth.on:
            self._require(caller, auth, now_ms)
        return caller.principal(auth, now_ms)

    def problem(self, caller: Caller) -> str:
        """Why it is nobody now; empty: it is somebody."""
        return caller.problem(self._store.auth, self._now_ms())

    def rights(self, caller: Caller) -> Rights:
        """What it may do now. Raises Unauthenticated."""
        auth = self._store.auth
        if not auth.on or caller.is_root:
            return ALL
        now_ms = self._now_ms()
        self._require(caller, auth, now_ms)
        token = caller.token(auth, now_ms)
        assert token is not None
        return token.rights

    def check(self, caller: Caller, missing: Callable[[Rights], str]) -> None:
        """Raises Unauthenticated, or PermissionDenied for what `missing` says (see `store.rights`)."""
        if not self._store.auth.on:
            return
        lacks = missing(self.rights(caller))
        if lacks:
            self._note(caller, lacks)
            raise denied(lacks)

    def refusal(self, caller: Caller, missing: Callable[[Rights], str]) -> "Refusal | None":
        """The same for those who answer with a status."""
        try:
            self.check(caller, missing)
        except errors.Unauthenticated as error:
            return pb.READ_STATUS_UNAUTHENTICATED, str(error)
        except errors.PermissionDenied:
            return pb.READ_STATUS_DENIED, missing(self.rights(caller))
        return None

    @property
    def has_key(self) -> bool:
        """Somebody could switch it off again."""
        return bool(self.root_hash) or any(
            token.rights.admin and not token.expires_ms and not token.disabled
            for token in self._store.auth.tokens.values()
        )

    def tokens(self, after: bytes, count: int) -> list[pb.TokenInfo]:
        """In the order of their ids, those behind one."""
        found = sorted(self._store.auth.tokens.items())
        return [token.info() for token_id, token in found if token_id > after][:count]

    # ---- how much

    def over(self, caller: Caller, count: int) -> str:
        """Count operations of a token against what it may do in a second here; what is to be said if that was used up.
        One that was not goes into debt: a frame is not taken apart."""
        auth = self._store.auth
        if not auth.on or caller.is_root:
            return ""
        token = caller.token(auth, self._now_ms())
        rate = 0 if token is None else token.rights.operations_per_s
        if token is None or not rate:
            return ""
        now = self._timers.time()
        left, at = self._spent.get(token.id, (float(rate), now))
        left = min(float(rate), left + (now - at) * rate)
        if left <= 0:
            self._spent[token.id] = left, now
            return f"this token may do {rate:,} operations a second on each node, and has done them"
        self._spent[token.id] = left - count, now
        return ""

    def enter(self, caller: Caller) -> str:
        """Count a connection in; what is to be said if it is one too many. `leave` counts it out."""
        token = caller.token(self._store.auth, self._now_ms())
        if token is None:
            return ""
        most = token.rights.connections
        if most and self._store.auth.on and self._connections[token.id] >= most:
            return f"this token may have {most:,} connections to each node"
        self._connections[token.id] += 1
        caller.entered = token.id
        return ""

    def leave(self, caller: Caller) -> None:
        if caller.entered:
            self._connections[caller.entered] -= 1
            self._connections += Counter()  # without what is zero
            caller.entered = b""

    def who(self, caller: Caller) -> pb.Identity:
        """For whoever asks who he is."""
        auth, now_ms = self._store.auth, self._now_ms()
        identity = pb.Identity(on=auth.on, known=not caller.problem(auth, now_ms), root=caller.is_root)
        if identity.known and not caller.is_root:
            token = caller.token(auth, now_ms)
            assert token is not None
            identity.token.CopyFrom(token.info())
        return identity

    def _require(self, caller: Caller, auth: Auth, now_ms: int) -> None:
        problem = caller.problem(auth, now_ms)
        if problem:
            self._note(caller, problem)
            raise errors.Unauthenticated(problem)

    # ---- news

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call back when what somebody may do can have changed. Returns how to stop that."""
        self._listeners[listener] = None
        self._look_later()

        def stop() -> None:
            self._listeners.pop(listener, None)

        return stop

    def changed(self) -> None:
        """An entry has changed the tokens, or another state was put in place of this one."""
        known = self._store.auth.tokens
        self._spent = {token_id: spent for token_id, spent in self._spent.items() if token_id in known}
        for listener in list(self._listeners):
            listener()
        self._look_later()

    def _look_later(self) -> None:
        """While there are tokens that end by themselves, somebody must look."""
        auth = self._store.auth
        if not self._looking and auth.on and self._listeners and any(map(_ends, auth.tokens.values())):
            self._looking = True
            self._timers.call_later(LOOK, self._look)

    def _look(self) -> None:
        self._looking = False
        for listener in list(self._listeners):
            listener()
        self._look_later()

    # ---- notes

    def note_change(self, caller: Caller, what: str, principal: bytes = b"") -> None:
        """Somebody has changed something; `principal` is who he was then, which the change may have ended."""
        self.audit.changed(principal or caller.principal(self._store.auth, self._now_ms()), what)

    def _note(self, caller: Caller, lacks: str) -> None:
        self._denied += 1
        self.audit.denied(caller.principal(self._store.auth, self._now_ms()), lacks, "here")

    def applied(self, denials: int, denied: list[tuple[bytes, str]], *, leading: bool) -> None:
        """An entry was refused something."""
        self._denied += denials
        if leading:
            for principal, lacks in denied:
                self.audit.denied(principal, lacks, "in the log")

    def statistics(self) -> dict[str, float]:
        return {"auth_denied": self._denied}


Refusal = tuple["pb.ReadStatus", str]
"""A status and its message."""


def _ends(token: Token) -> bool:
    """By itself, or one of its secrets does."""
    return bool(token.expires_ms) or len(token.secrets) > 1


class Audit:
    """One line for each refusal and each change by an administrator, but no more than `RATE` a second. Without secrets:
    a principal is the id of a token."""

    RATE: Final = 20.0
    BURST: Final = 100.0

    def __init__(self, timers: Timers, logger: logging.Logger | None = None) -> None:
        self._timers = timers
        self._logger = logger or logging.getLogger("kvorum.audit")
        self._left = self.BURST
        self._at = timers.time()
        self._left_out = 0

    def denied(self, principal: bytes, lacks: str, where: str) -> None:
        if self._may_write():
            self._logger.warning("denied principal=%s lacks=%s where=%s", name_of(principal), _plain(lacks), where)

    def changed(self, principal: bytes, what: str) -> None:
        """Never left out."""
        self._logger.info("changed principal=%s what=%s", name_of(principal), _plain(what))

    def _may_write(self) -> bool:
        now = self._timers.time()
        self._left = min(self.BURST, self._left + (now - self._at) * self.RATE)
        self._at = now
        if self._left < 1:
            self._left_out += 1
            return False
        self._left -= 1
        if self._left_out:
            self._logger.warning("left out lines=%d", self._left_out)
            self._left_out = 0
        return True


def name_of(principal: bytes) -> str:
    """As logs have it."""
    if principal == ROOT:
        return "root"
    return f"token:{principal.hex()}" if principal else "nobody"


def _plain(text: str) -> str:
    """One line, whatever names hold."""
    return ascii(text)
