"""TLS of the client port (gRPC) and of the HTTP port: one certificate for both, replaced without a restart."""

import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from kvorum.tls import SYSTEM, ChannelTls, Tls
from kvorum_raft.tls import Identity, Reloading, identify, load_ca, load_pair, read_pem, warn_of_expiry

from .config import NodeConfig

ALPN: Final = ("h2", "http/1.1")
"""Deno speaks HTTP/2 only where it is offered here."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    context: ssl.SSLContext
    identity: Identity


class PortTls:
    """`tls_cert`, `tls_key`, and `tls_client_ca` where clients must show a certificate."""

    def __init__(self, config: NodeConfig) -> None:
        """Raises ConfigurationError with one line."""
        assert config.tls_cert is not None and config.tls_key is not None
        self._config = config
        self._certificate, self._key = config.tls_cert, config.tls_key
        self._client_ca = config.tls_client_ca
        self._files = [file for file in (self._certificate, self._key, self._client_ca) if file is not None]
        self._loaded = Reloading(self._files, self._load, "certificate for clients")

    def context(self) -> ssl.SSLContext:
        """For a connection to the HTTP port."""
        return self._loaded.get().context

    def server_credentials(self) -> grpc.ServerCredentials:
        """For the gRPC port, which asks anew for each connection, in a thread of its own."""
        current = Reloading(self._files, self._configuration, "certificate for clients (gRPC)")
        handed_out = current.get()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal handed_out
            newest = current.get()
            if newest is handed_out:
                return None
            handed_out = newest
            return newest

        return grpc.dynamic_ssl_server_credentials(
            handed_out, fetch, require_client_authentication=self._client_ca is not None
        )

    def to_nodes(self) -> ChannelTls:
        """For this node's own connections to the leader's client port. Raises InvalidArgument."""
        config = self._config
        demanded = self._client_ca is not None
        ca: str | Path | None = config.tls_ca or config.tls_client_ca or config.peer_ca
        if str(ca) == SYSTEM:
            ca = SYSTEM
        return ChannelTls(
            Tls(
                ca=ca,
                cert=self._certificate if demanded else None,
                key=self._key if demanded else None,
            )
        )

    def expires_in(self) -> float:
        """Seconds; below 0 if the certificate has expired."""
        return self._loaded.get().identity.expires_at - time.time()

    def statistics(self) -> dict[str, float]:
        """Days, and a count."""
        return {"tls_cert_expiry_days": self.expires_in() / 86_400, "tls_reload_failures": self._loaded.failures}

    def _load(self) -> _Loaded:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        load_pair(context, self._certificate, self._key, "tls")
        context.set_alpn_protocols(list(ALPN))
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            load_ca(context, self._client_ca, "tls_client_ca")
        identity = identify(self._certificate, "tls_cert")
        warn_of_expiry(identity, self._certificate)
        return _Loaded(context, identity)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        # gRPC would find out at each handshake, and tell nobody.
        load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._certificate, self._key, "tls")
        pair = read_pem(self._key, "tls_key"), read_pem(self._certificate, "tls_cert")
        roots = None
        if self._client_ca is not None:
            load_ca(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._client_ca, "tls_client_ca")
            roots = read_pem(self._client_ca, "tls_client_ca")
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=roots)
