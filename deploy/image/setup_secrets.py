"""The one-shot service `setup` of compose.yaml: makes what a secure cluster needs before its first start.

In the volume `ca`, which no node mounts:

    ca.pem ca.key               the cluster's own certificate authority

In the volume `secrets`, mounted as /etc/kvorum:

    ca.pem                      for whoever connects
    n1/tls.pem n1/tls.key …     each node's certificate, for clients and for peers
    root_token                  may do everything
    kv_connect_token            for clients of KV Connect
    grafana_password            of Grafana's user admin

What is there is left alone, so it runs at every `docker compose up`; certificates of which less than 60 days are left
are made anew, and running nodes take them without a restart. $KVORUM_SETUP_NODES lists the nodes, $KVORUM_SETUP_HOSTS
further host names by which clients reach them.
"""

import os
import secrets
import shutil
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from kvorum import certificates

CA = Path("/var/lib/kvorum")
SHARED = Path("/etc/kvorum")
RENEW = 60
"""Days before its end that a certificate is made anew."""
FOR_ALL = 0o644
PRIVATE = 0o600


def write(path: Path, content: bytes, mode: int) -> None:
    """It appears whole or not at all; what was there is replaced."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    print(f"{path} made", flush=True)


def token(path: Path, mode: int = PRIVATE) -> None:
    """32 random bytes, unless there is one."""
    if not path.exists():
        write(path, secrets.token_urlsafe(32).encode() + b"\n", mode)


def authority() -> None:
    """The CA, unless there is one; and its certificate for whoever connects."""
    if not (CA / "ca.key").exists():
        with tempfile.TemporaryDirectory(dir=CA) as folder:
            made = certificates.make_ca(Path(folder), name="kvorum compose CA")
            # The key last: with it the CA counts as made.
            write(CA / "ca.pem", made.certificate.read_bytes(), FOR_ALL)
            write(CA / "ca.key", made.key.read_bytes(), PRIVATE)
    if not (SHARED / "ca.pem").exists() or (SHARED / "ca.pem").read_bytes() != (CA / "ca.pem").read_bytes():
        write(SHARED / "ca.pem", (CA / "ca.pem").read_bytes(), FOR_ALL)


def node(node_id: str, more_hosts: list[str]) -> None:
    """A node's certificate and key, unless there is one that is good for a while and for all its hosts."""
    folder = SHARED / node_id
    folder.mkdir(mode=0o700, exist_ok=True)
    hosts = [node_id, "localhost", "127.0.0.1", "::1", *more_hosts]
    if good(folder / "tls.pem", hosts):
        return
    with tempfile.TemporaryDirectory(dir=CA) as scratch:
        for name in ("ca.pem", "ca.key"):
            shutil.copy(CA / name, scratch)
        made = certificates.make_node(Path(scratch), node_id=node_id, hosts=hosts)
        # A node that reads between the two finds a pair that does not fit, keeps the one that it has, and looks again.
        write(folder / "tls.key", made.key.read_bytes(), PRIVATE)
        write(folder / "tls.pem", made.certificate.read_bytes(), FOR_ALL)


def good(certificate: Path, hosts: list[str]) -> bool:
    """It is there, is no less than `RENEW` days from its end, is of this CA, and names these hosts."""
    if not certificate.exists() or not certificate.with_suffix(".key").exists():
        return False
    own, ca = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (certificate, CA / "ca.pem"))
    try:
        own.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    facts = certificates.show(certificate)[0]
    return facts["days_left"] >= RENEW and set(hosts) <= {*facts["dns"], *facts["ip"]}


def main() -> None:
    nodes = os.environ.get("KVORUM_SETUP_NODES", "n1,n2,n3").split(",")
    more_hosts = [host.strip() for host in os.environ.get("KVORUM_SETUP_HOSTS", "").split(",") if host.strip()]
    authority()
    for node_id in nodes:
        node(node_id.strip(), more_hosts)
    token(SHARED / "root_token")
    token(SHARED / "kv_connect_token")
    token(SHARED / "grafana_password", FOR_ALL)  # it runs as another user
    print("all that the nodes need is there", flush=True)


if __name__ == "__main__":
    main()
