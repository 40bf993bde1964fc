"""`kvorum queue | topic | schedule` on an embedded folder."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvorum import sync
from tests.unit.cli.test_commands import Shell, error_line


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(str(tmp_path / "data.kv"))


def one(shell: Shell, *words: str, status: int = 0) -> dict[str, Any]:
    (data,) = shell.json(*words, status=status)
    assert isinstance(data, dict)
    return data


def test_send_look_receive(shell: Shell) -> None:
    first, second = shell(
        "queue", "send", "mail", '{"to": "Ella"}', "2", "--group", "g", "--header", "k=v"
    ).stdout.split()
    assert len(first) == len(second) == 24
    stats = one(shell, "queue", "stats", "mail")
    assert (stats["messages"], stats["ready"], stats["waiting"], stats["sent"]) == (2, 1, 1, 2)
    infos: list[Any] = shell.json("queue", "peek", "mail")
    assert [(info["id"], info["state"], info["value"]) for info in infos] == [
        (first, "ready", {"to": "Ella"}),
        (second, "waiting", 2),
    ]
    assert infos[0]["headers"] == {"k": "v"} and infos[0]["group"] == "g"
    assert one(shell, "queue", "peek", "mail", "--id", second)["value"] == 2
    got = one(shell, "queue", "receive", "mail")
    assert (got["id"], got["value"], got["attempt"]) == (first, {"to": "Ella"}, 1)
    assert shell("queue", "receive", "mail").stdout == "2\n"
    shell("queue", "receive", "mail", "--wait", "20ms", status=1)
    assert "not found" in error_line(shell("queue", "peek", "mail", "--id", first, status=1))


def test_tables_are_for_people(shell: Shell) -> None:
    shell("queue", "send", "mail", '"text"')
    shell("queue", "define", "mail", "--lease", "2s", "--max-backlog", "5")
    listed = shell("queue", "list").stdout
    for text in ("Queue", "Messages", "mail", "Sent/s"):
        assert text in listed
    assert '"text"' in shell("queue", "peek", "mail").stdout
    stats = shell("queue", "stats", "mail").stdout
    assert "--lease 2s --max-backlog 5" in stats and "duplicates" in stats


def test_a_message_that_is_kept_is_there_again(shell: Shell) -> None:
    shell("queue", "send", "mail", "1")
    assert one(shell, "queue", "receive", "mail", "--keep")["attempt"] == 1
    assert one(shell, "queue", "receive", "mail")["attempt"] == 2


def test_dead_letters(shell: Shell) -> None:
    shell("queue", "define", "mail", "--max-attempts", "1")
    shell("queue", "send", "mail", "1", "2", "3")
    shell("queue", "receive", "mail", "--max", "3", "--keep")
    letters: list[Any] = shell.json("queue", "dead", "mail")
    assert [letter["value"] for letter in letters] == [1, 2, 3]
    assert letters[0]["failures"][0]["kind"] == "failed" and letters[0]["origin"]["queue"] == "mail"
    assert "give ids of dead letters" in error_line(shell("queue", "requeue", "mail", status=2))
    assert one(shell, "queue", "requeue", "mail", letters[0]["id"]) == {"count": 1}
    shell("queue", "requeue", "mail", letters[0]["id"], status=1)
    assert shell("queue", "purge", "mail", "--dead").stdout == "2\n"
    assert shell("queue", "purge", "mail").stdout == "1\n"


def test_dead_letters_of_another_queue_go_back(shell: Shell) -> None:
    shell("queue", "define", "mail", "--max-attempts", "1", "--dead-letters", "grave")
    shell("queue", "send", "mail", "1")
    shell("queue", "receive", "mail", "--keep")
    assert one(shell, "queue", "stats", "grave")["messages"] == 1
    assert one(shell, "queue", "requeue", "grave", "--to-origin") == {"count": 1}
    assert one(shell, "queue", "receive", "mail")["value"] == 1


def test_ids(shell: Shell) -> None:
    sent = one(shell, "queue", "send", "mail", "1", "--dedup-id", "x", "--delay", "1h")
    again = one(shell, "queue", "send", "mail", "1", "--dedup-id", "x")
    assert not sent["duplicate"] and again["duplicate"] and again["id"] == sent["id"]
    assert shell("queue", "send", "mail", "1", "--dedup-id", "x").stdout == f"{sent['id']} (duplicate)\n"
    assert one(shell, "queue", "stats", "mail")["scheduled"] == 1
    shell("queue", "reschedule", "mail", sent["id"])
    assert one(shell, "queue", "stats", "mail")["ready"] == 1
    shell("queue", "cancel", "mail", sent["id"])
    shell("queue", "reschedule", "mail", sent["id"], status=1)
    assert "not found" in error_line(shell("queue", "cancel", "mail", sent["id"], status=1))
    assert "24 hex digits" in error_line(shell("queue", "cancel", "mail", "7", status=2))
    assert "is for one message" in error_line(shell("queue", "send", "mail", "1", "2", "--dedup-id", "x", status=2))


def test_a_policy(shell: Shell) -> None:
    shell(
        *("queue", "define", "mail", "--backoff", "1s,5s", "--max-wait", "1s", "--retention", "7d"),
        *("--max-in-flight", "3", "--ordered", "--max-batch", "9"),
    )
    assert one(shell, "queue", "stats", "mail")["policy"] == {
        "backoff_ms": [1_000, 5_000],
        "max_wait_ms": 1_000,
        "retention_ms": 604_800_000,
        "max_in_flight": 3,
        "ordered": True,
        "max_batch": 9,
    }
    shell("queue", "define", "mail", "--exponential", "1s,10m")
    assert one(shell, "queue", "stats", "mail")["policy"] == {
        "exponential": {"base_ms": 1_000, "factor": 2.0, "cap_ms": 600_000, "jitter": 0.1}
    }
    for words, text in (
        (("--backoff", "1s", "--exponential", "1s,1m"), "cannot be combined"),
        (("--exponential", "1s"), "takes BASE,CAP"),
        (("--lease", "1ms"), "MIN_LEASE"),
    ):
        assert text in error_line(shell("queue", "define", "mail", *words, status=2))


def test_pause_resume_remove(shell: Shell) -> None:
    shell("queue", "pause", "mail")
    shell("queue", "send", "mail", "1")
    shell("queue", "receive", "mail", "--wait", "50ms", status=1)
    assert one(shell, "queue", "list")["paused"] is True
    shell("queue", "resume", "mail")
    assert one(shell, "queue", "receive", "mail")["value"] == 1
    shell("queue", "send", "mail", "1")
    assert shell("queue", "remove", "mail").stdout == "1\n"
    assert shell.json("queue", "list") == []


def test_a_full_queue_is_unavailable(shell: Shell) -> None:
    shell("queue", "define", "mail", "--max-backlog", "1")
    shell("queue", "send", "mail", "1")
    assert "mail" in error_line(shell("queue", "send", "mail", "1", status=3))


def test_stats_again_and_again(tmp_path: Path) -> None:
    url = str(tmp_path / "data.kv")
    with sync.open_kv(url) as kv:
        kv.queue("mail").send(1)
    watching = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kvorum.cli",
            "queue",
            "stats",
            "mail",
            "--watch",
            "--every",
            "100ms",
            "--url",
            url,
            "--json",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert watching.stdout is not None
        for _ in range(2):
            assert json.loads(watching.stdout.readline())["messages"] == 1
    finally:
        watching.terminate()
        watching.wait()
        assert watching.stdout is not None
        watching.stdout.close()


def test_topics(shell: Shell) -> None:
    shell("topic", "define", "docs", "--retention", "1h")
    assert len(shell("topic", "send", "docs", '"early"').stdout.strip()) == 20
    assert shell("topic", "subscribe", "docs", "search", "--since", "1h").stdout == "1\n"
    assert one(shell, "topic", "subscribe", "docs", "index") == {"count": 0}
    topic = one(shell, "topic", "list")
    assert (topic["topic"], sorted(topic["queues"]), topic["retention_ms"]) == ("docs", ["index", "search"], 3_600_000)
    table = shell("topic", "list").stdout
    assert "docs" in table and "1h" in table
    assert one(shell, "queue", "receive", "search")["value"] == "early"
    shell("topic", "unsubscribe", "docs", "search")
    shell("topic", "remove", "docs")
    assert shell.json("topic", "list") == []


def test_schedules(shell: Shell) -> None:
    shell(
        *("schedule", "set", "daily", "0 6 * * *", '{"kind": "report"}', "--queue", "reports"),
        *("--time-zone", "Europe/Berlin", "--misfire", "skip"),
    )
    schedule = one(shell, "schedule", "list")
    assert (schedule["name"], schedule["cron"], schedule["time_zone"]) == ("daily", "0 6 * * *", "Europe/Berlin")
    assert (schedule["queue"], schedule["misfire"], schedule["last_at"]) == ("reports", "skip", None)
    assert schedule["next_at"].endswith("+00:00")
    assert "Europe/Berlin" in shell("schedule", "list").stdout
    shell("schedule", "remove", "daily")
    assert shell.json("schedule", "list") == []
    assert "give --queue or --topic" in error_line(shell("schedule", "set", "a", "* * * * *", "1", status=2))
    error_line(shell("schedule", "set", "a", "61 * * * *", "1", "--queue", "q", status=2))


def test_a_queue_that_nobody_uses_may_be_a_slip_of_the_finger(shell: Shell) -> None:
    shell("queue", "send", "jobs", "1")
    assert shell("queue", "stats", "jobs").stderr == ""
    shell("queue", "purge", "jobs")
    assert shell("queue", "stats", "jobs").stderr == ""
    assert "nothing was ever sent to a queue of this name" in shell("queue", "stats", "jops").stderr
    shell("queue", "define", "defined", "--max-attempts", "3")
    assert shell("queue", "stats", "defined").stderr == ""


def test_looking_does_not_create_a_database(shell: Shell) -> None:
    for words in (("queue", "list"), ("queue", "stats", "a"), ("topic", "list"), ("schedule", "list")):
        assert "there is no database" in error_line(shell(*words, status=3))
