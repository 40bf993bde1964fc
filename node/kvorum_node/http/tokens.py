"""Who may use KV Connect: one bearer token for the whole cluster, set on every node.

What the metadata exchange hands out is the same token again. So every node takes what any other gave out, and it does
not expire, whatever `expiresAt` says: clients send tokens long after that.

Without a configured token any bearer token is taken, but only from this machine. That a token must be sent at all keeps
web pages out that a browser on this machine shows: a page cannot send that header without asking first.
"""

import hmac
import ipaddress

from .message import Refusal, Request


class Tokens:
    """`secret` is the token; empty: none is set. `open_to_all` takes any token from other machines too."""

    def __init__(self, secret: str, *, open_to_all: bool = False) -> None:
        self._secret = secret.encode()
        self._open_to_all = open_to_all

    def check(self, request: Request) -> str:
        """The token to hand out to this client. Raises Refusal with 401."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise _refused("A bearer token is needed; for Deno it is set as DENO_KV_ACCESS_TOKEN.")
        if self._secret:
            if not hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self._secret):
                raise _refused("The access token is not this cluster's.")
        elif not self._open_to_all and not is_loopback(request.peer):
            raise _refused("This node has no kv_connect_token, so it serves KV Connect to its own machine only.")
        return token


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
