"""Values of every kind, from each client to each other and to Python and back."""

from typing import Any

import pytest

import kvorum.sync
from kvorum.errors import InvalidValue
from kvorum_node.dev_cluster import DevCluster
from tests.acceptance.foreign.conftest import JAVASCRIPT, Client, at
from tests.acceptance.foreign.process import TOKEN
from tests.acceptance.foreign.values import BYTES_INSIDE, VALUES, same
from tests.acceptance.foreign.wire import read_raw

READ_ALL = """
const found = [];
for (const name of names) found.push((await kv.get([...prefix, name])).value);
return found;
"""


def write_all(client: Client, *prefix: str) -> None:
    scripts = ",\n".join(f"[{name!r}, {value.script}]" for name, value in VALUES.items())
    client(f"for (const [name, value] of [{scripts}]) await kv.set([...prefix, name], value)", prefix=prefix)


def compare(found: dict[str, Any], expected: dict[str, Any]) -> None:
    wrong = {name: (found[name], expected[name]) for name in expected if not same(found[name], expected[name])}
    assert not wrong, "found, expected"


@at(JAVASCRIPT)
def test_python_reads_what_the_client_writes(client: Client, p: str, kv: kvorum.sync.Kv) -> None:
    write_all(client, p)
    found = {entry.key[1]: entry.value for entry in kv.list(prefix=(p,))}
    assert found.keys() == VALUES.keys()
    compare(found, {name: value.python for name, value in VALUES.items()})


@at(JAVASCRIPT)
def test_the_client_reads_what_python_writes(client: Client, p: str, kv: kvorum.sync.Kv) -> None:
    back = {name: value for name, value in VALUES.items() if value.back}
    for name, value in back.items():
        kv.set((p, name), value.python)
    found = client(READ_ALL, prefix=[p], names=list(back))
    compare(dict(zip(back, found, strict=True)), {name: value.shown for name, value in back.items()})


@at(JAVASCRIPT, [0])
def test_every_other_client_reads_what_this_one_writes(client: Client, p: str, javascript: list[Client]) -> None:
    """Deno writes version 16 of V8's format, which Node cannot read: our server says 15 to those that need it."""
    write_all(client, p)
    for reader in javascript:
        found = reader(READ_ALL, prefix=[p], names=list(VALUES))
        compare(dict(zip(VALUES, found, strict=True)), {name: value.shown for name, value in VALUES.items()})


@at(["deno"], [1])
def test_bytes_within_a_value(client: Client, p: str, kv: kvorum.sync.Kv) -> None:
    client(f"await kv.set([p, 'deno'], {BYTES_INSIDE.script})", p=p)
    kv.set((p, "python"), BYTES_INSIDE.python)
    assert kv.get((p, "deno")).value == BYTES_INSIDE.python
    assert client("return (await kv.get([p, 'python'])).value", p=p) == BYTES_INSIDE.shown


@at(["deno"], [1])
def test_values_that_plain_python_types_cannot_hold(client: Client, p: str, kv: kvorum.sync.Kv) -> None:
    """Python hands them on as they are: what Deno wrote, Deno reads after Python has written it again."""
    kinds = {
        "regexp": ("/a+/gi", {"$regexp": ["a+", "gi"]}),
        "view": ("new Uint16Array([1, 2])", {"$view": ["Uint16Array", "01000200"]}),
        "buffer": ("new Uint8Array([1, 2]).buffer", {"$buffer": "0102"}),
        "holes": ("[1, , 3]", [1, {"$hole": True}, 3]),
        "error": ("new TypeError('no')", {"$error": ["TypeError", "no"]}),
        "map of like keys": ("new Map([[1n, 2], [true, 3]])", {"$map": [[{"$bigint": "1"}, 2], [True, 3]]}),
    }
    for name, (script, shown) in kinds.items():
        client(f"await kv.set([p, name], {script})", p=p, name=name)
        kv.set((p, name), kv.get((p, name)).value)
        assert client("return (await kv.get([p, name])).value", p=p, name=name) == shown, name


def test_a_counter_within_a_value_is_refused(p: str, kv: kvorum.sync.Kv) -> None:
    """P10: Deno stores a plain object there; our client says so instead."""
    with pytest.raises(InvalidValue):
        kv.set((p,), {"u": kvorum.KvU64(100)})


@at(["deno"], [0])
def test_stored_bytes_stay_what_was_written(client: Client, p: str, nodes: DevCluster) -> None:
    """Relabelled are only the answers to those who need it."""
    client("await kv.set([p], 'marked')", p=p)
    key = b"\x02" + p.encode() + b"\x00"
    for number in range(nodes.nodes):
        for agent, version in (
            ("Deno/2.9.6", 16),
            ("node", 15),
            ("Python/3.11 aiohttp/3.14.5", 15),
            ("Deno/2.4.5", 15),
        ):
            answer = read_raw(nodes.http_address(number), key, agent, TOKEN)
            assert bytes([0xFF, version]) + b'"\x06marked' in answer, (number, agent)


@at(JAVASCRIPT, [2])
def test_sixty_four_bit_ids_make_the_whole_way(client: Client, p: str, kv: kvorum.sync.Kv) -> None:
    """Python → store → JavaScript → store → Python without losing a digit, in keys and in values."""
    numbers = [2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 1234567890123456789]
    for number in numbers:
        kv.set((p, number), {"id": number})
    client(
        """
        for (const { key, value } of await tools.collect(kv.list({ prefix: [p] })))
          await kv.set([p, "back", key[1]], { id: value.id, key: key[1] });
        """,
        p=p,
    )
    found = [(entry.key[2], entry.value) for entry in kv.list(prefix=(p, "back"))]
    assert found == [(number, {"id": number, "key": number}) for number in sorted(numbers)]
