"""Clients of a cluster with TLS on every port: who gets in, who does not, and what is said to them."""

import asyncio
import contextlib
import json
import os
import pickle
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvorum
import kvorum.sync
from kvorum import Tls, errors
from kvorum.keys import encode_key
from kvorum_node._proto import datapath_pb2 as dp
from kvorum_node.dev_cluster import free_ports
from tests.integration.cluster_fixture import ThreeNodes, pace_of
from tests.integration.tls.secure import Certificates, SecureNodes, client_context, hello_bytes, make_expired

TIMEOUT = 20_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNodes]:
    """Clients must show a certificate."""
    with SecureNodes(tmp_path_factory.mktemp("tls"), clients=True, kv_connect_token="t0ken") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path_factory.mktemp("plain")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Of another CA."""
    return Certificates(tmp_path_factory.mktemp("other"))


# ---- the client


async def test_a_client_with_a_certificate_does_everything(cluster: SecureNodes) -> None:
    async with kvorum.open_kv(cluster.url, tls=cluster.client_tls, timeout=TIMEOUT) as kv:
        await kv.set(("tls", "a"), 1)
        assert (await kv.get(("tls", "a"))).value == 1
        await kv.enqueue("job", queue="tls")
        got: asyncio.Queue[object] = asyncio.Queue()
        listening = asyncio.ensure_future(kv.listen_queue(got.put, queue="tls"))  # the heartbeat's connection as well
        assert await got.get() == "job"
        listening.cancel()
        await asyncio.wait([listening])


def test_the_sync_client_does_too(cluster: SecureNodes) -> None:
    with kvorum.sync.open_kv(cluster.url, tls=cluster.client_tls, timeout=TIMEOUT) as kv:
        kv.set(("tls", "sync"), 2)
        assert kv.get(("tls", "sync")).value == 2


async def test_variables_say_the_same(cluster: SecureNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = cluster.certificates.pair("app")
    for name, file in (("CA", cluster.certificates.ca), ("CERT", cert), ("KEY", key)):
        monkeypatch.setenv(f"KVORUM_{name}_FILE", str(file))
    async with kvorum.open_kv(cluster.url, timeout=TIMEOUT) as kv:
        await kv.set(("tls", "env"), 3)


async def test_pem_in_place_of_files(cluster: SecureNodes) -> None:
    cert, key = cluster.certificates.pair("app")
    tls = Tls(cluster.certificates.ca.read_bytes(), cert.read_text(), key.read_bytes())
    async with kvorum.open_kv(cluster.url, tls=tls, timeout=TIMEOUT) as kv:
        await kv.set(("tls", "pem"), 4)


def run(*words: str, status: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line, in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KVORUM_")}
    ended = subprocess.run(
        [sys.executable, "-m", "kvorum.cli", *words],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == status, (ended.stdout, ended.stderr)
    assert "Traceback" not in ended.stderr
    return ended


def test_the_command_line_does_too(cluster: SecureNodes) -> None:
    cert, key = map(str, cluster.certificates.pair("app"))
    ca = str(cluster.certificates.ca)
    options = ["--url", cluster.url, "--ca", ca, "--cert", cert, "--key", key]
    run("set", '["tls", "cli"]', "5", *options)
    assert run("get", '["tls", "cli"]', "--json", *options).stdout
    assert run("status", *options).stdout.count("leader") >= 1
    assert "voter" in run("cluster", "members", *options).stdout
    variables = {"KVORUM_CA_FILE": ca, "KVORUM_CERT_FILE": cert, "KVORUM_KEY_FILE": key, "KVORUM_URL": cluster.url}
    assert json.loads(run("get", '["tls", "cli"]', "--json", **variables).stdout)["value"] == 5
    assert "certificate of its clients" in run("get", '["x"]', "--url", cluster.url, "--ca", ca, status=2).stderr
    assert "it speaks TLS" in run("status", "--url", cluster.url, status=3).stderr
    assert "it speaks TLS" in run("cluster", "members", "--url", cluster.url, status=3).stderr
    assert "cert is given without key" in run("get", '["x"]', "--url", cluster.url, "--cert", cert, status=2).stderr


async def test_a_name_of_ones_choice(cluster: SecureNodes) -> None:
    """The address does not matter then, neither the given one nor the leader's."""
    ca, (cert, key) = cluster.certificates.ca, cluster.certificates.pair("app")
    async with kvorum.open_kv(cluster.url, tls=Tls(ca, cert, key, "localhost"), timeout=TIMEOUT) as kv:
        await kv.set(("tls", "name"), 6)
    with pytest.raises(errors.WrongCluster, match="does not name this address"):
        await kvorum.open_kv(cluster.url, tls=Tls(ca, cert, key, "elsewhere"), timeout=TIMEOUT)


# ---- who does not get in, and is told why


async def _refusal(url: str, tls: object) -> str:
    with pytest.raises(errors.WrongCluster) as caught:
        await kvorum.open_kv(url, tls=tls, timeout=TIMEOUT)  # type: ignore[arg-type]
    return str(caught.value)


async def test_without_tls(cluster: SecureNodes) -> None:
    text = await _refusal(cluster.url, None)
    assert "it speaks TLS, and this client does not" in text
    assert "demands a certificate" in text


async def test_with_tls_to_a_port_without(plain: ThreeNodes, other: Certificates) -> None:
    assert "it speaks no TLS" in await _refusal(plain.url, other.tls)


async def test_with_the_wrong_ca(cluster: SecureNodes, other: Certificates) -> None:
    text = await _refusal(cluster.url, other.app)
    assert "certificate is not accepted" in text
    assert "unable to get local issuer certificate" in text
    assert "certificate is not accepted" in await _refusal(cluster.url, True)


async def test_without_a_certificate(cluster: SecureNodes) -> None:
    assert "demands a certificate of its clients" in await _refusal(cluster.url, cluster.certificates.tls)


async def test_with_one_of_another_ca(cluster: SecureNodes, other: Certificates) -> None:
    tls = Tls(cluster.certificates.ca, *other.pair("app"))
    assert "does not accept this client's certificate" in await _refusal(cluster.url, tls)


async def test_with_an_expired_one(cluster: SecureNodes) -> None:
    tls = Tls(cluster.certificates.ca, *make_expired(cluster.certificates.folder, "late"))
    assert "does not accept this client's certificate" in await _refusal(cluster.url, tls)


async def test_a_node_whose_certificate_has_expired(tmp_path: Path) -> None:
    """It starts, and says so in its log; clients refuse it and say why."""
    cluster = SecureNodes(tmp_path)
    made = cluster.certificates
    for number in range(3):
        cert, key = make_expired(made.folder, f"old{number + 1}", f"n{number + 1}")
        cluster._node_settings[number] |= {"tls_cert": str(cert), "tls_key": str(key)}
    cluster.write_configs()
    cluster._spawn(0)
    text = "connection refused"
    try:
        async with asyncio.timeout(60):
            while "connection refused" in text:  # it is starting
                with pytest.raises(errors.KvorumError) as caught:
                    await kvorum.open_kv(cluster.url.partition(",")[0], tls=made.tls, timeout=500)
                text = str(caught.value)
        assert "certificate has expired" in text
        assert "expired" in cluster.log(0).read_text()
    finally:
        cluster.stop()


# ---- ports


PORTS: dict[str, Callable[[SecureNodes], str]] = {
    "client": lambda cluster: cluster.client_address(0),
    "http": lambda cluster: cluster.http_address(0),
}
port = pytest.mark.parametrize("which", PORTS)


async def dial(
    cluster: SecureNodes, which: str, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, number = PORTS[which](cluster).rpartition(":")
    return await asyncio.open_connection(host, int(number), ssl=tls)


async def answer(cluster: SecureNodes, which: str, data: bytes) -> bytes:
    """Until the port closes the connection."""
    reader, writer = await dial(cluster, which)
    writer.write(data)
    found = b""
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(60):
            found = await reader.read()
    writer.transport.abort()
    return found


@port
@pytest.mark.parametrize(
    "data",
    [pickle.dumps({"type": "commit"}), b"\x00" * 100, b"\xff" * 1_000, b"\x16\x03\x01\x02\x00" + b"\xff" * 600],
    ids=["pickle", "zeros", "noise", "damaged handshake"],
)
async def test_garbage_is_refused(cluster: SecureNodes, which: str, data: bytes) -> None:
    found = await answer(cluster, which, data)
    assert len(found) < 64  # at most an alert
    await test_a_client_with_a_certificate_does_everything(cluster)


async def test_a_truncated_or_slow_handshake_ends_on_both_ports(cluster: SecureNodes) -> None:
    pace = pace_of(cluster)
    answers = await asyncio.gather(*(answer(cluster, which, hello_bytes()[:-20]) for which in PORTS))
    assert pace.seconds() < 15
    assert all(len(found) < 64 for found in answers)


async def test_http_without_tls_is_told_to_use_it(cluster: SecureNodes) -> None:
    found = await answer(cluster, "http", b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 400 ")
    assert b"https://" in found


async def test_http_demands_a_certificate_too(cluster: SecureNodes) -> None:
    with contextlib.suppress(OSError):
        reader, writer = await dial(cluster, "http", client_context(None))
        writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert not await reader.read()
        writer.transport.abort()


@pytest.mark.parametrize(("offered", "chosen"), [(("h2", "http/1.1"), "h2"), (("http/1.1",), "http/1.1"), ((), None)])
async def test_the_http_port_says_which_version(
    cluster: SecureNodes, offered: tuple[str, ...], chosen: str | None
) -> None:
    _, writer = await dial(cluster, "http", client_context(cluster.client_tls, alpn=offered))
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == chosen
    writer.transport.abort()


async def request(cluster: SecureNodes, number: int, path: str, body: bytes) -> bytes:
    """POST by HTTP/1.1 to a node; the answer's body."""
    host, _, http = cluster.http_address(number).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(http), ssl=client_context(cluster.client_tls))
    head = f"POST {path} HTTP/1.1\r\nhost: kv.example\r\nauthorization: Bearer t0ken\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    async with asyncio.timeout(60):
        whole = await reader.read()
    writer.close()
    head_bytes, _, found = whole.partition(b"\r\n\r\n")
    assert head_bytes.startswith(b"HTTP/1.1 200"), whole
    return found


@pytest.mark.parametrize(("versions", "url"), [([1], "https://kv.example/v2"), ([2, 3], "/v2")])
async def test_the_exchange_leads_to_tls(cluster: SecureNodes, versions: list[int], url: str) -> None:
    found = json.loads(await request(cluster, 0, "/", json.dumps({"supportedVersions": versions}).encode()))
    assert found["endpoints"] == [{"url": url, "consistency": "strong"}]


async def test_every_nodes_http_port_writes_to_the_leader(cluster: SecureNodes) -> None:
    """A follower's session client speaks TLS with the leader, and shows its certificate."""
    for number in range(3):
        write = dp.AtomicWrite()
        write.mutations.add(
            key=encode_key(("tls", "connect", number)),
            mutation_type=dp.M_SET,
            value=dp.KvValue(data=b"x", encoding=dp.VE_BYTES),
        )
        found = await request(cluster, number, "/v2/atomic_write", write.SerializeToString())
        assert dp.AtomicWriteOutput.FromString(found).status == dp.AW_SUCCESS
    async with kvorum.open_kv(cluster.url, tls=cluster.client_tls, timeout=TIMEOUT) as kv:
        for number in range(3):
            assert (await kv.get(("tls", "connect", number))).value == b"x"


async def test_an_idle_crowd_on_the_http_port_keeps_nobody_out(cluster: SecureNodes) -> None:
    """More connections than may be without a handshake."""
    idle = [await dial(cluster, "http") for _ in range(600)]
    found = json.loads(await request(cluster, 0, "/", b'{"supportedVersions": [3]}'))
    assert found["version"] == 3
    for _, writer in idle:
        writer.transport.abort()


async def test_figures_say_how_long_certificates_last(cluster: SecureNodes) -> None:
    figures = cluster.status(0).statistics
    assert 29 < figures["tls_cert_expiry_days"] <= 30
    assert 29 * 86_400 < figures["tls_cert_expiry_seconds"] <= 30 * 86_400
    assert 29 < figures["peer_cert_expiry_days"] <= 30
    assert figures["tls_reload_failures"] == 0


def test_a_node_does_not_start_with_files_that_do_not_fit(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    cert, key = made.pair("n1")
    base = ["--node-id", "n1", "--data-dir", str(tmp_path / "data")]
    client, http, peer = free_ports(3, made)
    base += ["--client-listen", f"127.0.0.1:{client}", "--http-listen", f"127.0.0.1:{http}"]
    base += ["--peer-listen", f"127.0.0.1:{peer}"]
    for words, named in (
        (["--tls-cert", str(cert), "--tls-key", str(made.pair("n2")[1])], "the key is not the certificate's"),
        (["--tls-cert", str(tmp_path / "gone.pem"), "--tls-key", str(key)], "cannot read tls_cert"),
        (["--tls-cert", str(key), "--tls-key", str(key)], "cannot be used"),
        (["--client-listen", f"0.0.0.0:{client}"], "set tls_cert and tls_key"),
        (
            ["--peer-cert", str(cert), "--peer-key", str(key), "--peer-ca", str(key)],
            "peer_ca",
        ),
    ):
        ended = run("node", *base, *words, status=78)
        (line,) = ended.stderr.splitlines()
        assert named in line


def test_tls_between_test_and_node_is_what_it_says(cluster: SecureNodes) -> None:
    """The certificate that both ports show is the configured one."""
    expected = cluster.certificates.pair("n1")[0].read_text()
    for which in PORTS.values():
        host, _, number = which(cluster).rpartition(":")
        assert ssl.get_server_certificate((host, int(number))) == expected
