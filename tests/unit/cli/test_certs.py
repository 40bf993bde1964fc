"""`kvorum certs`: what is made is what TLS needs, and nothing is lost by a slip of the finger."""

import json
import ssl
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from kvorum import certificates
from kvorum.cli.group import kvorum
from kvorum.errors import InvalidArgument


def run(*words: str, status: int = 0) -> Result:
    result = CliRunner().invoke(kvorum, ["certs", *words])
    assert result.exit_code == status, (result.output, result.exception)
    return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run("ca", str(tmp_path))
    return tmp_path


def certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def test_a_node_has_its_hosts_and_its_id_and_may_be_server_and_client(folder: Path) -> None:
    run("node", str(folder), "--id", "n1", "--host", "n1.example", "--host", "10.0.0.1", "--host", "fd00::1")
    made = certificate(folder / "n1.pem")
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["n1.example"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "fd00::1"]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["kvorum:node:n1"]
    uses = set(made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    assert uses == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert isinstance(made.public_key(), ec.EllipticCurvePublicKey)
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_client_serves_nobody_and_is_no_node(folder: Path) -> None:
    run("client", str(folder), "--name", "app")
    made = certificate(folder / "app.pem")
    assert list(made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]
    with pytest.raises(x509.ExtensionNotFound):
        made.extensions.get_extension_for_class(x509.SubjectAlternativeName)


def test_openssl_takes_the_pairs(folder: Path) -> None:
    run("node", str(folder), "--id", "n1", "--host", "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "n1.pem", folder / "n1.key")
    context.load_verify_locations(folder / "ca.pem")


def test_keys_are_for_their_owner_only(folder: Path) -> None:
    run("node", str(folder), "--id", "n1", "--host", "h")
    for name in ("ca.key", "n1.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert sorted(file.name for file in folder.iterdir()) == ["ca.key", "ca.pem", "n1.key", "n1.pem"]


@pytest.mark.parametrize("words", [("ca",), ("node", "--id", "n1", "--host", "h"), ("client", "--name", "n1")])
def test_nothing_is_overwritten_without_force(folder: Path, words: tuple[str, ...]) -> None:
    kind, *options = words
    run("node", str(folder), "--id", "n1", "--host", "h")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert "--force" in run(kind, str(folder), *options, status=2).stderr
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    run(kind, str(folder), *options, "--force")
    after = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert sorted(name for name in before if before[name] != after[name]) == (
        ["ca.key", "ca.pem"] if kind == "ca" else ["n1.key", "n1.pem"]
    )


def test_nothing_outlives_its_ca(tmp_path: Path) -> None:
    run("ca", str(tmp_path), "--days", "10")
    run("client", str(tmp_path), "--name", "app", "--days", "30")
    assert certificate(tmp_path / "app.pem").not_valid_after_utc == certificate(tmp_path / "ca.pem").not_valid_after_utc


def test_a_year_and_a_month_by_default(folder: Path) -> None:
    run("client", str(folder), "--name", "app")
    left = certificate(folder / "app.pem").not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=396) < left <= timedelta(days=397)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("node", "--id", "../n1", "--host", "h"), "../n1"),
        (("node", "--id", "ca", "--host", "h"), "ca"),
        (("node", "--id", "n1"), "--host"),
        (("node", "--id", "n1", "--host", "h:7401"), "port"),
        (("node", "--id", "n1", "--host", "spaced out"), "spaced out"),
        (("client", "--name", ".hidden"), ".hidden"),
        (("client", "--name", "x" * 65), "64"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_made(folder: Path, words: tuple[str, ...], named: str) -> None:
    kind, *options = words
    result = run(kind, str(folder), *options, status=2)
    (line,) = result.stderr.splitlines()
    assert line.startswith("kvorum: ")
    assert named in line
    assert sorted(file.name for file in folder.iterdir()) == ["ca.key", "ca.pem"]


def test_without_a_ca_it_says_how_to_make_one(tmp_path: Path) -> None:
    assert "kvorum certs ca" in run("client", str(tmp_path), "--name", "app", status=2).stderr


def test_a_key_of_another_ca_is_noticed(folder: Path, tmp_path: Path) -> None:
    run("ca", str(tmp_path / "other"))
    (folder / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    assert "not the key" in run("client", str(folder), "--name", "app", status=2).stderr


def test_show(folder: Path) -> None:
    run("node", str(folder), "--id", "n1", "--host", "n1.example")
    (facts,) = (json.loads(line) for line in run("show", str(folder / "n1.pem"), "--json").stdout.splitlines())
    assert (facts["node"], facts["dns"], facts["ca"]) == (["n1"], ["n1.example"], False)
    assert 396 < facts["days_left"] <= 397
    text = run("show", str(folder / "n1.pem")).stdout
    assert "n1.example" in text
    assert "kvorum:node:n1" in text
    assert "no certificate" in run("show", str(folder / "n1.key"), status=2).stderr
    assert "No such file" in run("show", str(folder / "gone.pem"), status=3).stderr


def test_without_cryptography_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert "kvorum[node]" in run("ca", str(folder / "new"), status=2).stderr


def test_odd_ids_are_written_as_a_uri_allows(folder: Path) -> None:
    with pytest.raises(InvalidArgument):
        certificates.make_node(folder, node_id="köln", hosts=["h"])
