"""Deno and Node by https://, with a CA of one's own. Deno speaks HTTP/2 only, where TLS offers it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.foreign.process import TOKEN, Foreign
from tests.integration.tls.secure import SecureNodes


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNodes]:
    with SecureNodes(tmp_path_factory.mktemp("foreign-tls"), kv_connect_token=TOKEN) as cluster:
        yield cluster


@pytest.mark.parametrize(("kind", "variable"), [("deno", "DENO_CERT"), ("@deno/kv", "NODE_EXTRA_CA_CERTS")])
@pytest.mark.parametrize("node", range(3))
def test_every_node_serves_them(
    clients_installed: None,
    secure: SecureNodes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    variable: str,
    node: int,
) -> None:
    monkeypatch.setenv(variable, str(secure.certificates.ca))
    with Foreign(kind, [secure.http_url(node)], tmp_path) as client:
        client.run("await kv.set(['tls', by], 7)", by=f"{kind} {node}")
        assert client.run("return (await kv.get(['tls', by])).value", by=f"{kind} {node}") == 7


def test_without_the_ca_they_refuse(clients_installed: None, secure: SecureNodes, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match=r"(?i)certificate"):
        Foreign("deno", [secure.http_url(0)], tmp_path).close()
