"""What `tls=` and the variables may be, and what is said of the rest."""

from pathlib import Path

import grpc
import pytest

import kvorum
from kvorum import Tls, certificates
from kvorum.errors import InvalidArgument
from kvorum.tls import ChannelTls, TlsOption, from_environment, resolve


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    certificates.make_ca(folder, name="test")
    certificates.make_client(folder, name="app")
    certificates.make_client(folder, name="other")
    return folder


def test_all_forms_of_a_ca(folder: Path) -> None:
    ca = folder / "ca.pem"
    forms: list[TlsOption] = [True, str(ca), ca, ca.read_text(), ca.read_bytes(), Tls(ca=ca), Tls(ca="system")]
    for form in (*forms, grpc.ssl_channel_credentials()):
        made = resolve(form, {})
        assert made is not None
        assert isinstance(made.credentials(), grpc.ChannelCredentials)


def test_nothing_means_no_tls_unless_a_variable_says_otherwise(folder: Path) -> None:
    environment = {"KVORUM_CA_FILE": str(folder / "ca.pem")}
    assert resolve(None, {}) is None
    assert resolve(False, environment) is None
    assert resolve(None, environment) is not None
    assert from_environment({"KVORUM_CA_FILE": ""}) is None
    assert from_environment(
        {**environment, "KVORUM_CERT_FILE": "a", "KVORUM_KEY_FILE": "b", "KVORUM_SERVER_NAME": "n"}
    ) == Tls(str(folder / "ca.pem"), "a", "b", "n")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda folder: resolve("nowhere.pem", {}), "nowhere.pem"),
        (lambda folder: resolve(folder / "ca.key", {}), "ca.key"),
        (lambda folder: resolve("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----", {}), "ca"),
        (lambda folder: resolve(7, {}), "int"),
        (lambda folder: Tls(cert="a.pem"), "key"),
        (lambda folder: Tls(key="a.key"), "cert"),
        (lambda folder: Tls(ca=5), "ca"),
        (lambda folder: Tls(server_name=""), "server_name"),
        (lambda folder: from_environment({"KVORUM_CERT_FILE": "a"}), "KVORUM_KEY_FILE"),
        (lambda folder: resolve(Tls(cert=folder / "app.pem", key=folder / "other.key"), {}), "not the certificate's"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, make: "object", named: str) -> None:
    with pytest.raises(InvalidArgument, match=named.replace(".", r"\.")):
        make(folder)  # type: ignore[operator]


async def test_it_is_said_when_opening(folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="nowhere"):
        await kvorum.open_kv("kvorum://127.0.0.1:1", tls="nowhere.pem")


def test_a_key_is_not_shown(folder: Path) -> None:
    key = (folder / "app.key").read_text()
    shown = repr(Tls(cert=(folder / "app.pem").read_bytes(), key=key))
    assert "BEGIN" not in shown
    assert "app.pem" in repr(Tls(cert="app.pem", key="app.key"))
    assert "hidden" not in repr(Tls(cert="app.pem", key=b"hidden"))


def test_files_are_read_again_when_they_change_and_kept_while_they_are_wrong(folder: Path, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes((folder / "ca.pem").read_bytes())
    made = ChannelTls(Tls(ca=ca))
    first = made.credentials()
    assert made.credentials() is first
    ca.write_text("damaged, and of another size")
    assert made.credentials() is first
    ca.write_bytes((folder / "ca.pem").read_bytes())
    assert made.credentials() is not first


def test_a_name_becomes_options_of_the_channel() -> None:
    made = ChannelTls(Tls(server_name="kv.example"))
    assert dict(made.options)["grpc.ssl_target_name_override"] == "kv.example"
    assert ChannelTls(Tls()).options == ()
