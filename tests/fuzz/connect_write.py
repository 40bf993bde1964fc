"""The body of an atomic write over KV Connect, from its bytes to the rows: refused with 400, or carried out as it says,
and always the same however it is encoded.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node._proto import datapath_pb2 as dp
from kvorum_node.http.datapath import operation_of, write_of, write_output
from kvorum_node.http.message import Refusal
from tests.fuzz.replicas import Pair, pair
from tests.unit.store.harness import START_MS

NOW_MS = START_MS
_SET, _DELETE, _SUM, _MAX = dp.M_SET, dp.M_DELETE, dp.M_SUM, dp.M_MAX


def _value(data: bytes, encoding: int) -> dp.KvValue:
    return dp.KvValue(data=data, encoding=encoding)  # type: ignore[arg-type]


SEEDS = [
    bytes.fromhex(text)
    for text in (
        "",
        "12110a0302610012080a04ff10490210011801",
        "12180a0302650012080a04ff1049021001180120d593eabda234",
        "120b0a03026500120210031802",
        "12150a03027300120c0a08010000000000000010021803",
        "12110a03026b0012080a04ff10490210011809",
        "0a050a03026b00",
        "0a110a03026b00120a00000000000000000000",
    )
] + [
    dp.AtomicWrite(
        checks=[dp.Check(key=b"n", versionstamp=(2).to_bytes(8, "big") + b"\0\0"), dp.Check(key=b"absent")],
        mutations=[
            dp.Mutation(key=b"u", value=_value(b"\1" + bytes(7), dp.VE_LE64), mutation_type=_MAX),
            dp.Mutation(
                key=b"n",
                value=_value(b"\xff\x0fI\x02", dp.VE_V8),
                mutation_type=_SUM,
                sum_min=b"\xff\x0fI\x01",
                sum_max=b"\xff\x0fN" + bytes(6) + b"\xf0\x3f",
                sum_clamp=True,
            ),
            dp.Mutation(key=b"z", value=_value(b"\xff\x0fZ\x11" + b"\1" * 8, dp.VE_V8), mutation_type=_SUM),
            dp.Mutation(key=b"s", value=_value(b"x", dp.VE_BYTES), mutation_type=_SET, expire_at_ms=NOW_MS + 5),
        ],
        enqueues=[
            dp.Enqueue(
                payload=b"\xff\x0f0", deadline_ms=NOW_MS + 10, keys_if_undelivered=[b"d"], backoff_schedule=[1, 2]
            )
        ],
    ).SerializeToString(),
    dp.AtomicWrite(mutations=[dp.Mutation(key=b"k", mutation_type=_DELETE)] * 3).SerializeToString(),
    # what must be refused, so that changes to it are near the borders
    dp.AtomicWrite(checks=[dp.Check(key=b"k")] * 101).SerializeToString(),
    dp.AtomicWrite(checks=[dp.Check(key=b"k", versionstamp=bytes(9))]).SerializeToString(),
    dp.AtomicWrite(mutations=[dp.Mutation(key=b"k", mutation_type=_DELETE)] * 1_001).SerializeToString(),
    dp.AtomicWrite(
        mutations=[dp.Mutation(key=b"k", value=_value(bytes(7), dp.VE_LE64), mutation_type=_SET)]
    ).SerializeToString(),
    dp.AtomicWrite(
        mutations=[
            dp.Mutation(
                key=b"k" * 2_027, value=_value(b"", dp.VE_BYTES), mutation_type=dp.M_SET_SUFFIX_VERSIONSTAMPED_KEY
            )
        ]
    ).SerializeToString(),
    dp.AtomicWrite(
        enqueues=[dp.Enqueue(payload=b"x", backoff_schedule=[1] * 65, keys_if_undelivered=[b""])]
    ).SerializeToString(),
]


@contextmanager
def opened() -> Iterator[Callable[[bytes], None]]:
    with pair() as replicas:
        yield partial(check, replicas)


def check(replicas: Pair, body: bytes) -> None:
    try:
        request = write_of(body)
        operation = operation_of(request, NOW_MS)
    except Refusal as refusal:
        assert refusal.status == 400
        assert refusal.text
        return
    assert operation_of(write_of(request.SerializeToString()), NOW_MS) == operation
    failing = [at for at, wanted in enumerate(request.checks) if not _holds(replicas, wanted)]
    result = replicas.propose(operation.SerializeToString())[0]
    assert result.outcome != pb.OUTCOME_INVALID, f"what was let in is refused later: {result.message}"
    assert list(result.failed_checks) == failing
    if result.outcome == pb.OUTCOME_DONE:
        stamp = replicas.one.store.applied_index.to_bytes(8, "big") + result.number.to_bytes(2, "big")
        answer = dp.AtomicWriteOutput.FromString(write_output(result, stamp))
        assert (answer.status, answer.versionstamp) == (dp.AW_SUCCESS, stamp)
        _read_back(replicas, request, stamp)
    elif result.failed_checks:
        answer = dp.AtomicWriteOutput.FromString(write_output(result, b""))
        assert answer.status == dp.AW_CHECK_FAILURE
        assert all(at < len(request.checks) for at in answer.failed_checks)
    else:
        assert result.message


def _holds(replicas: Pair, wanted: dp.Check) -> bool:
    """Ten zero bytes mean "absent" too."""
    stamp = replicas.one.entry(wanted.key).versionstamp
    return stamp == wanted.versionstamp if any(wanted.versionstamp) else not stamp


def _read_back(replicas: Pair, request: dp.AtomicWrite, stamp: bytes) -> None:
    last = {
        mutation.key: mutation
        for mutation in request.mutations
        if mutation.mutation_type != dp.M_SET_SUFFIX_VERSIONSTAMPED_KEY
    }
    for key, mutation in last.items():
        entry = replicas.one.entry(key)
        if mutation.mutation_type == _SET:
            assert (entry.value, int(entry.encoding)) == (mutation.value.data, int(mutation.value.encoding))
        if mutation.mutation_type == _DELETE:
            assert not entry.versionstamp
        else:
            assert entry.versionstamp == stamp
    for mutation in request.mutations:
        if mutation.mutation_type == dp.M_SET_SUFFIX_VERSIONSTAMPED_KEY:
            prefix = mutation.key
            rows = replicas.one.rows(prefix, prefix + b"\xff" * 30)
            assert any(row.versionstamp == stamp and len(row.key) == len(prefix) + 22 for row in rows)
