"""What libraries say of errors, without what they quote."""

import pytest

from kvorum_node.unquoted import unquoted


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("header value surrounded by whitespace b'Bearer hidden '", "header value surrounded by whitespace …"),
        ("illegal header line: bytearray(b'Authorization: hidden\\x01')", "illegal header line: …"),
        ('Unable to decode an integer from b"hidden"', "Unable to decode an integer from …"),
        ("Invalid header value b'hidden\\n'", "Invalid header value …"),
        ('Failed to connect to proxy URL: "http://user:hidden@proxy"', "Failed to connect to proxy URL: …"),
        ("'hidden' is wrong", "…"),
        ("Invalid input RECV_DATA in state CLOSED", "Invalid input RECV_DATA in state CLOSED"),
        ("first\nhidden", "first"),
        ("", ""),
        ("x" * 500, "x" * 200),
    ],
)
def test_nothing_quoted_is_told(text: str, told: str) -> None:
    found = unquoted(ValueError(text))
    assert "hidden" not in found
    assert found == told
