"""TLS between nodes: contexts made of files that may be replaced at any time, and the names in certificates.

A node's certificate names it with a URI among its alternative names: `kvorum:node:ID`. The cluster is not named: its id
is drawn when its first leader takes office, long after the certificates were made. Which nodes may be one cluster is
said by the CA (one for each cluster), and the hello keeps the clusters of one CA apart by their ids.

Files are looked at whenever a connection is made: a `stat` each, next to a handshake that takes a hundred times as
long. What is replaced is used by the next connection; connections that are open stay as they are.
"""

import logging
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from kvorum_raft.errors import ConfigurationError

T = TypeVar("T")

NODE_PREFIX: Final = "kvorum:node:"
MAX_FILE: Final = 1 << 20
"""Bytes of a file with certificates or a key."""
SHUTDOWN_TIMEOUT: Final = 3.0
"""Seconds that the other side gets to answer the end of a connection."""
_DAY: Final = 86_400.0
_SOON: Final = 14 * _DAY
_log = logging.getLogger("kvorum.tls")


def node_name(node_id: str) -> str:
    """How a certificate names a node."""
    return NODE_PREFIX + quote(node_id, safe="")


def node_names(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The nodes that a certificate names, as `ssl` shows it (`getpeercert()`)."""
    alternatives: Iterable[tuple[str, str]] = (certificate or {}).get("subjectAltName", ())
    return frozenset(value for kind, value in alternatives if kind == "URI" and value.startswith(NODE_PREFIX))


@dataclass(frozen=True, slots=True)
class Identity:
    """What a certificate says of its holder."""

    nodes: frozenset[str]
    """As `node_name` writes them."""
    expires_at: float
    """Unix seconds."""


def read_pem(file: Path, what: str) -> bytes:
    """A file with certificates or a key. Raises ConfigurationError."""
    try:
        with file.open("rb") as source:
            data = source.read(MAX_FILE + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read {what} {file}: {error.strerror}") from None
    if len(data) > MAX_FILE:
        raise ConfigurationError(f"{what} {file} has more than {MAX_FILE} bytes")
    if b"-----BEGIN " not in data:
        raise ConfigurationError(f"{what} {file} is not PEM: it holds no -----BEGIN line")
    return data


def identify(file: Path, what: str) -> Identity:
    """The first certificate of a file. Raises ConfigurationError."""
    # Only a node with TLS needs it, and it takes a while to import.
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(read_pem(file, what))
    except ValueError:
        raise ConfigurationError(f"{what} {file} holds no certificate that can be read") from None
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    except ValueError:
        raise ConfigurationError(f"{what} {file} has extensions that cannot be read") from None
    nodes = frozenset(uri for uri in uris if uri.startswith(NODE_PREFIX))
    return Identity(nodes, certificate.not_valid_after_utc.timestamp())


def load_pair(context: ssl.SSLContext, certificate: Path, key: Path, what: str) -> None:
    """Give a context its certificate. Raises ConfigurationError."""
    read_pem(certificate, f"{what}_cert")
    read_pem(key, f"{what}_key")
    try:
        # Without a function OpenSSL would ask the terminal.
        context.load_cert_chain(certificate, key, password=_no_password)
    except _EncryptedKey:
        raise ConfigurationError(
            f"{what}_key {key} is encrypted: a node starts without anybody to ask; store it in clear, readable by the"
            " node only"
        ) from None
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        mismatch = "KEY_VALUES_MISMATCH" in str(error)
        why = "the key is not the certificate's" if mismatch else getattr(error, "reason", None) or str(error)
        raise ConfigurationError(f"{what}_cert {certificate} and {what}_key {key} cannot be used: {why}") from None


def load_ca(context: ssl.SSLContext, file: Path, what: str) -> None:
    """Give a context the CAs of a file. Raises ConfigurationError."""
    data = read_pem(file, what)
    try:
        context.load_verify_locations(cadata=data.decode("ascii", "replace"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{what} {file} cannot be used: {getattr(error, 'reason', None) or error}") from None


class _EncryptedKey(Exception):
    pass


def _no_password() -> str:
    raise _EncryptedKey


class Reloading(Generic[T]):
    """Something made of files, made anew when one of them has changed.

    What cannot be made of the new files is logged, and what was made of the old ones stays in use: files are replaced
    one after the other, and between two of them a certificate has another one's key.
    """

    def __init__(self, files: Sequence[Path], make: Callable[[], T], what: str) -> None:
        """Raises ConfigurationError, as `make` does."""
        self._files = tuple(files)
        self._make = make
        self._what = what
        self._seen = self._signature()
        self._made = make()
        self.loads = 1
        self.failures = 0

    def get(self) -> T:
        """The newest that could be made."""
        seen = self._signature()
        if seen != self._seen:
            self._seen = seen
            try:
                self._made = self._make()
            except ConfigurationError as error:
                self.failures += 1
                _log.warning("%s: the old files stay in use: %s", self._what, error)
            else:
                self.loads += 1
                _log.info("%s: replaced files are in use", self._what)
        return self._made

    def _signature(self) -> tuple[object, ...]:
        return tuple(_version(file) for file in self._files)


def _version(file: Path) -> object:
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


@dataclass(frozen=True, slots=True)
class _Contexts:
    server: ssl.SSLContext
    client: ssl.SSLContext
    identity: Identity


class PeerTls:
    """TLS 1.3 between nodes, both sides with a certificate of `ca`, this one's naming `node_id`."""

    def __init__(self, node_id: str, certificate: Path, key: Path, ca: Path) -> None:
        """Raises ConfigurationError with one line."""
        self._node_id = node_id
        self._files = (certificate, key, ca)
        self._contexts = Reloading(self._files, self._load, "certificate between nodes")

    def server(self) -> ssl.SSLContext:
        """For connections that peers make."""
        return self._contexts.get().server

    def client(self) -> ssl.SSLContext:
        """For connections to peers."""
        return self._contexts.get().client

    def expires_in(self) -> float:
        """Seconds; below 0 if it has expired."""
        return self._contexts.get().identity.expires_at - time.time()

    @property
    def failures(self) -> int:
        """Replacements that could not be used."""
        return self._contexts.failures

    def _load(self) -> _Contexts:
        certificate, key, ca = self._files
        contexts = []
        for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
            context = ssl.SSLContext(protocol)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            # A node is named by its id, wherever it is reached: see `connection`.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            load_pair(context, certificate, key, "peer")
            load_ca(context, ca, "peer_ca")
            contexts.append(context)
        server, client = contexts
        server.num_tickets = 0  # a resumed session would outlive the CA that vouched for it
        identity = identify(certificate, "peer_cert")
        if node_name(self._node_id) not in identity.nodes:
            named = ", ".join(sorted(identity.nodes)) or "no node"
            raise ConfigurationError(
                f"peer_cert {certificate} names {named}, and this is {node_name(self._node_id)}: make one with"
                f" `kvorum certs node DIR --id {self._node_id} --host …`"
            )
        warn_of_expiry(identity, certificate)
        return _Contexts(server, client, identity)


def warn_of_expiry(identity: Identity, file: Path) -> None:
    """Log it if a certificate has expired, or does so soon."""
    left = identity.expires_at - time.time()
    if left < 0:
        _log.error("the certificate %s expired %.1f days ago: whoever is shown it will refuse it", file, -left / _DAY)
    elif left < _SOON:
        _log.warning("the certificate %s expires in %.1f days: replace it", file, left / _DAY)
