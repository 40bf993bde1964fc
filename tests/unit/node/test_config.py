"""The configuration: three sources, checked by name. P39 among them."""

import json
import logging
from pathlib import Path

import pytest

from kvorum_node.backup.places import S3Place, Service
from kvorum_node.config import SETTINGS, load, strange_variables
from kvorum_node.logs import Format, LineFormatter
from kvorum_node.main import _parser, check_ports, main
from kvorum_raft.errors import ConfigurationError

GOOD = """
node_id = "n1"
data_dir = "data"
lease_ms = 1000
[[members]]
id = "n1"
peer = "127.0.0.1:7403"
client = "127.0.0.1:7401"
[[members]]
id = "n2"
peer = "127.0.0.1:7413"
client = "127.0.0.1:7411"
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "node.toml"
    file.write_text(text)
    return file


def refused(folder: Path, text: str, environment: dict[str, str] | None = None, **flags: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(write(folder, text), environment or {}, flags)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_good_file(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD), {}, {})
    assert config.data_dir == tmp_path / "data"
    assert (config.client_listen, config.peer_listen) == ("127.0.0.1:7401", "127.0.0.1:7403")
    assert [member.node_id for member in config.members] == ["n1", "n2"]
    assert (config.lease_ms, config.election_timeout_max_ms) == (1000, 1000)


def test_the_http_port_is_beside_the_clients(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD), {}, {})
    assert (config.http_listen, config.kv_connect_token, config.kv_connect_open) == ("127.0.0.1:7402", "", False)
    assert load(write(tmp_path, GOOD), {}, {"http_listen": "off"}).http_listen == ""
    elsewhere = load(write(tmp_path, GOOD), {}, {"http_listen": "0.0.0.0:80", "insecure": "true"})
    assert elsewhere.http_listen == "0.0.0.0:80"


def test_the_token_may_be_in_a_file(tmp_path: Path) -> None:
    """Beside the configuration, with or without a newline at its end; it is never printed."""
    (tmp_path / "token").write_text("s3cret-s3cret\n")
    config = load(write(tmp_path, 'kv_connect_token_file = "token"\n' + GOOD), {}, {})
    assert config.kv_connect_token == "s3cret-s3cret"
    assert "s3cret" not in repr(config)
    assert load(write(tmp_path, GOOD), {"KVORUM_KV_CONNECT_TOKEN": "abc"}, {}).kv_connect_token == "abc"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ('http_listen = "127.0.0.1:7401"', ["http_listen", "client_listen", "7401"]),
        ('http_listen = "localhost:7403"', ["http_listen", "peer_listen", "7403"]),
        ('http_listen = "7402"', ["http_listen", "host:port"]),
        ('client_listen = "127.0.0.1:65535"', ["http_listen", "client_listen"]),
        ('kv_connect_token = "with space"', ["kv_connect_token", "without spaces"]),
        ('kv_connect_token = "emoji-😀"', ["kv_connect_token", "ASCII"]),
        ('kv_connect_token = "a"\nkv_connect_token_file = "b"', ["kv_connect_token", "both"]),
        ('kv_connect_token_file = "nowhere"', ["kv_connect_token_file", "nowhere", "No such file"]),
        ('kv_connect_relabel = "maybe"', ["kv_connect_relabel", "auto, always, never"]),
    ],
)
def test_what_is_wrong_with_http_is_named(tmp_path: Path, line: str, names: list[str]) -> None:
    message = refused(tmp_path, f"{line}\n{GOOD}")
    assert all(name in message for name in names), message


@pytest.mark.parametrize(
    "line",
    [
        'kv_connect_token = "hidden secret"',
        'kv_connect_token = ["hidden"]',
        'root_token = "hidden"',
        'archive = "s3://user:hidden@bucket/prefix"',
        'archive = "s3://key:hid/hidden@bucket"',
        'archive = "s3://bucket/prefix?key=hidden"',
        'archive = "https://user:hidden@host/bucket"',
        'archive_s3_endpoint = "https://user:hidden@host"',
    ],
)
def test_a_secret_is_not_told_when_it_is_wrong(tmp_path: Path, line: str) -> None:
    assert "hidden" not in refused(tmp_path, f"{line}\n{GOOD}")
    name, _, value = line.partition(" = ")
    environment = {f"KVORUM_{name.upper()}": value.strip('"')}
    if name == "kv_connect_token" and " " not in value:
        return  # as a text it is one
    with pytest.raises(ConfigurationError) as caught:
        load(write(tmp_path, GOOD), environment, {})
    assert "hidden" not in str(caught.value)


def test_a_secret_is_no_argument_of_a_process(tmp_path: Path) -> None:
    message = refused(tmp_path, GOOD, kv_connect_token="hidden")
    assert "hidden" not in message
    assert all(name in message for name in ("--kv-connect-token-file", "$KVORUM_KV_CONNECT_TOKEN", "kv_connect_token"))
    assert [setting.name for setting in SETTINGS if setting.secret] == ["kv_connect_token"]
    assert "--kv-connect-token " not in _parser().format_help()
    assert "--kv-connect-token-file " in _parser().format_help()


def test_variables_win_over_the_file_and_flags_over_both(tmp_path: Path) -> None:
    environment = {"KVORUM_LEASE_MS": "2000", "KVORUM_LOG_LEVEL": "debug", "KVORUM_URL": "kvorum://x:1", "PATH": "/bin"}
    config = load(write(tmp_path, GOOD), environment, {"lease_ms": "3000"})
    assert (config.lease_ms, config.log_level) == (3000, "debug")


def test_a_node_can_be_configured_without_a_file(tmp_path: Path) -> None:
    members = "a=10.0.0.1:7403/10.0.0.1:7401, b=10.0.0.2:7403/10.0.0.2:7401"
    environment = {"KVORUM_NODE_ID": "b", "KVORUM_DATA_DIR": str(tmp_path), "KVORUM_MEMBERS": members}
    environment["KVORUM_INSECURE"] = "yes"
    config = load(None, environment, {})
    assert config.peer_listen == "10.0.0.2:7403"
    assert config.members[0].client_address == "10.0.0.1:7401"


def test_a_single_node_needs_no_members(tmp_path: Path) -> None:
    config = load(None, {}, {"node_id": "only", "data_dir": str(tmp_path)})
    assert (config.client_listen, config.peer_listen) == ("127.0.0.1:7401", "127.0.0.1:7403")


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (("lease_ms", "leese_ms"), ["'leese_ms'", "'lease_ms'"]),
        (("peer =", "pear ="), ["'pear'", "'peer'"]),
        (("lease_ms = 1000", "lease_ms = true"), ["lease_ms", "milliseconds"]),
        (("lease_ms = 1000", "lease_ms = -1"), ["lease_ms", "milliseconds"]),
        (("lease_ms = 1000", 'log_level = "loud"'), ["log_level", "debug"]),
        (("lease_ms = 1000", "heartbeat_ms = 400"), ["heartbeat_ms", "400"]),
        (("lease_ms = 1000", 'client_listen = "nowhere"'), ["client_listen", "host:port"]),
        (("lease_ms = 1000", 'client_listen = "127.0.0.1:7403"'), ["client_listen", "peer_listen"]),
        (('node_id = "n1"', 'node_id = "n9"'), ["'n9'", "n1, n2"]),
        (('node_id = "n1"', ""), ["node_id", "KVORUM_NODE_ID", "--node-id"]),
        (('"127.0.0.1:7411"', '"127.0.0.1:seven"'), ["host:port"]),
        (('client = "127.0.0.1:7411"', ""), ["lacks client"]),
        (('node_id = "n1"', "node_id = "), ["TOML"]),
        (('node_id = "n1"', r'node_id = "n\n1"'), ["node_id", "control characters"]),
        (('data_dir = "data"', r'data_dir = "a\u0000b"'), ["data_dir", "control characters"]),
        (("lease_ms = 1000", 'lease_ms = "²"'), ["lease_ms", "milliseconds"]),
        (('"127.0.0.1:7411"', '"127.0.0.1:²"'), ["host:port"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: tuple[str, str], names: list[str]) -> None:
    message = refused(tmp_path, GOOD.replace(*change, 1))
    assert all(name in message for name in names), message


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (('id = "n2"', 'id = "n1"'), ["n1", "twice"]),
        (('"127.0.0.1:7413"', '"127.0.0.1:7403"'), ["n1", "n2", "127.0.0.1:7403"]),
        (('"127.0.0.1:7413"', '"localhost:7403"'), ["n1", "n2", "7403"]),
        (('"127.0.0.1:7411"', '"127.0.0.1:7401"'), ["n1", "n2", "127.0.0.1:7401"]),
        (('"127.0.0.1:7411"', '"127.0.0.1:7413"'), ["n2", "127.0.0.1:7413"]),
    ],
)
def test_p39_a_node_listed_twice_is_refused(tmp_path: Path, change: tuple[str, str], names: list[str]) -> None:
    """P39: peers contain self or a duplicate → refused at start."""
    message = refused(tmp_path, GOOD.replace(*change, 1))
    assert all(name in message for name in names), message


def test_a_mistyped_variable_is_refused(tmp_path: Path) -> None:
    assert "KVORUM_DATA_DIR" in refused(tmp_path, GOOD, {"KVORUM_DATADIR": "/x"})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        load(tmp_path / "none.toml", {}, {})


def test_every_setting_has_a_variable_a_flag_and_help() -> None:
    for setting in SETTINGS:
        assert setting.variable == "KVORUM_" + setting.name.upper()
        assert setting.flag == "--" + setting.name.replace("_", "-")
        assert setting.help


def test_a_log_record_is_one_line_whatever_it_holds() -> None:
    record = logging.LogRecord("kvorum.node", logging.INFO, "", 0, 'said "%s"', ("a\nb",), None)
    text = LineFormatter("n1", "text").format(record)
    assert "\n" not in text
    assert "level=info node=n1" in text
    assert json.loads(LineFormatter("n1", "json").format(record))["message"] == 'said "a\nb"'


@pytest.mark.parametrize("odd", ["\x1b[2J", "\x9b31m", "\u202elive", "a\u2028b", "\x85", "\x7f", "\r", "\0"])
@pytest.mark.parametrize("style", ["text", "json"])
def test_a_log_record_tells_terminals_nothing(odd: str, style: Format) -> None:
    record = logging.LogRecord("kvorum.node", logging.INFO, "", 0, "%s", (f"x{odd}y",), None)
    record.fields = {"name": odd}
    line = LineFormatter("n1", style).format(record)
    assert line.isprintable() and len(line.splitlines()) == 1
    if style == "json":
        assert json.loads(line)["message"] == f"x{odd}y"


def test_what_is_no_host_name_is_named(tmp_path: Path) -> None:
    long = "x" * 300 + ":7401"
    text = GOOD.replace("lease_ms = 1000", f'insecure = true\nclient_listen = "{long}"', 1)
    config = load(write(tmp_path, text), {}, {})
    with pytest.raises(ConfigurationError, match=r"cannot listen for clients on x+:7401: not a host name"):
        check_ports(config)


@pytest.mark.parametrize(("text", "joins"), [("true", True), ("1", True), ("no", False), (None, False)])
def test_join_from_a_variable(tmp_path: Path, text: str | None, joins: bool) -> None:
    environment = {"KVORUM_NODE_ID": "n4", "KVORUM_DATA_DIR": str(tmp_path)}
    if text is not None:
        environment["KVORUM_JOIN"] = text
    assert load(None, environment, {}).join is joins


def test_join_from_the_file_and_as_a_bare_flag(tmp_path: Path) -> None:
    assert load(write(tmp_path, "join = true\n" + GOOD), {}, {}).join
    options = vars(_parser().parse_args(["--join", "--node-id", "n4"]))
    assert (options["join"], options["node_id"]) == ("true", "n4")
    assert vars(_parser().parse_args(["--node-id", "n4"]))["join"] is None
    assert "join" in refused(tmp_path, 'join = "perhaps"\n' + GOOD)


def test_reserve_and_scrub_interval_are_checked(tmp_path: Path) -> None:
    config = load(write(tmp_path, "min_free_mb = 512\nscrub_interval_s = 0\n" + GOOD), {}, {})
    assert (config.min_free_mb, config.scrub_interval_s) == (512, 0)
    assert "min_free_mb" in refused(tmp_path, "min_free_mb = -1\n" + GOOD)
    assert config.checkpoint_log_mb == 32
    assert "checkpoint_log_mb" in refused(tmp_path, "checkpoint_log_mb = 0\n" + GOOD)


def test_an_archive_in_a_store(tmp_path: Path) -> None:
    text = 'archive = "s3://bucket/kvorum/"\narchive_s3_endpoint = "https://minio.example:9000/"\n' + GOOD
    place = load(write(tmp_path, text), {"KVORUM_ARCHIVE_S3_REGION": "eu-1"}, {}).archive
    assert place == S3Place("bucket", "kvorum", Service("https://minio.example:9000", "eu-1", "auto"))
    assert str(place) == "s3://bucket/kvorum"
    assert load(write(tmp_path, 'archive = "archive"\n' + GOOD), {}, {}).archive == tmp_path / "archive"
    assert load(write(tmp_path, GOOD), {}, {}).archive is None


def test_an_archive_that_is_none(tmp_path: Path) -> None:
    assert "must be s3://bucket" in refused(tmp_path, 'archive = "s3:///x"\n' + GOOD)
    told = refused(tmp_path, 'archive_s3_endpoint = "https://user:hidden@host"\n' + GOOD)
    assert "without a user" in told
    assert "hidden" not in told
    assert "for an archive s3://" in refused(tmp_path, 'archive_s3_region = "eu-1"\narchive = "folder"\n' + GOOD)
    assert "must be one of auto, always, never" in refused(tmp_path, 'archive_s3_path_style = "yes"\n' + GOOD)


# ---- the operator's slips


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("KVORUM_DATADIR", "KVORUM_DATA_DIR"),
        ("KVORUM_DATA", "KVORUM_DATA_DIR"),
        ("KVORUM_TLS_KEY_FILE", "KVORUM_TLS_KEY"),
        ("KVORUM_TLS", "KVORUM_TLS_CA"),
        ("KVORUM_LEASE", "KVORUM_LEASE_MS"),
        ("KVORUM_LEASE_S", "KVORUM_LEASE_MS"),
        ("KVORUM_ELECTION_TIMEOUT_MS", "KVORUM_ELECTION_TIMEOUT_MIN_MS"),
        ("KVORUM_NODE", "KVORUM_NODE_ID"),
        ("KVORUM_MEMBER", "KVORUM_MEMBERS"),
    ],
)
def test_a_variable_that_is_misspelt_longer_or_shorter_is_refused(tmp_path: Path, variable: str, meant: str) -> None:
    message = refused(tmp_path, GOOD, {variable: "1"})
    assert f"${variable}" in message and f"did you mean {meant!r}?" in message


def test_what_containers_find_in_their_environment_is_no_slip(tmp_path: Path) -> None:
    """Kubernetes names variables after services: this one is `kvorum-peer`, whose KVORUM_PEER_PORT looks like
    KVORUM_PEER_CERT."""
    place = "tcp://10.0.0.1:7403"
    environment = {
        "KVORUM_PEER_SERVICE_HOST": "10.0.0.1",
        "KVORUM_PEER_SERVICE_PORT": "7403",
        "KVORUM_PEER_SERVICE_PORT_PEERS": "7403",
        "KVORUM_PEER_PORT": place,
        "KVORUM_PEER_PORT_7403_TCP": place,
        "KVORUM_PEER_PORT_7403_TCP_ADDR": "10.0.0.1",
        "KVORUM_ARCHIVE_SERVICE_HOST": "10.0.0.1",
    }
    assert load(write(tmp_path, GOOD), environment, {}).node_id == "n1"
    assert strange_variables(environment) == []


def test_what_nobody_heeds_is_found() -> None:
    environment = {"KVORUM_COLOUR": "red", "KVORUM_URL": "x", "KVORUM_LEASE_MS": "1", "PATH": "/bin"}
    assert strange_variables(environment) == ["KVORUM_COLOUR"]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ('lease_ms = "30s"', ["lease_ms", "milliseconds", "'30s'"]),
        ("lease_ms = 30.0", ["lease_ms", "milliseconds", "30.0"]),
        ('min_free_mb = "1GB"', ["min_free_mb", "whole number", "'1GB'"]),
        ("archive_keep_days = -1", ["archive_keep_days", "-1"]),
        ('join = "perhaps"', ["join", "true or false", "'perhaps'"]),
        ('log_level = "loud"', ["log_level", "debug", "'loud'"]),
        ("log_level = [1]", ["log_level", "debug", "[1]"]),
        ("client_listen = 7401", ["client_listen", "text", "7401"]),
        ("hartbeat_ms = 1", ["hartbeat_ms", "heartbeat_ms"]),
        ("'hartbeat_ms' = 1", ["hartbeat_ms", "heartbeat_ms"]),
        ("tls.cert = 1", ["'tls'", "tls_c"]),
    ],
)
def test_a_wrong_line_is_named_with_its_number_and_what_it_says(tmp_path: Path, line: str, names: list[str]) -> None:
    message = refused(tmp_path, f"# a comment\n\n{line}\n{GOOD.replace('lease_ms = 1000', '')}")
    assert "node.toml, line 3: " in message
    assert all(name in message for name in names), message


def test_a_table_that_is_no_setting_is_named_with_its_line(tmp_path: Path) -> None:
    assert "node.toml, line 3: unknown key 'tls'" in refused(tmp_path, '# one\n\n[tls]\ncert = "x"\n')


@pytest.mark.parametrize("variable", ["KVORUM_LEASE_MS", "KVORUM_JOIN", "KVORUM_LOG_LEVEL", "KVORUM_MIN_FREE_MB"])
def test_a_wrong_variable_is_named_with_what_it_says(tmp_path: Path, variable: str) -> None:
    message = refused(tmp_path, GOOD, {variable: "5 minutes"})
    assert message.startswith(f"${variable} must be ") and "'5 minutes'" in message


def test_a_setting_below_the_members_is_told_where_it_belongs(tmp_path: Path) -> None:
    """In TOML it is the last member's key there."""
    for key in ("slow_operation_ms", "client_listen"):
        message = refused(tmp_path, f'{GOOD}{key} = "5"\n')
        assert f"members number 2 has an unknown key '{key}'; settings of the node stand above" in message


@pytest.mark.parametrize("value", ["9" * 5_000, "[" * 3_000 + "]" * 3_000])
def test_what_the_parser_of_toml_chokes_on_is_one_line(tmp_path: Path, value: str) -> None:
    assert "node.toml is not valid TOML" in refused(tmp_path, f"lease_ms = {value}\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--leas-ms", "5"), "unrecognized arguments: --leas-ms 5; did you mean --lease-ms?"),
        (("--lease-ms",), "argument --lease-ms: expected one argument"),
        (("n1.toml",), "unrecognized arguments: n1.toml; --help shows all flags"),
        (("--lease-ms", "5s"), "--lease-ms must be a whole number of milliseconds"),
    ],
)
def test_a_wrong_flag_is_a_wrong_setting(
    words: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A supervisor must not start such a node again and again: status 78."""
    assert main(["--config", str(write(tmp_path, GOOD)), "--check-config", *words]) == 78
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kvorum node: {told}")
