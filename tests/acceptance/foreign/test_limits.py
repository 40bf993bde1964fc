"""Limits through the JavaScript clients: the largest that is taken, and what is said of one more.

Deno looks before it sends, with texts of its own; the packages for Node leave it to the server, whose texts these are.
"""

import pytest

from tests.acceptance.foreign.conftest import JAVASCRIPT, Client, at

KEY = "new Uint8Array(n - 2 - (p.length + 2)).fill(1)"
"""Makes a key of n bytes with the part before it."""


@pytest.mark.parametrize(
    ("fits", "too_much", "deno", "server"),
    [
        pytest.param(
            f"const n = 2048; await kv.set([p, {KEY}], 1); if (!(await kv.get([p, {KEY}])).versionstamp) throw 0",
            f"const n = 2049; await kv.set([p, {KEY}], 1)",
            "Key too large for write (max 2048 bytes)",
            "A key exceeds the key size limit.",
            id="key",
        ),
        pytest.param(
            f"const n = 2048; await kv.atomic().check({{ key: [p, {KEY}], versionstamp: null }}).commit()",
            f"const n = 2050; await kv.atomic().check({{ key: [p, {KEY}], versionstamp: null }}).commit()",
            "Key too large for write (max 2048 bytes)",
            "A key exceeds the key size limit.",
            id="checked key",
        ),
        pytest.param(
            f"const n = 2048; await kv.get([p, {KEY}])",
            f"const n = 2050; await kv.get([p, {KEY}])",
            "Key too large for read (max 2049 bytes)",
            "A key exceeds the key size limit.",
            id="read key",
        ),
        pytest.param(
            "await kv.set([p], new Uint8Array(65536)); if ((await kv.get([p])).value.length !== 65536) throw 0",
            "await kv.set([p], new Uint8Array(65537))",
            "Value too large (max 65536 bytes)",
            "A value exceeds the value size limit.",
            id="value of bytes",
        ),
        pytest.param(
            "await kv.set([p], 'x'.repeat(65530)); if ((await kv.get([p])).value.length !== 65530) throw 0",
            "await kv.set([p], 'x'.repeat(65536))",
            "Value too large (max 65536 bytes)",
            "A value exceeds the value size limit.",
            id="value of text",
        ),
        pytest.param(
            "let a = kv.atomic(); for (let i = 0; i < 1000; i++) a = a.set([p, i], i); await a.commit()",
            "let a = kv.atomic(); for (let i = 0; i < 1001; i++) a = a.set([p, i], -1); await a.commit()",
            "Too many mutations (max 1000)",
            "Too many mutations / enqueues included in atomic write.",
            id="mutations",
        ),
        pytest.param(
            "const a = kv.atomic(); for (let i = 0; i < 12; i++) a.set([p, i], new Uint8Array(65e3)); await a.commit()",
            "const a = kv.atomic(); for (let i = 0; i < 13; i++) a.set([p, i], new Uint8Array(65e3)); await a.commit()",
            "Total mutation size too large (max 819200 bytes)",
            "The total size of the atomic write is too large.",
            id="total size",
        ),
    ],
)
def test_a_limit(client: Client, p: str, fits: str, too_much: str, deno: str, server: str) -> None:
    client(fits, p=p)
    before = client("return await tools.collect(kv.list({ prefix: [p] }, { limit: 3 }))", p=p)
    name, message = client.refusal(too_much, p=p)
    if client.deno:
        assert (name, message) == ("TypeError", deno)
    else:
        assert message == f"Unexpected response status: 400 {server}"
    assert client("return await tools.collect(kv.list({ prefix: [p] }, { limit: 3 }))", p=p) == before


@at(["deno"], [0], own=True)
def test_the_total_size_of_keys_is_denos_own_limit(client: Client, p: str) -> None:
    commit = "let a = kv.atomic(); for (let i = 0; i < n; i++) a = a.set([p, 'k'.repeat(1990), i], i); await a.commit()"
    client(commit, p=p, n=40)
    assert client.refusal(commit, p=p, n=41) == ("TypeError", "Total key size too large (max 81920 bytes)")


@at(["@deno/kv", "kv-connect-kit"], [1])
def test_more_keys_than_deno_would_send_are_taken(client: Client, p: str) -> None:
    commit = """
        const atomic = kv.atomic();
        for (let i = 0; i < 60; i++) atomic.set([p, 'k'.repeat(1990), i], i);
        return (await atomic.commit()).ok;
    """
    assert client(commit, p=p) is True


@at(JAVASCRIPT, own=True)
def test_batches_of_a_list(client: Client, p: str) -> None:
    """A thousand entries at once, no more."""
    client("let a = kv.atomic(); for (let i = 0; i < 1000; i++) a = a.set([p, i], i); await a.commit()", p=p)
    assert client("return (await tools.collect(kv.list({ prefix: [p] }, { batchSize: 1000 }))).length", p=p) == 1000


@at(["@deno/kv"])
def test_eleven_watched_keys_are_too_many_for_the_server(client: Client, p: str) -> None:
    _, message = client.refusal("await kv.watch(Array(11).fill([p]), { raw: true }).getReader().read()", p=p)
    assert message == "Unexpected response status: 400 Too many keys watched in a single watch request."


@at(["deno"], [2], own=True)
def test_eleven_watched_keys_are_too_many_for_deno(client: Client, p: str) -> None:
    assert client.refusal("kv.watch(Array(11).fill([p]))", p=p) == ("TypeError", "Too many keys (max 10)")
