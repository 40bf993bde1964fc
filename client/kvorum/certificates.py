"""Making certificates: a CA for one cluster, its nodes and its clients. Imports `cryptography`, which only this needs.

ECDSA on P-256: every TLS library knows it, and a handshake costs a tenth of RSA's.
"""

import contextlib
import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from kvorum.errors import InvalidArgument

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA_DAYS: Final = 3_650
DAYS: Final = 397
"""Of nodes and clients; what browsers take at most, so that renewing them is a habit."""
MAX_DAYS: Final = 36_500
EARLY: Final = timedelta(hours=1)
"""Clocks differ: a certificate is valid a little before it is made."""
NODE_PREFIX: Final = "kvorum:node:"
"""What names a node among its certificate's alternative names; nodes look for it (kvorum_raft.tls)."""
MAX_HOSTS: Final = 64
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST: Final = re.compile(
    r"(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
)


@dataclass(frozen=True)
class Made:
    """Files that were written."""

    certificate: Path
    key: Path
    expires: datetime


def make_ca(folder: Path, *, name: str, days: int = CA_DAYS, force: bool = False) -> Made:
    """`ca.pem` and `ca.key`. Errors: InvalidArgument, OSError."""
    from cryptography import x509

    files = _files(folder, "ca", force=force)
    key = _new_key()
    subject = _subject(name)
    now = datetime.now(UTC)
    until = now + _days(days)
    builder = _builder(subject, subject, key, now, until)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _write(files, _signed(builder, key), key, until)


def make_node(folder: Path, *, node_id: str, hosts: Sequence[str], days: int = DAYS, force: bool = False) -> Made:
    """`ID.pem` and `ID.key`: for a node's client port, HTTP port and peers. Errors: InvalidArgument, OSError."""
    from cryptography import x509

    if not hosts:
        raise InvalidArgument("a node's certificate needs the hosts by which clients reach it: --host, once for each")
    if len(hosts) > MAX_HOSTS:
        raise InvalidArgument(f"{len(hosts)} hosts; at most {MAX_HOSTS} go into one certificate")
    names: list[x509.GeneralName] = [_host(host) for host in dict.fromkeys(hosts)]
    names.append(x509.UniformResourceIdentifier(NODE_PREFIX + quote(node_id, safe="")))
    return _make_leaf(folder, node_id, names, days=days, force=force, serves=True)


def make_client(folder: Path, *, name: str, days: int = DAYS, force: bool = False) -> Made:
    """`NAME.pem` and `NAME.key`. Errors: InvalidArgument, OSError."""
    return _make_leaf(folder, name, [], days=days, force=force, serves=False)


def _make_leaf(
    folder: Path, name: str, names: "list[x509.GeneralName]", *, days: int, force: bool, serves: bool
) -> Made:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    if name.lower() == "ca":
        raise InvalidArgument("'ca' is the name of the CA's own files: choose another one")
    ca, ca_key = _load_ca(folder)
    files = _files(folder, name, force=force)
    key = _new_key()
    now = datetime.now(UTC)
    until = min(now + _days(days), ca.not_valid_after_utc)
    if until <= now:
        raise InvalidArgument(f"the CA in {folder} has expired: make another one, and give it to every node first")
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if serves:  # to its peers, and to the leader's client port, a node is a client as well
        uses.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
    builder = _builder(_subject(name), ca.subject, key, now, until)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _write(files, _signed(builder, ca_key), key, until)


# ---- reading


def show(file: Path) -> list[dict[str, Any]]:
    """What the certificates of a file say, as JSON data. Errors: InvalidArgument, OSError."""
    from cryptography import x509

    data = _read(file)
    try:
        found = x509.load_pem_x509_certificates(data)
    except ValueError:
        raise InvalidArgument(f"{file} holds no certificate that can be read") from None
    return [_facts(certificate) for certificate in found]


def _facts(certificate: "x509.Certificate") -> dict[str, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    try:
        extensions = certificate.extensions
    except ValueError:
        extensions = x509.Extensions([])
    alternatives: dict[str, list[str]] = {"dns": [], "ip": [], "uri": []}
    is_ca, uses = False, []
    for extension in extensions:
        value = extension.value
        if isinstance(value, x509.SubjectAlternativeName):
            alternatives["dns"] = value.get_values_for_type(x509.DNSName)
            alternatives["ip"] = [str(address) for address in value.get_values_for_type(x509.IPAddress)]
            alternatives["uri"] = value.get_values_for_type(x509.UniformResourceIdentifier)
        elif isinstance(value, x509.BasicConstraints):
            is_ca = value.ca
        elif isinstance(value, x509.ExtendedKeyUsage):
            uses = [getattr(use, "_name", use.dotted_string) for use in value]
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    return {
        "subject": certificate.subject.rfc4514_string(),
        "issuer": certificate.issuer.rfc4514_string(),
        "serial": f"{certificate.serial_number:x}",
        "ca": is_ca,
        "node": [uri.removeprefix(NODE_PREFIX) for uri in alternatives["uri"] if uri.startswith(NODE_PREFIX)],
        **alternatives,
        "uses": uses,
        "not_before": certificate.not_valid_before_utc.isoformat(),
        "not_after": certificate.not_valid_after_utc.isoformat(),
        "days_left": round(left / timedelta(days=1), 1),
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
    }


# ---- parts


def _new_key() -> "ec.EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _subject(name: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    if not 1 <= len(name) <= 64 or not name.isprintable():
        raise InvalidArgument(f"a name has 1 to 64 characters that can be printed, got {name!r}")
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "kvorum"), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


def _days(days: int) -> timedelta:
    if not 1 <= days <= MAX_DAYS:
        raise InvalidArgument(f"a certificate is valid for 1 to {MAX_DAYS} days, got {days}")
    return timedelta(days=days)


def _host(text: str) -> "x509.GeneralName":
    from cryptography import x509

    bare = text.removeprefix("[").removesuffix("]")
    try:
        return x509.IPAddress(ipaddress.ip_address(bare))
    except ValueError:
        pass
    if not _HOST.fullmatch(text) or len(text) > 253:
        raise InvalidArgument(f"--host {text!r} is no host name and no IP address (the port is not part of it)")
    return x509.DNSName(text)


def _usage(*, signs_certificates: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: "x509.Name", issuer: "x509.Name", key: "ec.EllipticCurvePrivateKey", now: datetime, until: datetime
) -> "x509.CertificateBuilder":
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _signed(builder: "x509.CertificateBuilder", key: "ec.EllipticCurvePrivateKey") -> "x509.Certificate":
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())


def _load_ca(folder: Path) -> "tuple[x509.Certificate, ec.EllipticCurvePrivateKey]":
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    for file in (folder / "ca.pem", folder / "ca.key"):
        if not file.exists():
            raise InvalidArgument(f"{file} is not there: make a CA with `kvorum certs ca {folder}`")
    try:
        certificate = x509.load_pem_x509_certificate(_read(folder / "ca.pem"))
        key = serialization.load_pem_private_key(_read(folder / "ca.key"), password=None)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"the CA in {folder} cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidArgument(f"{folder / 'ca.key'} is no ECDSA key, as `kvorum certs ca` makes it")
    if key.public_key() != certificate.public_key():
        raise InvalidArgument(f"{folder / 'ca.key'} is not the key of {folder / 'ca.pem'}")
    return certificate, key


# ---- files


def _files(folder: Path, name: str, *, force: bool) -> tuple[Path, Path]:
    if not _FILE_NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} cannot be a file's name here: use up to 64 letters, digits, dots, underscores and hyphens,"
            " the first one a letter or digit"
        )
    files = folder / f"{name}.pem", folder / f"{name}.key"
    there = [str(file) for file in files if file.exists() or file.is_symlink()]
    if there and not force:
        raise InvalidArgument(f"{' and '.join(there)} would be overwritten: --force does so")
    return files


def _write(
    files: tuple[Path, Path],
    certificate: "x509.Certificate",
    key: "ec.EllipticCurvePrivateKey",
    until: datetime,
) -> Made:
    from cryptography.hazmat.primitives import serialization

    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    files[0].parent.mkdir(parents=True, exist_ok=True)
    _replace(files[1], secret, 0o600)
    _replace(files[0], pem, 0o644)
    return Made(files[0], files[1], until)


def _replace(file: Path, data: bytes, mode: int) -> None:
    """As a whole, and never readable by others meanwhile."""
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as target:
            os.fchmod(target.fileno(), mode)  # whatever the umask says
            target.write(data)
            target.flush()
            os.fsync(target.fileno())
        fresh.rename(file)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def _read(file: Path) -> bytes:
    with file.open("rb") as source:
        data = source.read((1 << 20) + 1)
    if len(data) > 1 << 20:
        raise InvalidArgument(f"{file} has more than {1 << 20} bytes")
    return data
