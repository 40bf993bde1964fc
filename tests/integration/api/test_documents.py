"""The snippets of docs/queues.md and docs/kv-semantics.md, on every kind of database."""

import ast
import asyncio
import inspect
import re
import shlex
import textwrap
import time
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

import kvorum
from kvorum.cli.group import kvorum as command

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("queues.md", "kv-semantics.md")
QUEUES = (DOCS / "queues.md").read_text()


def snippets() -> list[tuple[str, str]]:
    """Name and text of each."""
    found: list[tuple[str, str]] = []
    pattern = re.compile(r"^## (.+?)$|^### (.+?)$|^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for page in PAGES:
        heading = f"{page}: top"
        for large, small, text in pattern.findall((DOCS / page).read_text()):
            heading = f"{page}: {large or small}" if large or small else heading
            if text:
                count = sum(name.startswith(heading) for name, _ in found)
                found.append((f"{heading} {count + 1}", text))
    return found


def test_all_snippets_were_found() -> None:
    assert len(snippets()) == sum((DOCS / page).read_text().count("```python") for page in PAGES) > 18


@pytest.mark.parametrize(("name", "text"), snippets(), ids=[name for name, _ in snippets()])
async def test_a_snippet_runs_as_it_stands(target: str, name: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    code = compile(text, f"docs/{name}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with kvorum.open_kv(target) as kv:
        for queue in await kv.queues():  # a cluster is shared
            if f'"{queue.name}"' in QUEUES:
                await kv.queue(queue.name).remove()
        for topic in re.findall(r'kv\.topic\("(\w+)"\)', text):
            await kv.topic(topic).remove()
        await kv.delete(("user", 9))
        before = asyncio.all_tasks()
        names = {"kv": kv, "kvorum": kvorum, "asyncio": asyncio, "time": time, "timedelta": timedelta}
        async with asyncio.timeout(60):
            running = eval(code, names)
            if inspect.isawaitable(running):
                await running
        own = [task for task in names.values() if isinstance(task, asyncio.Task)]
        own += [task for many in names.values() if isinstance(many, list) for task in many if _is_task(task)]
        if own:
            await _until_nothing_is_left(kv, text)
        for schedule in await kv.schedules():
            await kv.unschedule(schedule.name)
    await asyncio.gather(*own)  # listeners end when the client is closed
    assert not [task for task in asyncio.all_tasks() - before if not task.done()]
    assert not caplog.records, textwrap.indent(text, "    ")


def test_the_commands_run_as_they_stand(tmp_path: Path) -> None:
    lines = re.findall(r"^\$ (kvorum .+)$|^([0-9a-f]{24})$", QUEUES, re.MULTILINE)
    assert len(lines) > 10
    shell = CliRunner(env={"KVORUM_URL": str(tmp_path / "data.kv")})
    shell.invoke(command, ["set", '["made"]', "true"])  # looking makes no database
    output, ids = "", dict[str, str]()
    for line, printed in lines:
        if printed:
            ids[printed] = output.strip()
        for words in (shlex.split(part) for part in line.split("; ")):
            if words and "--watch" not in words:  # it does not end
                done = shell.invoke(command, [ids.get(word, word) for word in words[1:]])
                assert done.exit_code == 0, (line, done.output)
                output = done.stdout
    assert len(ids) == 1


def _is_task(value: object) -> bool:
    return isinstance(value, asyncio.Task)


async def _until_nothing_is_left(kv: kvorum.Kv, text: str) -> None:
    """What was sent to queues with a listener is handled; of those that nobody listens to it may stay."""
    listened = set(re.findall(r'kv\.queue\("([\w/]+)"\)\.listen', text))
    listened |= {
        queue
        for name, queue in re.findall(r'^(\w+) = kv\.queue\("(\w+)"\)', text, re.MULTILINE)
        if f"{name}.listen" in text
    }
    async with asyncio.timeout(60):
        while True:
            queues = [one for one in await kv.queues(counts=True) if one.name in listened]
            if not any(one.ready or one.leased for one in queues):
                return
            await asyncio.sleep(0.02)
