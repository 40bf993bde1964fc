"""Tokens: who may do what. Reached as `kv.auth`; a cluster's only, a folder has no tokens.

    made = await kv.auth.create("web", read=[("users",)], write=[("users", "web")], send=["mail"])
    kv = await kvorum.open_kv("kvorum://…", token=made.text)

A key prefix is a whole key: `("users",)` is about that key and all below it, `()` about every key. A queue or topic is
named, or named by its beginning: `mail*`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from kvorum import limits, tokens
from kvorum._proto import kvorum_pb2 as pb
from kvorum.durations import Duration, milliseconds
from kvorum.errors import InvalidArgument, shown
from kvorum.keys import Key, KeyPart, decode_key, encode_key
from kvorum.link import Link
from kvorum.queues.delivered import moment

_PAGE: Final = 100
_MOST: Final = 1 << 32
_QUEUE_RIGHTS: Final = ("send", "receive", "manage")

Prefixes = Iterable[Sequence[KeyPart]]
"""Key prefixes."""


@dataclass(frozen=True)
class Scopes:
    """What a token may do."""

    read: tuple[Key, ...] = ()
    write: tuple[Key, ...] = ()
    send: tuple[str, ...] = ()
    receive: tuple[str, ...] = ()
    manage: tuple[str, ...] = ()
    admin: bool = False
    operations_per_second: int | None = None
    """On each node; None: as many as it can."""
    connections: int | None = None
    """To each node."""


@dataclass(frozen=True)
class TokenInfo:
    """A token as the cluster knows it: without its secret."""

    id: str
    """16 hex digits."""
    name: str
    scopes: Scopes
    created_at: datetime
    expires_at: datetime | None
    disabled: bool
    old_secret_until: datetime | None
    """While it is being rotated: until then the secret before is good as well."""


@dataclass(frozen=True)
class NewToken:
    """A token that was made, or got another secret. Its text is nowhere else."""

    id: str
    name: str
    text: str

    def __repr__(self) -> str:
        return f"NewToken(id={self.id!r}, name={self.name!r})"


@dataclass(frozen=True)
class Identity:
    """Who the caller is to the cluster."""

    on: bool
    """The cluster asks for tokens."""
    known: bool
    root: bool
    token: TokenInfo | None


class Auth:
    """See the module. All of it but `whoami` needs the admin right, while tokens are asked for.

    Errors: PermissionDenied, Unauthenticated, InvalidArgument, Unavailable, Closed. A change that ended with
    Unavailable may have been made.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    async def on(self, *, timeout: Duration | None = None) -> None:
        """Ask for tokens from now on. Refused while nobody could switch it off again."""
        await self._call(timeout, switch_auth=pb.SwitchAuth(on=True))

    async def off(self, *, timeout: Duration | None = None) -> None:
        """Let everybody do everything. The tokens stay."""
        await self._call(timeout, switch_auth=pb.SwitchAuth(on=False))

    async def create(
        self,
        name: str,
        *,
        read: Prefixes = (),
        write: Prefixes = (),
        send: Iterable[str] = (),
        receive: Iterable[str] = (),
        manage: Iterable[str] = (),
        admin: bool = False,
        operations_per_second: int | None = None,
        connections: int | None = None,
        expire_in: Duration | None = None,
        timeout: Duration | None = None,
    ) -> NewToken:
        """Make a token. `name` is for people, and one token's only; `expire_in`: it is good for nothing after that.
        `operations_per_second` and `connections` bound what it may ask of each node; more is Overloaded."""
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"the name of a token is a str that is not empty, got {shown(name)}")
        token_id, secret = tokens.make_id(), tokens.make_secret()
        queues = {"send": send, "receive": receive, "manage": manage}
        scopes = _scopes(read, write, queues, admin=admin)
        scopes.operations_per_s = _bound("operations_per_second", operations_per_second)
        scopes.connections = _bound("connections", connections)
        made = pb.PutToken(
            id=token_id,
            secret=tokens.hash_of(secret),
            name=name,
            scopes=scopes.SerializeToString(deterministic=True),
        )
        if expire_in is not None:
            made.expire_in_ms = max(1, milliseconds(expire_in, "expire_in", "MAX_EXPIRE_IN", limits.MAX_EXPIRE_IN))
        await self._call(timeout, put_token=made)
        return NewToken(token_id.hex(), name, tokens.text_of(token_id, secret))

    async def list(self, *, timeout: Duration | None = None) -> "list[TokenInfo]":
        """All tokens, in the order of their ids."""
        found: list[TokenInfo] = []
        after = b""
        while True:
            reply = await self._call(timeout, tokens=pb.ListTokens(limit=_PAGE, after=after))
            found += map(token_info, reply.tokens)
            after = reply.after
            if not after:
                return found

    async def show(self, token: str, *, timeout: Duration | None = None) -> TokenInfo:
        """A token, by its name or id. Errors also: InvalidArgument if there is none."""
        for one in await self.list(timeout=timeout):
            if token in (one.id, one.name):
                return one
        raise InvalidArgument(f"there is no token {token!r}, by name or id")

    async def revoke(self, token: str, *, timeout: Duration | None = None) -> None:
        """Remove a token, by its name or id: from this moment on it is good for nothing."""
        found = await self.show(token, timeout=timeout)
        await self._call(timeout, remove_token=pb.RemoveToken(id=bytes.fromhex(found.id)))

    async def disable(self, token: str, *, disabled: bool = True, timeout: Duration | None = None) -> None:
        """Make a token good for nothing, and keep it; or the other way round."""
        found = await self.show(token, timeout=timeout)
        await self._call(timeout, put_token=pb.PutToken(id=bytes.fromhex(found.id), disabled=disabled))

    async def rotate(
        self, token: str, *, overlap: Duration = timedelta(hours=1), timeout: Duration | None = None
    ) -> NewToken:
        """Give a token a new secret; the one before is good for `overlap` more."""
        found = await self.show(token, timeout=timeout)
        token_id, secret = bytes.fromhex(found.id), tokens.make_secret()
        made = pb.PutToken(
            id=token_id,
            secret=tokens.hash_of(secret),
            overlap_ms=milliseconds(overlap, "overlap", "MAX_EXPIRE_IN", limits.MAX_EXPIRE_IN),
        )
        await self._call(timeout, put_token=made)
        return NewToken(found.id, found.name, tokens.text_of(token_id, secret))

    async def whoami(self, *, timeout: Duration | None = None) -> Identity:
        """Who this client is to the cluster. Needs no right, and no token."""
        found = (await self._call(timeout, who_am_i=pb.WhoAmI())).identity
        token = token_info(found.token) if found.HasField("token") else None
        return Identity(found.on, found.known, found.root, token)

    async def _call(self, timeout: Duration | None, **call: Any) -> pb.QueueReply:
        link = self._link
        return await link.backend.queue_call(pb.QueueCall(**call), timeout=link.within(timeout))


def token_info(info: pb.TokenInfo) -> TokenInfo:
    """What a node says of a token."""
    scopes = pb.Scopes.FromString(info.scopes)
    queues = {
        right: tuple(queue.name + "*" * queue.prefix for queue in scopes.queues if getattr(queue, right))
        for right in _QUEUE_RIGHTS
    }
    return TokenInfo(
        info.id.hex(),
        info.name,
        Scopes(
            read=tuple(decode_key(key.prefix) for key in scopes.keys if key.read),
            write=tuple(decode_key(key.prefix) for key in scopes.keys if key.write),
            admin=scopes.admin,
            operations_per_second=scopes.operations_per_s or None,
            connections=scopes.connections or None,
            **queues,
        ),
        moment(info.created_ms),
        moment(info.expires_ms) if info.expires_ms else None,
        info.disabled,
        moment(info.old_secret_ms) if info.old_secret_ms else None,
    )


def _bound(name: str, bound: int | None) -> int:
    if bound is None:
        return 0
    if not isinstance(bound, int) or isinstance(bound, bool) or not 0 < bound < _MOST:
        raise InvalidArgument(f"{name} is an int from 1 to {_MOST - 1:,}, got {shown(bound)}")
    return bound


def _scopes(read: Prefixes, write: Prefixes, queues: "dict[str, Iterable[str]]", *, admin: bool) -> pb.Scopes:
    made = pb.Scopes(admin=admin)
    keys: dict[bytes, pb.KeyScope] = {}
    for right, prefixes in (("read", read), ("write", write)):
        for prefix in prefixes:
            encoded = encode_key(prefix)
            scope = keys.setdefault(encoded, pb.KeyScope(prefix=encoded))
            setattr(scope, right, True)
    made.keys.extend(keys.values())
    named: dict[str, pb.QueueScope] = {}
    for right, names in queues.items():
        if isinstance(names, str):
            raise InvalidArgument(f"{right} takes a list of names, got the text {names!r}")
        for name in names:
            scope_of = named.setdefault(name, pb.QueueScope(name=name.removesuffix("*"), prefix=name.endswith("*")))
            setattr(scope_of, right, True)
    made.queues.extend(named.values())
    return made
