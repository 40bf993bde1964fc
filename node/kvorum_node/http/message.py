"""Requests and responses as the routes see them: nothing of HTTP's versions, sockets or framing is left in them."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..stock_texts import UNAVAILABLE

JSON: Final = "application/json"
PROTOBUF: Final = "application/x-protobuf"
OCTETS: Final = "application/octet-stream"
TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request: its body was read, and is within the limit of its path."""

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    """Names in lower case. One of them holds the token."""
    body: bytes = field(default=b"", repr=False)
    peer: str = ""
    """Address of the client's side, without a port; empty if it is not known."""
    scheme: str = "http"
    connection: object = None
    """The same for all requests of one connection."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. `chunks` are its body; with `stream`, an endless one follows: it ends the response when it ends."""

    status: int
    content_type: str
    chunks: Sequence[bytes] = ()
    stream: AsyncGenerator[bytes, None] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    on_done: Callable[[], None] | None = None
    """Called once when it was sent, or will not be."""

    @property
    def size(self) -> int:
        """Bytes of the chunks."""
        return sum(map(len, self.chunks))

    def fields(self, date: bytes) -> list[tuple[bytes, bytes]]:
        """Its header fields."""
        found = [(b"content-type", self.content_type.encode()), (b"date", date)]
        if self.stream is None:
            found.append((b"content-length", b"%d" % self.size))
        found.extend((name.encode(), value.encode()) for name, value in self.headers.items())
        return found

    def done(self) -> None:
        """It was sent, or will not be."""
        if self.on_done is not None:
            self.on_done()


class Refusal(Exception):
    """The request is answered with this status and text; nothing was done."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self) -> Response:
        """As sent."""
        return text(self.status, self.text, self.headers)


def text(status: int, line: str, headers: Mapping[str, str] | None = None) -> Response:
    """A line of plain text, which clients show to their users."""
    return Response(status, TEXT, (line.encode(),), headers=headers or {})


def unavailable(why: str) -> Refusal:
    """Not done, and it may work soon: clients repeat the same request by themselves."""
    return Refusal(503, f"{UNAVAILABLE} ({why})" if why else UNAVAILABLE)
