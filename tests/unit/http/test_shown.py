"""What requests and tokens show of themselves, e.g. in a traceback."""

from kvorum_node.access import INSIDER
from kvorum_node.http.message import Request
from kvorum_node.http.tokens import Shown


def test_a_request_shows_no_header_and_no_body() -> None:
    request = Request("POST", "/", {"authorization": "Bearer hidden"}, b"hidden", peer="127.0.0.1")
    assert "hidden" not in repr(request)
    assert "127.0.0.1" in repr(request)


def test_a_token_that_was_taken_is_not_shown() -> None:
    assert "hidden" not in repr(Shown("hidden", INSIDER, "hidden"))
