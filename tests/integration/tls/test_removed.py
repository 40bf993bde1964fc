"""A node that is no member any more has its folder, and a certificate that is still good: neither opens anything."""

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import kvorum
from kvorum import Tls, errors
from kvorum._proto import kvorum_pb2 as kv_pb
from kvorum.cli.admin import AdminClient
from kvorum.tls import ChannelTls
from kvorum_node.dev_cluster import in_thread
from kvorum_raft import wire
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import Refused
from kvorum_raft.faults import REFUSED_MARKER
from tests.integration.kv_connect.wire import CLIENTS
from tests.integration.raft.harness import promoted, wait_until
from tests.integration.tls.secure import SecureNodes, client_context
from tests.integration.tls.test_peers import SecureCluster
from tests.pace import BUSY

ROOT = "a-root-token-of-the-tests"


class Former:
    """`node_id` was a member with another folder than now, or is none now; `hello` is what that folder says."""

    def __init__(self, cluster: SecureCluster, node_id: str, hello: pb.Hello) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.hello = hello
        self.others = sorted({"n1", "n2", "n3"} - {node_id})

    def hello_to(self, target: str) -> pb.Hello:
        hello = pb.Hello()
        hello.CopyFrom(self.hello)
        hello.target = target
        return hello

    @contextlib.asynccontextmanager
    async def call(self, target: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection with its certificate, behind its hello."""
        context: ssl.SSLContext = client_context(None)
        context.load_cert_chain(*self.cluster.certificates.pair(self.node_id))
        reader, writer = await asyncio.open_connection(*self.cluster.address(target), ssl=context)
        writer.write(wire.encode(pb.Envelope(hello=self.hello_to(target))))
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def forgotten(self) -> None:
        """Until all others know that it is gone."""

        def known() -> bool:
            nodes = [self.cluster.nodes[name] for name in self.others]
            return all(self.hello.incarnation in node._admissions._removed() for node in nodes)

        await wait_until(known, what="the change everywhere")


async def next_of(reader: asyncio.StreamReader) -> pb.Envelope | None:
    """None: the connection has ended."""
    try:
        async with asyncio.timeout(20 * BUSY):
            size = int.from_bytes(await reader.readexactly(4), "big")
            return wire.decode(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, OSError):
        return None


async def _started(folder: Path) -> SecureCluster:
    cluster = SecureCluster(folder)
    await cluster.start()
    await cluster.propose(10)
    await wait_until(lambda: all(node.cluster_id for node in cluster.nodes.values()), what="cluster id")
    await cluster.settled()
    return cluster


async def _ended(cluster: SecureCluster) -> None:
    await cluster.propose(10)
    await cluster.settled()
    await cluster.stop()
    assert not cluster.faults


async def _promoted(cluster: SecureCluster, node_id: str) -> None:
    await promoted(await cluster.leader(), node_id)


@pytest.fixture(params=["removed", "replaced"])
async def former(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Former]:
    cluster = await _started(tmp_path)
    node_id = (await cluster.followers())[0].status().node_id
    found = Former(cluster, node_id, cluster.nodes[node_id].hello(""))
    if request.param == "removed":
        await (await cluster.leader()).remove(node_id)
        await wait_until(lambda: node_id in cluster.faults, what="refusal")
        assert isinstance(cluster.faults.pop(node_id), Refused)
        await cluster.stop(node_id)
    else:
        await cluster.stop(node_id)
        shutil.move(cluster.folder / node_id, cluster.folder / "old")
        member = cluster.joins(node_id)
        await cluster.start(node_id)
        await (await cluster.leader()).replace(member)
        await cluster.settled()
        await _promoted(cluster, node_id)
    await found.forgotten()
    yield found
    await _ended(cluster)


async def test_its_hello_is_refused_by_everybody(former: Former) -> None:
    for target in former.others:
        async with former.call(target) as (reader, _):
            answer = await next_of(reader)
            assert answer is not None
            assert answer.reject.code == pb.Reject.REMOVED
            assert await next_of(reader) is None


async def test_nothing_that_it_says_behind_it_is_heard(former: Former) -> None:
    cluster = former.cluster
    leader = await cluster.leader()
    term, last = leader.status().term, leader.status().last_log_index
    bodies: list[dict[str, object]] = [
        {"pre_vote": pb.PreVote(last_index=1 << 40, last_term=1 << 30, attempt=1)},
        {"request_vote": pb.RequestVote(last_index=1 << 40, last_term=1 << 30, transfer=True)},
        {"append": pb.Append(prev_index=last, prev_term=term, commit_index=last)},
        {"append_reply": pb.AppendReply(success=True, match_index=1 << 40)},
        {"vote": pb.Vote(granted=True)},
        {"read_index": pb.ReadIndex(id=1)},
        {"snapshot_offer": pb.SnapshotOffer()},
        {"timeout_now": pb.TimeoutNow()},
        {"state_hash": pb.StateHash(index=last, content_hash=bytes(16), verdict=True)},
        {"formation": pb.Formation(stored=True)},
    ]
    for target in former.others:
        for parts in bodies:
            async with former.call(target) as (reader, writer):
                envelope = pb.Envelope(term=term + 1_000, **parts)  # type: ignore[arg-type]
                writer.write(wire.encode(envelope))
                answer = await next_of(reader)
                assert answer is None or answer.WhichOneof("body") == "reject"
                assert await next_of(reader) is None
    assert (await cluster.leader()).status().term == term
    await cluster.propose(5)


async def test_a_connection_of_before_ends(tmp_path: Path) -> None:
    cluster = await _started(tmp_path)
    node_id = (await cluster.followers())[0].status().node_id
    found = Former(cluster, node_id, cluster.nodes[node_id].hello(""))
    await cluster.stop(node_id)
    async with contextlib.AsyncExitStack() as stack:
        readers = []
        for target in found.others:
            reader, _ = await stack.enter_async_context(found.call(target))
            welcome = await next_of(reader)
            assert welcome is not None
            assert welcome.WhichOneof("body") == "welcome", "it is a member still"
            readers.append(reader)
        await (await cluster.leader()).remove(node_id)
        for reader in readers:
            assert await next_of(reader) is None
    await _ended(cluster)


async def test_it_stays_refused_if_its_mark_is_taken_away(tmp_path: Path) -> None:
    cluster = await _started(tmp_path)
    node_id = (await cluster.followers())[0].status().node_id
    await (await cluster.leader()).remove(node_id)
    for _ in range(2):
        await wait_until(lambda: node_id in cluster.faults, what="refusal")
        assert "was removed from the cluster" in str(cluster.faults.pop(node_id))
        await cluster.stop(node_id)
        applied = cluster.machines[node_id].applied_index
        await cluster.propose(20)
        (cluster.folder / node_id / "raft" / REFUSED_MARKER).unlink()
        with contextlib.suppress(Refused):
            await cluster.start(node_id)
    await wait_until(lambda: node_id in cluster.faults or node_id not in cluster.nodes, what="refusal")
    assert cluster.machines[node_id].applied_index <= applied, "it has got nothing"
    cluster.faults.pop(node_id, None)
    if node_id in cluster.nodes:
        await cluster.stop(node_id)
    await _ended(cluster)


# ---- the other two ports, of real nodes


async def test_its_certificate_is_no_token(tmp_path: Path) -> None:
    (tmp_path / "root").write_text(f"{ROOT}\n")
    with SecureNodes(tmp_path, clients=True, root_token_file=str(tmp_path / "root")) as cluster:
        async with kvorum.open_kv(cluster.url, tls=cluster.client_tls, token=ROOT) as root:
            await root.auth.on()
            await root.set(("a",), "told to nobody")
        number = cluster.followers()[0]
        name = f"n{number + 1}"
        async with AdminClient(cluster.addresses, ChannelTls(cluster.client_tls), ROOT) as admin:
            await admin.change("Remove", kv_pb.RemoveRequest(node_id=name), 30.0)
        await in_thread(cluster._children[number].wait, 60)
        del cluster._children[number]
        others = [one for one in range(3) if one != number]
        own = Tls(cluster.certificates.ca, *cluster.certificates.pair(name))
        url = "kvorum://" + ",".join(cluster.client_address(one) for one in others)
        for token in (None, f"kvo_{'0' * 16}_{'A' * 43}"):
            with pytest.raises(errors.Unauthenticated):
                async with kvorum.open_kv(url, tls=own, token=token) as kv:
                    await kv.get(("a",))
        async with AdminClient([cluster.addresses[one] for one in others], ChannelTls(own)) as admin:
            with pytest.raises(errors.KvorumError):
                await admin.change("Remove", kv_pb.RemoveRequest(node_id=f"n{others[0] + 1}"), 5.0)
        context = client_context(own)
        for one in others:
            for version, client_of in CLIENTS.items():
                context.set_alpn_protocols(["h2" if version == "http2" else "http/1.1"])
                async with client_of(cluster.http_address(one), tls=context) as client:
                    for path in ("/", "/v2/snapshot_read", "/v2/atomic_write", "/v2/watch"):
                        answer = await client.request("POST", path, b"")
                        assert (answer.status, b"told" in answer.body) == (401, False), path
        # Its own ports are closed: nobody reads there what it had.
        for address in (cluster.client_address(number), cluster.http_address(number)):
            host, _, port = address.rpartition(":")
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(host, int(port))
