"""Commands with a time limit, and what a failure says."""

import asyncio
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

SHOWN = 30
"""Lines of a failed command's output that are shown."""


class Failed(Exception):
    """A step did not do what it must; the text says what."""


def say(text: str) -> None:
    """One line of progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def run(
    words: Sequence[str | Path],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    text: str | None = None,
) -> str:
    """What it prints. Errors: Failed, with the end of what it said."""
    command = [str(word) for word in words]
    try:
        done = subprocess.run(
            command,
            timeout=timeout,
            cwd=folder,
            env=None if env is None else {**os.environ, **env},
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError as error:
        raise Failed(f"{command[0]} is not there") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"`{_short(command)}` took longer than {timeout:g} s") from error
    return _checked(command, done.returncode, done.stdout, done.stderr)


async def run_async(words: Sequence[str | Path], *, timeout: float, env: Mapping[str, str] | None = None) -> str:
    """As `run`, while the loop goes on."""
    command = [str(word) for word in words]
    process = await asyncio.create_subprocess_exec(
        *command,
        env=None if env is None else {**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout):
            out, err = await process.communicate()
    except TimeoutError:
        raise Failed(f"`{_short(command)}` took longer than {timeout:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    status = process.returncode
    assert status is not None
    return _checked(command, status, out.decode(errors="replace"), err.decode(errors="replace"))


def _checked(command: Sequence[str], status: int, out: str, err: str) -> str:
    if status:
        said = "\n".join((out + err).strip().splitlines()[-SHOWN:])
        raise Failed(f"`{_short(command)}` ended with status {status}:\n{said}")
    return out


def _short(command: Sequence[str]) -> str:
    text = " ".join(command)
    return text if len(text) < 200 else f"{text[:200]} …"
