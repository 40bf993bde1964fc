"""The configuration: three sources, checked by name. P39 among them."""

import json
import logging
from pathlib import Path

import pytest

from kvorum_node.backup.places import S3Place, Service
from kvorum_node.config import SETTINGS, load
from kvorum_node.logs import Format, LineFormatter
from kvorum_node.main import _parser, check_ports
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
