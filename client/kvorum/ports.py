"""Whether a port of this machine can be had."""

import errno
import socket
from typing import Final

TAKEN: Final = "taken"
"""By another process."""


def port_problem(host: str, port: int) -> str | None:
    """Why nothing can listen there now: `TAKEN`, or another reason; None: something can."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            # Binding beside a socket that is not listening yet succeeds; listening does not.
            probe.listen(1)
    except UnicodeError:
        return "not a host name"
    except OSError as error:
        return TAKEN if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return None
