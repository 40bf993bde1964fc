"""Clusters that speak TLS on every port, and the certificates for it."""

import contextlib
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509

from kvorum import Tls, certificates
from kvorum.tls import ChannelTls
from tests.integration.cluster_fixture import ThreeNodes

HOSTS = ("localhost", "127.0.0.1")


class Certificates:
    """A CA, three nodes n1 to n3, and the client `app`, in one folder."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.folder = folder
        certificates.make_ca(folder, name="test CA")
        for number in range(nodes):
            self.renew(f"n{number + 1}")
        certificates.make_client(folder, name="app")

    def renew(self, node_id: str, *, days: int = 30) -> None:
        """A new certificate and key in the place of the old ones."""
        certificates.make_node(self.folder, node_id=node_id, hosts=HOSTS, days=days, force=True)

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def pair(self, name: str) -> tuple[Path, Path]:
        """Certificate and key."""
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    @property
    def tls(self) -> Tls:
        """For clients without a certificate."""
        return Tls(ca=self.ca)

    @property
    def app(self) -> Tls:
        """For clients with one."""
        return Tls(self.ca, *self.pair("app"))

    def settings(self, name: str, *, clients: bool = False) -> dict[str, int | str]:
        """A node's; `clients`: they must show a certificate."""
        cert, key = map(str, self.pair(name))
        found: dict[str, int | str] = {"tls_cert": cert, "tls_key": key}
        found |= {"peer_cert": cert, "peer_key": key, "peer_ca": str(self.ca)}
        return found | ({"tls_client_ca": str(self.ca)} if clients else {})


class SecureNodes(ThreeNodes):
    """Three nodes with TLS everywhere."""

    def __init__(self, folder: Path, *, clients: bool = False, **settings: int | str) -> None:
        self.certificates = Certificates(folder / "certs")
        super().__init__(folder, **settings)
        self._node_settings = [self.certificates.settings(f"n{number + 1}", clients=clients) for number in range(3)]
        self.client_tls = self.certificates.app if clients else self.certificates.tls
        self._tls = ChannelTls(self.client_tls)


def make_expired(folder: Path, name: str, node_id: str | None = None) -> tuple[Path, Path]:
    """NAME.pem and NAME.key of the CA there, whose time was over yesterday."""
    ca, ca_key = certificates._load_ca(folder)
    key = certificates._new_key()
    yesterday = datetime.now(UTC) - timedelta(days=1)
    builder = certificates._builder(
        certificates._subject(name), ca.subject, key, yesterday - timedelta(days=30), yesterday
    )
    if node_id is not None:
        uri = x509.UniformResourceIdentifier(f"kvorum:node:{node_id}")
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), uri])
        builder = builder.add_extension(names, critical=False)
    files = certificates._files(folder, name, force=True)
    certificates._write(files, certificates._signed(builder, ca_key), key, yesterday)
    return files


def client_context(tls: Tls | None, *, alpn: tuple[str, ...] = ()) -> ssl.SSLContext:
    """For sockets of a test's own; None: without a certificate, and everybody is trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(list(alpn))
    if tls is not None and tls.cert is not None and tls.key is not None:
        assert isinstance(tls.cert, Path)
        assert isinstance(tls.key, Path)
        context.load_cert_chain(tls.cert, tls.key)
    return context


def hello_bytes() -> bytes:
    """What a TLS client says first."""
    outgoing = ssl.MemoryBIO()
    client = client_context(None).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()
