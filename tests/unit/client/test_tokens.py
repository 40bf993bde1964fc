"""The text of a token, and where it is taken from."""

import copy
import secrets
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum import tokens
from kvorum.errors import InvalidArgument, PermissionDenied

GOOD = f"kvo_{'0123456789abcdef'}_{'A' * 43}"


@given(st.binary(min_size=8, max_size=8), st.binary(min_size=32, max_size=32))
def test_a_text_is_taken_apart_as_it_was_put_together(token_id: bytes, secret: bytes) -> None:
    text = tokens.text_of(token_id, secret)
    assert tokens.parse(text) == (token_id, secret)
    assert text.isascii() and text.isprintable() and len(text) == 64


@pytest.mark.parametrize(
    "text",
    [
        "", "kvo_", GOOD[:-1], GOOD + "A", GOOD + "=", GOOD + "\n", " " + GOOD, GOOD.upper(), GOOD.replace("A", "+", 1),
        "kvo_0123456789ABCDEF_" + "A" * 43, "kvp_0123456789abcdef_" + "A" * 43, GOOD.replace("_", "-"), "x" * 5_000,
        "kvo_0123456789abcdef_" + "A" * 42 + "B",  # bits that no encoder leaves behind the secret
        "kvo_٠123456789abcdef_" + "A" * 43,
    ],
)  # fmt: skip
def test_what_is_no_token(text: str) -> None:
    assert tokens.parse(text) is None


@given(st.text(max_size=80) | st.from_regex(r"kvo_[0-9a-fA-F]{0,20}_[A-Za-z0-9_\-=]{0,50}"))
def test_one_text_only_stands_for_a_token(text: str) -> None:
    parts = tokens.parse(text)
    assert parts is None or tokens.text_of(*parts) == text


def test_the_parts_are_not_shown() -> None:
    parts = tokens.parse(GOOD)
    assert parts is not None
    assert repr(parts) == str(parts) == "Parts(id=0123456789abcdef)"


def test_secrets_are_random() -> None:
    assert len({tokens.make_secret() for _ in range(100)} | {tokens.make_id() for _ in range(100)}) == 200


def test_where_a_token_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{GOOD}\n")
    assert tokens.from_environment({}) is None
    assert tokens.from_environment({"KVORUM_TOKEN": GOOD, "KVORUM_TOKEN_FILE": "/nowhere"}) == GOOD
    assert tokens.from_environment({"KVORUM_TOKEN": "", "KVORUM_TOKEN_FILE": str(file)}) == GOOD
    for content in (b"", b"a b", b"\xff", b"x" * 5_000):
        file.write_bytes(content)
        with pytest.raises(InvalidArgument) as caught:
            tokens.from_environment({"KVORUM_TOKEN_FILE": str(file)})
        assert "x" * 50 not in str(caught.value)
    with pytest.raises(InvalidArgument, match=r"KVORUM_TOKEN_FILE: cannot read .*No such file"):
        tokens.from_environment({"KVORUM_TOKEN_FILE": str(tmp_path / "none")})
    with pytest.raises(InvalidArgument, match="this is a token, and no file that holds one") as caught:
        tokens.from_environment({"KVORUM_TOKEN_FILE": GOOD})
    assert GOOD[-20:] not in str(caught.value)
    with pytest.raises(InvalidArgument, match="a token is a text, got bytes"):
        tokens.check(b"x")
    secret = secrets.token_urlsafe(32)
    with pytest.raises(InvalidArgument) as caught:
        tokens.check(f"{secret} and more")
    assert secret not in str(caught.value)


def test_a_denial_can_be_copied() -> None:
    error = copy.copy(PermissionDenied("no", right="write"))
    assert (str(error), error.right, error.outcome) == ("no", "write", "not applied")
