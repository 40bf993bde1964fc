"""The image's health check: exit status 0 if the node in this container is ready (`/readyz`).

It asks by the loopback, so it need not know who signed the node's certificate, and takes any.
"""

import os
import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

TIMEOUT = 3.0


def main() -> int:
    listen = os.environ.get("KVORUM_HTTP_LISTEN", "0.0.0.0:7402")
    if listen == "off":
        return 0  # then only the supervisor's view of the process is left
    port = int(listen.rpartition(":")[2])
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    if os.environ.get("KVORUM_TLS_CERT"):
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT, context=context)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        print(answer.status, answer.read(500).decode(errors="replace").strip())
    except (OSError, HTTPException) as error:
        print(f"no answer: {error}")
        return 1
    finally:
        connection.close()
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
