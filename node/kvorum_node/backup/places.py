"""Where an archive or a backup lies in an S3-compatible store, as an operator says it: `s3://bucket/prefix`."""

import re
from dataclasses import dataclass
from typing import Final, Literal, cast
from urllib.parse import urlsplit

SCHEME: Final = "s3://"
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]\Z")
_PART: Final = re.compile(r"[A-Za-z0-9_%~=+@,-][A-Za-z0-9._%~=+@, -]{0,254}\Z")
_REGION: Final = re.compile(r"[A-Za-z0-9-]{1,64}\Z")
_NO_SECRETS: Final = "@:?#"
"""Where they are, a secret may be, which no message repeats."""
_CREDENTIALS: Final = (
    "credentials come from the library's own settings, e.g. $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY"
)
MAX_PREFIX: Final = 400
"""Characters: a key has 1,024 at most, and names of files are put behind it."""
PathStyle = Literal["auto", "always", "never"]
PATH_STYLES: Final[tuple[PathStyle, ...]] = ("auto", "always", "never")


@dataclass(frozen=True, slots=True)
class Service:
    """Which store is meant, besides what the library finds itself. It holds no credentials."""

    endpoint: str = ""
    """URL; empty: that of AWS, or what the library's own settings say."""
    region: str = ""
    """Empty: what the library's own settings say, else us-east-1."""
    path_style: PathStyle = "auto"
    """Whether the bucket stands in the URL's path and not in its host; auto: if there is an endpoint."""


AWS: Final = Service()


@dataclass(frozen=True, slots=True)
class S3Place:
    """A bucket, and what the names in it begin with (empty, or without `/` at its ends)."""

    bucket: str
    prefix: str
    service: Service = AWS

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/")


def is_s3(text: str) -> bool:
    """Whether it is meant as a place in such a store."""
    return text[: len(SCHEME)].lower() == SCHEME


def parse_s3(text: str, service: Service = AWS) -> S3Place:
    """Of `s3://bucket/prefix`. Raises ValueError with a line that begins with a verb."""
    bucket, _, prefix = text[len(SCHEME) :].partition("/")
    prefix = prefix.rstrip("/")
    if set(bucket) & set(_NO_SECRETS) or set(prefix) & set("?#"):
        problem = "must be s3://bucket or s3://bucket/prefix, without a user, password or query"
        raise ValueError(f"{problem}: {_CREDENTIALS}")
    if not is_s3(text) or not _BUCKET.match(bucket) or ".." in bucket:
        raise ValueError(f"must be s3://bucket or s3://bucket/prefix, got {text!r:.200}")
    if prefix and not all(_PART.match(part) for part in prefix.split("/")):
        raise ValueError(f"must have a prefix of letters, digits, ._%~=+@,- and single slashes, got {prefix!r:.200}")
    if len(prefix) > MAX_PREFIX:
        raise ValueError(f"must have a prefix of at most {MAX_PREFIX} characters, got {len(prefix)}")
    return S3Place(bucket, prefix, service)


def endpoint(value: object) -> str:
    """A store's URL. Raises ValueError; no message repeats the URL, which may hold a secret by mistake."""
    text = value.strip() if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or any(not "!" <= one <= "~" for one in text):
        raise ValueError("must be a URL http://host:port or https://host")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError(f"must be a URL without a user, password or query: {_CREDENTIALS}")
    return text.rstrip("/")


def region(value: object) -> str:
    """A region's name. Raises ValueError."""
    if not isinstance(value, str) or not _REGION.match(value.strip()):
        raise ValueError("must be a region's name, e.g. eu-central-1")
    return value.strip()


def service(endpoint_url: str | None, region_name: str | None, path_style: str) -> Service:
    """Of checked parts."""
    return Service(endpoint_url or "", region_name or "", cast("PathStyle", path_style))
