"""Who may use KV Connect: whoever shows a token of the cluster's, or the one that is set on every node for KV Connect,
which may do everything.

What the metadata exchange hands out is the same token again. So every node takes what any other gave out, and it does
not expire by itself, whatever `expiresAt` says: clients send tokens long after that.

Without a configured token, and while the cluster asks for none, any bearer token is taken, but only from this machine.
That a token must be sent at all keeps web pages out that a browser on this machine shows: a page cannot send that
header without asking first.
"""

import hmac
import ipaddress
from dataclasses import dataclass, field

from kvorum import errors, tokens

from ..access import INSIDER, Access, Caller
from .message import Refusal, Request


@dataclass(frozen=True, slots=True)
class Shown:
    """A token that was taken."""

    text: str = field(repr=False)
    caller: Caller
    writes_as: str = field(repr=False)
    """The token by which its writes go to the leader; empty: this node's own."""


class Tokens:
    """`secret` is KV Connect's own token; empty: none is set. `open_to_all` takes any token from other machines too.
    `access`: who has which of the cluster's tokens; None: there are none."""

    def __init__(self, secret: str, *, open_to_all: bool = False, access: Access | None = None) -> None:
        self._secret = secret.encode()
        self._open_to_all = open_to_all
        self._access = access

    def check(self, request: Request) -> Shown:
        """The token that this client has shown. Raises Refusal with 401."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise _refused("A bearer token is needed; for Deno it is set as DENO_KV_ACCESS_TOKEN.")
        if self._secret and hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self._secret):
            return Shown(token, INSIDER, "")
        if self._access is not None:
            caller = self._access.caller(token)
            problem = self._access.problem(caller)
            if not problem:
                return Shown(token, caller, token)
            if self._access.on:
                # A token's text is told from others by its shape: what is wrong with it is its owner's to know.
                raise _refused(f"{problem}." if tokens.parse(token) else "The access token is not this cluster's.")
        if self._secret:
            raise _refused("The access token is not this cluster's.")
        if not self._open_to_all and not is_loopback(request.peer):
            raise _refused("This node has no kv_connect_token, so it serves KV Connect to its own machine only.")
        # Not an insider: what it begins now ends when tokens are asked for.
        return Shown(token, INSIDER if self._access is None else self._access.caller(token), "")


def refusal_of(error: errors.Unauthenticated | errors.PermissionDenied) -> Refusal:
    """How KV Connect says it."""
    text = f"{str(error)[:1].upper()}{str(error)[1:]}."
    return _refused(text) if isinstance(error, errors.Unauthenticated) else Refusal(403, text)


def _refused(text: str) -> Refusal:
    return Refusal(401, text, www_authenticate="Bearer")


def is_loopback(peer: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
