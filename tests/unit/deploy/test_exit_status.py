"""Exit status 3 of scripts/compose-test means that no engine can be started here, and cannot mean anything else."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from deploy.compose_test import __main__ as compose_test
from deploy.compose_test import probe
from deploy.compose_test.steps import Failed

ROOT = Path(__file__).resolve().parents[3]


def never() -> str:
    raise AssertionError("the test was begun")


def test_what_is_missing_is_said_and_nothing_is_begun(capsys: pytest.CaptureFixture[str]) -> None:
    assert compose_test.main(lambda: ["root: this is user id 7", "overlay"], never) == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("compose-test: NOT RUN") and "root: this is user id 7; overlay" in line


def test_after_the_probe_every_end_but_success_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    ends: list[BaseException] = [
        Failed("acknowledged writes are lost:\nmore"),
        SystemExit(3),
        SystemExit(0),
        KeyboardInterrupt(),
        OSError(3, "No such process"),
    ]
    for end in ends:

        def test(end: BaseException = end) -> str:
            raise end

        assert compose_test.main(list, test) == 1, end
        assert capsys.readouterr().out.splitlines()[-1].startswith("compose-test: FAILED after")
    assert compose_test.main(list, lambda: "7 writes, 0 lost") == 0
    assert re.match(r"compose-test: ok in \d+ s: 7 writes, 0 lost$", capsys.readouterr().out.splitlines()[-1])


def test_an_inner_part_that_ends_with_3_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "reason").write_text("two writes are lost")
    with pytest.raises(Failed, match="status 3: two writes are lost"):
        compose_test._watch(["sh", "-c", "exit 3"], tmp_path / "reason", 60.0)


def test_a_machine_without_control_groups_or_with_some_only(tmp_path: Path) -> None:
    assert "not mounted" in probe._no_cgroups(tmp_path)
    for name in probe.CONTROLLERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "tasks").touch()
    assert probe._no_cgroups(tmp_path) == ""
    (tmp_path / "memory" / "tasks").unlink()
    assert "memory" in probe._no_cgroups(tmp_path)
    (tmp_path / "cgroup.controllers").touch()
    assert probe._no_cgroups(tmp_path) == "", "version 2 has one folder"


@pytest.mark.parametrize(("status", "expected", "said"), [(0, 0, ""), (3, 0, "NOT TESTED"), (1, 1, ""), (2, 2, "")])
def test_ci_goes_on_after_status_3_alone_and_says_so(tmp_path: Path, status: int, expected: int, said: str) -> None:
    """`.ci/run` with all its scripts replaced."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci/run").write_bytes((ROOT / ".ci/run").read_bytes())
    for name in re.findall(r"scripts/([\w-]+)", (ROOT / ".ci/run").read_text()):
        script = tmp_path / "scripts" / name
        script.write_text(f"#!/bin/sh\necho ran {name}\nexit {status if name == 'compose-test' else 0}\n")
        script.chmod(0o755)
    done = subprocess.run(["bash", tmp_path / ".ci/run"], capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == expected
    assert "ran compose-test" in done.stdout and "ran test" in done.stdout
    assert ("NOT TESTED" in done.stdout) == bool(said)
