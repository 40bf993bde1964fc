"""The commands of docs/quickstart.md, one after the other as they stand, in an empty folder and a fresh environment."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "quickstart.md"
FIRST = 7401
"""The page's ports begin here; the test takes others, which are free."""
OFFSETS = [tens + unit for tens in (0, 10, 20) for unit in (0, 1, 2)]
"""Of clients, HTTP and peers of the three nodes."""
CLONE = "$HOME/kvorum"
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE", "http_proxy", "https_proxy", "no_proxy")


def free_base() -> int:
    """A port from which on all that the page needs are free."""
    for _ in range(200):
        base = random.randrange(10_000, 30_000, 100)
        with contextlib.ExitStack() as stack:
            try:
                for offset in OFFSETS:
                    probe = stack.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", base + offset))
            except OSError:
                continue
            return base
    raise AssertionError("no free ports")


def script(base: int) -> str:
    """All commands of the page, with other ports, and this folder as the clone."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 8
    text = "set -euo pipefail\n" + "\n".join(blocks)
    assert text.count(CLONE) == 1
    text = text.replace(CLONE, str(ROOT))
    moved, count = re.subn(r":(74\d\d)\b", lambda port: f":{int(port[1]) - FIRST + base}", text)
    assert count >= 9
    return moved


@pytest.mark.timeout(600)
def test_the_page_can_be_followed(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith("PIP_")}
    environment |= {"PIP_QUIET": "1", "PATH": f"{sys.base_prefix}/bin:{environment['PATH']}"}
    folder = tmp_path / "empty"
    folder.mkdir()
    shell = subprocess.Popen(
        ["bash", "-c", script(free_base())],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = shell.communicate(timeout=540)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    logs = "".join(f"\n{log.name}: {log.read_text()[-2_000:]}" for log in folder.glob("*.log"))
    assert shell.returncode == 0, said + logs
    assert (folder / ".venv" / "bin" / "kvorum").exists()
    assert "written" in said
    counted = re.search(r"3,000 writes acknowledged; the slowest took ([\d.]+) s", said)
    assert counted is not None, said
    # The leader died while it counted: the others wait for at least 0.4 s before they elect another one.
    assert said.index("the leader is n") < counted.start()
    assert float(counted[1]) >= 0.3
    assert "\n3000\n" in said
    assert re.search(r"doctor: \d+ ok", said), said
