"""A real Prometheus, Debian's, unpacked into the cache of the benchmarks and not installed."""

import json
import os
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from bench.peers import CACHE, debian_program
from kvorum_node.dev_cluster import free_ports

ROOT: Final = Path(__file__).parents[3]
DEPLOY: Final = ROOT / "deploy" / "prometheus"
PATIENCE: Final = 90.0
"""Seconds that a busy machine may take for what takes a few."""


def program(name: str) -> Path:
    """`prometheus` or `promtool`. Raises NotToBeHad if neither the machine nor the package index has it: a test that
    skipped itself then would be none."""
    CACHE.mkdir(parents=True, exist_ok=True)
    return debian_program(name, "prometheus", f"usr/bin/{name}", CACHE)


def promtool(*words: str | Path) -> str:
    """What it says. Raises AssertionError if it is not content."""
    command = [str(word) for word in (program("promtool"), *words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Server:
    """A running one."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer. Raises OSError, which HTTP's errors are (a query that is none is 400)."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def value(self, query: str) -> float | None:
        """The first value that a query finds."""
        found = self.ask("query", query=query)["result"]
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        return {one["labels"]["alertname"] for one in self.ask("alerts")["alerts"] if one["state"] == "firing"}

    def until(self, what: str, true: Callable[[], bool]) -> None:
        """Wait for something that is seen from outside only."""
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE:g} s"
            time.sleep(0.2)


def config_for(targets: Sequence[str]) -> dict[str, Any]:
    """The shipped configuration, for other nodes and in a hurry; the rules are the shipped ones."""
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "alerts.yml")]
    (job,) = config["scrape_configs"]
    for option in ("scheme", "tls_config"):  # of the certificates that compose.yaml makes
        del job[option]
    job["static_configs"] = [{"targets": list(targets)}]
    return config


@contextmanager
def running(folder: Path, config: dict[str, Any]) -> Iterator[Server]:
    """Ends it at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    command = [program("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env={**os.environ, "GOMAXPROCS": "1"})
    server = Server(f"http://127.0.0.1:{port}")
    try:
        server.until("Prometheus answers", lambda: _answers(server, process, folder / "log"))
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(server: Server, process: "subprocess.Popen[bytes]", log: Path) -> bool:
    assert process.poll() is None, log.read_text()[-2000:]
    try:
        server.ask("status/buildinfo")
    except OSError:
        return False
    return True
