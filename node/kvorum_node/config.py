"""The configuration of a node: a TOML file, environment variables `KVORUM_*`, flags; the later ones win.

Every setting stands in one table, from which the file's keys, the variables' names and the flags are derived. What
nobody knows is refused by name: a setting with a typing error that is silently ignored shows itself at the worst
time.
"""

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvorum import limits
from kvorum.tls import SYSTEM
from kvorum_raft.errors import ConfigurationError
from kvorum_raft.seams import Member

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


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text that is not empty")
    if any(character < " " or character == "\x7f" for character in value.strip()):
        raise ValueError(f"must not hold control characters, got {value.strip()!r}")
    return value.strip()


def _is_number(text: str) -> bool:
    """What int() takes is more, and what isdigit() takes is not always taken by int()."""
    return text.isascii() and text.isdigit() and len(text) <= 20


def _milliseconds(value: Any) -> int:
    if isinstance(value, str) and _is_number(value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 86_400_000:
        raise ValueError("must be a whole number of milliseconds from 1 to 86400000")
    return value


def _whole(least: int, most: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, str) and _is_number(value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value

    return parse


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if not isinstance(value, str) or value.strip().lower() not in known:
        raise ValueError("must be true or false")
    return known[value.strip().lower()]


def _choice(*choices: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return str(value)

    return parse


def _address(value: Any) -> str:
    text = _text(value)
    host, colon, port = text.rpartition(":")
    if not colon or not host or not _is_number(port) or not 1 <= int(port) <= 65_535:
        raise ValueError(f"must be host:port, got {text!r}")
    return text


def _address_or_off(value: Any) -> str:
    return "off" if value == "off" else _address(value)


def _token(value: Any) -> str:
    """What fits into a header, and cannot be mistaken for its end. It is a secret: no message repeats it."""
    text = value.strip() if isinstance(value, str) else ""
    if not 0 < len(text) <= 1_024 or any(not "!" <= character <= "~" for character in text):
        raise ValueError("must be 1 to 1024 printable ASCII characters without spaces")
    return text


def _archive(value: Any) -> str:
    text = _text(value)
    if places.is_s3(text):
        places.parse_s3(text)
    elif text.partition("://")[1] and text.partition("://")[0].isalnum():
        raise ValueError("must be a folder or s3://bucket/prefix; the store's URL is archive_s3_endpoint")
    return text


def _members(value: Any) -> tuple[Member, ...]:
    """The file's `[[members]]`, or the text `id=peer/client,…`."""
    if isinstance(value, str):
        return tuple(_member_of_text(part) for part in value.split(",") if part.strip())
    if not isinstance(value, list):
        raise ValueError("must be a list: [[members]] with id, peer and client")
    found = []
    for number, row in enumerate(value, 1):
        if not isinstance(row, dict):
            raise ValueError(f"number {number} must be a table with id, peer and client")
        for key in row:
            if key not in ("id", "peer", "client"):
                raise ValueError(
                    f"number {number} has an unknown key {key!r}{_did_you_mean(key, ('id', 'peer', 'client'))}"
                )
        missing = [key for key in ("id", "peer", "client") if key not in row]
        if missing:
            raise ValueError(f"number {number} lacks {' and '.join(missing)}")
        found.append(Member(_text(row["id"]), _address(row["peer"]), _address(row["client"])))
    return tuple(found)


def _member_of_text(text: str) -> Member:
    node_id, equals, addresses = text.strip().partition("=")
    peer, slash, client = addresses.partition("/")
    if not (equals and slash and node_id):
        raise ValueError(f"must be id=peer/client, e.g. n1=10.0.0.1:7403/10.0.0.1:7401, got {text.strip()!r}")
    return Member(node_id, _address(peer), _address(client))


SETTINGS: tuple[Setting, ...] = (
    Setting("node_id", _text, None, "this node's id, one of the members'"),
    Setting("data_dir", _text, None, "folder for log and state"),
    Setting(
        "client_listen", _address, None, "host:port to serve clients on (default: its member entry's client address)"
    ),
    Setting("peer_listen", _address, None, "host:port to serve peers on (default: its member entry's peer address)"),
    Setting(
        "http_listen",
        _address_or_off,
        None,
        "host:port for KV Connect (Deno, Node), health and metrics, or off (default: client_listen's port + 1)",
    ),
    Setting("members", _members, (), "all nodes, this one included: id=peer/client,…  ([[members]] in the file)"),
    Setting(
        "join",
        _truth,
        False,
        "form no cluster: wait with an empty folder until `kvorum cluster add` or `replace` lets this node in",
        switch=True,
    ),
    Setting("election_timeout_min_ms", _milliseconds, 500, "shortest time without a leader before a node campaigns"),
    Setting("election_timeout_max_ms", _milliseconds, 1_000, "longest one"),
    Setting("heartbeat_ms", _milliseconds, 100, "time between a leader's signs of life"),
    Setting("lease_ms", _milliseconds, limits.DEFAULT_LEASE, "how long a lost consumer keeps its messages"),
    Setting(
        "session_idle_ms",
        _milliseconds,
        limits.SESSION_IDLE,
        "a client's session is closed after so long without a connection",
    ),
    Setting(
        "min_free_mb",
        _whole(0, 1 << 30),
        0,
        "MiB of disk space below which growth is refused (default 0: 5 % of the disk, at least 1024)",
    ),
    Setting(
        "scrub_interval_s",
        _whole(0, 366 * 86_400),
        3_600,
        "seconds between two slow scans of the state for damage; 0: none",
    ),
    Setting(
        "checkpoint_log_mb",
        _whole(1, 1 << 16),
        32,
        "MiB of log after which a checkpoint is made, at the latest; a quarter of the state, if that is more",
    ),
    Setting("event_loop", _choice("auto", "uvloop", "asyncio"), "auto", "auto takes uvloop where it is installed"),
    Setting("log_level", _choice(*LEVELS), "info", "debug, info, warning or error"),
    Setting("log_format", _choice(*FORMATS), "text", "text (key=value) or json, one line an event"),
    Setting(
        "slow_operation_ms",
        _whole(0, 86_400_000),
        500,
        "milliseconds after which an operation is logged as slow; 0: none",
    ),
    Setting(
        "kv_connect_token",
        _token,
        None,
        "access token for KV Connect, the same on all nodes (default: none; then any bearer token is taken, but from"
        " this machine only)",
        secret=True,
    ),
    Setting("kv_connect_token_file", _text, None, "file that holds it, in place of kv_connect_token"),
    Setting(
        "root_token_file",
        _text,
        None,
        "file that holds the root token, the same on all nodes: it may do everything, whether or not there are other"
        " tokens (16 printable characters at least)",
    ),
    Setting(
        "kv_connect_open",
        _truth,
        False,
        "serve KV Connect to other machines without a token: whoever reaches the port may read and write everything",
        switch=True,
    ),
    Setting(
        "kv_connect_relabel",
        _choice("auto", "always", "never"),
        "auto",
        "show values of Deno >= 2.8 (V8 version 16) as version 15: auto does so for clients that cannot read 16",
    ),
    Setting(
        "kv_connect_held_ms",
        _whole(100, 30_000),
        30_000,
        "how long a request of KV Connect waits for a leader before it is answered with what is known",
    ),
    Setting(
        "tls_cert",
        _text,
        None,
        "PEM file with this node's certificate, and what is between it and the CA: client port and HTTP port speak TLS",
    ),
    Setting("tls_key", _text, None, "PEM file with its key"),
    Setting("tls_client_ca", _text, None, "PEM file of a CA: clients of both ports must show a certificate of it"),
    Setting(
        "tls_ca",
        _text,
        None,
        "PEM file of the CA of the other nodes' tls_cert, whose leader the HTTP port writes to (default: tls_client_ca,"
        " else peer_ca, else this machine's CAs, which are also meant by `system`)",
    ),
    Setting("peer_cert", _text, None, "PEM file with this node's certificate for peers, which names it by its id"),
    Setting("peer_key", _text, None, "PEM file with its key"),
    Setting("peer_ca", _text, None, "PEM file of the CA whose certificates nodes show each other"),
    Setting(
        "peer_tls",
        _choice("require", "prefer"),
        None,
        "require, or prefer: speak TLS with peers that do, and in clear with others, while a running cluster changes"
        " from the one to the other (default: require, where there are certificates)",
    ),
    Setting(
        "insecure",
        _truth,
        False,
        "listen beyond this machine without what protects a port there: whoever reaches it may do everything",
        switch=True,
    ),
    Setting(
        "archive",
        _archive,
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
        _choice(*places.PATH_STYLES),
        "auto",
        "whether the bucket stands in the URL's path: auto does so if there is an archive_s3_endpoint",
    ),
    Setting("archive_every_s", _whole(1, 86_400), 10, "what was applied is in the archive after so many seconds"),
    Setting("archive_segment_mb", _whole(1, 1_024), 16, "or when it has become so many MiB"),
    Setting("archive_base_hours", _whole(1, 24 * 366), 24, "hours between two backups in the archive"),
    Setting(
        "archive_keep_days",
        _whole(0, 36_600),
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
        with file.open("rb") as source:
            table = tomllib.load(source)
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not valid TOML: {error}") from None
    values = {}
    for key, value in table.items():
        if key not in _BY_NAME:
            raise ConfigurationError(f"{file}: unknown key {key!r}{_did_you_mean(key, _BY_NAME)}")
        values[key] = _parse(_BY_NAME[key], value, f"{file}: {key}")
    if "data_dir" in values:
        # A relative folder is meant as the file's neighbour, not as that of whoever starts the node.
        values["data_dir"] = str(file.parent / values["data_dir"])
    for name in FILES:
        if name in values and values[name] != SYSTEM and not places.is_s3(values[name]):
            values[name] = str(file.parent / values[name])
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    by_variable = {setting.variable: setting for setting in SETTINGS}
    values = {}
    for variable, text in environment.items():
        if not variable.startswith(ENV_PREFIX):
            continue
        setting = by_variable.get(variable)
        if setting is not None:
            values[setting.name] = _parse(setting, text, f"${variable}")
        elif variable not in _CLIENTS and difflib.get_close_matches(variable, by_variable, 1, 0.85):
            # Others may use the prefix for their own ends ($KVORUM_URL is the client's); a near miss is a typing error.
            raise ConfigurationError(f"unknown variable ${variable}{_did_you_mean(variable, by_variable)}")
    return values


def _parse(setting: Setting, value: Any, where: str) -> Any:
    try:
        return setting.parse(value)
    except ValueError as error:
        raise ConfigurationError(f"{where} {error}") from None


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1, 0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


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
            return _token(source.read(4_096))
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
