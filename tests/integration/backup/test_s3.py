"""A bucket as a target of the archive, and whatever a store or the way to it can do wrong."""

import copy
import io
import itertools
import json
import logging
import os
import random
import threading
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from kvorum.cli.group import kvorum
from kvorum_node.backup import s3
from kvorum_node.backup.files import check
from kvorum_node.backup.places import S3Place, Service
from kvorum_node.backup.replaying import Goal, from_archive, rebuilt
from kvorum_node.backup.s3 import Bucket, S3Error, Stopped
from kvorum_node.backup.s3_objects import NewObject, S3Bucket
from kvorum_node.backup.saving import bookmark
from tests.s3_server import BUCKET, CREDENTIALS, Fault, Request, S3Server, s3_server
from tests.unit.backup.archives import Recorded, catalog_of

PART = 5 << 20
"""Bytes: no store takes smaller ones."""


@pytest.fixture
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "BACKOFF", 0.001)


def target_of(server: S3Server, *, silence: float = 20.0, prefix: str = "kvorum") -> S3Bucket:
    place = server.place(prefix)
    return S3Bucket(place, Bucket(place, silence=silence), part=PART)


def read(target: S3Bucket, name: str) -> bytes:
    with target.get(name) as file:
        return file.read()


def times(count: int, fault: Fault) -> Fault:
    """A fault that is over after so many requests."""
    left = itertools.count(count, -1)
    return lambda request: fault(request) if next(left) > 0 else None


def only(method: str, fault: Fault) -> Fault:
    return lambda request: fault(request) if request.method == method else None


# ---- what a target does


def test_whole_files_in_and_out(server: S3Server) -> None:
    target = target_of(server)
    rng = random.Random(5)
    for size in (0, 1, PART - 1, PART, PART + 1, 2 * PART, 2 * PART + 77):
        data, name = rng.randbytes(size), f"c/node-a%2Fb~/{size}"
        cuts = sorted(rng.sample(range(size + 1), min(5, size + 1)))
        pieces = [data[first:last] for first, last in itertools.pairwise([0, *cuts, size])]
        assert target.put(name, pieces) == size
        assert read(target, name) == data
        assert server.objects()[f"kvorum/{name}"] == data
    assert server.uploads() == 0
    with pytest.raises(FileNotFoundError):
        target.get("c/none")
    target.delete("c/none")
    for name in target.names("c/"):
        target.delete(name)
    assert server.objects() == {}


def test_more_names_than_a_page_has(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of(server)
    with mock.patch.object(s3, "PAGE", 7):
        wanted = [f"a/{number:03}" for number in range(40)]
        for name in wanted:
            target.put(name, [b"x"])
        target.put("b/1", [b"x"])
        target_of(server, prefix="kvorum-2").put("a/999", [b"x"])
        target_of(server, prefix="").put("notes of somebody.txt".replace(" ", "_"), [b"x"])
        server.seen.clear()
        assert target.names("a/") == wanted
        assert len(server.seen) == 6
        assert target.names("") == [*wanted, "b/1"]
        monkeypatch.setattr("kvorum_node.backup.s3_objects.MAX_NAMES", 30)
        with pytest.raises(OSError, match="more than 30 files"):
            target.names("")
    monkeypatch.undo()


def test_a_thousand_and_more(server: S3Server) -> None:
    """The page that stores have by default."""
    target = target_of(server)
    target.put("a/0", [b"x"])
    keys = server._backend().buckets[BUCKET].keys
    for number in range(1, 2_500):  # puts would take a minute
        one = keys[f"kvorum/a/{number}"] = copy.copy(keys["kvorum/a/0"])
        one.name = f"kvorum/a/{number}"
    server.seen.clear()
    assert len(target.names("")) == 2_500
    assert len(server.seen) == 3


def test_a_list_that_does_not_end(server: S3Server) -> None:
    def endless(request: Request) -> Iterable[bytes]:
        more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
        request.start("200 OK", [("Content-Type", "application/xml")])
        return [b"<ListBucketResult>" + more + b"</ListBucketResult>"]

    server.fault = endless
    with pytest.raises(OSError, match="does not go on"):
        target_of(server).names("")


def test_what_is_there_is_not_replaced(server: S3Server) -> None:
    target = target_of(server)
    for size in (10, PART + 10):
        first, second = b"1" * size, b"2" * size
        target.put(f"a/{size}", [first])
        with pytest.raises(FileExistsError):
            target.put(f"a/{size}", [second])
        assert read(target, f"a/{size}") == first
        target.put(f"a/{size}", [second], replace=True)
        assert read(target, f"a/{size}") == second
    assert server.uploads() == 0


@pytest.mark.parametrize("size", [10, PART + 10])
def test_two_that_write_one_name_at_the_same_time(server: S3Server, size: int) -> None:
    """Both have seen that there is none."""
    bucket = Bucket(server.place())
    with NewObject(bucket, "one", part=PART) as first, NewObject(bucket, "one", part=PART) as second:
        first.write(b"1" * size)
        second.write(b"2" * size)
        second.keep()
        with pytest.raises(FileExistsError):
            first.keep()
    assert server.objects()["one"] == b"2" * size
    assert server.uploads() == 0


def test_a_store_that_knows_no_conditions(server: S3Server) -> None:
    def old(request: Request) -> Iterable[bytes] | None:
        return request.refuse(501, "NotImplemented") if "HTTP_IF_NONE_MATCH" in request.environ else None

    server.fault = old
    target = target_of(server)
    target.put("a", [b"1"])
    with pytest.raises(FileExistsError):
        target.put("a", [b"2"])
    target.put("b", [b"1" * PART, b"2"])
    assert sorted(target.names("")) == ["a", "b"]


@pytest.mark.parametrize("size", [10, PART + 10])
def test_a_lost_answer_of_a_put(server: S3Server, size: int) -> None:
    """The second attempt finds what the first one left, and knows it for its own."""
    for method in ("PUT", "POST"):
        server.fault = only(method, times(1, Request.lost))
        target_of(server).put(f"a/{method}", [b"1" * size])
        assert server.objects()[f"kvorum/a/{method}"] == b"1" * size
    last = [False]

    def lose_the_last(request: Request) -> Iterable[bytes] | None:
        if request.method == "POST" and "uploadId" in request.path and not last[0]:
            last[0] = True
            return request.lost()
        return None

    server.fault = lose_the_last
    target_of(server).put("b", [b"1" * size])
    assert server.objects()["kvorum/b"] == b"1" * size
    assert last[0] == (size > PART)


def test_nothing_is_left_of_a_file_that_fails(server: S3Server) -> None:
    target = target_of(server)

    def parts() -> Iterator[bytes]:
        yield b"1" * (2 * PART)
        assert server.uploads() == 1
        raise RuntimeError("the state cannot be read")

    with pytest.raises(RuntimeError):
        target.put("a", parts())
    assert (server.uploads(), server.objects()) == (0, {})
    server.fault = lambda request: request.refuse(500, "InternalError") if "partNumber=2" in request.path else None
    with pytest.raises(S3Error, match="500 InternalError"):
        target.put("a", [b"1" * (3 * PART)])
    assert (server.uploads(), server.objects()) == (0, {})


def test_parts_that_nobody_can_delete_are_told(server: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    server.fault = lambda request: request.refuse(503, "SlowDown") if "uploadId" in request.path else None
    with pytest.raises(S3Error, match="SlowDown"):
        target_of(server).put("a", [b"1" * (2 * PART)])
    assert "parts of s3://archive/kvorum/a are left" in caplog.text


def test_memory_does_not_grow_with_the_file(server: S3Server) -> None:
    """The store, which keeps all, is in this process: so nothing reaches it."""
    sizes: list[int] = []

    def swallow(request: Request) -> Iterable[bytes] | None:
        if request.method != "PUT":
            return None
        left = int(request.environ["CONTENT_LENGTH"])
        sizes.append(left)
        while left:
            left -= len(request.environ["wsgi.input"].read(min(left, 1 << 16)))
        request.start("200 OK", [("ETag", '"x"'), ("Content-Length", "0")])
        return [b""]

    server.fault = swallow
    target_of(server).put("warm", [b"1"])
    piece = bytes(1 << 20)
    tracemalloc.start()
    try:
        with NewObject(Bucket(server.place()), "big", part=PART) as file:
            for _ in range(100):
                file.write(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sizes[1:] == [PART] * 19  # the last one waits for `keep`
    assert peak < 6 * PART


# ---- faults


@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (503, "SlowDown"), (429, "TooManyRequests")])
def test_errors_that_pass(server: S3Server, status: int, code: str) -> None:
    target = target_of(server)
    for _ in range(2):
        server.fault = times(s3.ATTEMPTS - 1, lambda request: request.refuse(status, code))
        target.put(f"a/{len(server.objects())}", [b"1"])
        server.fault = times(s3.ATTEMPTS - 1, lambda request: request.refuse(status, code))
        assert target.names("a/")
        server.fault = times(s3.ATTEMPTS - 1, lambda request: request.refuse(status, code))
        assert read(target, "a/0") == b"1"
    server.seen.clear()
    server.fault = lambda request: request.refuse(status, code)
    with pytest.raises(S3Error, match=f"{status}.*{code}"):
        target.names("")
    assert len(server.seen) == s3.ATTEMPTS


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (403, "AccessDenied", "s3:PutObject"),
        (403, "InvalidAccessKeyId", "does not know these credentials"),
        (403, "SignatureDoesNotMatch", "the secret is wrong"),
        (403, "RequestTimeTooSkewed", "clock is not the store's"),
        (400, "ExpiredToken", "have expired"),
        (418, "Odd", "as told  by <them>"),
    ],
)
def test_errors_that_stay_are_told_at_once(server: S3Server, status: int, code: str, told: str) -> None:
    target = target_of(server)
    server.fault = lambda request: request.refuse(status, code, "as told\n\u202eby &lt;them&gt;" + "!" * 900)
    for call in (lambda: target.names(""), lambda: target.put("a", [b"1"]), lambda: target.get("a")):
        server.seen.clear()
        with pytest.raises(S3Error) as caught:
            call()
        # a 400 may mean another region, which the library asks the bucket for
        assert len([line for line in server.seen if line != "HEAD /archive?"]) == 1
        line = str(caught.value)
        assert len(line) < 400
        assert line.startswith("s3://archive/kvorum: ")
        assert line.isprintable()
        assert told in line or server.seen[0].startswith("HEAD")
        assert not any(secret in line for secret in ("tester", "well-kept-secret"))


def test_a_bucket_that_is_missing(server: S3Server) -> None:
    place = server.place(bucket="missing")
    target = S3Bucket(place)
    for call in (lambda: target.names(""), lambda: target.put("a", [b"1"]), lambda: target.get("a")):
        with pytest.raises(S3Error, match="no such bucket"):
            call()


def test_no_credentials(server: S3Server) -> None:
    lacking = {name: "" for name in CREDENTIALS if "KEY" in name}
    with mock.patch.dict(os.environ, lacking), pytest.raises(OSError, match="there are no credentials: set"):
        target_of(server).names("")


def test_nobody_listens_and_comes_back(server: S3Server) -> None:
    target = target_of(server)
    target.put("a", [b"1"])
    server.stop()
    for call in (lambda: target.names(""), lambda: target.put("b", [b"1"]), lambda: target.get("a")):
        with pytest.raises(S3Error, match="no connection to the store"):
            call()
    server.start()
    assert read(target, "a") == b"1"
    target.put("b", [b"1"])


def test_gone_in_the_middle_of_a_file(server: S3Server) -> None:
    target = target_of(server)

    def parts() -> Iterator[bytes]:
        yield b"1" * (2 * PART)
        server.stop()
        yield b"2" * (2 * PART)

    with pytest.raises(S3Error, match="no connection"):
        target.put("a", parts())
    server.start()
    assert target.names("") == []


def test_a_store_that_falls_silent(server: S3Server) -> None:
    going_on = threading.Event()

    def silent(request: Request) -> None:
        going_on.wait(60)

    target = target_of(server, silence=0.2)
    try:
        server.fault = silent
        with pytest.raises(S3Error, match="fallen silent"):
            target.names("")
    finally:
        going_on.set()


def test_stopping_ends_the_attempts(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "BACKOFF", 1_000.0)
    monkeypatch.setattr(s3, "LONGEST", 50.0)
    target = target_of(server)
    asked = threading.Event()

    def fail(request: Request) -> Iterable[bytes]:
        asked.set()
        return request.refuse(500, "InternalError")

    server.fault = fail
    caught: list[BaseException] = []

    def work() -> None:
        try:
            target.names("")
        except OSError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    asked.wait(30)
    target.halt()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(caught[0], Stopped)
    with pytest.raises(Stopped):
        target.put("a", [b"1"])


def test_a_call_has_a_limit_of_time(server: S3Server) -> None:
    """By a clock that the test moves: bytes that come too slowly are given up, in both directions."""
    now = [0.0]
    place = server.place()
    target = S3Bucket(place, Bucket(place, clock=lambda: now[0]))
    target.put("a", [b"1" * PART])

    def later(request: Request) -> None:
        now[0] += 10_000

    server.fault = later
    with pytest.raises(OSError, match="takes too long"):
        read(target, "a")
    server.fault = only("HEAD", later)
    target.put("b", [b"1"])  # a slow answer that came is one
    server.fault = lambda request: later(request) or request.refuse(500, "InternalError")
    server.seen.clear()
    with pytest.raises(S3Error):
        target.names("")
    assert len(server.seen) == 1


def test_answers_that_are_cut(server: S3Server) -> None:
    target = target_of(server)
    data = random.Random(2).randbytes(10 << 20)
    target.put("a", [data])
    server.fault = only("GET", times(3, lambda request: request.changed(lambda whole: whole[: len(whole) // 2])))
    assert read(target, "a") == data
    server.fault = only("GET", lambda request: request.changed(lambda whole: whole[: len(whole) // 2]))
    with pytest.raises(OSError, match=r"in part only|fallen silent|IncompleteRead|closed the connection"):
        read(target, "a")


def test_replaced_while_it_is_read(server: S3Server) -> None:
    target = target_of(server)
    target.put("a", [b"1" * (4 << 20)])
    with target.get("a") as file:
        assert file.read(10) == b"1" * 10
        target.put("a", [b"2" * (4 << 20)], replace=True)
        with pytest.raises(OSError, match="was replaced while"):
            file.read()


def test_a_store_that_knows_no_ranges(server: S3Server) -> None:
    def whole(request: Request) -> None:
        request.environ.pop("HTTP_RANGE", None)

    target = target_of(server)
    target.put("a", [b"1" * 100])
    target.put("b", [b"1" * (2 << 20)])
    server.fault = whole
    assert read(target, "a") == b"1" * 100
    with pytest.raises(OSError, match="does not send the part"):
        read(target, "b")


def test_what_answers_is_no_store(server: S3Server) -> None:
    answers = [b"<html>welcome", b"", b"\xff\xfe", b"<a>" * 1_000, b"{}"]

    def page(request: Request) -> Iterable[bytes]:
        request.body()
        request.start("200 OK", [("Content-Type", "text/html")])
        return [answers[0]]

    server.fault = page
    target = target_of(server)
    for _ in range(len(answers)):
        for call in (lambda: target.get("a").read(), lambda: target.put("a", [b"1"] * 3)):
            with pytest.raises(OSError):
                call()
        answers.append(answers.pop(0))


def test_bytes_changed_on_the_way_there(server: S3Server) -> None:
    """The store sees it by the checksum, and the next attempt brings them whole."""

    def spoil(request: Request) -> None:
        data = request.body()
        request.environ["wsgi.input"] = io.BytesIO(b"X" + data[1:])

    server.fault = only("PUT", times(1, spoil))
    target = target_of(server)
    target.put("a", [b"1" * 100])
    assert read(target, "a") == b"1" * 100
    assert [line.split()[0] for line in server.seen].count("PUT") == 2
    server.fault = only("PUT", spoil)
    with pytest.raises(S3Error, match="BadDigest"):
        target.put("b", [b"1" * 100])
    assert list(server.objects()) == ["kvorum/a"]


# ---- moments that are restored from it


def test_damaged_files_are_passed_over(server: S3Server, tmp_path: Path) -> None:
    recorded = Recorded.make(tmp_path / "data", 8)
    target = target_of(server)
    try:
        recorded.run(5)
        base = recorded.put_base(target, tmp_path / "spool")
        recorded.run(20)
        last = recorded.replica.store.applied_index
        segment = recorded.put_segment(target, base.entry + 1, last)
        recorded.put_segment(target, base.entry + 1, last, node_id="n2")
        recorded.run(3)
        newer = recorded.put_base(target, tmp_path / "spool")
        recorded.put_segment(target, last + 1, newer.entry, node_id="n2")

        def flip(data: bytes) -> bytes:
            return data[:200] + bytes([data[200] ^ 1]) + data[201:]

        for name in (segment.name, newer.name):
            server.damage(f"kvorum/{name}", flip)
        with target.get(newer.name) as file, pytest.raises(ValueError):
            check(file, tmp_path)
        for entry in (last - 3, newer.entry):
            with rebuilt(from_archive(catalog_of(target), Goal(bookmark(entry))), tmp_path) as store:
                assert store.state_hash() == recorded.hashes[entry]
    finally:
        recorded.replica.store.close()


# ---- secrets and settings


def test_no_secret_is_logged(server: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    from kvorum_node.logs import OWN, set_up

    root = logging.getLogger()
    kept = root.handlers[:]
    levels = {name: logging.getLogger(name).level for name in (None, *OWN)}
    try:
        set_up("n1", "debug", "text")
        root.addHandler(caplog.handler)
        with mock.patch.dict(os.environ, {"AWS_SESSION_TOKEN": "a-token-of-a-session"}):
            target = target_of(server)
            target.put("a", [b"1"])
            server.fault = lambda request: request.refuse(403, "SignatureDoesNotMatch")
            with pytest.raises(OSError) as caught:
                target.names("")
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        root.handlers[:] = kept
    for secret in ("well-kept-secret", "a-token-of-a-session", "tester"):
        assert secret not in caplog.text
        assert secret not in str(caught.value)


def test_a_token_that_is_no_header_is_not_told(server: S3Server) -> None:
    """As one that was read from a file with its newline."""
    with mock.patch.dict(os.environ, {"AWS_SESSION_TOKEN": "a-token-of-a-session\n"}):
        target = target_of(server)
        with pytest.raises(OSError, match="Invalid header value") as caught:
            target.put("a", [b"1"])
    assert "a-token-of" not in str(caught.value)


def test_without_the_library() -> None:
    with (
        mock.patch.dict("sys.modules", {"boto3": None, "boto3.session": None}),
        pytest.raises(OSError, match=r"needs the extra 's3': pip install 'kvorum\[s3\]'"),
    ):
        Bucket(S3Place(BUCKET, "p", Service()))


def test_where_the_bucket_stands() -> None:
    with mock.patch.dict(os.environ, CREDENTIALS):
        for style, expected in (("always", "/archive/a"), ("never", "/a")):
            place = S3Place(BUCKET, "p", Service("http://s3.example", "eu-1", style))  # type: ignore[arg-type]
            bucket = Bucket(place)
            url = bucket._client.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "a"})
            assert url.split("?")[0].endswith(expected)
            assert "eu-1" in url


def test_the_clock_of_a_bucket_is_real() -> None:
    """Nothing but the tests gives it another one."""
    with mock.patch.dict(os.environ, CREDENTIALS):
        assert Bucket(S3Place(BUCKET, "", Service("http://127.0.0.1:9")))._clock is time.monotonic


# ---- commands


def shell(*words: str | Path, status: int = 0) -> Result:
    result = CliRunner(env={"KVORUM_URL": None}).invoke(kvorum, [str(word) for word in words])
    assert result.exit_code == status, (result.output, result.stderr, result.exception)
    assert "Traceback" not in result.output
    return result


def test_backups_in_a_store(server: S3Server, tmp_path: Path) -> None:
    store, file = ("--s3-endpoint", server.url), f"s3://{BUCKET}/backups/app.bak"
    shell("set", '["n", 1]', "1", "--url", tmp_path / "app.kv")
    save = ("backup", "save", file, "--url", tmp_path / "app.kv", *store)
    told = json.loads(shell(*save, "--json").stdout)
    assert list(server.objects()) == ["backups/app.bak"]
    assert "is there already" in shell(*save, status=2).stderr
    shell(*save, "--overwrite")
    assert json.loads(shell("backup", "show", file, *store, "--json").stdout)["content_hash"] == told["content_hash"]
    assert json.loads(shell("backup", "verify", file, *store, "--json").stdout)["verified"] is True
    shell("backup", "restore", file, *store, "--embedded", "--data-dir", tmp_path / "new.kv")
    assert json.loads(shell("get", '["n", 1]', "--url", tmp_path / "new.kv", "--json").stdout)["value"] == 1
    assert "no such file" in shell("backup", "show", f"s3://{BUCKET}/none", *store, status=2).stderr
    assert "say s3://bucket/name" in shell("backup", "show", f"s3://{BUCKET}", *store, status=2).stderr
    server.damage("backups/app.bak", lambda data: data[:-9])
    assert "backup" in shell("backup", "verify", file, *store, status=2).stderr
    server.fault = lambda request: request.refuse(403, "AccessDenied")
    assert "may not do that" in shell("backup", "show", file, *store, status=3).stderr


def test_archives_in_a_store_that_are_none(server: S3Server) -> None:
    store, place = ("--s3-endpoint", server.url), f"s3://{BUCKET}/kvorum"
    assert "holds no archive" in shell("pitr", "list", place, *store, status=3).stderr
    assert "is no archive" in shell("pitr", "verify", place, *store, status=2).stderr
    restore = ("pitr", "restore", place, *store, "--latest", "--embedded", "--data-dir", "x")
    assert "is no archive" in shell(*restore, status=2).stderr
    assert "must be s3://bucket" in shell("pitr", "list", "s3:///x", *store, status=2).stderr
    assert "without a user" in shell("pitr", "list", place, "--s3-endpoint", "http://a:b@c", status=2).stderr
    server.stop()
    assert "no connection to the store" in shell("pitr", "list", place, *store, status=3).stderr


def test_the_doctor_asks_the_store(server: S3Server, tmp_path: Path) -> None:
    file = tmp_path / "n1.toml"
    file.write_text(
        'node_id = "n1"\ndata_dir = "n1"\nclient_listen = "127.0.0.1:7"\npeer_listen = "127.0.0.1:9"\n'
        f'archive = "s3://{BUCKET}/kvorum"\narchive_s3_endpoint = "{server.url}"\n'
    )

    def finding() -> tuple[str, str]:
        result = CliRunner(env={"KVORUM_URL": None}).invoke(
            kvorum, ["doctor", "--config", str(file), "--json", "--timeout", "500ms"]
        )
        rows = map(json.loads, result.stdout.splitlines())
        (row,) = (row for row in rows if row["check"] == "archive")
        return row["state"], row["told"]

    assert finding() == ("ok", "the store answers")
    server.fault = lambda request: request.refuse(403, "SignatureDoesNotMatch")
    state, told = finding()
    assert (state, "the secret is wrong" in told) == ("FAIL", True)
