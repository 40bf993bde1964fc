"""The foreign clients themselves: which they are, and what their lock files say."""

import json
import subprocess
from pathlib import Path

from tests.acceptance.foreign.process import CLIENTS, deno, environment


def test_the_lock_files_are_pinned_hashed_and_name_no_registry() -> None:
    lock = json.loads((CLIENTS / "package-lock.json").read_text())
    packages = [package for path, package in lock["packages"].items() if path]
    assert len(packages) >= 5
    assert all(package["version"] and package["integrity"].startswith("sha512-") for package in packages)
    assert "://" not in (CLIENTS / "package-lock.json").read_text()
    lines = (CLIENTS / "denokv.txt").read_text().splitlines()
    pins = [line for line in lines if line and line[0].isalnum()]
    assert all("==" in pin for pin in pins)
    assert any(pin.startswith("denokv==0.1.0a0.dev180 ") for pin in pins)
    assert sum("--hash=sha256:" in line for line in lines) >= len(pins)
    assert not [line for line in lines if "://" in line or line.startswith("-")]


def test_what_is_installed_is_what_is_pinned(clients_installed: None, tmp_path: Path) -> None:
    program = tmp_path / "version.js"
    program.write_text("console.log(Deno.version.deno)")
    said = subprocess.run(
        [*deno(), program], env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout == "2.9.6\n"
    for name, version in (("@deno/kv", "0.14.0"), ("kv-connect-kit", "0.0.5")):
        assert json.loads((CLIENTS / "node_modules" / name / "package.json").read_text())["version"] == version
