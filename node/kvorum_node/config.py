"""The configuration of a node: a TOML file, environment variables `KVORUM_*`, flags; the later ones win.

Every setting stands in one table, from which the file's keys, the variables' names and the flags are derived. What
nobody knows is refused by name: a setting with a typing error that is silently ignored shows itself at the worst
time.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvorum import limits
from kvorum.tls import SYSTEM
from kvorum_raft.errors import ConfigurationError
from kvorum_raft.seams import Member

from . import config_values as values_of
from . import security
from .backup import places
from .backup.places import S3Place
from .logs import FORMATS, LEVELS

ENV_PREFIX = "KVORUM_"
DEFAULT_CLIENT = "127.0.0.1:7401"
DEFAULT_PEER = "127.0.0.1:7403"
LEAST_ROOT_TOKEN = 16
"""Characters."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the file. `parse` takes the text of a variable or flag, or the file's value."""

    name: str
    parse: Callable[[Any], Any]
    default: Any
    help: str
    switch: bool = False
    """Its flag may stand without a value, which means true."""
    secret: bool = False
    """No flag sets it: arguments are shown to everybody."""

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A checked configuration. Times are milliseconds."""

    node_id: str
    data_dir: Path
    client_listen: str
    peer_listen: str
    http_listen: str
    """host:port; empty: no HTTP port."""
    members: tuple[Member, ...]
    join: bool
    election_timeout_min_ms: int
    election_timeout_max_ms: int
    heartbeat_ms: int
    lease_ms: int
    session_idle_ms: int
    min_free_mb: int
    scrub_interval_s: int
    checkpoint_log_mb: int
    event_loop: str
    log_level: str
    log_format: str
    slow_operation_ms: int
    """0: none is."""
    unread_answers_mb: int
    unfinished_requests_mb: int
    kv_connect_token: str = field(repr=False)
    """Empty: none is set."""
    kv_connect_open: bool
    kv_connect_relabel: str
    kv_connect_held_ms: int
    tls_cert: Path | None
    tls_key: Path | None
    tls_client_ca: Path | None
    tls_ca: Path | None
    peer_cert: Path | None
    peer_key: Path | None
    peer_ca: Path | None
    peer_tls: str
    """`require` or `prefer`; means nothing without `peer_cert`."""
    insecure: bool
    archive: Path | S3Place | None
    archive_every_s: int
    archive_segment_mb: int
    archive_base_hours: int
    archive_keep_days: int
    root_token: str = field(default="", repr=False)
    """Empty: none is set."""


SETTINGS: tuple[Setting, ...] = (
    Setting("node_id", values_of.text, None, "this node's id, one of the members'"),
    Setting("data_dir", values_of.text, None, "folder for log and state"),
    Setting(
        "client_listen",
        values_of.address,
        None,
        "host:port to serve clients on (default: its member entry's client address)",
    ),
    Setting(
        "peer_listen", values_of.address, None, "host:port to serve peers on (default: its member entry's peer address)"
    ),
    Setting(
        "http_listen",
        values_of.address_or_off,
        None,
        "host:port for KV Connect (Deno, Node), health and metrics, or off (default: client_listen's port + 1)",
    ),
    Setting(
        "members", values_of.members, (), "all nodes, this one included: id=peer/client,…  ([[members]] in the file)"
    ),
    Setting(
        "join",
        values_of.truth,
        False,
        "form no cluster: wait with an empty folder until `kvorum cluster add` or `replace` lets this node in",
        switch=True,
    ),
    Setting(
        "election_timeout_min_ms", values_of.milliseconds, 500, "shortest time without a leader before a node campaigns"
    ),
    Setting("election_timeout_max_ms", values_of.milliseconds, 1_000, "longest one"),
    Setting("heartbeat_ms", values_of.milliseconds, 100, "time between a leader's signs of life"),
    Setting("lease_ms", values_of.milliseconds, limits.DEFAULT_LEASE, "how long a lost consumer keeps its messages"),
    Setting(
        "session_idle_ms",
        values_of.milliseconds,
        limits.SESSION_IDLE,
        "a client's session is closed after so long without a connection",
    ),
    Setting(
        "min_free_mb",
        values_of.whole(0, 1 << 30),
        0,
        "MiB of disk space below which growth is refused (default 0: 5 % of the disk, at least 1024)",
    ),
    Setting(
        "scrub_interval_s",
        values_of.whole(0, 366 * 86_400),
        3_600,
        "seconds between two slow scans of the state for damage; 0: none",
    ),
    Setting(
        "checkpoint_log_mb",
        values_of.whole(1, 1 << 16),
        32,
        "MiB of log after which a checkpoint is made, at the latest; a quarter of the state, if that is more",
    ),
    Setting(
        "event_loop", values_of.choice("auto", "uvloop", "asyncio"), "auto", "auto takes uvloop where it is installed"
    ),
    Setting("log_level", values_of.choice(*LEVELS), "info", "debug, info, warning or error"),
    Setting("log_format", values_of.choice(*FORMATS), "text", "text (key=value) or json, one line an event"),
    Setting(
        "slow_operation_ms",
        values_of.whole(0, 86_400_000),
        500,
        "milliseconds after which an operation is logged as slow; 0: none",
    ),
    Setting(
        "unread_answers_mb",
        values_of.whole(64, 1 << 20),
        limits.MAX_UNREAD_SIZE >> 20,
        "MiB of answers that this node holds for gRPC clients which have not taken them; beyond half of it those that"
        " take nothing for 3 s are ended",
    ),
    Setting(
        "unfinished_requests_mb",
        values_of.whole(64, 1 << 20),
        limits.MAX_UNFINISHED_SIZE >> 20,
        "MiB that this node holds of gRPC clients' requests which have come only in part; beyond half of it calls of"
        " which nothing was heard for 10 s are ended, beyond all of it the connections that hold most are shut",
    ),
    Setting(
        "kv_connect_token",
        values_of.token,
        None,
        "access token for KV Connect, the same on all nodes (default: none; then any bearer token is taken, but from"
        " this machine only)",
        secret=True,
    ),
    Setting("kv_connect_token_file", values_of.text, None, "file that holds it, in place of kv_connect_token"),
    Setting(
        "root_token_file",
        values_of.text,
        None,
        "file that holds the root token, the same on all nodes: it may do everything, whether or not there are other"
        " tokens (16 printable characters at least)",
    ),
    Setting(
        "kv_connect_open",
        values_of.truth,
        False,
        "serve KV Connect to other machines without a token: whoever reaches the port may read and write everything",
        switch=True,
    ),
    Setting(
        "kv_connect_relabel",
        values_of.choice("auto", "always", "never"),
        "auto",
        "show values of Deno >= 2.8 (V8 version 16) as version 15: auto does so for clients that cannot read 16",
    ),
    Setting(
        "kv_connect_held_ms",
        values_of.whole(100, 30_000),
        30_000,
        "how long a request of KV Connect waits for a leader before it is answered with what is known",
    ),
    Setting(
        "tls_cert",
        values_of.text,
        None,
        "PEM file with this node's certificate, and what is between it and the CA: client port and HTTP port speak TLS",
    ),
    Setting("tls_key", values_of.text, None, "PEM file with its key"),
    Setting(
        "tls_client_ca", values_of.text, None, "PEM file of a CA: clients of both ports must show a certificate of it"
    ),
    Setting(
        "tls_ca",
        values_of.text,
        None,
        "PEM file of the CA of the other nodes' tls_cert, whose leader the HTTP port writes to (default: tls_client_ca,"
        " else peer_ca, else this machine's CAs, which are also meant by `system`)",
    ),
    Setting(
        "peer_cert", values_of.text, None, "PEM file with this node's certificate for peers, which names it by its id"
    ),
    Setting("peer_key", values_of.text, None, "PEM file with its key"),
    Setting("peer_ca", values_of.text, None, "PEM file of the CA whose certificates nodes show each other"),
    Setting(
        "peer_tls",
        values_of.choice("require", "prefer"),
        None,
        "require, or prefer: speak TLS with peers that do, and in clear with others, while a running cluster changes"
        " from the one to the other (default: require, where there are certificates)",
    ),
    Setting(
        "insecure",
        values_of.truth,
        False,
        "listen beyond this machine without what protects a port there: whoever reaches it may do everything",
        switch=True,
    ),
    Setting(
        "archive",
        values_of.archive,
        None,
        "folder, or s3://bucket/prefix, into which this node copies its log and backups, so that any moment can be"
        " restored (default: none)",
    ),
    Setting(
        "archive_s3_endpoint",
        places.endpoint,
        None,
        "URL of an S3-compatible store: https://host:port (default: AWS); credentials come from the environment or the"
        " files of AWS's own tools",
    ),
    Setting("archive_s3_region", places.region, None, "its region (default: that of the environment, else us-east-1)"),
    Setting(
        "archive_s3_path_style",
        values_of.choice(*places.PATH_STYLES),
        "auto",
        "whether the bucket stands in the URL's path: auto does so if there is an archive_s3_endpoint",
    ),
    Setting(
        "archive_every_s", values_of.whole(1, 86_400), 10, "what was applied is in the archive after so many seconds"
    ),
    Setting("archive_segment_mb", values_of.whole(1, 1_024), 16, "or when it has become so many MiB"),
    Setting("archive_base_hours", values_of.whole(1, 24 * 366), 24, "hours between two backups in the archive"),
    Setting(
        "archive_keep_days",
        values_of.whole(0, 36_600),
        0,
        "days that can be restored; what is not needed for that is deleted from the archive (0: nothing is)",
    ),
)
FILES = (
    "kv_connect_token_file",
    "root_token_file",
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "tls_ca",
    "peer_cert",
    "peer_key",
    "peer_ca",
    "archive",
)
"""Settings that are paths; in a configuration file they are relative to its folder."""
_CLIENTS = frozenset(
    f"KVORUM_{name}" for name in ("URL", "TOKEN", "TOKEN_FILE", "CA_FILE", "CERT_FILE", "KEY_FILE", "SERVER_NAME")
)
"""Variables of clients, which may stand in the same environment."""
_OF_CONTAINERS = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)$")
"""How variables end that Kubernetes puts into containers for each service: one may well be named kvorum."""
_NEAR = 0.85
"""Likeness from which on a variable that nobody knows is taken for a typing error."""
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def load(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, str]) -> NodeConfig:
    """Put together and check. `flags` maps setting names to texts. Raises ConfigurationError with one line."""
    values: dict[str, Any] = {}
    if file is not None:
        values.update(_from_file(file))
    values.update(_from_environment(environment))
    for name, text in flags.items():
        setting = _BY_NAME[name]
        if setting.secret:
            raise ConfigurationError(
                f"{setting.flag}: everybody on this machine sees the arguments of processes; use {setting.flag}-file,"
                f" ${setting.variable} or the file's key {name}"
            )
        values[name] = _parse(setting, text, setting.flag)
    for setting in SETTINGS:
        values.setdefault(setting.name, setting.default)
    for name in ("node_id", "data_dir"):
        if values[name] is None:
            setting = _BY_NAME[name]
            raise ConfigurationError(
                f"{name} is not set: use the file's key {name}, ${setting.variable} or {setting.flag}"
            )
    return _checked(values)


def _from_file(file: Path) -> dict[str, Any]:
    try:
        text = file.read_bytes().decode()
        table = tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
    except RecursionError:
        raise ConfigurationError(f"{file} is not valid TOML: it is nested too deeply") from None
    except ValueError as error:  # not UTF-8, no TOML, or a number of thousands of digits
        raise ConfigurationError(f"{file} is not valid TOML: {error}") from None
    values = {}
    for key, value in table.items():
        where = f"{file}{_line(text, key)}"
        if key not in _BY_NAME:
            raise ConfigurationError(f"{where}: unknown key {key!r}{values_of.did_you_mean(key, _BY_NAME)}")
        values[key] = _parse(_BY_NAME[key], value, f"{where}: {key}")
    if "data_dir" in values:
        # A relative folder is meant as the file's neighbour, not as that of whoever starts the node.
        values["data_dir"] = str(file.parent / values["data_dir"])
    for name in FILES:
        if name in values and values[name] != SYSTEM and not places.is_s3(values[name]):
            values[name] = str(file.parent / values[name])
    return values


def _line(text: str, key: str) -> str:
    """Where a top-level key of a TOML file stands, for a message; empty if that is not plain to see."""
    name = rf"""["']?{re.escape(key)}["']?\s*"""
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(rf"\s*(\[\[?\s*{name}[.\]]|{name}[.=])", line):
            return f", line {number}"
        if line.lstrip().startswith("[["):
            break  # what follows are its members' keys
    return ""


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    by_variable = {setting.variable: setting for setting in SETTINGS}
    values = {}
    for variable, text in environment.items():
        if variable in by_variable:
            setting = by_variable[variable]
            values[setting.name] = _parse(setting, text, f"${variable}")
    for variable in strange_variables(environment):
        # Others may use the prefix for their own ends ($KVORUM_URL is the client's); a near miss is a typing error.
        meant = _meant(variable, by_variable)
        if meant is not None:
            raise ConfigurationError(f"unknown variable ${variable}; did you mean {meant!r}?")
    return values


def strange_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that are neither a setting nor a client's: nobody heeds them."""
    known = {setting.variable for setting in SETTINGS} | _CLIENTS
    return sorted(
        variable
        for variable in environment
        if variable.startswith(ENV_PREFIX) and variable not in known and not _OF_CONTAINERS.search(variable)
    )


def _meant(variable: str, known: Iterable[str]) -> str | None:
    """The setting whose name is a little different, longer or shorter by whole words; None: there is none."""
    names = list(known)
    near = difflib.get_close_matches(variable, names, 1, _NEAR)
    longer = [name for name in names if f"{name}_".startswith(f"{variable}_") or f"{variable}_".startswith(f"{name}_")]
    return next(iter([*near, *longer]), None)


def _parse(setting: Setting, value: Any, where: str) -> Any:
    try:
        return setting.parse(value)
    except ValueError as error:
        raise ConfigurationError(f"{where} {error}") from None


def _checked(values: dict[str, Any]) -> NodeConfig:
    node_id: str = values["node_id"]
    members: tuple[Member, ...] = values["members"]
    if not members:
        members = (Member(node_id, values["peer_listen"] or DEFAULT_PEER, values["client_listen"] or DEFAULT_CLIENT),)
    own = [member for member in members if member.node_id == node_id]
    if not own:
        ids = ", ".join(member.node_id for member in members)
        raise ConfigurationError(f"node_id {node_id!r} is not among the members ({ids})")
    _refuse_twins(members)
    values = {**values, "members": members, "data_dir": Path(values["data_dir"])}
    values["client_listen"] = values["client_listen"] or own[0].client_address
    values["peer_listen"] = values["peer_listen"] or own[0].peer_address
    if _same_place(values["client_listen"]) == _same_place(values["peer_listen"]):
        raise ConfigurationError(f"client_listen and peer_listen are the same address: {values['client_listen']}")
    _check_http(values)
    values["root_token"] = _root_token(values.pop("root_token_file"))
    low, high, beat = values["election_timeout_min_ms"], values["election_timeout_max_ms"], values["heartbeat_ms"]
    if not beat * 3 < low < high:
        raise ConfigurationError(
            "timeouts must satisfy 3 × heartbeat_ms < election_timeout_min_ms < election_timeout_max_ms,"
            f" got {beat}, {low}, {high}"
        )
    _check_tls(values)
    values["archive"] = _archive_place(values)
    config = NodeConfig(**values)
    security.check(config)
    return config


def _check_tls(values: dict[str, Any]) -> None:
    """Whole sets of files only: half of one would be taken for protection."""
    for names, what in ((("tls_cert", "tls_key"), "clients"), (("peer_cert", "peer_key", "peer_ca"), "peers")):
        lacking = [name for name in names if values[name] is None]
        if 0 < len(lacking) < len(names):
            there = " and ".join(name for name in names if name not in lacking)
            raise ConfigurationError(
                f"{there} without {' and '.join(lacking)}: TLS with {what} needs {', '.join(names)}"
            )
    if values["peer_tls"] is not None and values["peer_cert"] is None:
        raise ConfigurationError(f"peer_tls = {values['peer_tls']} without peer_cert, peer_key and peer_ca")
    values["peer_tls"] = values["peer_tls"] or "require"
    for name in ("tls_client_ca", "tls_ca"):
        if values[name] is not None and values["tls_cert"] is None:
            raise ConfigurationError(f"{name} without tls_cert and tls_key: the node's ports speak no TLS")
    for name in FILES[2:-1]:
        values[name] = None if values[name] is None else Path(values[name])


def _archive_place(values: dict[str, Any]) -> Path | S3Place | None:
    """Takes the settings of a store away, which are part of the place."""
    names = ("archive_s3_endpoint", "archive_s3_region", "archive_s3_path_style")
    service = places.service(*(values.pop(name) for name in names))
    archive: str | None = values["archive"]
    if archive is not None and places.is_s3(archive):
        return places.parse_s3(archive, service)
    if service != places.AWS:
        raise ConfigurationError(f"{names[0]} and its like are for an archive s3://bucket/prefix, got {archive!r:.200}")
    return None if archive is None else Path(archive)


def _root_token(file: str | None) -> str:
    if file is None:
        return ""
    token = _token_of("root_token_file", file)
    if len(token) < LEAST_ROOT_TOKEN:
        raise ConfigurationError(
            f"the token in root_token_file {file} has {len(token)} characters; {LEAST_ROOT_TOKEN} are the least, and it"
            " should be random"
        )
    return token


def _token_of(setting: str, file: str) -> str:
    try:
        with Path(file).open() as source:
            return values_of.token(source.read(4_096))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text"
        raise ConfigurationError(f"cannot read {setting} {file}: {reason}") from None
    except ValueError as error:
        raise ConfigurationError(f"the token in {setting} {file} {error}") from None


def _check_http(values: dict[str, Any]) -> None:
    """The HTTP port, and its token."""
    listen = values["http_listen"]
    if listen is None:
        host, _, port = values["client_listen"].rpartition(":")
        listen = f"{host}:{int(port) + 1}"
        if int(port) == 65_535:
            raise ConfigurationError("http_listen is not set, and there is no port above client_listen's")
    values["http_listen"] = "" if listen == "off" else listen
    for name in ("client_listen", "peer_listen"):
        if listen != "off" and _same_place(listen) == _same_place(values[name]):
            raise ConfigurationError(f"http_listen and {name} are the same address: {listen}")
    file, token = values.pop("kv_connect_token_file"), values["kv_connect_token"]
    if file is not None and token is not None:
        raise ConfigurationError("kv_connect_token and kv_connect_token_file are both set: use one of them")
    if file is not None:
        token = _token_of("kv_connect_token_file", file)
    values["kv_connect_token"] = token or ""


def _refuse_twins(members: Sequence[Member]) -> None:
    """A node that is listed twice, under one id or two, would vote twice."""
    seen: dict[str, str] = {}
    for member in members:
        if member.node_id in seen.values():
            raise ConfigurationError(f"node {member.node_id!r} is listed twice among the members")
        for what, address in (("peer", member.peer_address), ("client", member.client_address)):
            place = _same_place(address)
            if seen.get(place) == member.node_id:
                raise ConfigurationError(f"member {member.node_id!r} has one address for peers and clients: {address}")
            if place in seen:
                raise ConfigurationError(
                    f"members {seen[place]!r} and {member.node_id!r} have the same address: {what} {address}"
                )
            seen[place] = member.node_id


def _same_place(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{'127.0.0.1' if host.lower() == 'localhost' else host.lower()}:{port}"
