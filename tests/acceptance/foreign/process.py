"""A foreign client in a process of its own, driven from here: see `../clients/driver.mjs` for what travels between."""

import itertools
import json
import os
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

CLIENTS = Path(__file__).parents[1] / "clients"
KINDS = ("deno", "@deno/kv", "kv-connect-kit", "denokv")
TOKEN = "token-of-the-acceptance-tests"
PATIENCE = 60.0
"""Seconds that one program may take, unless its caller says otherwise."""


class Refused(Exception):
    """A program threw: name and message of its error."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


def install() -> None:
    """Make sure that the clients are there. Errors: CalledProcessError."""
    subprocess.run([CLIENTS / "install"], check=True, timeout=600)


def command(kind: str) -> list[str]:
    """How the driver of a client is started; addresses follow."""
    if kind == "denokv":
        return [str(CLIENTS / ".denokv" / "bin" / "python"), "-u", str(CLIENTS / "driver.py")]
    if kind == "deno":
        return [*deno(), str(CLIENTS / "driver.mjs"), kind]
    return ["node", str(CLIENTS / "driver.mjs"), kind]


def deno() -> list[str]:
    """Deno without anything that would look beyond this machine."""
    (binary,) = CLIENTS.glob("node_modules/@deno/*/deno")
    return [str(binary), "run", "--quiet", "-A", "--unstable-kv", "--no-config", "--no-lock", "--no-remote"]


def environment(folder: Path, token: str = TOKEN) -> dict[str, str]:
    """Variables for a foreign client that keeps what it must keep in `folder`."""
    own = {"DENO_DIR": str(folder / "deno"), "DENO_NO_UPDATE_CHECK": "1", "DENO_NO_PACKAGE_JSON": "1", "NO_COLOR": "1"}
    return {**os.environ, **own, "DENO_KV_ACCESS_TOKEN": token}


class Foreign:
    """A running driver with one open database for each address.

    `with Foreign(kind, addresses, folder) as client: client.run("return await kv.get(key)", key=["a"])`
    """

    def __init__(self, kind: str, addresses: Sequence[str], folder: Path, token: str = TOKEN) -> None:
        self.kind = kind
        self.addresses = tuple(addresses)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._errors = folder / f"{kind.replace('/', '-')}-{id(self):x}.stderr"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command(kind), *addresses],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(folder, token),
            )
        ready: Future[Any] = Future()
        self._waiting[0] = ready
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            ready.result(PATIENCE)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        """The end of what it has written to standard error."""
        return self._errors.read_text(errors="replace")[-4_000:]

    def start(self, code: str, *, at: int = 0, **arguments: Any) -> "Future[Any]":
        """Run a program with the database number `at`. Errors of the result: Refused; ConnectionError if it ends."""
        answer: Future[Any] = Future()
        number = next(self._numbers)
        with self._lock:
            if self._process.poll() is not None:
                raise ConnectionError(f"{self.kind} has ended:\n{self.said()}")
            self._waiting[number] = answer
            assert self._process.stdin is not None
            request = {"id": number, "code": code, "at": at, "args": arguments}
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        return answer

    def run(self, code: str, *, at: int = 0, patience: float = PATIENCE, **arguments: Any) -> Any:
        """The same, and wait for the result."""
        answer = self.start(code, at=at, **arguments)
        try:
            return answer.result(patience)
        except TimeoutError:
            raise TimeoutError(f"no answer from {self.kind} in {patience:g} s; it said:\n{self.said()}") from None

    def close(self) -> None:
        """End it; what is still running in it is dropped."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            answer = self._waiting.pop(message["id"])
            if "error" in message:
                answer.set_exception(Refused(**message["error"]))
            else:
                answer.set_result(message["result"])
        with self._lock:
            left, self._waiting = self._waiting, {}
        for answer in left.values():
            answer.set_exception(ConnectionError(f"{self.kind} has ended:\n{self.said()}"))

    def __enter__(self) -> "Foreign":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
