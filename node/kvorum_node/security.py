"""Where a node may listen without protection: on this machine."""

import ipaddress
from typing import TYPE_CHECKING, Final

from kvorum_raft.errors import ConfigurationError

if TYPE_CHECKING:
    from .config import NodeConfig

_INSTEAD: Final = "or say `insecure = true` (--insecure) on a network that only those reach who may do everything"


def check(config: "NodeConfig") -> None:
    """Raises ConfigurationError if the node would listen beyond this machine without what protects it there, unless
    `insecure` is set."""
    if config.insecure:
        return
    _check_clients(config)
    _check_peers(config)
    _check_tokens(config)


def _check_clients(config: "NodeConfig") -> None:
    if config.tls_cert is not None:
        return
    for name, address in (("client_listen", config.client_listen), ("http_listen", config.http_listen)):
        if address and not is_loopback(address):
            raise ConfigurationError(
                f"{name} is {address}, which others than this machine reach, without TLS: set tls_cert and tls_key"
                f" (`kvorum certs` makes them), listen on 127.0.0.1, {_INSTEAD}"
            )


def _check_tokens(config: "NodeConfig") -> None:
    if config.root_token:
        return
    for name, address in (("client_listen", config.client_listen), ("http_listen", config.http_listen)):
        if address and not is_loopback(address):
            raise ConfigurationError(
                f"{name} is {address}, which others than this machine reach, without a token: set root_token_file, the"
                f" same on all nodes, and switch tokens on (`kvorum auth on`), {_INSTEAD}"
            )


def _check_peers(config: "NodeConfig") -> None:
    if is_loopback(config.peer_listen):
        return
    if config.peer_tls == "prefer":
        raise ConfigurationError(
            f"peer_listen is {config.peer_listen}, which others than this machine reach, and peer_tls = prefer answers"
            f" peers without TLS too: set it to require, {_INSTEAD}"
        )
    if config.peer_cert is None:
        raise ConfigurationError(
            f"peer_listen is {config.peer_listen}, which others than this machine reach, without TLS: set peer_cert,"
            f" peer_key and peer_ca (`kvorum certs` makes them), listen on 127.0.0.1, {_INSTEAD}"
        )


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches a host:port. Names other than localhost may mean anything, tomorrow."""
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]").lower()
    if host == "localhost":
        return True
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback
