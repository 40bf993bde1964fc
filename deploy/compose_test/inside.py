"""The inner part: `python -m deploy.compose_test.inside FOLDER`. Exit status 0 or 1."""

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final

from . import scenario
from .cluster import PORTS, Project
from .engine import Engine
from .images import Images
from .steps import Failed, say
from .supplies import Supplies

PLAY: Final = 1_500.0
"""Seconds that the scenario may take, and so many more for each round of faults."""
ROUND: Final = 300.0


def main(folder: Path) -> int:
    """Build, play, clean up; the figures go to the file `figures`."""
    task = json.loads((folder / "task.json").read_text())
    supplies = Supplies(Path(task["compose"]), Path(task["prometheus"]), Path(task["base"]), task["python"])
    own = bool(task["own_engine"])
    env = {"HOME": str(folder / "home")}  # the client's own files
    (folder / "home").mkdir()
    engine = Engine(folder, task["cgroup"]) if own else None
    status = 1
    try:
        if engine is not None:
            engine.start()
            env["DOCKER_HOST"] = engine.host
            say("an engine of our own runs")
        project = Project(f"kvorum-test-{os.getpid()}", supplies.compose, folder / "home", env)
        images = Images(project, supplies, folder, sealed=own)
        try:
            _ports_are_free()
            images.provide()
            figures = asyncio.run(_play(project, folder, int(task["rounds"])))
            (folder / "figures").write_text(figures)
            status = 0
        except BaseException:
            print(project.logs(), flush=True)
            raise
        finally:
            _clean_up(project, images)
    except Failed as error:
        print(error, flush=True)
        (folder / "reason").write_text(str(error).splitlines()[0])
        status = 1
    finally:
        if engine is not None:
            engine.stop()
    return status


async def _play(project: Project, folder: Path, rounds: int) -> str:
    limit = PLAY + ROUND * rounds
    try:
        async with asyncio.timeout(limit):
            return await scenario.play(project, folder, rounds)
    except TimeoutError:
        raise Failed(f"the scenario took longer than {limit:g} s") from None


def _ports_are_free() -> None:
    """Errors: Failed. Compose's own message names no port."""
    for port in (*PORTS.values(), *(port + 1 for port in PORTS.values()), 9090):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise Failed(
                    f"port {port} of 127.0.0.1, which compose.yaml publishes, cannot be had: {error}"
                ) from None


def _clean_up(project: Project, images: Images) -> None:
    """Remove what was made in the engine, and see that nothing is left."""
    project.compose("--profile", "*", "down", "-v", "--remove-orphans", "-t", "5", timeout=120)
    images.remove()
    label = f"label=com.docker.compose.project={project.name}"
    left = {
        what: project.docker(*words, "-q", "--filter", label).split()
        for what, words in {
            "containers": ("ps", "-a"),
            "volumes": ("volume", "ls"),
            "networks": ("network", "ls"),
        }.items()
    }
    left["images"] = project.docker("image", "ls", "-aq", f"{project.name}").split()
    if any(left.values()):
        raise Failed(f"left behind: {left}")
    say("nothing is left in the engine")


def _terminated(number: int, _: object) -> None:
    raise SystemExit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(main(Path(sys.argv[1])))
