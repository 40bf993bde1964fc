"""Why a node and a client do not come together, when TLS may be the reason: gRPC says little of it, or nothing.

A node that speaks TLS closes on a client that does not, and on one without the certificate that it demands, without a
word that gRPC would pass on. So when a connection is closed at once, the port is asked once by OpenSSL.
"""

import asyncio
import contextlib
import ssl
from typing import Final

from kvorum.cluster.route import Address

PATIENCE: Final = 1.0
"""Seconds that the question may take."""

_SIGNS: Final = (
    (
        "WRONG_VERSION_NUMBER",
        "it speaks no TLS, and this client does: open it without tls= ($KVORUM_CA_FILE), or set the node's tls_cert",
    ),
    (
        "Hostname Verification Check failed",
        "its certificate does not name this address: use a name that it has, or give server_name",
    ),
    ("missing selected ALPN", "what speaks TLS there is not the client port of a kvorum node"),
)
_VERIFY: Final = "CERTIFICATE_VERIFY_FAILED"


def explain(details: str) -> str | None:
    """What gRPC's words for a failed handshake mean; None if they are about something else."""
    for sign, meaning in _SIGNS:
        if sign in details:
            return meaning
    if _VERIFY in details:
        why = details.partition(_VERIFY)[2].strip(": ").partition(": OK")[0].splitlines()[0][:200]
        return f"its certificate is not accepted: {why or 'unknown reason'} (ca must be the CA that made it)"
    return None


async def ask(address: Address, *, secure: bool, shows_certificate: bool) -> str | None:
    """Find out whether TLS is why a port closed a connection at once; None: it is not, as far as can be seen."""
    try:
        async with asyncio.timeout(PATIENCE):
            demanded = await _demands_certificate(address)
    except (OSError, TimeoutError):
        return None
    if demanded is None:
        return None
    if not secure:
        also = " It demands a certificate of its clients, too: cert and key." if demanded else ""
        return f"it speaks TLS, and this client does not: give tls=, or set $KVORUM_CA_FILE.{also}"
    if not demanded:
        return None
    if shows_certificate:
        return "it does not accept this client's certificate: its tls_client_ca must be the CA that made it"
    return "it demands a certificate of its clients: give cert and key, or set $KVORUM_CERT_FILE and $KVORUM_KEY_FILE"


async def _demands_certificate(address: Address) -> bool | None:
    """Of what listens there; None if that is not TLS. Nothing that is secret is said, so nobody needs to be trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        reader, writer = await asyncio.open_connection(*address, ssl=context)
    except ssl.SSLError as error:
        # A node of TLS 1.2 says so within the handshake; another one's last word comes after it.
        return True if "ALERT" in (error.reason or "") else None
    try:
        return not await reader.read(1)
    except OSError:  # with the alert, which is an ssl.SSLError
        return True
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
