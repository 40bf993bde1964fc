"""The command line of `dev_cluster`: python -m kvorum_node.dev up|status|kill N|start N|down [--dir FOLDER]."""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from kvorum.cli.interrupts import interruptible, status_of

from .dev_cluster import FIRST_PORT, PORTS_PER_NODE, ClusterFailed, DevCluster


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; node numbers count from 1. Ctrl-C and SIGTERM end the nodes that it has started."""
    parser = argparse.ArgumentParser(prog="scripts/cluster", description="Three nodes to play with.")
    parser.add_argument(
        "--dir",
        default=".cluster",
        help="folder for data, logs and pids; relative to where you are (default: .cluster, for scripts/cluster that of"
        " the repository)",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start all nodes").add_argument(
        "--port", type=_port, help=f"first port of a new cluster (default: {FIRST_PORT})"
    )
    commands.add_parser("status", help="show them")
    for name, what in (("kill", "kill -9 a node"), ("start", "start a node again")):
        commands.add_parser(name, help=what).add_argument("node", type=_node, metavar="N", help="1 or n1")
    commands.add_parser("down", help="end all nodes; --wipe removes their data").add_argument(
        "--wipe", action="store_true"
    )
    options = parser.parse_args(arguments)
    first = getattr(options, "port", None) or FIRST_PORT
    ports = [(first + PORTS_PER_NODE * number, first + 2 + PORTS_PER_NODE * number) for number in range(3)]
    cluster = DevCluster(Path(options.dir), ports=ports)
    try:
        with interruptible():
            status = _command(cluster, options)
            sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        cluster.stop_started()
        return status_of(interrupt)
    except ClusterFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader went away, as in `status | head -1`; what was to be done is done. Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _port(text: str) -> int:
    """The first of those that three nodes take."""
    most = 65_535 - 2 * PORTS_PER_NODE - 2
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"a port from 1 to {most}, got {text!r}")
    return int(text)


def _node(text: str) -> int:
    """A node's number, counted from 1."""
    match = re.fullmatch(r"n?(\d{1,4})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"a node is 1 or n1, got {text!r}")
    return int(match[1])


def _command(cluster: DevCluster, options: argparse.Namespace) -> int:
    if options.command == "up":
        if options.port is not None and cluster.config(0).exists() and not _begins_at(cluster, options.port):
            print(
                f"the cluster in {cluster.base_dir} has its ports, from {cluster.client_address(0)} on: --port is for a"
                " new one; end and remove this one with: down --wipe",
                file=sys.stderr,
            )
            return 2
        cluster.start_all()
        _greet(cluster)
        return 0
    if not cluster.config(0).exists():
        print(f"there is no cluster in {cluster.base_dir}; start one with: up", file=sys.stderr)
        return 1
    if options.command in ("kill", "start"):
        number = options.node - 1
        if not 0 <= number < cluster.nodes:
            print(f"nodes are numbered 1 to {cluster.nodes}", file=sys.stderr)
            return 2
        if options.command == "kill":
            _kill(cluster, number)
        else:
            cluster.start(number)
        print(f"node {options.node} {'is dead' if options.command == 'kill' else 'runs'}")
    elif options.command == "down":
        cluster.stop()
        # Whatever the pid files say: no data is removed under a node that runs.
        for number in range(cluster.nodes):
            if cluster.held(number):
                raise ClusterFailed(_strange(cluster, number))
        if options.wipe:
            shutil.rmtree(cluster.base_dir)
        print("all nodes have ended")
    else:
        _show(cluster)
    return 0


def _begins_at(cluster: DevCluster, port: int) -> bool:
    return cluster.client_address(0).endswith(f":{port}")


def _kill(cluster: DevCluster, number: int) -> None:
    if not cluster.pid(number):
        raise ClusterFailed(
            _strange(cluster, number) if cluster.held(number) else f"node {number + 1} does not run: nothing was killed"
        )
    cluster.kill(number)


def _strange(cluster: DevCluster, number: int) -> str:
    return (
        f"node {number + 1} runs, but not as the process that {cluster.base_dir}/n{number + 1}.pid names: end it"
        f" yourself (it holds {cluster.data_dir(number)}/raft/LOCK)"
    )


def _greet(cluster: DevCluster) -> None:
    print("three nodes are up. Try:\n")
    kvorum = "kvorum" if shutil.which("kvorum") else os.path.relpath(Path(sys.executable).with_name("kvorum"))
    for line in (
        f"export KVORUM_URL={cluster.url}",
        f"""{kvorum} set '["hello"]' '"world"'""",
        f"""{kvorum} get '["hello"]'""",
    ):
        print(f"    {line}")
    token = "the token in $KVORUM_KV_CONNECT_TOKEN" if os.environ.get("KVORUM_KV_CONNECT_TOKEN") else "any token"
    print(f"\nDeno, Node and other clients of KV Connect take any of these URLs, and {token}:\n")
    for number in range(cluster.nodes):
        print(f"    {cluster.http_url(number)}")


def _show(cluster: DevCluster) -> None:
    for number in range(cluster.nodes):
        pid = cluster.pid(number)
        answer = cluster.peek(number)
        if answer is None:
            print(f"n{number + 1}  {'does not answer' if pid or cluster.held(number) else 'down'}")
        else:
            print(
                f"n{number + 1}  {answer.role:<9} pid {pid:<7} {cluster.client_address(number)}  term {answer.term}"
                f"  applied {answer.applied_index}  hash {answer.state_hash.hex()[:12]}"
            )
