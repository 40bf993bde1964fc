"""Files in a bucket: written whole or not at all, and read in pieces, with a few dozen MiB of memory for any size."""

import base64
import hashlib
import io
import logging
import re
import secrets
from collections.abc import Iterable
from types import TracebackType
from typing import Any, BinaryIO, Final, cast

from .places import S3Place
from .s3 import Body, Bucket, S3Error
from .targets import MAX_NAMES, check_name, is_name

PART: Final = 32 << 20
"""Bytes. All parts but the last have the same size, which some stores demand."""
MAX_PARTS: Final = 10_000
FIRST_PIECE: Final = 1 << 20
PIECE: Final = 8 << 20
_SIP: Final = 256 << 10
_TOKEN: Final = "kvorum-put"
_RANGE: Final = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})\Z")
logger = logging.getLogger("kvorum.backup")


class NewObject:
    """As `NewFile`: `with NewObject(bucket, key) as file: …; file.keep()`. Without `keep` nothing is left of it.

    Another file of that name is not replaced unless `replace`: FileExistsError. Where two write the same name at the
    same time that is sure only if the store understands a condition on a put (`If-None-Match`). Raises OSError."""

    def __init__(self, bucket: Bucket, key: str, *, replace: bool = False, part: int = PART) -> None:
        self._bucket = bucket
        self._key = key
        self._replace = replace
        self._part = part
        self._token = secrets.token_hex(16)
        self._buffer = Body()
        self._upload = ""
        self._parts: list[dict[str, Any]] = []
        self.size = 0

    def __enter__(self) -> "NewObject":
        if not self._replace and self._bucket.head(self._key) is not None:
            raise self._exists()
        return self

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while len(view):
            if self._buffer.tell() == self._part:
                self._send_part()
            taken = self._buffer.write(view[: self._part - self._buffer.tell()])
            self.size += taken
            view = view[taken:]

    def keep(self) -> None:
        """Give it its name."""
        if not self._upload:
            self._put_whole()
            return
        self._send_part()
        self._complete()
        found = self._bucket.head(self._key)
        if found is None or found.get("ContentLength") != self.size:
            raise OSError(f"{self._told()} is not what was put there, {self.size:,} bytes: is it written by others?")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._buffer.close()
        if self._upload:
            self._abort()

    def _put_whole(self) -> None:
        body, size = self._filled()
        self._conditionally(
            "put_object",
            size=size,
            Key=self._key,
            Body=body,
            ContentLength=size,
            ContentMD5=_md5(body),
            Metadata={_TOKEN: self._token},
        )

    def _send_part(self) -> None:
        if not self._upload:
            made = self._bucket.call("create_multipart_upload", Key=self._key, Metadata={_TOKEN: self._token})
            self._upload = str(made["UploadId"])
        number = len(self._parts) + 1
        if number > MAX_PARTS:
            raise OSError(f"{self._told()} would have more than {MAX_PARTS * self._part:,} bytes, which is the limit")
        body, size = self._filled()
        answer = self._bucket.call(
            "upload_part",
            size=size,
            Key=self._key,
            UploadId=self._upload,
            PartNumber=number,
            Body=body,
            ContentLength=size,
            ContentMD5=_md5(body),
        )
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        self._buffer.close()
        self._buffer = Body()

    def _filled(self) -> tuple[Body, int]:
        """What is to be sent next, and its size."""
        size = self._buffer.tell()
        self._buffer.seek(0)
        return self._buffer, size

    def _complete(self) -> None:
        self._conditionally(
            "complete_multipart_upload",
            size=self.size // 16,  # the store may have to put the parts together
            Key=self._key,
            UploadId=self._upload,
            MultipartUpload={"Parts": self._parts},
        )
        self._upload = ""

    def _conditionally(self, operation: str, **arguments: Any) -> None:
        """An attempt whose answer was lost may have done it: the next one then finds its own file."""
        while True:
            condition: dict[str, Any] = {} if self._replace or not self._bucket.conditional else {"IfNoneMatch": "*"}
            try:
                self._bucket.call(operation, **arguments, **condition)
                return
            except S3Error as error:
                if error.code in ("NotImplemented", "501") and condition:
                    self._bucket.conditional = False
                    continue
                taken = error.code in ("PreconditionFailed", "412")
                if not taken and error.code != "NoSuchUpload":
                    raise
                if self._is_mine():
                    return
                if taken:
                    raise self._exists() from None
                raise

    def _is_mine(self) -> bool:
        found = self._bucket.head(self._key)
        return found is not None and found.get("Metadata", {}).get(_TOKEN) == self._token

    def _abort(self) -> None:
        try:
            self._bucket.call("abort_multipart_upload", last=True, Key=self._key, UploadId=self._upload)
        except FileNotFoundError:
            pass
        except OSError as error:
            if getattr(error, "code", "") != "NoSuchUpload":
                logger.warning("parts of %s are left in the store, where nobody needs them: %s", self._told(), error)

    def _told(self) -> str:
        return f"s3://{self._bucket.place.bucket}/{self._key}"

    def _exists(self) -> FileExistsError:
        return FileExistsError(f"{self._told()} is there already")


class _Reader(io.RawIOBase):
    """A file in pieces, each of which is asked for again if it does not come whole."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        super().__init__()
        self._bucket = bucket
        self._key = key
        self._offset = 0
        """Bytes that were fetched."""
        self._size = -1
        self._etag = ""
        self._piece = memoryview(b"")
        self._fetch(FIRST_PIECE)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not len(self._piece) and self._offset < self._size:
            self._fetch(PIECE)
        count = min(len(buffer), len(self._piece))
        buffer[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        return count

    def _fetch(self, wanted: int) -> None:
        if self._size >= 0:
            wanted = min(wanted, self._size - self._offset)
        try:
            data = self._bucket.repeat("get_object", lambda: self._attempt(wanted), wanted)
        except S3Error as error:
            if error.code in ("InvalidRange", "416") and not self._offset:
                data, self._size = b"", 0  # an empty file has no first byte
            elif error.code in ("PreconditionFailed", "412"):
                raise OSError(f"{self._told()} was replaced while it was read") from None
            else:
                raise
        self._offset += len(data)
        self._piece = memoryview(data)

    def _attempt(self, wanted: int) -> bytes:
        """The next bytes, all that are there up to so many."""
        limit = self._bucket.limit(wanted)
        same = {"IfMatch": self._etag} if self._etag else {}
        answer = self._bucket.get(Key=self._key, Range=f"bytes={self._offset}-{self._offset + wanted - 1}", **same)
        with answer["Body"] as stream:
            count, size = self._promised(answer, wanted)
            parts: list[bytes] = []
            left = count
            while left:
                self._bucket.check(limit)
                part = stream.read(min(left, _SIP))
                if not part:
                    raise S3Error(f"{self._told()} came in part only, {left:,} bytes are missing", "cut", again=True)
                parts.append(part)
                left -= len(part)
        self._size, self._etag = size, str(answer.get("ETag", ""))
        return b"".join(parts)

    def _promised(self, answer: dict[str, Any], wanted: int) -> tuple[int, int]:
        """Bytes that come, and those of the whole file. A store that knows no ranges sends all of it, which is enough
        only at its beginning."""
        said = answer.get("ContentRange")
        if said is None and not self._offset:
            size = int(answer["ContentLength"])
            return min(size, wanted), size
        found = _RANGE.match(str(said))
        if found is None:
            raise OSError(f"{self._told()}: the store does not send the part of it that is asked for")
        first, last, size = map(int, found.groups())
        if first != self._offset or last != min(first + wanted, size) - 1 or self._size not in (-1, size):
            raise OSError(f"{self._told()}: the store sends other bytes than those that are asked for")
        return last - first + 1, size

    def _told(self) -> str:
        return f"s3://{self._bucket.place.bucket}/{self._key}"


def read_object(bucket: Bucket, key: str) -> BinaryIO:
    """To be read from its beginning, and closed. Raises FileNotFoundError, OSError; so does reading."""
    return cast("BinaryIO", io.BufferedReader(_Reader(bucket, key), FIRST_PIECE))


class S3Bucket:
    """An `ArchiveTarget` in a bucket: names stand behind the place's prefix."""

    def __init__(self, place: S3Place, bucket: Bucket | None = None, *, part: int = PART) -> None:
        self._bucket = Bucket(place) if bucket is None else bucket
        self._before = f"{place.prefix}/" if place.prefix else ""
        self._part = part

    def __str__(self) -> str:
        return str(self._bucket)

    def put(self, name: str, parts: Iterable[bytes], *, replace: bool = False) -> int:
        """See `ArchiveTarget`."""
        with NewObject(self._bucket, self._key(name), replace=replace, part=self._part) as file:
            for part in parts:
                file.write(part)
            file.keep()
            return file.size

    def names(self, prefix: str) -> list[str]:
        """See `ArchiveTarget`."""
        found: list[str] = []
        for key in self._bucket.keys(self._before + prefix):
            name = key.removeprefix(self._before)
            if key.startswith(self._before + prefix) and is_name(name):
                found.append(name)
            if len(found) > MAX_NAMES:
                raise OSError(f"{self} has more than {MAX_NAMES:,} files")
        return sorted(found)

    def get(self, name: str) -> BinaryIO:
        """See `ArchiveTarget`."""
        return read_object(self._bucket, self._key(name))

    def delete(self, name: str) -> None:
        """See `ArchiveTarget`."""
        try:
            self._bucket.call("delete_object", Key=self._key(name))
        except FileNotFoundError:
            return

    def halt(self) -> None:
        """See `ArchiveTarget`."""
        self._bucket.halt()

    def _key(self, name: str) -> str:
        check_name(name)
        return self._before + name


def _md5(body: Body) -> str:
    """What the store compares: it guards the way there, against nobody's will."""
    with body.getbuffer() as data:
        return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
