"""Histories survive being kept."""

from pathlib import Path
from random import Random

import pytest

from chaos.history import Operation, export, load
from tests.unit.chaos.sequential import history


def test_what_was_exported_comes_back_equal(tmp_path: Path) -> None:
    found = history(Random(3), processes=4, operations=300, unknown=0.2, denied=0.1)
    assert {operation.outcome for operation in found} == {"ok", "unknown", "not applied"}
    export(found, tmp_path / "history.jsonl")
    assert list(load(tmp_path / "history.jsonl")) == found
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == len(found)


def test_absence_and_time_zero_are_kept() -> None:
    operation = Operation(0, "handle", 0, None, "unknown", mark="m", message="x")
    assert Operation.from_json(operation.to_json()) == operation


def test_a_torn_line_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text('{"process":1,"kind":"get"')
    with pytest.raises(ValueError):
        list(load(tmp_path / "history.jsonl"))
