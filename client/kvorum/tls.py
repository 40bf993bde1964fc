"""What a client needs for TLS: whom it trusts, and who it is.

    kvorum.open_kv("kvorum://n1:7401", tls=True)                      # the machine's own certificate authorities
    kvorum.open_kv("kvorum://n1:7401", tls="ca.pem")                  # one CA, as `kvorum certs ca` makes it
    kvorum.open_kv("kvorum://n1:7401", tls=kvorum.Tls(ca="ca.pem", cert="app.pem", key="app.key"))

Without `tls=`, `$KVORUM_CA_FILE`, `$KVORUM_CERT_FILE`, `$KVORUM_KEY_FILE` and `$KVORUM_SERVER_NAME` say the same.
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kvorum.errors import InvalidArgument

if TYPE_CHECKING:
    import grpc

CA_VARIABLE: Final = "KVORUM_CA_FILE"
CERT_VARIABLE: Final = "KVORUM_CERT_FILE"
KEY_VARIABLE: Final = "KVORUM_KEY_FILE"
NAME_VARIABLE: Final = "KVORUM_SERVER_NAME"
SYSTEM: Final = "system"
"""In place of a file of CAs: the machine's own."""
MAX_FILE: Final = 1 << 20
"""Bytes of a file with certificates or a key."""
_BEGIN: Final = b"-----BEGIN "

File = str | os.PathLike[str] | bytes
"""The path of a PEM file, or its content."""
TlsOption: TypeAlias = "bool | str | os.PathLike[str] | bytes | Tls | grpc.ChannelCredentials | None"
"""What `open_kv` takes."""


@dataclass(frozen=True, slots=True)
class Tls:
    """How a client speaks TLS.

    `ca`: a PEM file with the CAs whose certificates are taken, or its content; None or `"system"`: the machine's own.
    `cert` and `key`: this client's certificate and its key, for nodes that demand one. `server_name`: the name that
    certificates must have, whatever the address; by default each node's is the host by which it is reached, the
    leader's the one that the cluster gives out.

    Files are read again when they have changed, for the connections made from then on.
    """

    ca: File | None = None
    cert: File | None = None
    key: File | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        for what, value in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if value is not None and not isinstance(value, (str, os.PathLike, bytes)):
                raise InvalidArgument(f"tls: {what} is a path or PEM, got {type(value).__name__}")
        if (self.cert is None) != (self.key is None):
            there, lacking = ("cert", "key") if self.key is None else ("key", "cert")
            raise InvalidArgument(f"tls: {there} is given without {lacking}: a certificate is shown with its key")
        name = self.server_name
        if name is not None and (not isinstance(name, str) or not name or not name.isascii() or not name.isprintable()):
            raise InvalidArgument(f"tls: server_name is a host name, got {name!r}")

    def __repr__(self) -> str:
        shown = (f"{what}={_shown(getattr(self, what))}" for what in ("ca", "cert", "key", "server_name"))
        return f"Tls({', '.join(shown)})"


def _shown(value: object) -> str:
    """A key may be given as such, and must not end in a log."""
    is_pem = (isinstance(value, bytes) and _BEGIN in value) or (isinstance(value, str) and _BEGIN.decode() in value)
    if is_pem:
        return "<PEM>"
    return f"<{len(value):,} bytes>" if isinstance(value, bytes) else repr(value)


class ChannelTls:
    """Makes gRPC's credentials, for one connection after the other."""

    def __init__(self, tls: Tls) -> None:
        """Errors: InvalidArgument if a file cannot be used."""
        self._tls = tls
        self._seen: object = None
        self._credentials: grpc.ChannelCredentials | None = None
        self.server_name = tls.server_name
        self.credentials()

    @property
    def shows_certificate(self) -> bool:
        """To a node that demands one."""
        return self._tls.cert is not None

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Further options of a channel."""
        if self.server_name is None:
            return ()
        return (("grpc.ssl_target_name_override", self.server_name), ("grpc.default_authority", self.server_name))

    def credentials(self) -> "grpc.ChannelCredentials":
        """Of the files as they are now; of those as they were if they cannot be used now."""
        seen = tuple(_version(file) for file in (self._tls.ca, self._tls.cert, self._tls.key))
        if self._credentials is None or seen != self._seen:
            try:
                self._credentials = self._load()
            except InvalidArgument:
                if self._credentials is None:
                    raise
            self._seen = seen
        return self._credentials

    def _load(self) -> "grpc.ChannelCredentials":
        import grpc

        roots = _roots(self._tls.ca)
        if self._tls.cert is None or self._tls.key is None:
            return grpc.ssl_channel_credentials(roots)
        certificate, key = _read(self._tls.cert, "cert"), _read(self._tls.key, "key")
        _check_pair(self._tls.cert, self._tls.key)
        return grpc.ssl_channel_credentials(roots, key, certificate)


class _Fixed(ChannelTls):
    """Credentials that somebody else has made."""

    def __init__(self, credentials: "grpc.ChannelCredentials") -> None:
        self._tls = Tls()
        self._credentials = credentials
        self.server_name = None

    def credentials(self) -> "grpc.ChannelCredentials":
        assert self._credentials is not None
        return self._credentials


def resolve(tls: TlsOption, environment: Mapping[str, str]) -> ChannelTls | None:
    """What `open_kv` was given: True, a CA, a `Tls`, gRPC's credentials, False, or None: what the variables say.

    None is returned for a client without TLS. Errors: InvalidArgument.
    """
    if tls is None:
        found = from_environment(environment)
        return None if found is None else ChannelTls(found)
    if isinstance(tls, ChannelTls):
        return tls
    if isinstance(tls, Tls):
        return ChannelTls(tls)
    if isinstance(tls, bool):
        return ChannelTls(Tls()) if tls else None
    if isinstance(tls, (str, os.PathLike, bytes)):
        return ChannelTls(Tls(ca=tls))
    import grpc

    if isinstance(tls, grpc.ChannelCredentials):
        return _Fixed(tls)
    raise InvalidArgument(f"tls is True, the path or PEM of a CA, or a kvorum.Tls, got {type(tls).__name__}")


def from_environment(environment: Mapping[str, str]) -> Tls | None:
    """What the variables say; None if none is set. Errors: InvalidArgument."""
    ca, cert, key = (environment.get(name) or None for name in (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE))
    if (cert is None) != (key is None):
        there, lacking = (CERT_VARIABLE, KEY_VARIABLE) if key is None else (KEY_VARIABLE, CERT_VARIABLE)
        raise InvalidArgument(f"${there} is set without ${lacking}: a certificate is shown with its key")
    if ca is None and cert is None:
        return None
    return Tls(ca, cert, key, environment.get(NAME_VARIABLE) or None)


# ---- files


def _version(file: File | None) -> object:
    path = _path(file)
    if path is None:
        return None
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _path(file: File | None) -> Path | None:
    """None for what is no file."""
    if file is None or isinstance(file, bytes) or file == SYSTEM:
        return None
    if isinstance(file, str) and _BEGIN.decode() in file:
        return None
    return Path(file)


def _read(file: File, what: str) -> bytes:
    path = _path(file)
    if path is None:
        data = file if isinstance(file, bytes) else str(file).encode()
    else:
        try:
            with path.open("rb") as source:
                data = source.read(MAX_FILE + 1)
        except OSError as error:
            raise InvalidArgument(f"tls: cannot read {what} {path}: {error.strerror}") from None
    shown = what if path is None else f"{what} {path}"
    if len(data) > MAX_FILE:
        raise InvalidArgument(f"tls: {shown} has more than {MAX_FILE} bytes")
    if _BEGIN not in data:
        raise InvalidArgument(f"tls: {shown} is not PEM: it holds no -----BEGIN line")
    return data


def _roots(ca: File | None) -> bytes | None:
    """None: gRPC's own list."""
    if ca is None or ca == SYSTEM:
        file = ssl.get_default_verify_paths().cafile
        return None if file is None else _read(file, "the machine's CAs")
    data = _read(ca, "ca")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=data.decode("ascii", "replace"))
    except (OSError, ValueError) as error:
        path = _path(ca)
        raise InvalidArgument(
            f"tls: ca{'' if path is None else f' {path}'} holds no certificate that can be used: {_reason(error)}"
        ) from None
    return data


def _check_pair(cert: File, key: File) -> None:
    """gRPC would say no more than that the handshake failed."""
    certificate, private = _path(cert), _path(key)
    if certificate is None or private is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, private, password=_no_password)
    except (OSError, ValueError, _EncryptedKeyError) as error:
        mismatch = "KEY_VALUES_MISMATCH" in str(error)
        why = "the key is not the certificate's" if mismatch else _reason(error)
        raise InvalidArgument(f"tls: cert {certificate} and key {private} cannot be used: {why}") from None


class _EncryptedKeyError(Exception):
    pass


def _no_password() -> Any:
    raise _EncryptedKeyError("the key is encrypted")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
