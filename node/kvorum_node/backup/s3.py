"""One bucket of an S3-compatible store, spoken to through boto3 (the extra `s3`), which is imported when one is opened.

Every call has a limit of time and of attempts, and all that goes wrong is an OSError of one line without anything
secret in it. Credentials are found by the library itself (environment, its files, the machine's role); they are not
looked at here. Everything blocks, and belongs into a thread; calls from several threads are fine.
"""

import functools
import io
import random
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException
from typing import Any, Final

from ..unquoted import unquoted
from .places import S3Place

CONNECT: Final = 5.0
SILENCE: Final = 20.0
"""Seconds in which nothing at all is heard."""
PATIENCE: Final = 60.0
"""Seconds for one call with all its attempts, and the time that its bytes take"""
SLOWEST: Final = 64 << 10
"""at so many bytes a second."""
ATTEMPTS: Final = 5
BACKOFF: Final = 0.2
"""Seconds before the second attempt at most; each later pause is twice as long,"""
LONGEST: Final = 5.0
"""up to this one."""
PAGE: Final = 1_000
MAX_PAGES: Final = 10_000
_SHOWN: Final = 200
"""Characters of what a store says of an error."""
_AGAIN: Final = frozenset(
    (
        "RequestTimeout",
        "RequestTimeoutException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "BadDigest",
        "IncompleteBody",
        "ConditionalRequestConflict",
        "OperationAborted",
    )
)
_GONE: Final = frozenset(("NoSuchKey", "404", "NotFound"))
_HINTS: Final = {
    "NoSuchBucket": "there is no such bucket: make it, or mend the name",
    "AccessDenied": "the credentials may not do that: they need s3:ListBucket for the bucket, and s3:GetObject,"
    " s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload below the prefix",
    "403": "the credentials are wrong, or may not do that",
    "InvalidAccessKeyId": "the store does not know these credentials",
    "SignatureDoesNotMatch": "the store does not take these credentials: the secret is wrong, or the region",
    "InvalidToken": "the store does not take these credentials",
    "ExpiredToken": "the credentials have expired",
    "RequestTimeTooSkewed": "this machine's clock is not the store's: set it",
    "AuthorizationHeaderMalformed": "the store is of another region: set archive_s3_region",
    "PermanentRedirect": "the bucket is of another region: set archive_s3_region",
    "NoCredentialsError": "there are no credentials: set $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY, or"
    " $AWS_SHARED_CREDENTIALS_FILE",
    "PartialCredentialsError": "there are credentials in part only",
    "ParamValidationError": "the name is none that a store takes",
}


class S3Error(OSError):
    """The store did not do it, or did not answer. `code` is the store's word for it, or the library's."""

    def __init__(self, message: str, code: str, *, again: bool) -> None:
        super().__init__(message)
        self.code = code
        self.again = again
        """It may go better at another time."""

    def __str__(self) -> str:
        return str(self.args[0])


class Stopped(OSError):
    """This process does not want it any more."""


class Body(io.BytesIO):
    """Bytes to be sent, which come to an end when their time is over."""

    check: Callable[[], None] = staticmethod(lambda: None)

    def read(self, size: int | None = -1, /) -> bytes:
        self.check()
        return super().read(size)


def require() -> Any:
    """The library. Raises OSError that says which extra is missing."""
    try:
        import boto3.session
        import botocore.config
        import botocore.exceptions
        import botocore.parsers
    except ImportError as error:
        raise OSError(f"S3 needs the extra 's3': pip install 'kvorum[s3]' ({error})") from None
    return boto3.session, botocore


class Bucket:
    """See the module. Raises OSError if there is no library for it, or what the library was told makes no sense."""

    def __init__(
        self,
        place: S3Place,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        silence: float = SILENCE,
    ) -> None:
        self.place = place
        self.conditional = True
        """The store understands a condition on a put."""
        self._clock, self._jitter = clock, jitter
        self._halted = threading.Event()
        session, botocore = require()
        self._errors: tuple[type[Exception], ...] = (
            botocore.exceptions.BotoCoreError,
            botocore.exceptions.ClientError,
            botocore.exceptions.HTTPClientError,
            botocore.parsers.ResponseParserError,
            HTTPException,
            OSError,
            ValueError,
            KeyError,
        )
        self._no_answer: tuple[type[Exception], ...] = (
            botocore.exceptions.HTTPClientError,
            botocore.exceptions.IncompleteReadError,
            botocore.exceptions.ResponseStreamingError,
            botocore.parsers.ResponseParserError,
            HTTPException,
            OSError,
        )
        service = place.service
        styled = service.path_style == "always" or (service.path_style == "auto" and service.endpoint)
        try:
            own = session.Session()
            self._client = own.client(
                "s3",
                endpoint_url=service.endpoint or None,
                region_name=service.region or own.region_name or "us-east-1",
                config=botocore.config.Config(
                    connect_timeout=CONNECT,
                    read_timeout=silence,
                    retries={"total_max_attempts": 1},  # they are counted here
                    max_pool_connections=4,
                    s3={"addressing_style": "path" if styled else "auto"},
                    # others than AWS know Content-MD5, and not always more than that
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
        except self._errors as error:
            raise self._problem("the settings", error) from None

    def __str__(self) -> str:
        return str(self.place)

    def halt(self) -> None:
        """Whoever waits here gives up: no further attempt, no pause."""
        self._halted.set()

    def call(self, operation: str, *, size: int = 0, last: bool = False, **arguments: Any) -> dict[str, Any]:
        """What the store answers. `size` are the bytes that go with it; `last`: also after `halt`, once. Raises
        S3Error, FileNotFoundError (there is no such file), Stopped."""
        arguments["Bucket"] = self.place.bucket
        body = arguments.get("Body")
        work = functools.partial(getattr(self._client, operation), **arguments)
        answer: dict[str, Any] = self.repeat(operation, work, size, body, last=last)
        return answer

    def repeat(
        self, operation: str, work: Callable[[], Any], size: int, body: Body | None = None, *, last: bool = False
    ) -> Any:
        """The same of anything that is made of the library's calls; each attempt reads the body anew."""
        limit = self.limit(size)
        for attempt in range(1, ATTEMPTS + 1):
            if not last:
                self.check(limit)
            if body is not None:
                body.seek(0)
                body.check = lambda: self.check(limit)
            try:
                return work()
            except Stopped:
                raise
            except self._errors as error:
                problem = self._problem(operation, error)
            pause = min(LONGEST, BACKOFF * 2 ** (attempt - 1)) * (0.5 + self._jitter() / 2)
            again = isinstance(problem, S3Error) and problem.again and not last
            if not again or attempt == ATTEMPTS or self._clock() + pause > limit:
                raise problem
            self._halted.wait(pause)
        raise AssertionError("the last attempt raises")

    def check(self, limit: float) -> None:
        """Raises Stopped, and TimeoutError behind the limit."""
        if self._halted.is_set():
            raise Stopped(f"{self.place}: given up, since this process stops")
        if self._clock() > limit:
            raise TimeoutError(f"{self.place}: it takes too long")

    def limit(self, size: int) -> float:
        """When a call with so many bytes takes too long."""
        return self._clock() + PATIENCE + size / SLOWEST

    def get(self, **arguments: Any) -> dict[str, Any]:
        """One attempt at the beginning of an answer, as the library gives it: for `repeat`."""
        found: dict[str, Any] = self._client.get_object(Bucket=self.place.bucket, **arguments)
        return found

    def head(self, key: str) -> dict[str, Any] | None:
        """What is known of a file; None: there is none."""
        try:
            return self.call("head_object", Key=key)
        except FileNotFoundError:
            return None

    def keys(self, prefix: str) -> Iterator[str]:
        """All that begin so. Raises OSError also if the listing does not end."""
        more: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            page = self.call("list_objects_v2", Prefix=prefix, MaxKeys=PAGE, **more)
            for one in page.get("Contents", ()):
                yield str(one["Key"])
            token = page.get("NextContinuationToken")
            if not page.get("IsTruncated"):
                return
            if not token or more.get("ContinuationToken") == token:
                raise OSError(f"{self.place}: the store's list of files does not go on")
            more = {"ContinuationToken": token}
        raise OSError(f"{self.place}: the store's list of files has more than {MAX_PAGES:,} pages")

    def _problem(self, operation: str, error: Exception) -> OSError:
        """One line. What the library's own exceptions say is left out where it could hold more than a reason."""
        told = f"{self.place}: {operation}"
        answer = getattr(error, "response", None)
        if not isinstance(answer, dict):
            name = type(error).__name__
            if isinstance(error, (S3Error, FileNotFoundError)):
                return error
            hint = _HINTS.get(name) or _reason(error)
            return S3Error(f"{told}: {hint}", name, again=isinstance(error, self._no_answer))
        said = answer.get("Error", {})
        code, message = str(said.get("Code", "")), str(said.get("Message", ""))
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _GONE:
            return FileNotFoundError(f"{told}: there is no such file in it")
        hint = _HINTS.get(code) or _printable(message)
        again = code in _AGAIN or status == 429 or (status >= 500 and code != "NotImplemented")
        return S3Error(f"{told} was answered with {status} {_printable(code)}: {hint}", code, again=again)


def _printable(text: str) -> str:
    shown = "".join(one if one.isprintable() else " " for one in text[: _SHOWN + 1])
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    known = {
        "EndpointConnectionError": "no connection to the store",
        "ConnectTimeoutError": f"no connection to the store within {CONNECT:g} s",
        "ReadTimeoutError": "the store has fallen silent",
        "ConnectionClosedError": "the store has closed the connection",
        "SSLError": "the store's certificate cannot be verified: set $AWS_CA_BUNDLE, or mend it",
        "ResponseParserError": "what answers is no such store",
    }
    return known.get(type(error).__name__) or _printable(f"{type(error).__name__}: {unquoted(error)}")
