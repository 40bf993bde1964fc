"""What `kvorum doctor` needs to know of a node's configuration, without starting the node."""

import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kvorum.tls import Tls
from kvorum_raft.config import split_address
from kvorum_raft.errors import ConfigurationError
from kvorum_raft.tls import identify, load_ca, load_pair, node_name

from .backup.places import S3Place
from .config import SETTINGS, NodeConfig, load, strange_variables
from .security import is_loopback
from .space import reserve

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Certificate:
    """A certificate of the settings: `left` are the seconds until it expires, `problem` says why it cannot be used
    (empty: it can), `doubt` what else is odd."""

    file: Path
    left: float
    problem: str = ""
    doubt: str = ""


@dataclass(frozen=True)
class NodeFacts:
    """`ports` are (what, host, port); `members` the client addresses of all members, `client_address` its own;
    `least_free` makes the bytes that are kept free from a disk's size; `oddities` are (what was seen, what to do)."""

    node_id: str
    data_dir: Path
    ports: tuple[tuple[str, str, int], ...]
    members: tuple[str, ...]
    client_address: str
    other_hosts: tuple[str, ...]
    least_free: Callable[[int], int]
    oddities: tuple[tuple[str, str], ...]
    certificates: tuple[Certificate, ...]
    tls: Tls | None
    """How the members are spoken to; None: without TLS."""
    archive: Path | None
    bucket: str
    """Where the log is archived if that is no folder; empty: it is."""
    bucket_problem: Callable[[], str]
    """Asks the store, in a thread. Empty: it answers as it should."""
    token: str = field(repr=False)
    """The root token; empty: there is none."""


def node_facts(file: Path) -> NodeFacts:
    """Read a node's file, and the variables, as the node would. Raises ConfigurationError with one line."""
    config = load(file, os.environ, {})
    own = next(member for member in config.members if member.node_id == config.node_id)
    listens = [("clients", config.client_listen), ("peers", config.peer_listen)]
    if config.http_listen:
        listens.append(("HTTP", config.http_listen))
    others = [member for member in config.members if member.node_id != config.node_id]
    return NodeFacts(
        config.node_id,
        config.data_dir,
        tuple((what, *split_address(address)) for what, address in listens),
        tuple(member.client_address for member in config.members),
        own.client_address,
        tuple(split_address(member.peer_address)[0] for member in others),
        (lambda size: config.min_free_mb * MEBIBYTE) if config.min_free_mb else reserve,
        (*_oddities(config), *_strange_variables()),
        tuple(certificates(config)),
        _to_members(config),
        config.archive if isinstance(config.archive, Path) else None,
        str(config.archive) if isinstance(config.archive, S3Place) else "",
        lambda: _ask(config.archive),
        config.root_token,
    )


def _ask(archive: Path | S3Place | None) -> str:
    if not isinstance(archive, S3Place):
        return ""
    try:
        from .backup.s3 import Bucket

        Bucket(archive).call("list_objects_v2", Prefix=archive.prefix, MaxKeys=1, last=True)
    except OSError as error:
        return str(error)
    return ""


def _to_members(config: NodeConfig) -> Tls | None:
    """As the node itself speaks to its leader."""
    if config.tls_cert is None:
        return None
    ca = config.tls_ca or config.tls_client_ca or config.peer_ca
    if config.tls_client_ca is None:
        return Tls(ca)
    return Tls(ca, config.tls_cert, config.tls_key)


def certificates(config: NodeConfig) -> list[Certificate]:
    """Those of the settings, with what is wrong with them."""
    found = []
    if config.tls_cert is not None and config.tls_key is not None:
        found.append(_certificate(config.tls_cert, config.tls_key, "tls", config.tls_client_ca))
    if config.peer_cert is not None and config.peer_key is not None:
        peer = _certificate(config.peer_cert, config.peer_key, "peer", config.peer_ca)
        if not peer.problem and node_name(config.node_id) not in identify(config.peer_cert, "peer_cert").nodes:
            problem = f"it does not name {node_name(config.node_id)}: the other nodes would refuse it"
            peer = Certificate(peer.file, peer.left, problem)
        found.append(peer)
    return found


def _certificate(file: Path, key: Path, what: str, ca: Path | None) -> Certificate:
    try:
        left = identify(file, f"{what}_cert").expires_at - time.time()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_pair(context, file, key, what)
        if ca is not None:
            load_ca(context, ca, f"{what}_ca" if what == "peer" else f"{what}_client_ca")
        others = key.stat().st_mode & 0o077
    except ConfigurationError as error:
        return Certificate(file, 0.0, str(error))
    return Certificate(file, left, doubt=f"others than its owner may read {key}" if others else "")


def _changed(config: NodeConfig, prefix: str) -> list[str]:
    """Settings whose names begin so and that are not at their defaults."""
    return [
        setting.name
        for setting in SETTINGS
        if setting.name.startswith(prefix) and getattr(config, setting.name, setting.default) != setting.default
    ]


def _strange_variables() -> list[tuple[str, str]]:
    return [
        (f"the variable ${name} is no setting: nobody heeds it", "see kvorum node --help for those that there are")
        for name in strange_variables(os.environ)
    ]


def _oddities(config: NodeConfig) -> list[tuple[str, str]]:
    found = []
    number = len(config.members)
    if number == 1 and not config.join:
        found.append(("it lists itself only, so it forms a cluster of its own", "list all members, or set join = true"))
    elif number % 2 == 0:
        found.append(
            (f"it lists {number} members, an even number", "a cluster of 3 survives as many losses as one of 4")
        )
    if config.kv_connect_open and config.kv_connect_token:
        found.append(
            ("kv_connect_open says that no token is needed, kv_connect_token that one is, which counts", "drop one")
        )
    elif config.kv_connect_open:
        found.append(("KV Connect is open to whoever reaches the port", "set kv_connect_token"))
    idle = [] if config.archive is not None else _changed(config, "archive_")
    if idle:
        found.append(
            (f"{' and '.join(idle)} without archive: nothing is archived", "set archive, or drop what is idle")
        )
    listens = (config.client_listen, config.http_listen, config.peer_listen)
    if config.insecure and not all(is_loopback(address) for address in listens if address):
        found.append(
            ("insecure is set: who reaches its ports may do everything", "set up TLS and tokens: docs/security.md")
        )
    if config.peer_tls == "prefer":
        found.append(
            (
                "peer_tls is prefer: whoever reaches the peer port may speak for a node",
                "when no node has clear connections left, set it to require: docs/security.md",
            )
        )
    if config.log_level == "debug":
        found.append(("log_level is debug, which is slow", "use info"))
    if not config.scrub_interval_s:
        found.append(("scrub_interval_s is 0: damage on the disk is found late", "leave it at its default"))
    return found


__all__ = ["Certificate", "ConfigurationError", "NodeFacts", "node_facts"]
