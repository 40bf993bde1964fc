"""Why a stream or another call is ended by the node."""

import grpc


class ProtocolError(Exception):
    """The client did what it must not; the stream ends, finally."""


class ResumableError(Exception):
    """The stream ends, and the client may come back."""


class NotTaken(Exception):
    """The client takes nothing of what a call has for it; the call ends, and the client may begin it anew."""

    def __init__(self, why: str, code: grpc.StatusCode = grpc.StatusCode.RESOURCE_EXHAUSTED) -> None:
        super().__init__(why)
        self.code = code
