"""What `open_kv` is asked to open."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from kvorum.errors import InvalidArgument

DEFAULT_PORT = 7401
DEFAULT_FOLDER = "kvorum.kv"
URL_VARIABLE = "KVORUM_URL"

_ADDRESSES = re.compile(r"([^/@]*@)?[\w.-]+:\d{1,5}(,[\w.-]+(:\d{1,5})?)*")
_BEHIND = re.compile(r"(?<=[?#]).+", re.DOTALL)
_NO_SECRETS = (
    "is no address of a cluster, which holds no user, password or token: give the token by token=, $KVORUM_TOKEN or"
    " $KVORUM_TOKEN_FILE"
)


@dataclass(frozen=True)
class Folder:
    """An embedded database; None: a private one that is gone after closing."""

    path: str | None

    def __str__(self) -> str:
        return ":memory:" if self.path is None else self.path


@dataclass(frozen=True)
class Cluster:
    """A cluster, by (host, port) of some of its nodes."""

    addresses: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return "kvorum://" + ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.addresses
        )


def parse_target(target: str | os.PathLike[str] | None, environment: Mapping[str, str]) -> Folder | Cluster:
    """A path, `:memory:`, `kvorum://host:port,…`, or None: `$KVORUM_URL`, else the folder `kvorum.kv`.

    Errors: InvalidArgument.
    """
    if target is None:
        target = environment.get(URL_VARIABLE) or DEFAULT_FOLDER
    if not isinstance(target, (str, os.PathLike)) or not isinstance(path := os.fspath(target), str):
        raise InvalidArgument(f"a target is a path or a kvorum:// address, got {type(target).__name__}")
    if isinstance(target, str):
        if target == ":memory:":
            return Folder(None)
        if target.startswith(":"):
            raise InvalidArgument(f"a path cannot start with ':' unless prefixed with './': {target!r}")
        scheme, separator, _ = target.partition("://")
        if separator and scheme.isalnum():
            return _cluster(target, scheme)
        if _ADDRESSES.fullmatch(target) or target.lower().startswith("kvorum:"):
            # A forgotten "kvorum://" must not give every instance a database of its own.
            if _shown(target) != target:
                raise InvalidArgument(f"{_shown(target)!r} {_NO_SECRETS}")
            rest = target.partition("kvorum:")[2].lstrip("/") or target
            raise InvalidArgument(
                f"{target!r} looks like an address: a cluster is opened as 'kvorum://{rest}',"
                f" a folder of that name as './{target}'"
            )
    if not path or "\0" in path:
        raise InvalidArgument("a path cannot be empty" if not path else "a path cannot hold a zero byte")
    return Folder(path)


def _cluster(target: str, scheme: str) -> Cluster:
    if scheme.lower() in ("http", "https"):
        raise InvalidArgument(
            f"{_shown(target)!r} is a URL of KV Connect, for Deno and Node: Python needs the node's client port,"
            f" usually the HTTP port - 1, as in 'kvorum://{_client_port(target)}'"
        )
    if scheme.lower() != "kvorum":
        hint = "; TLS is switched on by tls=, --ca or $KVORUM_CA_FILE" if scheme.lower() == "kvorums" else ""
        raise InvalidArgument(f"unknown scheme {scheme!r}: a cluster is opened as kvorum://host:port,host:port{hint}")
    if "@" in target:
        raise InvalidArgument(f"{_shown(target)!r} {_NO_SECRETS}")
    places = target.partition("://")[2].removesuffix("/").split(",")
    return Cluster(tuple(_address(place.strip(), target) for place in places))


def _shown(text: str) -> str:
    """For a message: without what stands before an @ or behind a ? or #, where some put secrets."""
    scheme, separator, rest = text.partition("://") if "://" in text else ("", "", text)
    _, at, place = rest.rpartition("@")
    cut = _BEHIND.sub("…", place)
    return f"{scheme}{separator}{'…@' if at else ''}{cut}"


def _client_port(url: str) -> str:
    """The likely address for us of a node whose HTTP port a URL names; a general one if it names none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    return f"{host}:{port - 1}" if host and ":" not in host and port and port > 1 else f"host:{DEFAULT_PORT}"


def _address(place: str, target: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidArgument(f"{_shown(place)!r} in {_shown(target)!r} is not host:port: {error}") from None
    if not host or parts.path or parts.query or parts.fragment or port == 0:
        raise InvalidArgument(f"{_shown(place)!r} in {_shown(target)!r} is not host:port")
    return host, DEFAULT_PORT if port is None else port
