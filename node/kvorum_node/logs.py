"""Structured logs on stderr: one line an event, as `key=value` or JSON.

What belongs to an event besides its message is given as `extra={"fields": {…}}`, texts and numbers.
"""

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Final, Literal

from kvorum.visible import visible

Format = Literal["text", "json"]
LEVELS = ("debug", "info", "warning", "error")
FORMATS: tuple[Format, ...] = ("text", "json")
OWN: Final = ("kvorum", "kvorum_node")
"""Loggers that are ours, with all below them. They show nothing that is secret, on any level."""

GRPC: Final = "grpc._cython.cygrpc"


class LineFormatter(logging.Formatter):
    """Every record becomes exactly one line, whatever its message holds."""

    def __init__(self, node_id: str, style: Format) -> None:
        super().__init__()
        self._node_id = node_id
        self._shape = style

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        fields: dict[str, object] = {
            "time": moment,
            "level": record.levelname.lower(),
            "node": self._node_id,
            "logger": record.name,
            "message": record.getMessage(),
        }
        more: Mapping[str, object] = getattr(record, "fields", {})
        fields.update((name, value) for name, value in more.items() if name not in fields)
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        if self._shape == "json":
            return visible(json.dumps(fields, ensure_ascii=False))
        return " ".join(f"{key}={_quoted(str(value))}" for key, value in fields.items())


def set_up(node_id: str, level: str, style: Format) -> None:
    """Send the whole process's logs to stderr: ours from `level` on, those of others from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(node_id, style))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # On lower levels other libraries show whole requests, with what is secret in them: HPACK each header that it
    # unpacks, AWS's library each call.
    root.setLevel("WARNING" if level in ("debug", "info") else level.upper())
    for name in OWN:
        logging.getLogger(name).setLevel(level.upper())
    logging.getLogger(GRPC).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """gRPC tells of each call whose client has gone before the end was sent to it, as an error with a traceback. It is
    nobody's fault, and clients can do it at will."""
    return "ExecuteBatchError raised in core" not in record.getMessage()


def _quoted(value: str) -> str:
    plain = value.isprintable() and not set(value) & set(' "=\\')
    return value if value and plain else visible(json.dumps(value, ensure_ascii=False))
