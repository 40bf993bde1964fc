"""The same by every other way in: the wire by hand, unary calls, the blocking client, the command line."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import kvorum
import kvorum.sync
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import PermissionDenied, Unauthenticated
from kvorum.keys import encode_key
from tests.integration.auth.conftest import ROOT
from tests.integration.cluster_fixture import ThreeNodes
from tests.integration.node.raw import RawStream, enqueue_op, set_op

A, B = encode_key(("a", "x")), encode_key(("b", "x"))
OK, DENIED, UNKNOWN = pb.READ_STATUS_OK, pb.READ_STATUS_DENIED, pb.READ_STATUS_UNAUTHENTICATED


@pytest.fixture
def leader(cluster: ThreeNodes) -> str:
    return cluster.client_address(cluster.leader())


def hello(token: str, session: bytes = b"") -> pb.ClientFrame:
    return pb.ClientFrame(hello=pb.Hello(protocol=1, token=token, session=session))


async def opened(stream: RawStream, token: str) -> pb.SessionOpened:
    """Say hello and ask for a session; what is answered."""
    await stream.send(hello(token))
    await stream.send(pb.ClientFrame(open_session=pb.OpenSession(client="by hand")))
    while True:
        frame = await stream.next()
        assert frame is not None
        if frame.HasField("session"):
            stream.session = frame.session.session
            return frame.session


async def test_by_hand(leader: str, root: kvorum.Kv) -> None:
    made = await root.auth.create("by hand", read=[("a",)], write=[("a",)])
    other = await root.auth.create("another", write=[("a",)])
    async with RawStream(leader) as stream:
        await opened(stream, made.text)
        results = await stream.write(set_op(A), set_op(B), enqueue_op(b"x"))
        assert [result.outcome for result in results] == [pb.OUTCOME_DONE, pb.OUTCOME_DENIED, pb.OUTCOME_DENIED]
        all_of_it = pb.ReadRange(end=b"\xff", limit=1)
        reads = [pb.Read(id=1, keys=[A]), pb.Read(id=2, keys=[A, B]), pb.Read(id=3, ranges=[all_of_it])]
        points = [pb.PointReads(id=1, keys=[A]), pb.PointReads(id=2, keys=[A, B])]
        await stream.send(pb.ClientFrame(reads=reads, point_reads=points))
        answers = {answer.id: answer.status for answer in await stream.until("reads", 3)}
        assert answers == {1: OK, 2: DENIED, 3: DENIED}
        found = {answer.id: answer.status for answer in await stream.until("point_answers", 2)}
        assert found == {1: OK, 2: DENIED}
        more = pb.PutToken(id=bytes.fromhex(made.id), scopes=pb.Scopes(admin=True).SerializeToString())
        calls = [
            pb.QueueCall(id=1, peek=pb.Peek(queue="q")),
            pb.QueueCall(id=2, define=pb.DefineQueue(name="q")),
            pb.QueueCall(id=3, purge=pb.Purge(queue="q", limit=1)),
            pb.QueueCall(id=4, tokens=pb.ListTokens()),
            pb.QueueCall(id=5, switch_auth=pb.SwitchAuth(on=False)),
            pb.QueueCall(id=6, queues=pb.ListQueues()),
            pb.QueueCall(id=7, put_token=more),
        ]
        await stream.send(pb.ClientFrame(queue_calls=calls))
        replies = {reply.id: reply for reply in await stream.until("queue_replies", 7)}
        assert {number for number, reply in replies.items() if reply.status == DENIED} == {1, 2, 3, 4, 5, 7}
        assert replies[6].status == OK and not replies[6].queues
        async with RawStream(leader) as thief:
            await thief.send(hello(other.text, stream.session))
            ended = await thief.next()
            while ended is not None and not ended.error:
                ended = await thief.next()
            assert ended is not None and "belongs to another token" in ended.error


async def test_a_principal_cannot_be_put_into_a_group(leader: str, root: kvorum.Kv) -> None:
    """The leader's stamp stands beside the bytes of a client, and unknown fields in them mean nothing."""
    made = await root.auth.create("forger", write=[("a",)])
    async with RawStream(leader) as stream:
        await opened(stream, made.text)
        group = pb.WriteGroup(session=stream.session, ack_below=1)
        group.writes.add(seq=1, op=set_op(B))
        data = group.SerializeToString() + pb.Command(principal=b"root").SerializeToString()
        assert len(data) < 128
        await stream.send(b"\x12" + bytes((len(data),)) + data)
        (answer,) = await stream.until("results")
        assert [result.outcome for result in answer.results] == [pb.OUTCOME_DENIED]


@pytest.mark.parametrize(
    "token", ["", "kvo_", "x" * 5_000, f"kvo_{'0' * 16}_{'A' * 43}", f"kvo_{'g' * 16}_{'A' * 43}"], ids=range(5)
)
async def test_without_a_token_nothing_begins(leader: str, root: kvorum.Kv, token: str) -> None:
    async with RawStream(leader) as stream:
        answer = await opened(stream, token)
        assert answer.status == UNKNOWN and not answer.session
        group = pb.WriteGroup(session=bytes(10), ack_below=1)
        group.writes.add(seq=1, op=set_op(A))
        watches = [pb.StartWatch(id=1, keys=[A]), pb.StartWatch(id=2, start=A, end=B)]
        consumers = [pb.StartConsumer(id=1, queue="q", credits=1, concurrency=1)]
        await stream.send(pb.ClientFrame(writes=group, watches=watches, consumers=consumers))
        (results,) = await stream.until("results")
        assert [result.outcome for result in results.results] == [pb.OUTCOME_UNAUTHENTICATED]
        assert {event.status for event in await stream.until("watches", 2)} == {UNKNOWN}
        (ended,) = await stream.until("ended_consumers")
        assert ended.status == UNKNOWN


class Calls:
    """Unary calls of one node."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel: Any = channel

    async def __call__(self, method: str, request: Any, answer: Any, token: str) -> Any:
        call = self._channel.unary_unary(
            f"/kvorum.v1.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await call(request, metadata=bearer(token), timeout=10)

    async def refused(self, method: str, request: Any, token: str) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self(method, request, pb.AdminResponse, token)
        return caught.value.code()

    async def backup(self, token: str) -> grpc.StatusCode:
        call = self._channel.unary_stream(
            "/kvorum.v1.Admin/Backup",
            request_serializer=pb.BackupRequest.SerializeToString,
            response_deserializer=pb.BackupPart.FromString,
        )(pb.BackupRequest(), metadata=bearer(token))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        return caught.value.code()


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),) if token else ()


async def test_unary_calls(cluster: ThreeNodes, leader: str, root: kvorum.Kv) -> None:
    made = await root.auth.create("unary", read=[("a",)], write=[("a",)])
    denied, unknown = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
    for address in (leader, cluster.client_address(cluster.followers()[0])):
        async with grpc.aio.insecure_channel(address) as channel:
            call = Calls(channel)
            read = pb.Read(keys=[A])
            assert (await call("Kv/Get", read, pb.ReadResult, made.text)).status == OK
            assert (await call("Kv/Get", pb.Read(keys=[B]), pb.ReadResult, made.text)).status == DENIED
            assert (await call("Kv/Get", read, pb.ReadResult, "")).status == UNKNOWN
            for method, request, token, code in (
                ("Kv/Status", pb.StatusRequest(), "", unknown),
                ("Admin/Members", pb.MembersRequest(), "", unknown),
                ("Admin/Remove", pb.RemoveRequest(node_id="n1"), made.text, denied),
                ("Admin/SetTime", pb.SetTimeRequest(unix_ms=1), made.text, denied),
                ("Admin/Transfer", pb.TransferRequest(), "", unknown),
                ("Admin/AddMember", pb.AddMemberRequest(), "kvo_x", unknown),
            ):
                assert await call.refused(method, request, token) == code, method
            assert await call.backup(made.text) == denied
            await call("Kv/Status", pb.StatusRequest(), pb.StatusResponse, made.text)
            await call("Admin/Members", pb.MembersRequest(), pb.MembersResponse, ROOT)
    async with grpc.aio.insecure_channel(leader) as channel:
        for op, token, outcome in (
            (set_op(A), made.text, pb.OUTCOME_DONE),
            (set_op(B), made.text, pb.OUTCOME_DENIED),
            (set_op(A), "", pb.OUTCOME_UNAUTHENTICATED),
            (set_op(B), ROOT, pb.OUTCOME_DONE),
        ):
            request = pb.WriteRequest(write=pb.AtomicWrite.FromString(op))
            assert (await Calls(channel)("Kv/Commit", request, pb.WriteResponse, token)).outcome == outcome


async def test_the_blocking_client(cluster: ThreeNodes, root: kvorum.Kv) -> None:
    def work() -> None:
        with kvorum.sync.open_kv(cluster.url, token=ROOT) as boss:
            made = boss.auth.create("blocking", write=[("a",)])
            with kvorum.sync.open_kv(cluster.url, token=made.text) as kv:
                kv.set(("a", "sync"), 1)
                with pytest.raises(PermissionDenied):
                    kv.set(("b",), 1)
                with pytest.raises(PermissionDenied):
                    kv.get(("a",))
                with pytest.raises(PermissionDenied):
                    kv.auth.list()
                assert kv.auth.whoami().token is not None
            boss.auth.revoke("blocking")
        with kvorum.sync.open_kv(cluster.url) as kv, pytest.raises(Unauthenticated):
            kv.get(("a",))

    await asyncio.to_thread(work)


async def test_the_command_line(cluster: ThreeNodes, root: kvorum.Kv, tmp_path: Path) -> None:
    file = tmp_path / "root"
    file.write_text(ROOT)
    as_root = {"KVORUM_TOKEN_FILE": str(file)}

    async def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "kvorum.cli", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "KVORUM_URL": cluster.url, **environment},
            timeout=60,
        )

    refused = await run("get", '["a"]')
    assert refused.returncode == 2 and "asks for a token" in refused.stderr
    scopes = ("--read", '["a"]', "--write", '["a"]', "--send", "mail*")
    made = await run("auth", "token", "create", "cli", *scopes, **as_root)
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    assert (await run("set", '["a","cli"]', "1", KVORUM_TOKEN=token)).returncode == 0
    assert (await run("get", '["a","cli"]', "--token", token)).stdout
    denied = await run("get", '["b"]', KVORUM_TOKEN=token)
    assert denied.returncode == 2 and "may not read the key ('b',)" in denied.stderr
    listed = await run("auth", "token", "list", "--json", **as_root)
    assert [json.loads(line)["send"] for line in listed.stdout.splitlines()] == [["mail*"]]
    assert token.rpartition("_")[2] not in listed.stdout
    assert "cli" in (await run("auth", "whoami", KVORUM_TOKEN=token)).stdout
    assert (await run("auth", "off", KVORUM_TOKEN=token)).returncode == 2
    assert (await run("cluster", "members", KVORUM_TOKEN=token)).returncode == 0
    denied = await run("cluster", "remove", "n1", KVORUM_TOKEN=token)
    assert denied.returncode == 2 and "no admin right" in denied.stderr
    rotated = await run("auth", "token", "rotate", "cli", "--overlap", "0", "--json", **as_root)
    assert rotated.returncode == 0, rotated.stderr
    assert (await run("get", '["a"]', KVORUM_TOKEN=token)).returncode == 2
    new = json.loads(rotated.stdout)["token"]
    assert (await run("get", '["a","cli"]', KVORUM_TOKEN=new)).returncode == 0
    for plan in (["revoke", "cli"], ["revoke", "cli", "--keep"]):
        assert "token cli" in (await run("auth", "token", *plan, "--dry-run", **as_root)).stdout
        assert (await run("get", '["a","cli"]', KVORUM_TOKEN=new)).returncode == 0
    assert (await run("auth", "token", "revoke", "cli", **as_root)).returncode == 0
    assert (await run("get", '["a","cli"]', KVORUM_TOKEN=new)).returncode == 2
    assert (await run("auth", "token", "show", "cli", **as_root)).returncode == 2
