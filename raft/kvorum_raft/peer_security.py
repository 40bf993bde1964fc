"""How the connections between nodes are protected: by TLS, not at all, or, on the way from the one to the other, by TLS
with whoever speaks it.

The last of these (`required` is False) lets a cluster change while it runs: such a node answers both kinds, and dials
with TLS first. If the other side does not shake hands, because it speaks none or does not accept this node's
certificate, it is dialled once more in clear. So whichever node is restarted next finds the others, and what is left in
clear shows which nodes are not ready. It protects from nobody: who wants to be spoken to in clear needs only ask.
"""

import asyncio
import ssl
from collections.abc import Callable

from kvorum_raft.tls import SHUTDOWN_TIMEOUT, PeerTls
from kvorum_raft.tls_port import Report, TlsPort

_NO_HANDSHAKE = (ssl.SSLError, ConnectionResetError, BrokenPipeError)
"""What becomes of a handshake with somebody who takes its first bytes for nonsense, or the certificate for a wrong
one. A time limit is not among them: who is slow may speak TLS."""


class PeerSecurity:
    """See the module. `tls` is None where all is in clear."""

    def __init__(self, tls: PeerTls | None, *, required: bool, patience: float, half_open: int) -> None:
        """`patience`: seconds for a handshake; `half_open`: connections without one at a time."""
        self._tls = tls
        self.is_preferred = tls is not None and not required
        """Clear connections are taken though there are certificates."""
        self.ways: tuple[bool, ...] = (True, False) if self.is_preferred else (tls is not None,)
        """In which order peers are dialled: True is with TLS."""
        self._patience = patience
        self._half_open = half_open
        self._port: TlsPort | None = None

    async def listen(
        self, protocol: Callable[[], asyncio.Protocol], host: str, port: int, *, backlog: int, report: Report
    ) -> asyncio.Server | TlsPort:
        """Take the port. With TLS, whoever connects waits until `serve`: an end without a word would be taken for that
        of a node that speaks none. Raises OSError."""
        if self._tls is None:
            return await asyncio.get_running_loop().create_server(protocol, host or None, port, backlog=backlog)
        self._port = TlsPort(
            protocol,
            self._tls.server,
            patience=self._patience,
            half_open=self._half_open,
            report=report,
            in_clear=protocol if self.is_preferred else None,
        )
        await self._port.bind(host, port, backlog)
        return self._port

    def serve(self) -> None:
        """Take connections, from now on."""
        if self._port is not None:
            self._port.take()

    async def open(self, protocol: asyncio.Protocol, host: str, port: int, *, tls: bool) -> None:
        """Dial. Raises OSError and ValueError; ssl.SSLError, which is an OSError, if the other side is not of our
        CA."""
        loop = asyncio.get_running_loop()
        if self._tls is None or not tls:
            await loop.create_connection(lambda: protocol, host, port)
            return
        await loop.create_connection(
            lambda: protocol,
            host,
            port,
            ssl=self._tls.client(),
            ssl_handshake_timeout=self._patience,
            ssl_shutdown_timeout=SHUTDOWN_TIMEOUT,
        )

    def statistics(self) -> dict[str, float]:
        """Of port and certificate: counts since the start, days."""
        port = {} if self._port is None else self._port.statistics()
        if self._tls is None:
            return port
        days = self._tls.expires_in() / 86_400
        return {**port, "cert_expiry_days": days, "tls_reload_failures": self._tls.failures}


def is_without_handshake(error: OSError, *, tls: bool) -> bool:
    """Whether a connection was made, and no TLS of it."""
    return tls and isinstance(error, _NO_HANDSHAKE)
