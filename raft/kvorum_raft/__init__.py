"""Consensus for kvorum: Raft on PySyncObj, hardened. Knows nothing of keys or queues.

The names below are loaded when they are first used, so that importing the package alone is cheap.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvorum_raft.config import Limits, RaftConfig, Timing
    from kvorum_raft.node import RaftNode
    from kvorum_raft.seams import Applied, Consensus, Member, PeerView, StateMachine, Status

__all__ = [
    "Applied",
    "Consensus",
    "Limits",
    "Member",
    "PeerView",
    "RaftConfig",
    "RaftNode",
    "StateMachine",
    "Status",
    "Timing",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module in ("node", "config", "seams"):
        if name in __all__ and (name == "RaftNode") == (module == "node"):
            found = getattr(import_module(f"kvorum_raft.{module}"), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
