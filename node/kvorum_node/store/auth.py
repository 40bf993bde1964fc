"""Tokens and the switch, and the judgement of what an entry asks for (P58).

Who may do what is state like any other: rows in the content hash, changed by commands in the log. And it is judged
where everything else is, in apply, by the rows as of the entry: the leader only stamps each group of writes, and each
command about queues, with the principal that it has recognised. So no two nodes can differ, whatever the moment at
which one of them was restarted, and a write of a token that was revoked before it in the log is refused, however long
it was on its way.

The secret of a token is 32 random bytes, so that its SHA-256 is as good as a slow hash: there is no dictionary to go
through, and 2^256 guesses are none too few for any speed.

Beside the rows stands what they say, for all tokens, in memory. It decides nothing that the rows would not decide: it
is made from them when the store is opened, changed with them, and replaced as a whole, so that who reads it beside the
loop sees the one or the other.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from struct import Struct
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import MAX_TOKEN_NAME_SIZE, MAX_TOKEN_SIZE, MAX_TOKENS, MAX_WRITE_KEY_SIZE

from . import checked, queues, rights
from .commits import FIRST, UNREADABLE, execute, execute_parsed, execute_set, parse
from .queues import messages
from .queues.delivery import IDLE_KINDS
from .queues.formats import unpack_recurring
from .records import AUTH_KEY, MAX_DURATION, OWNER, SCHEDULE, TOKEN, Refusal
from .results import Denied
from .rights import ALL, MANAGE, READ, RECEIVE, SEND, WRITE, Rights
from .wire import CHECK, ENQUEUE, SET, SETTLE, PlainSet, acknowledgement, plain_message, plain_set

if TYPE_CHECKING:
    import lmdb

    from .entry import Entry

FIRST_VERSION: Final = 4
"""Data version that brought all this."""
COMMANDS: Final = frozenset(("put_token", "remove_token", "switch_auth"))
_JUDGED: Final = (queues.COMMANDS - {"tick"}) | COMMANDS
"""Commands that somebody has asked for: all others are the node's own."""
ROOT: Final = b"root"
"""The principal of who has the root token, or is the node itself."""
ID_SIZE: Final = 8
HASH_SIZE: Final = 32
MAX_DENIALS: Final = 16
"""Refusals of an entry that are told to the audit log."""

_DENIED: Final = int(pb.OUTCOME_DENIED)
_UNKNOWN: Final = int(pb.OUTCOME_UNAUTHENTICATED)
_INVALID: Final = int(pb.OUTCOME_INVALID)
_FULL: Final = int(pb.OUTCOME_QUEUE_FULL)
_ACK: Final = int(pb.SETTLE_KIND_ACK)

NOBODY: Final = "this cluster asks for a token (token=…, or $KVORUM_TOKEN)"
REVOKED: Final = "the token is unknown here: it was removed, or belongs to another cluster"
DISABLED: Final = "the token is disabled"
EXPIRED: Final = "the token is past its time"

_HEAD: Final = Struct(">QQBB")
_SECRET: Final = Struct(">32sQ")


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the state has it. Times are Unix milliseconds, by the cluster's clock; 0 = never."""

    id: bytes
    created_ms: int
    expires_ms: int
    disabled: bool
    secrets: tuple[tuple[bytes, int], ...]
    """SHA-256, and until when it is good; the current one first."""
    name: str
    scopes: bytes
    rights: Rights

    def problem(self, now_ms: int) -> str:
        """Why it is not good for anything now; empty: it is."""
        if self.disabled:
            return DISABLED
        return EXPIRED if self.expires_ms and now_ms >= self.expires_ms else ""

    def knows(self, secret_hash: bytes, now_ms: int) -> bool:
        """Whether this is a secret of it. Takes as long for each wrong one."""
        good = False
        for known, until_ms in self.secrets:
            good |= compare_digest(known, secret_hash) and (not until_ms or now_ms < until_ms)
        return good

    def info(self) -> pb.TokenInfo:
        """What may be told of it."""
        old = self.secrets[1][1] if len(self.secrets) > 1 else 0
        return pb.TokenInfo(
            id=self.id,
            name=self.name,
            scopes=self.scopes,
            created_ms=self.created_ms,
            expires_ms=self.expires_ms,
            disabled=self.disabled,
            old_secret_ms=old,
        )


@dataclass(frozen=True, slots=True)
class Auth:
    """All of it, at one entry."""

    on: bool = False
    used: bool = False
    """There are such rows, or were."""
    tokens: dict[bytes, Token] = field(default_factory=dict)

    def problem(self, principal: bytes, now_ms: int) -> str:
        """Why a principal may do nothing; empty: its rights say what it may."""
        if principal == ROOT:
            return ""
        if not principal:
            return NOBODY
        token = self.tokens.get(principal)
        return REVOKED if token is None else token.problem(now_ms)

    def rights(self, principal: bytes) -> Rights:
        """Of one without a problem."""
        return ALL if principal == ROOT else self.tokens[principal].rights


NONE: Final = Auth()


# ---- rows


def load(txn: "lmdb.Transaction[bytes]") -> Auth:
    """What the rows say."""
    switch = checked.get(txn, AUTH_KEY)
    tokens = {name[len(TOKEN) :]: unpack(name[len(TOKEN) :], row) for name, row in checked.table(txn, TOKEN)}
    return Auth(switch == b"\x01", True, tokens)


def pack(token: Token) -> bytes:
    """The row of a token: times, whether it is disabled, secrets, length and text of its name, scopes."""
    name = token.name.encode()
    return b"".join(
        (
            _HEAD.pack(token.created_ms, token.expires_ms, token.disabled, len(token.secrets)),
            *(_SECRET.pack(*secret) for secret in token.secrets),
            bytes((len(name),)),
            name,
            token.scopes,
        )
    )


def unpack(token_id: bytes, row: bytes) -> Token:
    created_ms, expires_ms, disabled, count = _HEAD.unpack_from(row)
    at = _HEAD.size + count * _SECRET.size
    secrets = tuple(_SECRET.iter_unpack(row[_HEAD.size : at]))
    name_at = at + 1
    scopes_at = name_at + row[at]
    scopes = row[scopes_at:]
    parsed = Rights(pb.Scopes.FromString(scopes))
    name = row[name_at:scopes_at].decode()
    return Token(token_id, created_ms, expires_ms, bool(disabled), secrets, name, scopes, parsed)


# ---- commands


def run(entry: "Entry", kind: str, command: pb.Command) -> Denied | None:
    """Carry out one of COMMANDS; what is none of them does nothing."""
    if kind == "put_token":
        return _put(entry, command.put_token)
    if kind == "remove_token":
        _remove(entry, command.remove_token.id)
    if kind != "switch_auth":
        return None
    entry.rows.put(AUTH_KEY, b"\x01" if command.switch_auth.on else b"\x00")
    _became(entry, replace(entry.auth, on=command.switch_auth.on, used=True))
    return None


def _became(entry: "Entry", auth: Auth) -> None:
    entry.rows.has_auth = True
    entry.rows.tokens = len(auth.tokens)
    entry.auth = auth
    entry.judging = auth.on
    entry.result.auth_changed = True


def _put(entry: "Entry", command: pb.PutToken) -> Denied | None:
    token_id = command.id
    old = entry.auth.tokens.get(token_id)
    problem = _problem(entry, command, old)
    if problem is not None:
        return problem
    rights_of = None if old is None else old.rights
    if old is None or command.scopes:
        try:
            rights_of = Rights(pb.Scopes.FromString(command.scopes))
        except DecodeError:
            return Denied(_INVALID, "the scopes cannot be decoded")
    assert rights_of is not None
    expires_ms = 0 if old is None else old.expires_ms
    if command.HasField("expire_in_ms"):
        expires_ms = entry.time_ms + command.expire_in_ms if command.expire_in_ms else 0
    token = Token(
        token_id,
        entry.time_ms if old is None else old.created_ms,
        expires_ms,
        command.disabled if old is None or command.HasField("disabled") else old.disabled,
        _secrets(entry, command, old),
        command.name if old is None or command.HasField("name") else old.name,
        command.scopes if old is None or command.scopes else old.scopes,
        rights_of,
    )
    entry.rows.put(TOKEN + token_id, pack(token))
    _became(entry, replace(entry.auth, used=True, tokens={**entry.auth.tokens, token_id: token}))
    return None


def _problem(entry: "Entry", command: pb.PutToken, old: Token | None) -> Denied | None:
    """Whatever the leader's validation would have refused, and what depends on the state."""
    tokens = entry.auth.tokens
    if len(command.id) != ID_SIZE or len(command.secret) not in (0, HASH_SIZE):
        return Denied(_INVALID, f"a token has an id of {ID_SIZE} bytes, and SHA-256 of its secret")
    if old is None and not (command.secret and command.name):
        return Denied(_INVALID, "there is no such token" if not command.secret else "a token needs a name")
    if max(command.overlap_ms, command.expire_in_ms) > MAX_DURATION or len(command.scopes) > MAX_TOKEN_SIZE:
        return Denied(_INVALID, "a duration or the scopes of the token are beyond the limits")
    if len(command.name.encode()) > MAX_TOKEN_NAME_SIZE:
        return Denied(_INVALID, f"the name of a token has at most {MAX_TOKEN_NAME_SIZE} bytes (MAX_TOKEN_NAME_SIZE)")
    if old is None and len(tokens) >= MAX_TOKENS:
        return Denied(_FULL, f"there are {MAX_TOKENS:,} tokens (MAX_TOKENS): remove some first")
    if command.name and any(one.name == command.name and one.id != command.id for one in tokens.values()):
        return Denied(_INVALID, f"there is a token named {command.name!a} already")
    return None


def _secrets(entry: "Entry", command: pb.PutToken, old: Token | None) -> tuple[tuple[bytes, int], ...]:
    """A repeated command finds its secret there, and changes nothing."""
    if old is None:
        return ((command.secret, 0),)
    before = old.secrets
    if not command.secret or command.secret == before[0][0]:
        return before
    if not command.overlap_ms:
        return ((command.secret, 0),)
    return (command.secret, 0), (before[0][0], entry.time_ms + command.overlap_ms)


def _remove(entry: "Entry", token_id: bytes) -> None:
    if token_id not in entry.auth.tokens:
        return
    entry.rows.remove(TOKEN + token_id)
    tokens = {known: token for known, token in entry.auth.tokens.items() if known != token_id}
    _became(entry, replace(entry.auth, tokens=tokens))


# ---- judging


def may_use(entry: "Entry", session: bytes, principal: bytes) -> bool:
    """Whoever opened a session while tokens were in use is the only one who goes on with it."""
    owner = entry.rows.get(OWNER + session)
    return owner is None or owner == principal


def problem_of(entry: "Entry", principal: bytes) -> str:
    """Why nothing of a principal is carried out in this entry; empty: it depends."""
    problem = entry.auth.problem(principal, entry.time_ms)
    if problem:
        _note(entry, principal, problem)
    return problem


def judged(entry: "Entry", principal: bytes) -> "Callable[[Entry, bytes, int], Refusal | pb.AtomicWrite | None]":
    """`commits.execute` for a principal without a problem: what it may not do is refused before anything is done."""
    mine = entry.auth.rights(principal)
    return execute if mine is ALL else _Judged(principal, mine).act


class _Judged:
    """One principal's writes of an entry. A write is taken apart once, for the judgement and for what follows it: with
    a set that costs 0.4 to 0.9 instead of 2 µs. What is not told from the bytes, as `execute` does it, or may not be
    done, goes the long way."""

    __slots__ = ("_may_key", "_mine", "_principal")

    def __init__(self, principal: bytes, mine: Rights) -> None:
        self._principal = principal
        self._mine = mine
        self._may_key = mine.may_key

    def act(self, entry: "Entry", op: bytes, number: int) -> Refusal | pb.AtomicWrite | None:
        first = op[0] if op else 0
        if first in (SET, CHECK):
            known = plain_set(op)
            if known is not None and 0 < len(known[0]) <= MAX_WRITE_KEY_SIZE and self._may_set(known):
                return execute_set(entry, known, entry.prefix + number.to_bytes(2, "big"))
        elif first == ENQUEUE:
            message = plain_message(op)
            if message is not None and self._mine.may_queue(SEND, message[0].decode(errors="replace")):
                return self._enqueue(entry, op, number, message)
        elif first == SETTLE:
            held = acknowledgement(op)
            queue = None if held is None else queue_of(entry, held[0], _ACK)
            if queue is not None and self._mine.may_queue(RECEIVE, queue):
                return execute(entry, op, number)
        return self._act_on_any(entry, op, number)

    def _may_set(self, known: PlainSet) -> bool:
        return self._may_key(WRITE, known[0]) and (known[3] is None or self._may_key(READ, known[3]))

    def _enqueue(
        self, entry: "Entry", op: bytes, number: int, message: tuple[bytes, bytes]
    ) -> Refusal | pb.AtomicWrite | None:
        stamp = entry.prefix + number.to_bytes(2, "big")
        if entry.fresh.take(message[0], stamp + FIRST, message[1]):
            entry.rows.messages += 1
            return None
        return self._act_on_any(entry, op, number)

    def _act_on_any(self, entry: "Entry", op: bytes, number: int) -> Refusal | pb.AtomicWrite | None:
        try:
            write = parse(op)
        except DecodeError:
            return UNREADABLE
        missing = rights.for_write(self._mine, write, lambda message_id, kind: queue_of(entry, message_id, kind))
        if missing:
            _note(entry, self._principal, missing)
            return _DENIED, (), missing
        return execute_parsed(entry, write, entry.prefix + number.to_bytes(2, "big"))


def judge(entry: "Entry", kind: str, command: pb.Command) -> Denied | None:
    """Whether a command is to be carried out; None: it is."""
    if kind not in _JUDGED:
        return None
    problem = problem_of(entry, command.principal)
    if problem:
        return Denied(_UNKNOWN, problem)
    mine = entry.auth.rights(command.principal)
    missing = "" if mine is ALL else _missing_for(entry, mine, kind, command)
    if missing:
        _note(entry, command.principal, missing)
        return Denied(_DENIED, missing)
    return None


def _note(entry: "Entry", principal: bytes, missing: str) -> None:
    result = entry.result
    result.denials += 1
    if len(result.denied) < MAX_DENIALS:
        result.denied.append((principal, missing))


def queue_of(entry: "Entry", message_id: bytes, kind: int) -> str | None:
    """The queue of a message, be it of this very entry."""
    held = entry.held.leases.get(message_id)
    if held is not None:
        return held[1].decode()
    message = messages.load(entry.rows.txn, message_id)
    if message is not None:
        return message.queue.decode()
    if kind in IDLE_KINDS and message_id.startswith(entry.prefix):
        for queue, line in entry.fresh.lines.items():
            if any(known == message_id for known, _ in line):
                return queue.decode()
    return None


def _missing_for(entry: "Entry", mine: Rights, kind: str, command: pb.Command) -> str:
    if kind in COMMANDS:
        return rights.for_admin(mine)
    if kind == "define_schedule":
        return _missing_for_schedule(entry, mine, command.define_schedule)
    for name in _managed(kind, command):
        if missing := rights.for_queue(mine, MANAGE, name):
            return missing
    return ""


def _managed(kind: str, command: pb.Command) -> list[str]:
    """Queues and topics that a command changes."""
    if kind == "define_queue":
        made = command.define_queue
        try:
            beyond = pb.QueuePolicy.FromString(made.policy).dead_letter_queue
        except DecodeError:
            beyond = ""  # refused anyway
        return [made.name, beyond] if beyond else [made.name]
    if kind == "subscribe":
        return [command.subscribe.topic, command.subscribe.queue]
    if kind in ("purge", "requeue"):
        return [getattr(command, kind).queue]
    return [getattr(command, kind).name]


def _missing_for_schedule(entry: "Entry", mine: Rights, command: pb.DefineSchedule) -> str:
    """It sends in nobody's name later on, so who makes, changes or removes it must manage where it sends to."""
    definitions = [command.definition] if command.definition else []
    row = entry.rows.get(SCHEDULE + command.name.encode())
    if row is not None:
        definitions.append(unpack_recurring(row).definition)
    for definition in definitions:
        try:
            message = pb.Schedule.FromString(definition).message
        except DecodeError:
            continue  # refused anyway
        if missing := rights.for_queue(mine, MANAGE, message.topic or message.queue):
            return missing
        if definition == command.definition and (missing := rights.for_message(mine, message)):
            return missing
    return ""
