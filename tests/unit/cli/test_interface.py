"""What all commands have in common: --json, exit statuses, completion, dry runs."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kvorum import errors
from kvorum.cli.group import _OTHER_NAMES, kvorum
from kvorum.cli.interrupts import INTERRUPTED, TERMINATED, Terminated
from kvorum.cli.session import STATUSES, Options, database_options, runs
from kvorum_raft.faults import EXIT_CONFIGURATION, EXIT_DISK_FULL, EXIT_FAULT

COMMAND = Path(sys.executable).with_name("kvorum")
NO_JSON = {
    "kvorum completion": "its output is a script",
    "kvorum node": "runs until it is stopped; its log has log_format",
}


def commands(name: str = "kvorum", command: click.Command = kvorum) -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for word in command.list_commands(context):
        found = command.get_command(context, word)
        assert found is not None
        yield from commands(f"{name} {word}", found)


EVERY = dict(commands())


def test_options_do_not_show_the_token() -> None:
    options = Options("kvorum://n1", timedelta(seconds=1), as_json=False, python=False, token="hidden")
    assert options.shown_token == "hidden"
    assert "hidden" not in repr(options)


def test_every_command_is_found() -> None:
    assert len(EVERY) >= 45
    assert {"kvorum doctor", "kvorum top", "kvorum bench", "kvorum queue purge", "kvorum cluster quarantine"} <= set(
        EVERY
    )


@pytest.mark.parametrize("name", EVERY)
def test_every_command_prints_json_or_says_why_not(name: str) -> None:
    flags = {flag for option in EVERY[name].params for flag in option.opts}
    assert ("--json" in flags) != (name in NO_JSON)


@pytest.mark.parametrize("name", EVERY)
def test_every_command_and_option_is_explained(name: str) -> None:
    command = EVERY[name]
    assert command.help
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help or isinstance(option.type, click.Choice), f"{name} {option.opts[0]}"


@pytest.mark.parametrize("name", [name for name in EVERY if name != "kvorum node"])
def test_help_of_every_command_ends_with_status_0(name: str) -> None:
    result = CliRunner().invoke(kvorum, [*name.split()[1:], "--help"])
    assert result.exit_code == 0
    assert f"Usage: kvorum {name.removeprefix('kvorum ')}" in " ".join(result.stdout.split())


# ---- exit statuses


def ends(error: BaseException | None = None) -> int:
    """The status of a command that raises this."""

    @click.command()
    @database_options
    @runs
    async def command(options: Options) -> int | None:
        if error is not None:
            raise error
        return None

    return CliRunner().invoke(command, ["--url", ":memory:"]).exit_code


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, 0),
        (errors.StaleLease("x"), 1),
        (errors.MessageGone("x"), 1),
        (errors.InvalidArgument("x"), 2),
        (errors.InvalidKey("x"), 2),
        (errors.LimitExceeded("MAX_KEYS", 1, 2), 2),
        (errors.Compacted("x"), 2),
        (errors.Unavailable("x"), 3),
        (errors.ConnectFailed("x"), 3),
        (errors.DeadlineExceeded("x"), 3),
        (errors.NoSpace("x"), 3),
        (OSError("x"), 3),
        (errors.OutcomeUnknown("x"), 4),
        (errors.RequestTimeout("x"), 4),
        (KeyboardInterrupt(), INTERRUPTED),
        (Terminated(), TERMINATED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_each_error_has_its_status(error: BaseException | None, status: int) -> None:
    assert ends(error) == status
    assert status in STATUSES


def test_every_error_of_the_package_has_a_status_that_tells_the_truth() -> None:
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.KvorumError):
            status = ends(kind.__new__(kind, "x"))
            if kind.outcome == "unknown":
                assert status == 4, name
            else:
                assert status in (1, 2, 3) or issubclass(kind, errors.OutcomeUnknown), name
            if kind.outcome == "not applied" and kind not in (errors.NoSpace,):
                assert (status == 3) == kind.retryable, name


def test_the_table_has_every_status() -> None:
    assert set(STATUSES) == {0, 1, 2, 3, 4, EXIT_FAULT, EXIT_DISK_FULL, EXIT_CONFIGURATION, INTERRUPTED, TERMINATED}
    assert CliRunner().invoke(kvorum, ["get"]).exit_code == 2  # click's own idea of wrong usage


# ---- completion


def shell(kind: str, words: str, number: int, incomplete: str) -> list[str]:
    """What a shell's function is told."""
    asked = {"_KVORUM_COMPLETE": f"{kind}_complete", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    if kind == "fish":
        asked["COMP_CWORD"] = incomplete
    done = subprocess.run(
        [COMMAND], env={**os.environ, **asked}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.stdout.split("\n")


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_completion_scripts_ask_kvorum(kind: str) -> None:
    result = CliRunner().invoke(kvorum, ["completion", kind], prog_name="kvorum")
    assert result.exit_code == 0
    assert "_KVORUM_COMPLETE" in result.stdout
    assert f"{kind}_complete" in result.stdout


def test_commands_options_and_choices_are_completed() -> None:
    assert [line for line in shell("bash", "kvorum que", 1, "que") if line] == ["plain,queue"]
    assert "plain,purge" in shell("bash", "kvorum queue pu", 2, "pu")
    assert "plain,--dry-run" in shell("bash", "kvorum queue purge --dr", 3, "--dr")
    assert {"plain,bash", "plain,zsh", "plain,fish"} <= set(shell("bash", "kvorum completion ", 2, ""))
    assert [line for line in shell("bash", "kvorum node --lease", 2, "--lease") if line] == ["plain,--lease-ms"]
    assert "plain,--config" in shell("bash", "kvorum node --", 2, "--")
    assert shell("bash", "kvorum node --config n1", 3, "n1")[0] == "file,n1"
    assert "doctor" in shell("zsh", "kvorum doc", 1, "doc")
    assert any(line.startswith("plain,doctor") for line in shell("fish", "kvorum doc", 1, "doc"))


def test_the_script_works_in_bash() -> None:
    script = CliRunner().invoke(kvorum, ["completion", "bash"], prog_name="kvorum").stdout
    ask = 'COMP_WORDS=(kvorum sched); COMP_CWORD=1; _kvorum_completion kvorum; echo "${COMPREPLY[@]}"'
    environment = {**os.environ, "PATH": f"{COMMAND.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("schedule\n", "")


def test_completing_a_command_imports_no_other() -> None:
    program = (
        "import sys; from kvorum.cli.group import kvorum; import click\n"
        "found = kvorum.shell_complete(click.Context(kvorum), 'q')\n"
        "assert [one.value for one in found] == ['queue'], found\n"
        "assert 'kvorum.cli.queues' not in sys.modules and 'grpc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# ---- progress


def test_a_bar_is_shown_on_a_terminal_only_and_on_stderr(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database("set", '["x", 1]', "1")
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [COMMAND, "delete", '["x"]', "--prefix"],
            env={**os.environ, "KVORUM_URL": database.url, "TERM": "xterm"},
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "1\n")
        assert b"deleting" in os.read(ours, 65_536)
    finally:
        os.close(ours)
        os.close(theirs)
    database("set", '["x", 1]', "1")
    assert database("delete", '["x"]', "--prefix").stderr == ""


# ---- dry runs


class Database:
    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "data.kv")

    def __call__(self, *words: str, status: int = 0) -> Result:
        result = CliRunner(env={"KVORUM_URL": self.url}).invoke(kvorum, words)
        assert result.exit_code == status, (result.output, result.exception)
        return result


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path)


def test_what_destroys_can_be_tried() -> None:
    destructive = {
        *("kvorum delete", "kvorum queue purge", "kvorum queue remove", "kvorum topic remove"),
        *("kvorum schedule remove", "kvorum cluster remove"),
    }
    for name, command in EVERY.items():
        if name in destructive or re.search(r" (purge|remove)$", name):
            assert "--dry-run" in {flag for option in command.params for flag in option.opts}, name


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("gett", '["a"]'), "no such command 'gett'; did you mean `kvorum get`?"),
        (("put", '["a"]', "1"), "did you mean `kvorum set`?"),
        (("members",), "did you mean `kvorum cluster members`?"),
        (("help",), "did you mean `kvorum --help`?"),
        (("zzz",), "`kvorum --help` shows those that there are"),
        (("--url", "x", "get", '["a"]'), "stands behind them: kvorum get … --url …"),
        (("--nonsense", "get"), "--nonsense"),
    ],
)
def test_a_wrong_word_is_answered_by_the_likely_one(words: tuple[str, ...], hint: str) -> None:
    result = CliRunner().invoke(kvorum, words)
    assert result.exit_code == 2
    assert hint in result.stderr


def test_every_guess_is_a_command() -> None:
    named = " ".join(f"{name} " for name in EVERY)
    for guess in _OTHER_NAMES.values():
        assert guess.startswith("--") or f"kvorum {guess.partition(' --')[0]} " in named, guess


def test_a_dry_delete_counts_and_deletes_nothing(database: Database) -> None:
    for number in range(3):
        database("set", f'["x", {number}]', "1")
    assert database("delete", '["x"]', "--prefix", "--dry-run").stdout == "would delete 3 key(s)\n"
    assert database("delete", '["x", 0]', "--dry-run", "--json").stdout == '{"dry_run": true, "would_delete": 1}\n'
    assert database("delete", '["y"]', "--dry-run").stdout == "would delete 0 key(s)\n"
    assert "cannot be combined" in database("delete", '["x", 0]', "--dry-run", "--if-exists", status=2).stderr
    assert database("count").stdout == "3\n"
    assert database("delete", '["x"]', "--prefix").stdout == "3\n"
    assert database("count").stdout == "0\n"


def test_dry_runs_of_queues(database: Database) -> None:
    database("queue", "send", "jobs", "1", "2")
    assert "would delete 2 message(s)" in database("queue", "purge", "jobs", "--dry-run").stdout
    assert database("queue", "purge", "jobs", "--dead", "--dry-run").stdout == "would delete 0 dead letter(s)\n"
    assert "with 2 message(s)" in database("queue", "remove", "jobs", "--dry-run").stdout
    assert '"would_delete": 2' in database("queue", "remove", "jobs", "--dry-run", "--json").stdout
    assert database("queue", "purge", "jobs").stdout == "2\n"


def test_dry_runs_of_topics_and_schedules(database: Database) -> None:
    database("topic", "define", "news")
    database("topic", "subscribe", "news", "jobs")
    assert "with 1 subscription(s)" in database("topic", "remove", "news", "--dry-run").stdout
    assert "not found" in database("topic", "remove", "none", "--dry-run", status=1).stderr
    database("schedule", "set", "daily", "0 6 * * *", "1", "--queue", "jobs")
    assert "0 6 * * * (UTC)" in database("schedule", "remove", "daily", "--dry-run").stdout
    assert "not found" in database("schedule", "remove", "none", "--dry-run", status=1).stderr
    assert "news" in database("topic", "list").stdout
    assert "daily" in database("schedule", "list").stdout
