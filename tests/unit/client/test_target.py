"""What `open_kv` takes for a folder and what for a cluster."""

from pathlib import Path

import pytest

from kvorum.errors import InvalidArgument
from kvorum.target import Cluster, Folder, parse_target


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("app.kv", Folder("app.kv")),
        ("./:odd", Folder("./:odd")),
        ("/var/lib/app.kv", Folder("/var/lib/app.kv")),
        ("a,b:1", Folder("a,b:1")),
        (Path("data") / "app.kv", Folder("data/app.kv")),
        (":memory:", Folder(None)),
        ("kvorum://n1:7401,n2:7411", Cluster((("n1", 7401), ("n2", 7411)))),
        ("kvorum://n1, n2 ,n3/", Cluster((("n1", 7401), ("n2", 7401), ("n3", 7401)))),
        ("kvorum://[::1]:9000,127.0.0.1", Cluster((("::1", 9000), ("127.0.0.1", 7401)))),
    ],
)
def test_targets(target: str | Path, place: Folder | Cluster) -> None:
    assert parse_target(target, {}) == place


def test_without_a_target_the_environment_decides_and_then_a_local_folder() -> None:
    assert parse_target(None, {"KVORUM_URL": "kvorum://n1"}) == Cluster((("n1", 7401),))
    assert parse_target(None, {"KVORUM_URL": "/data/app.kv"}) == Folder("/data/app.kv")
    assert parse_target(None, {"KVORUM_URL": ""}) == Folder("kvorum.kv")
    assert parse_target(None, {}) == Folder("kvorum.kv")
    assert parse_target("app.kv", {"KVORUM_URL": "kvorum://n1"}) == Folder("app.kv")


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("", "cannot be empty"),
        (":other:", "cannot start with ':' unless prefixed with './'"),
        ("a\0b", "zero byte"),
        ("redis://n1:4512", "unknown scheme 'redis'"),
        ("kvorums://n1", "TLS is switched on by tls="),
        ("kvorum://", "is not host:port"),
        ("kvorum://n1,,n2", "is not host:port"),
        ("kvorum://n1:port", "is not host:port"),
        ("kvorum://n1:65536", "is not host:port"),
        ("kvorum://n1:0", "is not host:port"),
        ("kvorum://user:secret@n1", "holds no user, password or token"),
        ("kvo_1@n1:7401", "holds no user, password or token"),
        ("kvorum://n1/database", "is not host:port"),
        ("kvorum://n1?tls=1", "is not host:port"),
        (5, "got int"),
        (b"app.kv", "got bytes"),
    ],
)
def test_what_is_no_target(target: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text.replace("?", r"\?")):
        parse_target(target, {})


@pytest.mark.parametrize(
    "target",
    [
        "kvorum://hidden@n1",
        "kvorum://user:hidden@n1:7401,n2",
        "kvorum://n1,hidden@n2",
        "kvorum://hid/hidden@n1",
        "kvorum://hidden@",
        "kvorum://n1?token=hidden",
        "kvorum://n1#hidden",
        "KVORUM:hidden@n1:7401",
        "kvorum:n1?token=hidden",
        "hidden@n1:7401",
        "hidden@n1:7401,n2",
        "user:hidden@n1:7401",
        "https://user:hidden@n1:7402/",
        "http://n1:7402/?token=hidden",
        "kvorums://hidden@n1",
        "redis://user:hidden@n1",
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(target: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_target(target, {})
    assert "hidden" not in str(caught.value)
    with pytest.raises(InvalidArgument) as caught:
        parse_target(None, {"KVORUM_URL": target})
    assert "hidden" not in str(caught.value)
