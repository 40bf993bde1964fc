"""P22: after a failed opening, and after close, nothing is left: no task, thread, socket or log line. And nothing of
a client runs in a child of its process."""

import subprocess
import sys

from kvorum_node.dev_cluster import DevCluster

PROGRAM = """
import asyncio, gc, logging, os, sys, threading, time
from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster import connect

logging.basicConfig(level=logging.INFO)
gc.disable()  # nothing may depend on when the collector runs

def sockets():
    files = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sorted(link for link in map(os.readlink, filter(os.path.exists, files)) if link.startswith("socket:"))

async def main(host, port):
    before = sockets()
    begun = time.monotonic()
    try:
        await connect([("127.0.0.1", 1)], timeout=2)
    except errors.ConnectFailed as error:
        print(error)
    took = time.monotonic() - begun
    assert 0 < took <= 2.0, took
    backend = await connect([(host, int(port))], timeout=5)
    await backend.read(pb.Read(keys=[b"\\x02a\\x00"]), timeout=5)
    events = backend.watch([b"\\x02a\\x00"])
    await anext(events)
    await events.aclose()
    await backend.close()
    del backend, events
    for _ in range(100):
        if threading.active_count() == 1 and sockets() == before:
            break
        await asyncio.sleep(0.02)
    assert asyncio.all_tasks() == {asyncio.current_task()}, asyncio.all_tasks()
    assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
    assert sockets() == before, (before, sockets())
    await asyncio.sleep(0.5)  # what would still retry would now log

asyncio.run(main(*sys.argv[1:]))
"""


def test_p22_closed_port_typed_error_and_nothing_is_left(shared_cluster: DevCluster) -> None:
    """P22: connect to a closed port with timeout 2 s; close -> typed error <= 2 s; nothing afterwards."""
    host, port = shared_cluster.client_address(0).rsplit(":", 1)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, host, port],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "127.0.0.1:1: connection refused" in done.stdout


FORKING = """
import asyncio, os, sys, uvloop
from kvorum.cluster import connect

async def main(host, port):
    backend = await connect([(host, int(port))], timeout=5)
    await backend.status(timeout=5)
    child = os.fork()  # what uvloop does to start a program, but for the exec
    if not child:
        os._exit(len(os.listdir("/proc/self/task")))
    print("threads in the child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    await backend.status(timeout=5)
    await backend.close()

uvloop.run(main(*sys.argv[1:]))
"""


def test_a_child_of_a_process_with_a_client_begins_with_one_thread(shared_cluster: DevCluster) -> None:
    """gRPC's own threads, begun anew between fork and exec, crashed in one of six children of a busy process."""
    host, port = shared_cluster.client_address(0).rsplit(":", 1)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, host, port],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "threads in the child: 1\n"
