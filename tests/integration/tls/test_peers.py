"""Peers that show each other certificates, and everybody else on their port."""

import asyncio
import contextlib
import pickle
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from kvorum import certificates
from kvorum_raft import wire
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.config import Limits, RaftConfig, split_address
from kvorum_raft.errors import ConfigurationError
from kvorum_raft.seams import Member
from kvorum_raft.tls import PeerTls
from tests.integration.raft.harness import QUICK, Cluster, wait_until
from tests.integration.tls.secure import Certificates, client_context, hello_bytes, make_expired
from tests.pace import BUSY

PATIENCE = 1.0 * BUSY
TIMING = replace(QUICK, handshake=PATIENCE)
HALF_OPEN = 24


class SecureCluster(Cluster):
    """Nodes in this process, with TLS between them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, timing=TIMING, limits=Limits(handshakes=HALF_OPEN))
        self.certificates = Certificates(folder / "certs")

    def config(self, node_id: str) -> RaftConfig:
        tls = PeerTls(node_id, *self.certificates.pair(node_id), self.certificates.ca)
        return replace(super().config(node_id), tls=tls)

    def address(self, node_id: str) -> tuple[str, int]:
        """Where its peers reach it."""
        return split_address(super().config(node_id).own.peer_address)

    def figures(self, node_id: str = "n1") -> dict[str, float]:
        return self.nodes[node_id].statistics()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SecureCluster]:
    cluster = SecureCluster(tmp_path)
    await cluster.start()
    await cluster.propose(10)
    yield cluster
    await cluster.propose(10)
    await cluster.settled()
    await cluster.stop()
    assert not cluster.faults


async def send(cluster: SecureCluster, data: bytes, *, tls: ssl.SSLContext | None = None) -> bytes:
    """What node n1 answers until it closes the connection."""
    reader, writer = await asyncio.open_connection(*cluster.address("n1"), ssl=tls)
    try:
        async with asyncio.timeout(8 * BUSY):
            writer.write(data)
            return await reader.read()
    finally:
        writer.transport.abort()


async def refused(cluster: SecureCluster, figure: str, data: bytes, *, tls: ssl.SSLContext | None = None) -> None:
    """Node n1 answers nothing, and counts it there."""
    before = cluster.figures()[figure]
    answer = b""
    with contextlib.suppress(OSError):  # a reset, or an alert
        answer = await send(cluster, data, tls=tls)
    assert answer == b""
    await wait_until(lambda: cluster.figures()[figure] == before + 1, what=figure)


def hello(cluster: SecureCluster, node_id: str) -> bytes:
    return wire.encode(pb.Envelope(hello=cluster.nodes[node_id].hello("n1")))


async def test_nodes_find_each_other_and_say_when_their_certificates_end(cluster: SecureCluster) -> None:
    await cluster.settled()
    figures = cluster.figures()
    assert figures["peer_tls_accepted"] >= 2
    assert 29 < figures["peer_cert_expiry_days"] <= 30
    assert figures["peer_bad_inputs"] == figures["peer_wrong_names"] == 0


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"type": "append_entries", "term": 10**6}),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00\x00\x00\x05\xff\xff\xff\xff\xff",
        b"\xff" * 100,
    ],
    ids=["pickle", "http", "frame", "noise"],
)
async def test_what_is_not_tls_is_not_read(cluster: SecureCluster, data: bytes) -> None:
    await refused(cluster, "peer_tls_not_tls", data)


async def test_a_peer_without_tls_is_not_read(cluster: SecureCluster) -> None:
    await refused(cluster, "peer_tls_not_tls", hello(cluster, "n2"))


@pytest.mark.parametrize(
    "data",
    [
        b"\x16" + b"\x03\x01\x02\x00" + b"\xff" * 600,
        b"\x16\x03\x01\xff\xff" + b"\x00" * 100,
        hello_bytes()[:40] + b"\x00" * 600,
        b"\x16\x03\x01\x00\x01\x00" * 50,
    ],
    ids=["noise", "too long", "damaged", "splinters"],
)
async def test_damaged_handshakes_are_refused(cluster: SecureCluster, data: bytes) -> None:
    await refused(cluster, "peer_tls_failed", data)


async def test_a_truncated_handshake_waits_no_longer_than_its_time(cluster: SecureCluster) -> None:
    await refused(cluster, "peer_tls_too_slow", hello_bytes()[:-10])


async def test_a_certificate_is_demanded(cluster: SecureCluster) -> None:
    await refused(cluster, "peer_tls_failed", hello(cluster, "n2"), tls=client_context(None))


async def test_one_of_another_ca_is_refused(cluster: SecureCluster, tmp_path: Path) -> None:
    other = Certificates(tmp_path / "other")
    context = client_context(None)
    context.load_cert_chain(*other.pair("n2"))
    await refused(cluster, "peer_tls_failed", hello(cluster, "n2"), tls=context)


async def test_an_expired_one_is_refused(cluster: SecureCluster) -> None:
    context = client_context(None)
    context.load_cert_chain(*make_expired(cluster.certificates.folder, "old", "n2"))
    await refused(cluster, "peer_tls_failed", hello(cluster, "n2"), tls=context)


@pytest.mark.parametrize("name", ["n3", "app"])
async def test_one_of_another_node_or_a_client_is_refused(cluster: SecureCluster, name: str) -> None:
    """It is of the right CA, and even the key of a member does not let it speak for another."""
    context = client_context(None)
    context.load_cert_chain(*cluster.certificates.pair(name))
    await refused(cluster, "peer_wrong_names", hello(cluster, "n2"), tls=context)


async def test_the_right_one_is_welcome(cluster: SecureCluster) -> None:
    """So the tests above refuse for the reason that they give. Told apart by what a member hears: who it is."""
    context = client_context(None)
    context.load_cert_chain(*cluster.certificates.pair("n2"))
    await cluster.settled()  # what a hello says of the log must not be older than what was acknowledged
    hello = cluster.nodes["n2"].hello("n1")
    hello.meeting = True
    answer = await send(cluster, wire.encode(pb.Envelope(hello=hello)), tls=context)
    (frame,) = wire.FrameReader(wire.MAX_HELLO).feed(answer)
    assert wire.decode(frame).welcome.hello.node_id == "n1"


async def test_older_versions_of_tls_are_refused(cluster: SecureCluster) -> None:
    context = client_context(None)
    context.load_cert_chain(*cluster.certificates.pair("n2"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    await refused(cluster, "peer_tls_failed", hello(cluster, "n2"), tls=context)


async def test_garbage_within_tls_is_refused(cluster: SecureCluster) -> None:
    context = client_context(None)
    context.load_cert_chain(*cluster.certificates.pair("n2"))
    await refused(cluster, "peer_bad_inputs", pickle.dumps({"type": "append_entries"}), tls=context)


@contextlib.asynccontextmanager
async def impostor(cluster: SecureCluster, files: Iterable[Path]) -> AsyncIterator[list[bytes]]:
    """In the place of n2, with other files; what others say to it."""
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heard.append(await reader.read(1_000))
        except OSError:
            heard.append(b"")
        writer.transport.abort()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    await cluster.stop("n2")
    server = await asyncio.start_server(hear, *cluster.address("n2"), ssl=context)
    try:
        yield heard
    finally:
        server.close()
        await server.wait_closed()
        await cluster.start("n2")


@pytest.mark.parametrize(("name", "figure"), [("n3", "peer_wrong_names"), ("app", "peer_tls_dials_failed")])
async def test_nothing_is_said_to_an_impostor_at_a_peers_address(
    cluster: SecureCluster, name: str, figure: str
) -> None:
    before = cluster.figures()[figure]
    async with impostor(cluster, cluster.certificates.pair(name)) as heard:
        await wait_until(lambda: cluster.figures()[figure] >= before + 2, what="impostor")
    assert not b"".join(heard)


async def test_but_to_whoever_has_its_key(cluster: SecureCluster) -> None:
    """So the tests beside this one would notice."""
    async with impostor(cluster, cluster.certificates.pair("n2")) as heard:
        await wait_until(lambda: bool(b"".join(heard)), what="hello")


async def test_nor_to_one_of_another_ca(cluster: SecureCluster, tmp_path: Path) -> None:
    other = Certificates(tmp_path / "other")
    before = cluster.figures()["peer_tls_dials_failed"]
    async with impostor(cluster, other.pair("n2")) as heard:
        await wait_until(lambda: cluster.figures()["peer_tls_dials_failed"] >= before + 2, what="failed dials")
    assert not b"".join(heard)


async def test_meeting_an_impostor_says_what_is_wrong(cluster: SecureCluster, tmp_path: Path) -> None:
    other = Certificates(tmp_path / "other")
    where = cluster.config("n2").own.peer_address
    async with impostor(cluster, other.pair("n2")):
        with pytest.raises(ConfigurationError, match="certificate"):
            await cluster.nodes["n1"]._transport.meet(Member("n2", where, where))


async def test_silent_connections_make_room_for_peers(cluster: SecureCluster) -> None:
    """As many as there is room for, and more; the oldest go, and whoever means it gets in."""
    silent = [await asyncio.open_connection(*cluster.address("n1")) for _ in range(HALF_OPEN * 2)]
    await wait_until(lambda: cluster.figures()["peer_tls_crowded_out"] >= HALF_OPEN, what="crowd")
    assert cluster.figures()["peer_tls_half_open"] <= HALF_OPEN
    await cluster.stop("n3")
    await cluster.start("n3")
    await cluster.settled()
    for _, writer in silent:
        writer.transport.abort()
    await wait_until(lambda: cluster.figures()["peer_tls_half_open"] == 0, what="end of the crowd")


async def test_slow_handshakes_do_not_keep_peers_out(cluster: SecureCluster) -> None:
    """More of them than are worked on at a time: each has sent the begin of a handshake."""
    begun = hello_bytes()[:-10]
    slow = [await asyncio.open_connection(*cluster.address("n1")) for _ in range(HALF_OPEN - 4)]
    for _, writer in slow:
        writer.write(begun)
    await cluster.stop("n3")
    await cluster.start("n3")
    await cluster.settled()
    await wait_until(lambda: cluster.figures()["peer_tls_too_slow"] >= HALF_OPEN - 4, what="end of their time")
    for _, writer in slow:
        writer.transport.abort()


# ---- replaced files


async def serial(cluster: SecureCluster, node_id: str) -> str:
    """Of the certificate that it shows now."""
    context = client_context(None)
    context.load_cert_chain(*cluster.certificates.pair("n2" if node_id != "n2" else "n3"))
    _, writer = await asyncio.open_connection(*cluster.address(node_id), ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return str(ssl.DER_cert_to_PEM_cert(found))


async def test_new_connections_use_new_files_and_open_ones_stay(cluster: SecureCluster) -> None:
    old = await serial(cluster, "n1")
    connects = cluster.figures()["peer_disconnects"]
    cluster.certificates.renew("n1", days=20)
    assert await serial(cluster, "n1") == cluster.certificates.pair("n1")[0].read_text() != old
    await cluster.propose(10)
    assert cluster.figures()["peer_disconnects"] == connects
    assert 19 < cluster.figures()["peer_cert_expiry_days"] <= 20
    for node_id in ("n2", "n3"):  # they dial n1 anew, and it them, with the new one
        await cluster.stop(node_id)
        await cluster.start(node_id)
    await cluster.settled()


async def test_files_that_do_not_fit_are_not_used(cluster: SecureCluster) -> None:
    old = await serial(cluster, "n1")
    certificate, key = cluster.certificates.pair("n1")
    new = certificate.read_bytes(), key.read_bytes()
    cluster.certificates.renew("n1")
    fits, certificate_bytes = key.read_bytes(), certificate.read_bytes()
    key.write_bytes(new[1])  # the new certificate stands beside the old key for a moment
    assert await serial(cluster, "n1") == old
    assert cluster.figures()["peer_tls_reload_failures"] >= 1
    for damaged in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        certificate.write_bytes(damaged)
        assert await serial(cluster, "n1") == old
    certificate.unlink()
    assert await serial(cluster, "n1") == old
    certificate.write_bytes(certificate_bytes)
    key.write_bytes(fits)
    assert await serial(cluster, "n1") == certificate.read_text() != old


def test_a_node_does_not_start_with_another_ones_certificate(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    with pytest.raises(ConfigurationError, match=r"kvorum:node:n2.*kvorum:node:n1"):
        PeerTls("n1", *made.pair("n2"), made.ca)
    with pytest.raises(ConfigurationError, match="names no node"):
        PeerTls("n1", *made.pair("app"), made.ca)
    with pytest.raises(ConfigurationError, match="not the certificate's"):
        PeerTls("n1", made.pair("n1")[0], made.pair("n2")[1], made.ca)
    with pytest.raises(ConfigurationError, match="cannot read peer_ca"):
        PeerTls("n1", *made.pair("n1"), tmp_path / "gone.pem")


def test_an_encrypted_key_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    made = Certificates(tmp_path)
    cert, key = made.pair("n1")
    secret = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        secret.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    with pytest.raises(ConfigurationError, match="is encrypted"):
        PeerTls("n1", cert, key, made.ca)


# ---- the other way round


async def test_tls_on_a_port_without_it_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(tmp_path)
    await cluster.start()
    try:
        before = cluster.nodes["n1"].statistics()["peer_bad_inputs"]
        place = split_address(cluster.config("n1").own.peer_address)
        with pytest.raises(OSError):
            await asyncio.open_connection(*place, ssl=client_context(None))
        assert cluster.nodes["n1"].statistics()["peer_bad_inputs"] == before + 1
        assert "it speaks TLS, and this node does not" in caplog.text
    finally:
        await cluster.stop()


async def test_ports_are_given_back(tmp_path: Path) -> None:
    """And a port that is taken is named."""
    cluster = SecureCluster(tmp_path)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(cluster.address("n1"))
        taken.listen()
        with pytest.raises(ConfigurationError, match="cannot listen for peers"):
            await cluster.start("n1")
    await cluster.start("n1")
    await cluster.stop("n1")
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(cluster.address("n1"))


def test_names_are_compared_as_they_are_written(tmp_path: Path) -> None:
    """Ids with characters that a URI cannot hold are written in one way only."""
    from kvorum_raft.tls import node_name, node_names

    assert node_name("n1") == "kvorum:node:n1"
    assert node_name("a/b:c") == "kvorum:node:a%2Fb%3Ac"
    shown = {"subjectAltName": (("DNS", "kvorum:node:n1"), ("URI", "kvorum:node:n2"), ("URI", "https://x"))}
    assert node_names(shown) == {"kvorum:node:n2"}
    assert node_names(None) == frozenset()
    assert node_name("n1") == certificates.NODE_PREFIX + "n1"
