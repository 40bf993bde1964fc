"""What an HTTP answer says of a write's outcome (rules H1), with a backend that is told what to do."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import pytest

from kvorum import errors, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import WriteOutcome
from kvorum_node._proto import datapath_pb2 as dp
from kvorum_node.access import INSIDER, Caller
from kvorum_node.front import Front
from kvorum_node.http.app import App
from kvorum_node.http.budget import Budget
from kvorum_node.http.health import Health
from kvorum_node.http.message import Refusal, Request, Response
from kvorum_node.http.metrics import Metrics
from kvorum_node.http.tokens import Tokens
from kvorum_node.metrics.collector import Sources
from kvorum_node.slow import SlowLog
from kvorum_node.store.rights import Rights
from kvorum_raft.seams import Status

NOW = 1_700_000_000_000
STAMP = bytes(9) + b"\1"
UNAVAILABLE = "The server is temporarially unavailable, try again later."


class Desk:
    """`Front`, as far as the routes use it. `outcome` is what writes and reads meet with."""

    cluster_id = bytes(range(16))

    def __init__(self) -> None:
        self.outcome: Exception | pb.WriteResult = pb.WriteResult(outcome=pb.OUTCOME_DONE)
        self.ops: list[pb.AtomicWrite] = []
        self.known = True

    async def write(self, op: bytes, *, timeout: float) -> WriteOutcome:
        self.ops.append(pb.AtomicWrite.FromString(op))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return WriteOutcome(self.outcome, STAMP if self.outcome.outcome == pb.OUTCOME_DONE else b"")

    async def read(self, read: pb.Read, *, timeout: float) -> pb.ReadResult:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return pb.ReadResult(entries=[pb.KvEntry(key=key) for key in read.keys])

    def of(self, token: str) -> "Desk":
        assert not token
        return self

    def check(self, caller: Caller, missing: Callable[[Rights], str]) -> None:
        assert caller is INSIDER

    async def watch(self, keys: Sequence[bytes], caller: Caller) -> AsyncIterator[Sequence[pb.KvEntry]]:
        yield [pb.KvEntry(key=key) for key in keys]

    def now_ms(self) -> int:
        return NOW

    async def leader_known(self, timeout: float) -> bool:
        return self.known


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.problem = ""

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_app(desk: Desk, clock: Clock, **options: Any) -> App:
    tokens = options.pop("tokens", Tokens(""))
    status = Status("n1", b"", "follower", 7, None, 1, 1, 1, 1)
    sources = Sources(lambda: status, lambda: {"odd-name (x)": 1.0})
    health = Health(lambda: clock.problem, clock, grace=1.0)
    return App(cast(Front, desk), tokens, health, Metrics(sources), **options)


@pytest.fixture
async def app(desk: Desk, clock: Clock) -> App:
    return make_app(desk, clock)


def request(path: str, message: dp.AtomicWrite | dp.SnapshotRead | dp.Watch | bytes = b"", **headers: str) -> Request:
    body = message if isinstance(message, bytes) else message.SerializeToString()
    fields = {"authorization": "Bearer t"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return Request("POST", path, fields, body, peer="127.0.0.1")


async def ask(app: App, asked: Request) -> Response:
    """As the server does it: first by the head alone."""
    try:
        app.admit(asked)
    except Refusal as refusal:
        return refusal.response()
    return await app.handle(asked)


def body(response: Response) -> str:
    return b"".join(response.chunks).decode()


SET = dp.AtomicWrite(mutations=[dp.Mutation(key=b"\x02a\0", value=dp.KvValue(data=b"v", encoding=3), mutation_type=1)])


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (errors.OutcomeUnknown("no answer within 30 s"), 409, "outcome unknown"),
        (errors.Closed("closed midway", outcome="unknown"), 409, "outcome unknown"),
        (errors.DeadlineExceeded("no answer; not applied"), 503, f"{UNAVAILABLE} (no answer; not applied)"),
        (errors.Overloaded("too much"), 503, f"{UNAVAILABLE} (too much)"),
        (errors.Unavailable("no leader"), 503, f"{UNAVAILABLE} (no leader)"),
        (errors.WrongCluster("another cluster"), 503, f"{UNAVAILABLE} (another cluster)"),
        (errors.Closed(), 503, f"{UNAVAILABLE} (this client is closed)"),
        (errors.InvalidArgument("not so"), 400, "not so"),
        (errors.NoSpace("node n2: its disk is nearly full"), 400, "node n2: its disk is nearly full"),
    ],
)
async def test_errors_of_writes(app: App, desk: Desk, error: Exception, status: int, text: str) -> None:
    desk.outcome = error
    answer = await ask(app, request("/v2/atomic_write", SET))
    assert (answer.status, body(answer), answer.content_type) == (status, text, "text/plain; charset=utf-8")
    figures = app.statistics()
    assert figures["kv_connect_unknown_outcomes"] == (status == 409)
    assert figures["kv_connect_unavailable"] == (status == 503)


async def test_a_fault_of_this_node_is_500_and_tells_nothing(
    app: App, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.outcome = ZeroDivisionError("a secret")
    read = dp.SnapshotRead(ranges=[dp.ReadRange(start=b"\x02a\0", end=b"\x02a\0\0", limit=1)])
    answer = await ask(app, request("/v2/snapshot_read", read))
    assert (answer.status, body(answer)) == (500, "An internal server error occurred.")
    assert "a secret" in caplog.text
    assert app.statistics()["kv_connect_faults"] == 1


async def test_nobody_knows_what_became_of_a_write_that_met_with_a_fault(
    app: App, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """500 would be repeated, and applied twice."""
    desk.outcome = ZeroDivisionError("a secret")
    answer = await ask(app, request("/v2/atomic_write", SET))
    assert (answer.status, body(answer)) == (409, "outcome unknown")
    assert "a secret" in caplog.text
    figures = app.statistics()
    assert (figures["kv_connect_faults"], figures["kv_connect_unknown_outcomes"]) == (1, 1)


async def test_a_full_queue_is_no_failed_check(app: App, desk: Desk) -> None:
    desk.outcome = pb.WriteResult(outcome=pb.OUTCOME_QUEUE_FULL, message="the queue is full")
    answer = await ask(app, request("/v2/atomic_write", SET))
    assert (answer.status, body(answer)) == (503, f"{UNAVAILABLE} (the queue is full)")


@pytest.mark.parametrize(
    "outcome",
    [pb.OUTCOME_TYPE_ERROR, pb.OUTCOME_RANGE_ERROR, pb.OUTCOME_STALE_LEASE, pb.OUTCOME_MESSAGE_GONE],
)
async def test_what_apply_refuses_is_400_with_its_text(app: App, desk: Desk, outcome: "pb.Outcome") -> None:
    desk.outcome = pb.WriteResult(outcome=outcome, message="a text")
    answer = await ask(app, request("/v2/atomic_write", SET))
    assert (answer.status, body(answer)) == (400, "a text")


class Slices:
    """A list of a few slices; the node has to begin anew once."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.under_way = self.most = 0

    async def read_slices(
        self, read: pb.Read, take: Callable[[pb.ReadResult | None], None], *, timeout: float
    ) -> pb.ReadResult:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            for turn in range(2):
                for number in range(self.count if turn else 1):
                    await asyncio.sleep(0)
                    row = pb.KvEntry(key=b"%d" % number, value=b"v" * 1_000, versionstamp=STAMP)
                    take(pb.ReadResult(ranges=[pb.RangeResult(entries=[row])]))
                if not turn:
                    take(None)
            return pb.ReadResult()
        finally:
            self.under_way -= 1


LIST = dp.SnapshotRead(ranges=[dp.ReadRange(start=b"a", end=b"z", limit=100)])


async def test_slices_of_a_list_are_put_together_and_counted_until_they_are_sent(app: App, desk: Desk) -> None:
    desk.read_slices = Slices(5).read_slices  # type: ignore[attr-defined]
    answer = await ask(app, request("/v2/snapshot_read", LIST))
    output = dp.SnapshotReadOutput.FromString(b"".join(answer.chunks))
    assert [row.key for row in output.ranges[0].values] == [b"0", b"1", b"2", b"3", b"4"]
    assert 5_000 < app.statistics()["kv_connect_answer_bytes"] < 6_000
    answer.done()
    assert app.statistics()["kv_connect_answer_bytes"] == 0


async def test_answers_above_the_bound_are_503_and_lists_wait_for_one_another(
    app: App, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_answers", Budget(100_000, "answers"))
    slices = Slices(50)
    desk.read_slices = slices.read_slices  # type: ignore[attr-defined]
    answers = await asyncio.gather(*(ask(app, request("/v2/snapshot_read", LIST)) for _ in range(40)))
    statuses = sorted(answer.status for answer in answers)
    assert statuses[0] == 200 and statuses[-1] == 503 and set(statuses) == {200, 503}
    assert slices.most == 16
    assert app.statistics()["kv_connect_answer_bytes"] <= 100_000
    for answer in answers:
        answer.done()
    assert app.statistics()["kv_connect_answer_bytes"] == 0
    assert (await ask(app, request("/v2/snapshot_read", LIST))).status == 200


async def test_a_read_without_a_leader_is_503(app: App, desk: Desk) -> None:
    desk.outcome = errors.Unavailable("no leader")
    read = dp.SnapshotRead(ranges=[dp.ReadRange(start=b"a", end=b"a\0", limit=1)])
    assert (await ask(app, request("/v2/snapshot_read", read))).status == 503


async def test_absolute_times_become_durations_against_the_clusters_time(app: App, desk: Desk) -> None:
    """Never against this machine's clock: the cluster's time is years ago here."""
    write = dp.AtomicWrite()
    for at in (0, -1, 1, NOW - 1, NOW, NOW + 5_000, 2**62):
        write.mutations.add(key=b"\x02a\0", mutation_type=dp.M_SET, expire_at_ms=at).value.encoding = dp.VE_BYTES
    for at in (0, -(2**40), NOW - 9, NOW + 7):
        write.enqueues.add(payload=b"p", deadline_ms=at)
    assert (await ask(app, request("/v2/atomic_write", write))).status == 200
    [op] = desk.ops
    found = [mutation.expire_in_ms if mutation.HasField("expire_in_ms") else None for mutation in op.mutations]
    assert found == [None, None, 0, 0, 0, 5_000, limits.MAX_EXPIRE_IN]
    assert [message.delay_ms for message in op.enqueues] == [0, 0, 0, 7]


async def test_times_wait_for_a_leader_whose_clock_counts(app: App, desk: Desk) -> None:
    desk.known = False
    write = dp.AtomicWrite()
    write.mutations.add(key=b"\x02a\0", mutation_type=dp.M_SET, expire_at_ms=NOW + 1).value.encoding = dp.VE_BYTES
    answer = await ask(app, request("/v2/atomic_write", write))
    assert (answer.status, desk.ops) == (503, [])
    assert (await ask(app, request("/v2/atomic_write", SET))).status == 200


async def test_expiry_means_nothing_for_sums(app: App, desk: Desk) -> None:
    write = dp.AtomicWrite()
    value = dp.KvValue(data=bytes(8), encoding=dp.VE_LE64)
    write.mutations.add(key=b"\x02a\0", mutation_type=dp.M_SUM, value=value, expire_at_ms=NOW + 1, sum_clamp=True)
    write.mutations.add(key=b"\x02a\0", mutation_type=dp.M_DELETE, expire_at_ms=NOW + 1, value=value)
    assert (await ask(app, request("/v2/atomic_write", write))).status == 200
    summed, deleted = desk.ops[0].mutations
    assert not summed.HasField("expire_in_ms") and not summed.sum_clamp
    assert not deleted.HasField("expire_in_ms") and not deleted.value and not deleted.encoding


# ---- metadata and tokens


async def test_expiry_of_the_metadata_is_never_in_the_past(app: App) -> None:
    """The cluster's clock is years behind this one here; a client compares with its own."""
    answer = json.loads(body(await ask(app, request("/", b'{"supportedVersions":[3]}'))))
    expires = time.mktime(time.strptime(answer["expiresAt"], "%Y-%m-%dT%H:%M:%SZ"))
    assert expires - time.mktime(time.gmtime()) > 3_600
    assert answer["databaseId"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"


@pytest.mark.parametrize(
    "nonsense", [b"[" * 100_000, b"\xff\xfe", b'{"supportedVersions":[true]}', b'{"supportedVersions":[3.0]}']
)
async def test_metadata_of_nonsense(app: App, nonsense: bytes) -> None:
    assert (await ask(app, request("/", nonsense))).status == 400


@pytest.mark.parametrize(
    ("tokens", "peer", "header", "status"),
    [
        (Tokens(""), "127.0.0.1", "Bearer any", 200),
        (Tokens(""), "127.8.9.1", "bearer any", 200),
        (Tokens(""), "::1", "Bearer any", 200),
        (Tokens(""), "::ffff:127.0.0.1", "Bearer any", 200),
        (Tokens(""), "10.0.0.9", "Bearer any", 401),
        (Tokens(""), "::ffff:10.0.0.9", "Bearer any", 401),
        (Tokens(""), "", "Bearer any", 401),
        (Tokens("", open_to_all=True), "10.0.0.9", "Bearer any", 200),
        (Tokens("", open_to_all=True), "10.0.0.9", "", 401),
        (Tokens("secret"), "10.0.0.9", "Bearer secret", 200),
        (Tokens("secret"), "127.0.0.1", "Bearer secret2", 401),
        (Tokens("secret"), "127.0.0.1", "Bearer secre", 401),
        (Tokens("secret"), "127.0.0.1", "Bearer s\xe9cret", 401),
        (Tokens("secret"), "127.0.0.1", "Basic secret", 401),
        (Tokens("secret", open_to_all=True), "127.0.0.1", "Bearer other", 401),
    ],
)
async def test_tokens(desk: Desk, clock: Clock, tokens: Tokens, peer: str, header: str, status: int) -> None:
    app = make_app(desk, clock, tokens=tokens)
    asked = Request("POST", "/", {"authorization": header}, b'{"supportedVersions":[3]}', peer=peer)
    answer = await ask(app, asked)
    assert answer.status == status
    if status == 200:
        assert json.loads(body(answer))["token"] == header.split(" ")[1]


async def test_bodies_of_strangers_are_refused_by_the_head_alone(app: App, desk: Desk) -> None:
    for path in ("/", "/v2/snapshot_read", "/v2/atomic_write", "/v2/watch"):
        with pytest.raises(Refusal, match="token"):
            app.admit(Request("POST", path, {}, peer="127.0.0.1"))


# ---- version 16


@pytest.mark.parametrize(("mode", "agent", "version"), [
    ("auto", "Deno/2.9.6", 16), ("auto", "node", 15), ("auto", "Deno/2.7.0", 15), ("auto", "Deno/99999999999.1", 15),
    ("always", "Deno/2.9.6", 15), ("never", "node", 16),
])  # fmt: skip
async def test_relabelling(desk: Desk, clock: Clock, mode: str, agent: str, version: int) -> None:
    app = make_app(desk, clock, mode=mode)
    row = pb.KvEntry(key=b"k", value=b"\xff\x10I\x02", encoding=pb.VALUE_ENCODING_V8, versionstamp=STAMP)

    async def one_row(*_: Any, **__: Any) -> pb.ReadResult:
        return pb.ReadResult(entries=[row])

    desk.read = one_row  # type: ignore[method-assign]
    read = dp.SnapshotRead(ranges=[dp.ReadRange(start=b"k", end=b"k\0", limit=1)])
    answer = await ask(app, request("/v2/snapshot_read", read, user_agent=agent))
    found = dp.SnapshotReadOutput.FromString(b"".join(answer.chunks))
    assert found.ranges[0].values[0].value == bytes((0xFF, version)) + b"I\x02"


# ---- health and metrics


async def test_health(app: App, clock: Clock) -> None:
    async def ready() -> int:
        return (await ask(app, Request("GET", "/readyz", {}))).status

    assert await ready() == 200
    clock.problem = "no leader is known"
    assert await ready() == 200  # a short election is no reason
    clock.now += 1.5
    assert await ready() == 503
    clock.problem = ""
    assert await ready() == 200
    assert (await ask(app, Request("GET", "/livez", {}))).status == 200


async def test_a_node_whose_state_is_behind_is_not_ready() -> None:
    lacks = ["entry 9 is committed, and the state of this node is at entry 7"]

    async def behind() -> str:
        return lacks[0]

    health = Health(str, Clock(), grace=1.0, behind=behind)
    answer = await health.ready()
    assert (answer.status, b"".join(answer.chunks)) == (503, lacks[0].encode() + b"\n")
    lacks[0] = ""
    assert (await health.ready()).status == 200
    assert health.live().status == 200


async def test_metrics_have_names_that_prometheus_takes(app: App) -> None:
    page = body(await ask(app, Request("GET", "/metrics", {})))
    assert "kvorum_debug_odd_name__x_ 1.0\n" in page and "kvorum_raft_term 7.0\n" in page
    assert "# TYPE kvorum_raft_term gauge\n" in page


async def test_answers_have_the_id_of_their_request(desk: Desk, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowLog(1e-9, clock)
    app = make_app(desk, clock, slow=slow)
    sent = request("/v2/atomic_write", dp.AtomicWrite(), x_request_id="order-7")
    assert (await app.handle(sent)).headers["x-request-id"] == "order-7"
    told = [getattr(record, "fields", {}) for record in caplog.records]
    assert [(one["route"], one["code"], one["request_id"]) for one in told] == [("atomic_write", 200, "order-7")]
    desk.outcome = errors.OutcomeUnknown("who knows")
    answer = await app.handle(sent)
    assert (answer.status, answer.headers["x-request-id"]) == (409, "order-7")
    made = {(await app.handle(request("/nowhere"))).headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3 and all(re.fullmatch("[0-9a-f]{16}", one) for one in made)
    for bad in ("", "a b", "x" * 129, "ä", 'a"b', "a\nb"):
        answer = await app.handle(request("/nowhere", x_request_id=bad))
        assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"]), bad
    refused = app.refused(Refusal(401, "no"), request("/", x_request_id="r1"))
    assert (refused.status, refused.headers["x-request-id"]) == (401, "r1")


async def test_a_fault_is_logged_with_the_id(app: App, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.outcome = ZeroDivisionError("a bug")
    read = dp.SnapshotRead(ranges=[dp.ReadRange(start=b"k", end=b"k\0", limit=1)])
    answer = await app.handle(request("/v2/snapshot_read", read, x_request_id="r2"))
    assert (answer.status, answer.headers["x-request-id"]) == (500, "r2")
    assert [getattr(record, "fields", None) for record in caplog.records if record.exc_info] == [{"request_id": "r2"}]


async def test_a_watch_that_comes_while_the_node_ends_goes_elsewhere(app: App) -> None:
    asked = request("/v2/watch", dp.Watch(keys=[dp.WatchKey(key=b"k")]))
    answer = await ask(app, asked)
    assert answer.stream is not None
    assert [await anext(answer.stream), (await anext(answer.stream))[:4]] == [bytes(4), b"\x06\0\0\0"]
    await answer.stream.aclose()
    app._health.end()
    assert (await ask(app, asked)).status == 503
    assert (await ask(app, Request("GET", "/readyz", {}))).status == 503
    await asyncio.sleep(0)
