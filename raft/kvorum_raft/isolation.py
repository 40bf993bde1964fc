"""Listeners are guests: what they raise is logged, and the core goes on."""

import logging
from types import TracebackType

from kvorum_raft.errors import RaftError

_log = logging.getLogger("kvorum.raft")


class Isolation:
    """Around a call of a listener. Errors of this package pass through, since they come from the core that the listener
    called."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, Exception) or isinstance(error, RaftError):
            return False
        _log.error("node %s: a listener failed", self._node_id, exc_info=error)
        return True
