"""Why a stream is ended by the node."""


class ProtocolError(Exception):
    """The client did what it must not; the stream ends, finally."""


class ResumableError(Exception):
    """The stream ends, and the client may come back."""
