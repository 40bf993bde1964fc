"""Tokens: their text, the commands that make them, and what they let writes do, told from bytes as from messages."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from google.protobuf.message import DecodeError

from kvorum import tokens
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import InvalidArgument
from kvorum.keys import encode_key
from kvorum.rights import denied
from kvorum_node.store import DATA_VERSION, Denied, validate_command
from kvorum_node.store.auth import pack, unpack
from kvorum_node.store.rights import Rights, for_write
from tests.unit.store.harness import Replica, batch, init_cluster

_A, _B = encode_key(("a",)), encode_key(("b",))
_SCOPES = pb.Scopes(
    keys=[pb.KeyScope(prefix=_A, read=True, write=True), pb.KeyScope(prefix=_B, write=True)],
    queues=[pb.QueueScope(name="q", send=True), pb.QueueScope(name="r", prefix=True, receive=True)],
)
_SET = pb.Mutation(key=_A, type=pb.MUTATION_TYPE_SET, value=b"v", encoding=pb.VALUE_ENCODING_BYTES)
_TEXT, _PUT, _WRITE = b"\0", b"\1", b"\2"


def _op(**parts: object) -> bytes:
    return _WRITE + pb.AtomicWrite(**parts).SerializeToString()  # type: ignore[arg-type]


SEEDS = [
    _TEXT + tokens.text_of(bytes(8), bytes(32)).encode(),
    _TEXT + b"kvo_" + b"f" * 16 + b"_" + b"_" * 43,
    _PUT + pb.PutToken(id=bytes(8), secret=bytes(32), name="n", scopes=_SCOPES.SerializeToString()).SerializeToString(),
    _PUT + pb.PutToken(id=bytes(8), expire_in_ms=5, overlap_ms=7, disabled=True).SerializeToString(),
    _op(mutations=[_SET]),
    _op(checks=[pb.Check(key=_B)], mutations=[_SET]),
    _op(enqueues=[pb.Enqueue(queue="q", payload=b"x")]),
    _op(enqueues=[pb.Enqueue(queue="q", payload=b"x", keys_if_undelivered=[_A, b"c"])]),
    _op(settles=[pb.Settle(message_id=bytes(12), lease_id=bytes(12), kind=pb.SETTLE_KIND_ACK)]),
    _op(mutations=[pb.Mutation(key=_A, type=pb.MUTATION_TYPE_DELETE_RANGE, end=_A + b"\xff")]),
]


@contextmanager
def opened() -> Iterator[Callable[[bytes], None]]:
    folder = Path(tempfile.mkdtemp(prefix="kvorum-fuzz-"))
    replica = Replica(folder / "state", data_version=DATA_VERSION)
    replica.apply(init_cluster())
    made = pb.PutToken(id=b"the same", secret=bytes(32), name="the same", scopes=_SCOPES.SerializeToString())
    replica.apply(pb.Command(put_token=made), pb.Command(switch_auth=pb.SwitchAuth(on=True)))
    try:
        yield partial(check, replica)
        replica.check_hash()
    finally:
        replica.store.close()
        shutil.rmtree(folder)


def check(replica: Replica, data: bytes) -> None:
    kind, rest = data[:1], data[1:]
    if kind == _PUT:
        _put(replica, rest)
    elif kind == _WRITE:
        _write(replica, rest)
    else:
        text = rest.decode("latin-1")
        parts = tokens.parse(text)
        assert parts is None or tokens.text_of(*parts) == text


def _put(replica: Replica, data: bytes) -> None:
    try:
        command = pb.Command(principal=b"root", put_token=pb.PutToken.FromString(data))
        validate_command(command)
    except (DecodeError, InvalidArgument):
        return
    if command.put_token.id == b"the same":
        return
    output = replica.apply(command).outputs[0]
    if isinstance(output, Denied):
        assert output.message
        return
    token = replica.store.auth.tokens[command.put_token.id]
    again = unpack(token.id, pack(token))
    assert pack(again) == pack(token) and again.info() == token.info()
    replica.apply(pb.Command(principal=b"root", remove_token=pb.RemoveToken(id=token.id)))


def _write(replica: Replica, op: bytes) -> None:
    """Judged by its bytes as by its parts; what is denied changes nothing, and can be told to people."""
    group = pb.WriteGroup()
    group.writes.add(seq=1, op=op)
    before = replica.store.state_hash()
    payload = batch(pb.Command(principal=b"the same", writes=group), data_version=DATA_VERSION)
    result = replica.apply_payload(payload).outputs[0].results[0]
    try:
        write = pb.AtomicWrite.FromString(op)
    except DecodeError:
        assert result.outcome == pb.OUTCOME_INVALID
        return
    missing = for_write(Rights(_SCOPES), write, lambda message_id, kind: None)
    assert (result.message if result.outcome == pb.OUTCOME_DENIED else "") == missing
    if missing:
        assert replica.store.state_hash() == before
        assert str(denied(missing))
