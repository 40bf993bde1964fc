"""The metadata exchange: which version is spoken, where the data path is, which database this is.

The answer has exactly five keys and exactly this content type: some clients refuse more. Every node names itself only,
as a strong endpoint: no client fails over, and any node serves everything.
"""

import json
import time
import uuid
from datetime import UTC, datetime
from typing import Any, Final

from .message import JSON, Refusal, Request, Response

VERSIONS: Final = (1, 2, 3)
ENDPOINT: Final = "/v2"
"""Path of the data path for all versions."""
VALIDITY: Final = 24 * 3_600
"""Seconds. Clients come back earlier, and tokens are taken for ever: a short one would only make them come back at each
operation, or in a tight loop."""
MAX_BODY: Final = 16_384

NO_VERSION: Final = "The server could not negotiate a protocol version. The server requires protocol version 1, 2 or 3."


def answer(request: Request, token: str, cluster_id: bytes, cluster_ms: int) -> Response:
    """Raises Refusal with 400."""
    version = negotiated(request.body)
    url = ENDPOINT
    if version == 1:
        # Relative ones were not allowed then.
        url = f"{request.scheme}://{request.headers.get('host', '')}{ENDPOINT}"
    # This node's clock alone may be wrong; clients compare with theirs, and mind only what is too early.
    expires = max(time.time(), cluster_ms / 1000) + VALIDITY
    body = {
        "version": version,
        "databaseId": database_id(cluster_id),
        "endpoints": [{"url": url, "consistency": "strong"}],
        "token": token,
        "expiresAt": datetime.fromtimestamp(expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return Response(200, JSON, (json.dumps(body, separators=(",", ":")).encode(),))


def database_id(cluster_id: bytes) -> str:
    """Lower case with hyphens: some clients take nothing else."""
    return str(uuid.UUID(bytes=cluster_id))


def negotiated(body: bytes) -> int:
    """The highest version that both sides speak. No body at all is what clients of version 1 send."""
    if not body.strip():
        return 1
    try:
        offer: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(400, "The body of a metadata request must be JSON.") from None
    offered = offer.get("supportedVersions", [1]) if isinstance(offer, dict) else None
    if not isinstance(offered, list):
        raise Refusal(400, "A metadata request is a JSON object with an array supportedVersions.")
    common = [version for version in VERSIONS if any(type(known) is int and known == version for known in offered)]
    if not common:
        raise Refusal(400, NO_VERSION)
    return common[-1]
