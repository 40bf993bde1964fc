"""A disk without any room: exit status 73, at the start and while the node works, and nothing acknowledged is lost.

The disk is an ext4 of its own, mounted through a loop device. Where root or the kernel do not give that, these tests
say so and are skipped; tests/unit/node/test_space.py has the rules alone.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from chaos.isolation import missing
from tests.integration.node.full_disk import CASES

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def _disks() -> None:
    reason = missing("disks")
    if reason is not None:
        pytest.skip(f"no file system can be mounted through a loop device here: {reason}")


@pytest.mark.usefixtures("_disks")
@pytest.mark.parametrize("case", CASES)
def test_what_a_full_disk_does_to_a_node(case: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.node.full_disk", case, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
