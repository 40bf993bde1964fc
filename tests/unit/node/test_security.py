"""Where a node refuses to listen, and which TLS settings belong together."""

from pathlib import Path

import pytest

from kvorum_node.config import NodeConfig, load
from kvorum_node.security import is_loopback
from kvorum_raft.errors import ConfigurationError

CLIENTS = {"tls_cert": "c.pem", "tls_key": "c.key"}
PEERS = {"peer_cert": "p.pem", "peer_key": "p.key", "peer_ca": "ca.pem"}
OPEN = {"client_listen": "10.0.0.1:7401", "peer_listen": "10.0.0.1:7403"}


def loaded(folder: Path, **flags: str) -> NodeConfig:
    return load(None, {}, {"node_id": "n1", "data_dir": str(folder), **flags})


def refused(folder: Path, **flags: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        loaded(folder, **flags)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({"client_listen": "10.0.0.1:7401"}, ["client_listen", "10.0.0.1:7401", "tls_cert", "tls_key"]),
        ({"client_listen": "0.0.0.0:7401"}, ["client_listen", "tls_cert"]),
        ({"client_listen": "[::]:7401"}, ["client_listen", "tls_cert"]),
        ({"client_listen": "n1:7401"}, ["client_listen", "tls_cert"]),
        ({"http_listen": "192.168.0.1:80"}, ["http_listen", "192.168.0.1:80", "tls_cert"]),
        ({"peer_listen": "10.0.0.1:7403"}, ["peer_listen", "peer_cert", "peer_key", "peer_ca"]),
        ({**OPEN, **CLIENTS}, ["peer_listen", "peer_cert"]),
        ({**OPEN, **PEERS}, ["client_listen", "tls_cert"]),
    ],
)
def test_beyond_this_machine_only_with_tls(tmp_path: Path, flags: dict[str, str], names: list[str]) -> None:
    message = refused(tmp_path, **flags)
    assert all(name in message for name in [*names, "insecure"]), message
    assert loaded(tmp_path, **flags, insecure="true").insecure


def test_beyond_this_machine_only_with_a_root_token(tmp_path: Path) -> None:
    message = refused(tmp_path, **OPEN, **CLIENTS, **PEERS)
    assert all(name in message for name in ("client_listen", "root_token_file", "kvorum auth on", "insecure")), message
    for text, problem in (("short", "16 are the least"), ("with a space in it", "without spaces")):
        (tmp_path / "root").write_text(text)
        assert problem in refused(tmp_path, **OPEN, **CLIENTS, **PEERS, root_token_file=str(tmp_path / "root"))


def test_with_tls_on_all_ports_and_a_root_token_nothing_else_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("0123456789abcdef\n")
    config = loaded(tmp_path, **OPEN, **CLIENTS, **PEERS, root_token_file=str(tmp_path / "root"))
    assert config.root_token == "0123456789abcdef" and "0123456789abcdef" not in repr(config)
    assert not config.insecure
    assert config.http_listen == "10.0.0.1:7402"


def test_certificates_are_required_unless_it_is_said_otherwise(tmp_path: Path) -> None:
    assert loaded(tmp_path, **PEERS).peer_tls == "require"
    assert loaded(tmp_path, **PEERS, peer_tls="prefer").peer_tls == "prefer"


def test_who_answers_clear_peers_does_so_on_this_machine_only(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("0123456789abcdef\n")
    flags = {**OPEN, **CLIENTS, **PEERS, "root_token_file": str(tmp_path / "root"), "peer_tls": "prefer"}
    message = refused(tmp_path, **flags)
    assert all(name in message for name in ("peer_listen", "peer_tls = prefer", "require", "insecure")), message
    assert loaded(tmp_path, **flags, insecure="true").peer_tls == "prefer"


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("localhost:1", True),
        ("LOCALHOST:1", True),
        ("[::1]:1", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("128.0.0.1:1", False),
        ("localhost.example:1", False),
        ("n1:1", False),
        ("127.0.0.1.example:1", False),
    ],
)
def test_what_is_this_machine(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({"tls_cert": "c.pem"}, ["tls_cert without tls_key"]),
        ({"tls_key": "c.key"}, ["tls_key without tls_cert"]),
        ({"peer_cert": "p.pem", "peer_key": "p.key"}, ["without peer_ca"]),
        ({"peer_ca": "ca.pem"}, ["peer_ca without peer_cert and peer_key"]),
        ({"tls_client_ca": "ca.pem"}, ["tls_client_ca", "tls_cert"]),
        ({"tls_ca": "ca.pem"}, ["tls_ca", "tls_cert"]),
        ({"peer_tls": "prefer"}, ["peer_tls = prefer without peer_cert"]),
        ({"peer_tls": "require"}, ["peer_tls = require without peer_cert"]),
        ({**PEERS, "peer_tls": "maybe"}, ["--peer-tls must be one of require, prefer"]),
    ],
)
def test_half_of_a_set_is_refused(tmp_path: Path, flags: dict[str, str], names: list[str]) -> None:
    for more in ({}, {"insecure": "true"}):
        message = refused(tmp_path, **flags, **more)
        assert all(name in message for name in names), message


def test_files_are_beside_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    lines = [f'{name} = "{value}"' for name, value in {**CLIENTS, **PEERS, "node_id": "n1", "data_dir": "d"}.items()]
    file.write_text("\n".join(lines))
    config = load(file, {}, {"tls_client_ca": "elsewhere.pem"})
    assert (config.tls_cert, config.peer_ca) == (tmp_path / "c.pem", tmp_path / "ca.pem")
    assert config.tls_client_ca == Path("elsewhere.pem")
    assert config.tls_ca is None
    file.write_text('tls_ca = "system"\n' + file.read_text())
    assert load(file, {}, {}).tls_ca == Path("system")


def test_a_clients_variables_are_no_typing_errors_of_a_nodes(tmp_path: Path) -> None:
    """One environment may serve both."""
    names = ("CA_FILE", "CERT_FILE", "KEY_FILE", "SERVER_NAME", "URL", "TOKEN", "TOKEN_FILE")
    load(None, {f"KVORUM_{name}": "x" for name in names}, {"node_id": "n1", "data_dir": str(tmp_path)})
