"""Cursors as Deno 2.9.6 gave them out, and what it made of good and bad ones, over the same keys."""

import math

import pytest

from kvorum.errors import InvalidArgument
from kvorum.keys import Key, encode_key
from kvorum.selector import cursor_at, resume, select

Selector = tuple[Key | None, Key | None, Key | None]
"""Prefix, start, end."""

# In the order in which Deno lists them.
KEYS: list[Key] = [
    ("a",),
    ("a", b"\x00\xff"),
    ("a", "b"),
    ("a", "b", "c"),
    ("a", "x\0y"),
    ("a", "é😀"),
    ("a", -1),
    ("a", 1),
    ("a", 2**64),
    ("a", -0.0),
    ("a", 0.0),
    ("a", 1.0),
    ("a", math.nan),
    ("a", False),
    ("a", True),
    ("ab",),
    ("ab", 1.0),
    ("b",),
    ("b", 3.0),
    ("b", 4.0),
    ("b", 5.0),
]

# Selector, the number of its first key, and the cursor behind each of its keys; in both directions the same.
CURSORS: list[tuple[Selector, int, str]] = [
    (
        ((), None, None),
        0,
        "AmEA AmEAAQD__wA= AmEAAmIA AmEAAmIAAmMA AmEAAngA_3kA AmEAAsOp8J-YgAA= AmEAE_4= AmEAFQE= "
        "AmEAHQkBAAAAAAAAAAA= AmEAIX__________ AmEAIYAAAAAAAAAA AmEAIb_wAAAAAAAA AmEAIf_4AAAAAAAA AmEAJg== "
        "AmEAJw== AmFiAA== AmFiACG_8AAAAAAAAA== AmIA AmIAIcAIAAAAAAAA AmIAIcAQAAAAAAAA AmIAIcAUAAAAAAAA",
    ),
    (
        (("a",), None, None),
        1,
        "AQD__wA= AmIA AmIAAmMA AngA_3kA AsOp8J-YgAA= E_4= FQE= HQkBAAAAAAAAAAA= IX__________ IYAAAAAAAAAA "
        "Ib_wAAAAAAAA If_4AAAAAAAA Jg== Jw==",
    ),
    ((("b",), None, None), 18, "IcAIAAAAAAAA IcAQAAAAAAAA IcAUAAAAAAAA"),
    ((("a", "b"), None, None), 3, "AmMA"),
    (
        (None, ("a",), ("b",)),
        0,
        "YQA= YQABAP__AA== YQACYgA= YQACYgACYwA= YQACeAD_eQA= YQACw6nwn5iAAA== YQAT_g== YQAVAQ== "
        "YQAdCQEAAAAAAAAAAA== YQAhf_________8= YQAhgAAAAAAAAAA= YQAhv_AAAAAAAAA= YQAh__gAAAAAAAA= YQAm YQAn "
        "YWIA YWIAIb_wAAAAAAAA",
    ),
    ((None, ("b", 3.0), ("b", 6.0)), 18, "CAAAAAAAAA== EAAAAAAAAA== FAAAAAAAAA=="),
    ((None, ("a", 1.0), ("ab",)), 11, "ACG_8AAAAAAAAA== ACH_-AAAAAAAAA== ACY= ACc="),
    (
        (("a",), ("a", "b"), None),
        2,
        "AmIA AmIAAmMA AngA_3kA AsOp8J-YgAA= E_4= FQE= HQkBAAAAAAAAAAA= IX__________ IYAAAAAAAAAA "
        "Ib_wAAAAAAAA If_4AAAAAAAA Jg== Jw==",
    ),
    (
        (("a",), None, ("a", 1.0)),
        1,
        "AQD__wA= AmIA AmIAAmMA AngA_3kA AsOp8J-YgAA= E_4= FQE= HQkBAAAAAAAAAAA= IX__________ IYAAAAAAAAAA",
    ),
    (
        (None, (), ("b", 9.0)),
        0,
        "AmEA AmEAAQD__wA= AmEAAmIA AmEAAmIAAmMA AmEAAngA_3kA AmEAAsOp8J-YgAA= AmEAE_4= AmEAFQE= "
        "AmEAHQkBAAAAAAAAAAA= AmEAIX__________ AmEAIYAAAAAAAAAA AmEAIb_wAAAAAAAA AmEAIf_4AAAAAAAA AmEAJg== "
        "AmEAJw== AmFiAA== AmFiACG_8AAAAAAAAA== AmIA AmIAIcAIAAAAAAAA AmIAIcAQAAAAAAAA AmIAIcAUAAAAAAAA",
    ),
    ((None, ("a", -1), ("a", 2**64)), 6, "E_4= FQE="),
]

# Selector, cursor, reverse, and Deno's error or the numbers of the keys that follow.
RESUMED: list[tuple[Selector, str, bool, str | list[int]]] = [
    ((("a",), None, None), "?", False, "invalid cursor"),
    ((("a",), None, None), "AmI", False, "invalid cursor"),
    ((("a",), None, None), "AmIA=", False, "invalid cursor"),
    ((("a",), None, None), "AmIA ", False, "invalid cursor"),
    ((("a",), None, None), "A m", False, "invalid cursor"),
    ((("a",), None, None), "Ä", False, "invalid cursor"),
    ((("a",), None, None), "====", False, "invalid cursor"),
    ((("a",), None, None), "A===", False, "invalid cursor"),
    ((("a",), None, None), "AmIA\n", False, "invalid cursor"),
    ((("a",), None, None), "_-8=", False, []),
    ((("a",), None, None), "+/8=", False, "invalid cursor"),
    ((("a",), None, None), "AB==", False, "invalid cursor"),
    ((("a",), None, None), "AA==", False, [*range(1, 15)]),
    ((("a",), None, None), "/w==", False, "invalid cursor"),
    ((("a",), None, None), "_w==", False, []),
    ((("a",), None, None), "AmIAAA", False, "invalid cursor"),
    ((("a",), None, None), "", False, [*range(1, 15)]),
    ((("a",), None, None), "?", True, "invalid cursor"),
    ((("a",), None, None), "AmI", True, "invalid cursor"),
    ((("a",), None, None), "AmIA=", True, "invalid cursor"),
    ((("a",), None, None), "AmIA ", True, "invalid cursor"),
    ((("a",), None, None), "A m", True, "invalid cursor"),
    ((("a",), None, None), "Ä", True, "invalid cursor"),
    ((("a",), None, None), "====", True, "invalid cursor"),
    ((("a",), None, None), "A===", True, "invalid cursor"),
    ((("a",), None, None), "AmIA\n", True, "invalid cursor"),
    ((("a",), None, None), "_-8=", True, [*range(14, 0, -1)]),
    ((("a",), None, None), "+/8=", True, "invalid cursor"),
    ((("a",), None, None), "AB==", True, "invalid cursor"),
    ((("a",), None, None), "AA==", True, []),
    ((("a",), None, None), "/w==", True, "invalid cursor"),
    ((("a",), None, None), "_w==", True, [*range(14, 0, -1)]),
    ((("a",), None, None), "AmIAAA", True, "invalid cursor"),
    ((("a",), None, None), "", True, [*range(14, 0, -1)]),
    ((None, ("b", 4.0), ("b", 5.0)), "AA==", False, "cursor out of bounds"),
    ((None, ("b", 4.0), ("b", 5.0)), "_____________w==", False, []),
    ((None, ("b", 4.0), ("b", 5.0)), "EAAAAAAAAA==", False, []),
    ((None, ("b", 4.0), ("b", 5.0)), "FAAAAAAAAA==", False, []),
    ((None, ("b", 4.0), ("b", 5.0)), "GAAAAAAAAA==", False, []),
    ((None, ("b", 4.0), ("b", 5.0)), "AA==", True, []),
    ((None, ("b", 4.0), ("b", 5.0)), "_____________w==", True, "cursor out of bounds"),
    ((None, ("b", 4.0), ("b", 5.0)), "EAAAAAAAAA==", True, []),
    ((None, ("b", 4.0), ("b", 5.0)), "FAAAAAAAAA==", True, [19]),
    ((None, ("b", 4.0), ("b", 5.0)), "GAAAAAAAAA==", True, "cursor out of bounds"),
    ((("a",), ("a", "b"), None), "AQEA", False, "cursor out of bounds"),
    ((("a",), None, ("a", "b")), "AQEA", False, []),
    ((("a",), ("a", "b"), None), "AmEA", False, "cursor out of bounds"),
    ((("a",), None, ("a", "b")), "AmEA", False, []),
    ((("a",), ("a", "b"), None), "AnoA", False, [*range(5, 15)]),
    ((("a",), None, ("a", "b")), "AnoA", False, []),
    ((("a",), ("a", "b"), None), "AQEA", True, []),
    ((("a",), None, ("a", "b")), "AQEA", True, [1]),
    ((("a",), ("a", "b"), None), "AmEA", True, []),
    ((("a",), None, ("a", "b")), "AmEA", True, [1]),
    ((("a",), ("a", "b"), None), "AnoA", True, [*range(4, 1, -1)]),
    ((("a",), None, ("a", "b")), "AnoA", True, "cursor out of bounds"),
]


def test_the_keys_are_in_order() -> None:
    encoded = [encode_key(key) for key in KEYS]
    assert encoded == sorted(encoded)


@pytest.mark.parametrize(("selector", "first", "cursors"), CURSORS)
def test_cursors_are_those_of_deno(selector: Selector, first: int, cursors: str) -> None:
    selected = select(*selector)
    listed = [key for key in map(encode_key, KEYS) if selected.start <= key < selected.end]
    assert listed[0] == encode_key(KEYS[first])
    assert [cursor_at(selected, key) for key in listed] == cursors.split()


@pytest.mark.parametrize(("selector", "cursor", "reverse", "outcome"), RESUMED)
def test_lists_go_on_as_in_deno(selector: Selector, cursor: str, reverse: bool, outcome: str | list[int]) -> None:
    selected = select(*selector)
    if isinstance(outcome, str):
        with pytest.raises(InvalidArgument, match=f"^{outcome}"):
            resume(selected, cursor, reverse=reverse)
        return
    start, end = resume(selected, cursor, reverse=reverse)
    found = [number for number, key in enumerate(KEYS) if start <= encode_key(key) < end]
    assert found == (outcome[::-1] if reverse else outcome)
