"""The client side of a kvorum cluster: a `Backend` over one gRPC stream to the leader."""

import os
from collections.abc import Sequence

# gRPC reads these once, when it is loaded. Without the first a library user finds lines like "Got goaway" on stderr
# whenever a node restarts; what they tell is in our errors already. Who wants them sets the variable.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# In a process that forks, gRPC would start its threads anew in the child, and one in six of the children that uvloop
# starts programs with (fork, then exec) crashed in them before the exec. No client survives a fork anyway.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from kvorum import errors
from kvorum.cluster.client import ClusterBackend
from kvorum.cluster.route import Address
from kvorum.tls import ChannelTls

__all__ = ["Address", "ClusterBackend", "connect"]


async def connect(
    addresses: Sequence[Address],
    *,
    timeout: float,
    token: str | None = None,
    tls: ChannelTls | None = None,
) -> ClusterBackend:
    """Connect to a cluster by the addresses (host, port) of any of its nodes.

    Returns as soon as one node answers, even while there is no leader. `timeout` is in seconds. Errors:
    ConnectFailed, naming each address and what happened there; WrongCluster if every node refuses this client for
    good; InvalidArgument.
    """
    if not addresses:
        raise errors.InvalidArgument("a cluster needs at least one address")
    for host, port in addresses:
        if not host or not 0 < port < 65_536:
            raise errors.InvalidArgument(f"{host!r}, {port!r} is not a host and a port from 1 to 65535")
    if timeout <= 0:
        raise errors.InvalidArgument(f"the timeout must be above 0 s, got {timeout:g}")
    backend = ClusterBackend(addresses, token=token, tls=tls)
    await backend.open(timeout)
    return backend
