"""The same as driver.mjs for `denokv`: its programs are bodies of async functions that see `kv`, `denokv` and `tools`.

    driver.py URL…

Runs in the environment of `denokv`, not in kvorum's.
"""

import asyncio
import json
import math
import sys
import textwrap
from datetime import UTC, datetime
from typing import Any, ClassVar

import denokv
import denokv.kv
import v8serialize.jstypes as js


class Tools:
    js = js
    state: ClassVar[dict[str, Any]] = {}  # stays from one program to the next
    kinds = denokv.kv

    @staticmethod
    async def collect(entries: Any) -> list[Any]:
        return [entry async for entry in entries]


def show(value: Any) -> Any:
    """See driver.mjs."""
    shown = show_scalar(value)
    return show_other(value) if shown is NotImplemented else shown


def show_scalar(value: Any) -> Any:
    match value:
        case None | bool() | str():
            return value
        case js.JSUndefined:
            return {"$undefined": True}
        case denokv.VersionStamp():
            return str(value)
        case denokv.KvU64():
            return {"$u64": str(value.value)}
        case js.JSBigInt():
            return {"$bigint": str(int(value))}
        case int():
            return value
        case float():
            if not math.isfinite(value) or repr(value) == "-0.0":
                return {"$number": {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity", "-0.0": "-0"}[repr(value)]}
            return int(value) if value.is_integer() else value  # as JavaScript shows it
        case datetime():
            return {"$date": round(value.timestamp() * 1000)}
        case bytes() | bytearray():
            return {"$bytes": bytes(value).hex()}
    return NotImplemented


def show_other(value: Any) -> Any:
    match value:
        case denokv.KvEntry():
            return {"key": show(value.key), "value": show(value.value), "versionstamp": str(value.versionstamp)}
        case js.JSMap():
            return {"$map": [[show(key), show(item)] for key, item in value.items()]}
        case js.JSSet():
            return {"$set": [show(item) for item in value]}
        case js.JSRegExp():
            return {"$regexp": [value.source, str(value.flags)]}
        case js.JSArray():
            return [show(item) for item in value.array]
        case js.JSObject() | dict():
            return {str(key): show(item) for key, item in value.items()}
        case tuple() | list():
            return [show(item) for item in value]
    if isinstance(value, denokv.KvKey):
        return [show(part) for part in value]
    if hasattr(value, "backing_buffer"):
        return {
            "$bytes" if type(value).__name__ == "JSUint8Array" else "$view": bytes(memoryview(value.get_buffer())).hex()
        }
    return {"$other": repr(value)}


def build(shown: Any) -> Any:
    """See driver.mjs; an array is a tuple, for most are keys."""
    if isinstance(shown, list):
        return tuple(build(item) for item in shown)
    if not isinstance(shown, dict):
        return shown
    match shown:
        case {"$bigint": text}:
            return js.JSBigInt(int(text))
        case {"$number": text}:
            return float(text)
        case {"$u64": text}:
            return denokv.KvU64(int(text))
        case {"$date": milliseconds}:
            return datetime.fromtimestamp(milliseconds / 1000, UTC)
        case {"$bytes": text}:
            return bytes.fromhex(text)
    return js.JSObject({key: build(item) for key, item in shown.items()})


async def run(request: dict[str, Any], databases: list[denokv.Kv]) -> None:
    arguments = {name: build(value) for name, value in request["args"].items()}
    names = ", ".join(["kv", "denokv", "tools", *arguments])
    program: dict[str, Any] = {}
    try:
        body = textwrap.indent(textwrap.dedent(request["code"]), "    ")
        exec(f"async def program({names}):\n{body}", program)
        result = await program["program"](databases[request["at"]], denokv, Tools, *arguments.values())
        answer = {"id": request["id"], "result": show(result)}
    except Exception as error:  # noqa: BLE001 - whatever the program met is its answer
        causes = [error]
        while causes[-1].__cause__ is not None:
            causes.append(causes[-1].__cause__)
        message = " <- ".join(f"{type(cause).__name__}: {cause} {getattr(cause, 'body_text', '')}" for cause in causes)
        answer = {"id": request["id"], "error": {"name": type(error).__name__, "message": message}}
    print(json.dumps(answer), flush=True)


async def main(urls: list[str]) -> None:
    databases = [await denokv.open_kv(url) for url in urls]
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(json.dumps({"id": 0, "result": None}), flush=True)
    running: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        task = asyncio.create_task(run(json.loads(line), databases))
        running.add(task)
        task.add_done_callback(running.discard)
    for task in running:
        task.cancel()
    for kv in databases:
        await kv.aclose()


asyncio.run(main(sys.argv[1:]))
