"""The process of a node: `python -m kvorum_node --config FILE`, or `kvorum node --config FILE`.

Exit status: 0 ended on request, or a configuration that was only checked is right; 78 refused to start (one line says
why); 73 the disk is full; 70 stopped by a fault of the disk or the state.
"""

import argparse
import asyncio
import contextlib
import difflib
import errno
import gc
import logging
import os
import re
import signal
import stat
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kvorum._version import __version__
from kvorum.errors import KvorumError
from kvorum.ports import TAKEN, port_problem
from kvorum.visible import visible
from kvorum_raft.config import split_address
from kvorum_raft.errors import ConfigurationError, RaftFault
from kvorum_raft.faults import EXIT_CONFIGURATION, EXIT_DISK_FULL, EXIT_FAULT, NO_ROOM, exit_code

from . import logs
from .config import SETTINGS, NodeConfig, load, strange_variables
from .descriptors import raise_limit

_PARTS = ("state", "raft", "checkpoints", "backup")
"""Beginnings of the names of what a node keeps in its folder."""
STOP_PATIENCE = 10.0
"""Seconds that an orderly end may take."""

logger = logging.getLogger("kvorum.node")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a node until SIGTERM or SIGINT. Returns the exit status."""
    try:
        options = vars(_parser().parse_args(arguments))
        file, only_check = options.pop("config"), options.pop("check_config")
        flags = {name: text for name, text in options.items() if text is not None}
        config = load(None if file is None else Path(file), os.environ, flags)
        if only_check:
            return _check(config)
        logs.set_up(config.node_id, config.log_level, "json" if config.log_format == "json" else "text")
        for name in strange_variables(os.environ):
            logger.warning("the variable $%s is no setting: nobody heeds it", name)
        raise_limit()
        check_ports(config)
        os.umask(0o077)  # whatever a node writes holds its data: nobody else reads it
        prepare_folder(config.data_dir)
        with _ended_on_the_spot():
            return _run(lambda: serve(config), config.event_loop)
    except RaftFault as fault:
        return _refuse(fault, exit_code(fault))
    except (ConfigurationError, KvorumError, OSError) as error:
        return _refuse(error, _status(error))
    except ModuleNotFoundError as error:
        extra = ConfigurationError(f'a node needs the extra "node": pip install "kvorum[node]" ({error})')
        return _refuse(extra, EXIT_CONFIGURATION)


def _status(error: Exception) -> int:
    """Of a start that failed. A full or broken disk must not look like a wrong setting, after which nobody would start
    the node again."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in NO_ROOM:
            return EXIT_DISK_FULL
        if isinstance(seen, OSError) and seen.errno == errno.EIO:
            return EXIT_FAULT
        seen = seen.__cause__
    return EXIT_CONFIGURATION


@contextlib.contextmanager
def _ended_on_the_spot() -> Iterator[None]:
    """Until `serve` listens to SIGTERM and SIGINT itself nothing is held that must be let go. By their own action they
    would leave a traceback, or, sent to the first process of a container, do nothing at all."""
    former = {number: signal.signal(number, lambda *_: os._exit(0)) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


class _Parser(argparse.ArgumentParser):
    """A wrong flag is a wrong setting: one line, and the status after which no supervisor tries again."""

    def error(self, message: str) -> NoReturn:
        strange = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        near = difflib.get_close_matches(strange[1], list(self._option_string_actions), 1) if strange else []
        raise ConfigurationError(f"{message}; {f'did you mean {near[0]}?' if near else '--help shows all flags'}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kvorum node",
        description="Run one node of a cluster. Settings come from the file, $KVORUM_… variables and flags;"
        " the later ones win.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with the settings below as keys")
    parser.add_argument(
        "--check-config",
        action="store_true",
        help="start nothing: say whether the settings are right (exit status 0, or 78 and why not)",
    )
    parser.add_argument("--version", action="version", version=__version__)
    for setting in SETTINGS:
        optional: dict[str, Any] = {"nargs": "?", "const": "true"} if setting.switch else {}
        help = argparse.SUPPRESS if setting.secret else setting.help.replace("%", "%%")
        parser.add_argument(setting.flag, metavar="…", help=help, **optional)
    return parser


def _check(config: NodeConfig) -> int:
    """Say whether a node could be started with this."""
    from .doctoring import certificates

    problems = [one.problem for one in certificates(config) if one.problem]
    if problems:
        raise ConfigurationError("; ".join(problems))
    print(f"kvorum node: configuration ok: {described(config)}", flush=True)
    return 0


def described(config: NodeConfig) -> str:
    """What a configuration comes to, in one line, without its secrets."""
    members = ", ".join(member.node_id for member in config.members)
    http = config.http_listen or "no port"
    return (
        f"node {config.node_id} of {members}; folder {config.data_dir}; clients on {config.client_listen},"
        f" HTTP on {http}, peers on {config.peer_listen}"
    )


def _refuse(error: Exception, status: int) -> int:
    line = visible(" ".join(str(error).split()))
    print(f"kvorum node: {line}", file=sys.stderr, flush=True)
    return status


def _run(make: Callable[[], Coroutine[Any, Any, int]], event_loop: str) -> int:
    """On uvloop where it can be had: a third more throughput; nothing depends on it."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if event_loop != "asyncio":
        try:
            import uvloop

            factory = uvloop.new_event_loop
        except ImportError:
            if event_loop == "uvloop":
                raise ConfigurationError("event_loop is uvloop, which is not installed") from None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(make())


def check_ports(config: NodeConfig) -> None:
    """Find out before anything is started whether the ports can be had. Raises ConfigurationError, naming the port."""
    ports = [("client", config.client_listen), ("peer", config.peer_listen)]
    if config.http_listen:
        ports.append(("HTTP client", config.http_listen))
    for what, address in ports:
        host, port = split_address(address)
        problem = port_problem(host, port)
        if problem is not None:
            reason = f"port {port} is taken by another process" if problem == TAKEN else problem
            raise ConfigurationError(f"cannot listen for {what}s on {address}: {reason}")


def prepare_folder(folder: Path) -> None:
    """Make the data folder. Raises ConfigurationError if it cannot be one."""
    try:
        if (folder / "FORMAT").exists() or (folder / "data.mdb").exists():
            raise ConfigurationError(f"{folder} is an embedded database, not the folder of a node")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _close_to_others(folder)
    except OSError as error:
        raise ConfigurationError(f"cannot use the folder {folder}: {error.strerror}") from error


def _leave() -> None:
    """Whatever hangs must not keep an operator from restarting."""
    line = f"it did not end within {STOP_PATIENCE:g} s of the request; what was acknowledged is in its log"
    with contextlib.suppress(OSError):
        os.write(2, f"kvorum node: {line}\n".encode())
    os._exit(EXIT_FAULT)


def _close_to_others(folder: Path) -> None:
    """What an earlier version, or a restore, made for everybody to read."""
    for part in folder.iterdir():
        if part.name.startswith(_PARTS) and part.is_dir() and not part.is_symlink():
            mode = stat.S_IMODE(part.stat().st_mode)
            if mode & 0o077:
                try:
                    part.chmod(mode & ~0o077)
                except PermissionError:  # whoever owns it has decided
                    logger.warning("%s can be read by others, and is not this user's to change", part)


async def serve(config: NodeConfig) -> int:
    """Run a node until it is told to end."""
    # Heavy imports wait until the configuration is known to be good.
    from .assembly import Replica
    from .crashes import CrashFile

    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    crashes = CrashFile(config.data_dir)
    async with Replica(config, crashed=crashes.watch()) as replica:
        crashes.clear()
        logger.info(
            "serving clients on %s, HTTP on %s, peers on %s, version %s",
            config.client_listen,
            config.http_listen or "no port",
            config.peer_listen,
            __version__,
        )
        # What start-up left behind lives for ever: the collector need not walk it in the middle of an election.
        gc.collect()
        gc.freeze()
        await ended.wait()
        logger.info("ending")
        loop.call_later(STOP_PATIENCE, _leave)
        await replica.retire()
    crashes.close()
    logger.info("ended")
    return 0
