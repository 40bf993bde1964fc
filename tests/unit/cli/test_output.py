"""Where output goes that cannot go where it should: closed pipes, closed stdout, text that has no UTF-8."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import kvorum

COMMAND = (sys.executable, "-m", "kvorum.cli")


def run(folder: Path, script: str) -> "subprocess.CompletedProcess[str]":
    """Run a shell script in which `k` is the command line on a database in `folder`."""
    own = " ".join(COMMAND)
    return subprocess.run(
        ["bash", "-c", f'k() {{ {own} "$@"; }}\n{script}'],
        env={**os.environ, "KVORUM_URL": str(folder / "data.kv"), "PYTHONUTF8": "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def fill(folder: Path, *messages: int) -> None:
    async with kvorum.open_kv(folder / "data.kv") as kv:
        for message in messages:
            await kv.enqueue(message, backoff_schedule=())
        await kv.set(("k",), "a\ud800b")


async def attempts(folder: Path, count: int) -> list[tuple[object, int]]:
    """Take that many messages: value and number of the attempt."""
    found: list[tuple[object, int]] = []
    async with kvorum.open_kv(folder / "data.kv") as kv:
        enough = asyncio.Event()

        async def handle(message: kvorum.Message) -> None:
            found.append((message.value, message.attempt))
            if len(found) == count:
                enough.set()

        listening = asyncio.create_task(kv.listen_queue(handle, concurrency=1, prefetch=0, with_message=True))
        async with asyncio.timeout(30):
            await enough.wait()
        listening.cancel()
        await asyncio.wait([listening])
    return found


async def test_listening_ends_with_its_reader_and_spends_no_attempt(tmp_path: Path) -> None:
    await fill(tmp_path)
    # Nothing is there yet: the pipe's end must be noticed without a message to be printed.
    done = await asyncio.to_thread(run, tmp_path, "k listen | true; echo ${PIPESTATUS[0]}")
    assert (done.stdout, done.stderr) == ("0\n", "")
    await fill(tmp_path, 1, 2)
    done = await asyncio.to_thread(run, tmp_path, "k listen | true; echo ${PIPESTATUS[0]}")
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert await attempts(tmp_path, 2) == [(1, 1), (2, 1)]


async def test_head_takes_what_it_prints(tmp_path: Path) -> None:
    await fill(tmp_path, 1, 2, 3)
    done = await asyncio.to_thread(run, tmp_path, "k listen | head -1")
    assert (done.stdout, done.stderr) == ("1\n", "")


async def test_other_commands_end_quietly_when_nobody_reads(tmp_path: Path) -> None:
    await fill(tmp_path)
    for words in ("list", "list --json", "get '[\"k\"]'"):
        done = await asyncio.to_thread(run, tmp_path, f"k {words} | true; echo ${{PIPESTATUS[0]}}")
        assert (done.stdout, done.stderr) == ("0\n", ""), words


async def test_stdout_that_was_closed_from_the_beginning(tmp_path: Path) -> None:
    await fill(tmp_path)
    for words in ("list", "list --json", "get '[\"k\"]'", "set '[\"x\"]' 1"):
        done = await asyncio.to_thread(run, tmp_path, f"k {words} >&-")
        assert (done.returncode, done.stderr) == (0, ""), words


async def test_a_full_disk_behind_stdout_is_one_line(tmp_path: Path) -> None:
    await fill(tmp_path)
    done = await asyncio.to_thread(run, tmp_path, "k list >/dev/full")
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert "No space left" in line


async def test_half_a_backup_is_no_success(tmp_path: Path) -> None:
    """Elsewhere a reader that goes away is fine; here it would be taken for a backup."""
    await fill(tmp_path)
    for there in ("| true", ">/dev/full"):
        done = await asyncio.to_thread(run, tmp_path, f"k backup save - {there}; echo ${{PIPESTATUS[0]}}")
        assert done.stdout == "3\n", there
        (line,) = done.stderr.splitlines()
        assert "no backup was made" in line


async def test_lone_surrogates_are_shown_as_they_can_be_pasted_back(tmp_path: Path) -> None:
    await fill(tmp_path)
    done = await asyncio.to_thread(run, tmp_path, "k get '[\"k\"]' --json; k list; k get '[\"k\"]' --py")
    assert (done.returncode, done.stderr) == (0, "")
    assert '"a\\ud800b"' in done.stdout.splitlines()[0]
    assert "'a\\ud800b'" in done.stdout
    done = await asyncio.to_thread(run, tmp_path, "k set '[\"pasted\"]' '\"a\\ud800b\"'")
    assert done.returncode == 0, done.stderr
    async with kvorum.open_kv(tmp_path / "data.kv") as kv:
        assert (await kv.get(("pasted",))).value == "a\ud800b"


async def test_characters_that_the_output_has_no_signs_for_are_escaped(tmp_path: Path) -> None:
    """As with LANG=en_US.ISO-8859-1, whatever Python makes of LANG=C."""
    async with kvorum.open_kv(tmp_path / "data.kv") as kv:
        await kv.set(("k",), "é 愛 😀")
    ask = "export PYTHONUTF8=0 PYTHONIOENCODING=latin-1; "
    done = await asyncio.to_thread(run, tmp_path, ask + "k get '[\"k\"]' --json | cat")
    assert (json.loads(done.stdout)["value"], done.stderr) == ("é 愛 😀", "")
    for words in ("get '[\"k\"]'", "get '[\"k\"]' --py", "list", "--help", "get --help", "get '[\"愛\"]'"):
        done = await asyncio.to_thread(run, tmp_path, f"{ask}k {words} >/dev/null")
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, (words, done.stderr)


async def test_lone_surrogates_in_arguments_are_refused_in_one_line(tmp_path: Path) -> None:
    await fill(tmp_path)
    for script in (
        "k get $'[\"\\xff\"]'",
        "k get '[\"\\ud800\"]'",
        "k enqueue 1 --queue $'\\xff'",
        "k set '[\"k\"]' 1 --url $'/tmp/\\xff'",
    ):
        done = await asyncio.to_thread(run, tmp_path, script)
        assert done.returncode == 2, (script, done.stderr)
        (line,) = done.stderr.splitlines()
        assert line.startswith("kvorum: "), script
