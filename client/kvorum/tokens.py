"""The text of a token: `kvo_<id>_<secret>`, 16 hex digits and 32 random bytes in URL-safe base64.

The secret is made where the token is, and only its SHA-256 is sent: no node ever holds it, unless it is shown one.
"""

import base64
import binascii
import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from kvorum.errors import InvalidArgument

PREFIX: Final = "kvo_"
ID_SIZE: Final = 8
SECRET_SIZE: Final = 32
MAX_TEXT: Final = 1_024
"""Characters of whatever is given as a token."""
VARIABLE: Final = "KVORUM_TOKEN"
FILE_VARIABLE: Final = "KVORUM_TOKEN_FILE"

_SHAPE: Final = re.compile(r"kvo_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


class Parts(NamedTuple):
    """Of a token's text."""

    id: bytes
    """8 bytes."""
    secret: bytes
    """32 bytes."""

    def __repr__(self) -> str:
        return f"Parts(id={self.id.hex()})"


def make_id() -> bytes:
    return secrets.token_bytes(ID_SIZE)


def make_secret() -> bytes:
    return secrets.token_bytes(SECRET_SIZE)


def hash_of(secret: bytes) -> bytes:
    """What a cluster keeps of a secret."""
    return hashlib.sha256(secret).digest()


def text_of(token_id: bytes, secret: bytes) -> str:
    """The text of a token."""
    return f"{PREFIX}{token_id.hex()}_{base64.urlsafe_b64encode(secret).decode().rstrip('=')}"


def parse(text: str) -> Parts | None:
    """The parts of a token's text; None if it is none. One text only stands for the parts."""
    match = _SHAPE.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        return None
    try:
        secret = base64.b64decode(match[2] + "=", altchars=b"-_", validate=True)
    except binascii.Error:
        return None
    token_id = bytes.fromhex(match[1])
    return Parts(token_id, secret) if text_of(token_id, secret) == text else None


def from_environment(environment: Mapping[str, str] = os.environ) -> str | None:
    """`$KVORUM_TOKEN`, or what is in the file `$KVORUM_TOKEN_FILE`. Errors: InvalidArgument."""
    text, file = environment.get(VARIABLE), environment.get(FILE_VARIABLE)
    if text:
        return check(text)
    return read_file(file, f"${FILE_VARIABLE}") if file else None


def read_file(file: str, what: str) -> str:
    """The token in a file. Errors: InvalidArgument."""
    if parse(file.strip()) is not None:
        raise InvalidArgument(f"{what}: this is a token, and no file that holds one: use --token or ${VARIABLE}")
    try:
        with Path(file).open(encoding="ascii") as source:
            text = source.read(2 * MAX_TEXT)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text"
        raise InvalidArgument(f"{what}: cannot read {file}: {reason}") from None
    return check(text)


def check(text: object) -> str:
    """What may be sent as a token. Errors: InvalidArgument, which does not repeat it."""
    if not isinstance(text, str):
        raise InvalidArgument(f"a token is a text, got {type(text).__name__}")
    text = text.strip()
    if not 0 < len(text) <= MAX_TEXT or any(not "!" <= character <= "~" for character in text):
        raise InvalidArgument(f"a token has 1 to {MAX_TEXT:,} printable ASCII characters without spaces")
    return text
