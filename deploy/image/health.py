"""The image's health check: exit status 0 if the node in this container is ready (`/readyz`).

It asks by the loopback, so it need not know who signed the node's certificate, and takes any. A new interpreter does
this every few seconds: it imports as little as it can.
"""

import os
import socket
import sys

TIMEOUT = 8.0
MOST = 4_096
"""Bytes of the answer that are read."""


def main() -> int:
    listen = os.environ.get("KVORUM_HTTP_LISTEN", "0.0.0.0:7402")
    if listen == "off":
        return 0  # then only the supervisor's view of the process is left
    try:
        with socket.create_connection(("127.0.0.1", int(listen.rpartition(":")[2])), TIMEOUT) as link:
            answer = ask(secured(link) if os.environ.get("KVORUM_TLS_CERT") else link)
    except OSError as error:
        print(f"no answer: {error}")
        return 1
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ")[1:2]
    print(b"".join(status).decode(), body.decode(errors="replace").strip())
    return 0 if status == [b"200"] else 1


def secured(link: socket.socket) -> socket.socket:
    """TLS, with whatever certificate the node has."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(link)


def ask(link: socket.socket) -> bytes:
    """What comes until the node closes the connection, or has said enough."""
    link.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    answer = b""
    while len(answer) < MOST and (more := link.recv(MOST)):
        answer += more
    link.close()
    return answer


if __name__ == "__main__":
    sys.exit(main())
