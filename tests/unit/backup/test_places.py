"""Where an archive is said to lie."""

import pytest

from kvorum_node.backup.places import AWS, S3Place, endpoint, is_s3, parse_s3, region


def test_places() -> None:
    for text, bucket, prefix in (
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://my.bucket-1/kvorum/a=b", "my.bucket-1", "kvorum/a=b"),
        ("S3://bucket/a b/", "bucket", "a b"),
    ):
        assert is_s3(text)
        place = parse_s3(text)
        assert place == S3Place(bucket, prefix, AWS)
        assert parse_s3(str(place)) == place
    assert not is_s3("/mnt/s3://x")


NO_PLACES = """s3:// s3:///x s3://b s3://bucket//x s3://bucket/../x s3://bucket/.x s3://bu..cket/x s3://bucket/ä
s3://bucket?x=1/a s3://user:pw@bucket/a /folder"""


@pytest.mark.parametrize("text", [*NO_PLACES.split(), "s3://bucket/a\nb", "s3://bucket/" + "x" * 300])
def test_no_places(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        parse_s3(text)


SECRETS = """s3://user:hidden@bucket/a s3://hidden@bucket s3://key:hid/hidden@bucket/a s3://bucket?key=hidden
s3://bucket/a?key=hidden s3://bucket/a#hidden"""


@pytest.mark.parametrize("text", SECRETS.split())
def test_a_secret_is_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="without a user, password or query: credentials come from") as caught:
        parse_s3(text)
    assert "hidden" not in str(caught.value)


def test_a_prefix_that_is_too_long() -> None:
    with pytest.raises(ValueError, match="at most 400 characters, got 449"):
        parse_s3("s3://bucket/" + "/".join(["x" * 44] * 10))


def test_endpoints() -> None:
    assert endpoint(" http://127.0.0.1:9000/ ") == "http://127.0.0.1:9000"
    assert endpoint("https://[::1]:9000") == "https://[::1]:9000"
    for text in ("", "minio:9000", "ftp://host", "http://", "http://host:port", "http://a b", "http://[::1", None, 5):
        with pytest.raises(ValueError, match="must be a URL http"):
            endpoint(text)
    for text in ("http://user@host", "https://user:hidden@host", "http://host?token=hidden", "http://host#hidden"):
        with pytest.raises(ValueError, match="without a user, password or query") as caught:
            endpoint(text)
        assert "hidden" not in str(caught.value)
    assert region("eu-central-1") == "eu-central-1"
    for text in ("", "eu central", "a" * 65, None):
        with pytest.raises(ValueError, match="must be a region"):
            region(text)
