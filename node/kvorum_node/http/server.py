"""The HTTP port: HTTP/1.1 and HTTP/2 by prior knowledge."""

import asyncio
import logging
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config

from .app import App
from .message import Request, Response, text

logger = logging.getLogger("kvorum.http")


class HttpServer:
    """Serves until `stop`."""

    def __init__(self, app: App, host: str, port: int) -> None:
        self._app = app
        self._host, self._port = host, port
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        config = Config()
        config.bind = [f"{self._host}:{self._port}"]
        config.errorlog = logger
        config.accesslog = None
        config.keep_alive_timeout = 120
        config.keep_alive_max_requests = 1 << 40
        config.h2_max_concurrent_streams = 512
        config.graceful_timeout = 1.0
        config.include_server_header = False
        self._task = asyncio.create_task(serve(self._asgi, config, shutdown_trigger=self._ended.wait))

    async def stop(self) -> None:
        self._ended.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _asgi(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        limit = self._app.body_limit(scope["path"])
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message["body"]
            if not message["more_body"]:
                break
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        request = Request(
            scope["method"], scope["path"], headers, bytes(body), scope["client"][0], scope["scheme"], scope["client"]
        )
        response = text(413, "too large") if len(body) > limit else None
        work = asyncio.ensure_future(self._answer(request, response, send))
        gone = asyncio.ensure_future(receive())
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _answer(self, request: Request, response: Response | None, send: Any) -> None:
        response = response or await self._app.handle(request)
        headers = [(b"content-type", response.content_type.encode())]
        headers += [(name.encode(), value.encode()) for name, value in response.headers.items()]
        if response.stream is None:
            headers.append((b"content-length", str(response.size).encode()))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        for chunk in response.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if response.stream is not None:
            async for chunk in response.stream:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
