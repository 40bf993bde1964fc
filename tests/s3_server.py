"""A real S3-compatible server (moto's) on a port of this machine, and faults between it and whoever asks."""

import base64
import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from kvorum_node.backup.places import S3Place, Service

BUCKET = "archive"
REGION = "us-east-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "well-kept-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
}
App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Fault = Callable[["Request"], "Iterable[bytes] | None"]


@dataclass
class Request:
    """One that a fault may answer. `lost` does what is asked, and loses the answer."""

    environ: dict[str, Any]
    start: Callable[..., Any]
    app: App

    @property
    def method(self) -> str:
        return str(self.environ["REQUEST_METHOD"])

    @property
    def path(self) -> str:
        return f"{self.environ['PATH_INFO']}?{self.environ.get('QUERY_STRING', '')}"

    def refuse(self, status: int, code: str, message: str = "as told by the test") -> list[bytes]:
        self.body()
        answer = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        if self.method == "HEAD":
            answer = b""
        self.start(f"{status} {code}", [("Content-Type", "application/xml"), ("Content-Length", str(len(answer)))])
        return [answer]

    def body(self) -> bytes:
        """What was sent, which can be read again."""
        data: bytes = self.environ["wsgi.input"].read(int(self.environ.get("CONTENT_LENGTH") or 0))
        self.environ["wsgi.input"] = io.BytesIO(data)
        return data

    def answered(self) -> tuple[str, list[tuple[str, str]], bytes]:
        """What the server says."""
        said: list[Any] = []
        data = b"".join(self.app(self.environ, lambda status, headers, error=None: said.append((status, headers))))
        return (*said[-1], data)

    def lost(self) -> list[bytes]:
        self.answered()
        raise ConnectionResetError("the answer is lost, as told by the test")

    def changed(self, change: Callable[[bytes], bytes]) -> list[bytes]:
        """The answer with other bytes, and the length that was right."""
        status, headers, data = self.answered()
        self.start(status, headers)
        return [change(data)]


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def connection_dropped(self, error: BaseException, environ: Any = None) -> None:
        """Cut it: a client that was told nothing would wait for as long as it waits at all."""
        self.close_connection = True

    def log(self, type: str, message: str, *args: Any) -> None:
        pass


@dataclass
class S3Server:
    """See the module. `fault` is asked for each request, and answers in the server's place, raises, or gives None."""

    fault: Fault | None = None
    seen: list[str] = field(default_factory=list)
    """Method and path of each request."""
    port: int = 0

    def __post_init__(self) -> None:
        self._app: App = DomainDispatcherApplication(create_backend_app)
        self._server: BaseWSGIServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def place(self, prefix: str = "kvorum", bucket: str = BUCKET) -> S3Place:
        return S3Place(bucket, prefix, Service(self.url, REGION))

    def start(self) -> None:
        """What was kept before is there again."""
        self._server = make_server("127.0.0.1", self.port, self, threaded=True, request_handler=_Quiet)
        self._server.daemon_threads = True  # type: ignore[attr-defined]
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Nobody listens on the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(environ, start, self._app)
        self.seen.append(f"{request.method} {request.path}")
        if self.fault is not None and (answer := self.fault(request)) is not None:
            return answer
        told = environ.get("HTTP_CONTENT_MD5")  # which moto does not compare
        if told and base64.b64encode(hashlib.md5(request.body()).digest()).decode() != told:
            return request.refuse(400, "BadDigest")
        return self._app(environ, start)

    def objects(self) -> dict[str, bytes]:
        """All that is kept, and under which key."""
        kept = self._backend().buckets[BUCKET].keys
        return {key: kept[key].value for key in list(kept)}

    def uploads(self) -> int:
        """Multipart uploads that have not come to an end."""
        return len(self._backend().buckets[BUCKET].multiparts)

    def damage(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """What the store keeps is not what was put there."""
        kept = self._backend().buckets[BUCKET].keys[key]
        kept.value = change(kept.value)

    def _backend(self) -> Any:
        from moto.s3.models import s3_backends

        return s3_backends["123456789012"]["aws"]

    def make_bucket(self) -> None:
        self._backend().create_bucket(BUCKET, REGION)

    def forget(self) -> None:
        """All that is kept."""
        self._backend().reset()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """With an empty bucket, and credentials in the environment that are good for it."""
    with mock.patch.dict(os.environ, CREDENTIALS):
        server = S3Server()
        server.start()
        server.forget()
        server.make_bucket()
        try:
            yield server
        finally:
            server.stop()
            server.forget()
