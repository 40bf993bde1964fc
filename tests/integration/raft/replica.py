"""One node in a process of its own, told what to do by lines of JSON on its input.

python -m tests.integration.raft.replica NODE_ID FOLDER MEMBERS_JSON
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from kvorum_raft.config import RaftConfig, Timing
from kvorum_raft.errors import RaftError
from kvorum_raft.node import RaftNode
from kvorum_raft.seams import Member
from tests.integration.raft.harness import ListMachine


async def _answer(node: RaftNode, machine: ListMachine, request: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "propose":
        try:
            applied = await node.propose(request["payload"].encode())
        except RaftError as error:
            return {"ok": False, "error": type(error).__name__}
        return {"ok": True, "index": applied.index}
    if request["do"] == "read":
        try:
            return {"ok": True, "index": await node.read_index()}
        except RaftError as error:
            return {"ok": False, "error": type(error).__name__}
    status = node.status()
    return {
        "leads": node.is_leader,
        "term": status.term,
        "applied": status.applied_index,
        "last": status.last_log_index,
        "digest": machine.digest,
        "payloads": [payload[:16].decode() for payload in machine.payloads] if request.get("payloads") else [],
    }


async def main(node_id: str, folder: str, members: str) -> None:
    # Disks of machines that test are shared: a leader whose sync takes half a second would rightly hand over.
    timing = Timing(slow_sync=10.0)
    config = RaftConfig(
        node_id, [Member(*one) for one in json.loads(members)], Path(folder), map_size=1 << 34, timing=timing
    )
    machine = ListMachine()
    node = RaftNode(config, machine)
    await node.start()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(request: dict[str, Any]) -> None:
        answer = await _answer(node, machine, request)
        print(json.dumps({"id": request["id"], **answer}), flush=True)

    while line := await reader.readline():
        task = asyncio.create_task(serve(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await node.stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
