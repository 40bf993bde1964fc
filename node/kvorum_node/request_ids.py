"""Names of single requests: of HTTP requests and of unary calls, from `x-request-id` or made here.

They stand in the answer, whatever it says, and in the lines that a node logs about the request, so that a complaint can
be matched with them. Frames of a stream carry hundreds of operations and have none.
"""

import inspect
import logging
import random
import re
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Any, Final

import grpc
import grpc.aio

from .slow import SlowLog
from .tracing import NodeTracing

logger = logging.getLogger("kvorum.api")

HEADER: Final = "x-request-id"
_FIT: Final = re.compile(r"[A-Za-z0-9_.:/+=~@-]{1,128}")
"""Nothing that a log or a header could mistake for something else."""


class RequestIds:
    """`of` takes what the client has sent, if it is fit."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()

    def of(self, sent: str | None) -> str:
        """The id of a request."""
        if sent is not None and _FIT.fullmatch(sent):
            return sent
        return f"{self._rng.getrandbits(64):016x}"


class UnaryCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio is untyped
    """Gives each unary call its id, which goes back in the trailing metadata, and logs slow ones."""

    def __init__(self, slow: SlowLog, tracing: NodeTracing | None = None) -> None:
        self._slow = slow
        self._tracing = tracing
        self._ids = RequestIds()

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(details)
        if handler is None or handler.request_streaming or handler.response_streaming:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            partial(self._call, details.method, handler.unary_unary),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    async def _call(self, method: str, run: Callable[[Any, Any], Any], request: Any, context: Any) -> Any:
        headers = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
        request_id = self._ids.of(headers.get(HEADER))
        context.set_trailing_metadata(((HEADER, request_id),))
        if self._tracing is None:
            return await self._measured(method, run, request, context, request_id)
        with self._tracing.request(method.removeprefix("/"), headers, request_id):
            return await self._measured(method, run, request, context, request_id)

    async def _measured(
        self, method: str, run: Callable[[Any, Any], Any], request: Any, context: Any, request_id: str
    ) -> Any:
        since = perf_counter()
        try:
            answer = run(request, context)
            return await answer if inspect.isawaitable(answer) else answer
        except (grpc.aio.AbortError, grpc.RpcError):
            raise
        except Exception:
            logger.exception("a call ended by a fault of this node: %s", method, extra=_fields(request_id))
            raise
        finally:
            seconds = perf_counter() - since
            if seconds >= self._slow.threshold:
                self._slow.took("unary", seconds, lambda: {"method": method, "request_id": request_id})


def _fields(request_id: str) -> dict[str, Any]:
    return {"fields": {"request_id": request_id}}
