"""What gets into the log: writes are judged before they are proposed (rules B3), and cut to what one entry may hold.

While disk space is short (rules A8), what makes the state grow is refused. Sessions are opened all the same: a program
that comes to delete needs one, they are few and small, and the reserve has room for all of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from google.protobuf.message import DecodeError

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import InvalidArgument, LimitExceeded

from .shapes import Shapes
from .store import BEYOND_VERSION_1, DATA_VERSION, validate

MAX_WEIGHT = 512
"""Operations of one WriteGroup in an entry."""
_SMALL = 2_048
"""Bytes that weigh as much as one operation."""
_RANGE = 256
"""Most that the keys which a range may hold weigh: usually there are far fewer, and two that are full are not too much
for one entry."""
_PUBLISH = 16
"""What a message for a topic weighs: it becomes a message for each subscription, of which there may be hundreds; an
entry holds few enough that all of them together are not too much for it."""
_QUEUES_SINCE = 3
_SETTLES_SINCE_3 = frozenset((pb.SETTLE_KIND_EXTEND, pb.SETTLE_KIND_CANCEL, pb.SETTLE_KIND_RESCHEDULE))
_AROUND = 32
"""Bytes that surround the operation of a write in a group, at most."""
_NONE: Mapping[str, int] = MappingProxyType({})

_Accepted = tuple[pb.Write, int, int, Mapping[str, int]]
"""A write, its weight, bytes of its operation, and how many messages it makes ready at once, by queue."""
_OPTIONS = ("dedup_id", "dedup_window_ms", "headers", "ttl_ms", "topic")


class Part(NamedTuple):
    """As much of a WriteGroup as one entry may hold."""

    group: pb.WriteGroup
    data: bytes
    commits: int
    weight: int
    enqueues: dict[str, int] | None
    """Messages that are ready at once, by queue."""


class Shortage(NamedTuple):
    """Why nothing may grow now."""

    message: str
    """For whoever wants to write: where, and what to do."""
    is_absent: Callable[[bytes], bool]
    """Whether a key is not in the state: a sum makes it then."""

    def forbids(self, op: pb.AtomicWrite) -> bool:
        """Deletes, settles, sums on what is there, and touches that take an expiry away are let in."""
        if op.enqueues:
            return True
        for mutation in op.mutations:
            kind = mutation.type
            if kind in _DELETES or (kind == pb.MUTATION_TYPE_TOUCH and not mutation.HasField("expire_in_ms")):
                continue
            if kind not in _SUMS or self.is_absent(mutation.key):
                return True
        return False


_DELETES = frozenset((pb.MUTATION_TYPE_DELETE, pb.MUTATION_TYPE_DELETE_RANGE))
_SUMS = frozenset((pb.MUTATION_TYPE_SUM, pb.MUTATION_TYPE_MAX, pb.MUTATION_TYPE_MIN, pb.MUTATION_TYPE_ADD))


def admit(
    group: pb.WriteGroup,
    shortage: Shortage | None = None,
    *,
    data_version: int = DATA_VERSION,
    shapes: Shapes | None = None,
) -> tuple[list[Part], list[pb.WriteResult]]:
    """Returns what may be proposed, and the answers to what may not. `data_version`: the newest semantics that all
    members of the cluster can apply. `shapes`: what earlier writes have looked like.

    A small group is one part, and is not rewritten: its bytes are what the client sent.
    """
    if shapes is None or shortage is not None:
        shapes = Shapes()  # while nothing may grow, each write is looked into
    refused: list[pb.WriteResult] = []
    accepted: list[_Accepted] = []
    find = shapes.find
    total = 0
    for write in group.writes:
        data = write.op
        shape = find(data)
        if shape is not None:
            total += shape.weight
            accepted.append((write, shape.weight, len(data), shape.ready))
            continue
        judged = _judge(write, shortage, data_version, shapes)
        if isinstance(judged, pb.WriteResult):
            refused.append(judged)
        else:
            total += judged[1]
            accepted.append(judged)
    if not accepted:
        return [], refused
    if not refused and total <= MAX_WEIGHT:
        data = group.SerializeToString()
        if len(data) <= limits.MAX_ENTRY_SIZE:
            return [Part(group, data, len(accepted), total, _all_ready(accepted))], refused
    return list(_split(group, accepted)), refused


def _judge(write: pb.Write, shortage: Shortage | None, data_version: int, shapes: Shapes) -> _Accepted | pb.WriteResult:
    """Look into a write whose shape is not known; the result is the answer to one that may not be proposed."""
    data = write.op
    if len(data) > limits.MAX_ENTRY_SIZE:
        # Before it is parsed: millions of tiny mutations would hold up the loop and take many times the memory.
        # What the other limits allow is smaller, with all that surrounds it.
        problem = LimitExceeded("MAX_ENTRY_SIZE", limits.MAX_ENTRY_SIZE, len(data), "encoded write")
        return _invalid(write.seq, str(problem))
    try:
        op = pb.AtomicWrite.FromString(data)
        deletes = validate(op)
    except DecodeError as error:
        return _invalid(write.seq, f"the write cannot be decoded: {error}")
    except InvalidArgument as error:
        return _invalid(write.seq, str(error))
    if shortage is not None and shortage.forbids(op):
        return pb.WriteResult(seq=write.seq, outcome=pb.OUTCOME_NO_SPACE, message=shortage.message)
    if data_version < DATA_VERSION:
        needed = needed_version(op)
        if needed > data_version:
            # Not for good: the upgrade goes on, or a new leader has not heard from every member yet.
            text = too_old(needed, data_version)
            return pb.WriteResult(seq=write.seq, outcome=pb.OUTCOME_OVERLOADED, message=text)
    weight = len(op.mutations) + len(op.settles)
    messages, ready = op.enqueues, _NONE
    if messages:
        ready = {}
        weight += _weigh(messages, ready)
    weight = weight or 1
    weight += min(deletes, _RANGE) + len(data) // _SMALL
    shapes.learn(data, op, weight)
    return write, weight, len(data), ready


def _all_ready(accepted: Iterable[_Accepted]) -> dict[str, int] | None:
    found: dict[str, int] = {}
    for _, _, _, ready in accepted:
        for queue in ready:
            found[queue] = found.get(queue, 0) + ready[queue]
    return found or None


def _weigh(messages: Iterable[pb.Enqueue], ready: dict[str, int]) -> int:
    """What messages weigh; counts those that are ready at once into `ready`, by queue."""
    weight = 0
    for message in messages:
        weight += _PUBLISH if message.topic else 1
        if not (message.delay_ms or message.topic):
            ready[message.queue] = ready.get(message.queue, 0) + 1
    return weight


def needed_version(op: pb.AtomicWrite) -> int:
    """The data version that a write relies on."""
    if (
        op.each
        or any(settle.kind in _SETTLES_SINCE_3 for settle in op.settles)
        or any(
            message.HasField("group") or any(getattr(message, option) for option in _OPTIONS) for message in op.enqueues
        )
    ):
        return _QUEUES_SINCE
    return 2 if any(mutation.type in BEYOND_VERSION_1 for mutation in op.mutations) else 1


def too_old(needed: int, known: int) -> str:
    """Why something that a data version brought is refused; the caller may try again."""
    what = "named queues" if needed >= _QUEUES_SINCE else "touch and the deletion of a range"
    return (
        f"{what} need data version {needed}, and a member of this cluster knows only {known}, or has not said yet what"
        " it knows: upgrade all nodes, and have each of them running once; then try again"
    )


def _split(group: pb.WriteGroup, accepted: Iterable[_Accepted]) -> Iterable[Part]:
    """Parts in order, of `MAX_WEIGHT` at most if they hold more than one write."""
    some: list[_Accepted] = []
    weight = size = 0
    for one in accepted:
        its_weight, its_size = one[1], one[2] + _AROUND
        if some and (weight + its_weight > MAX_WEIGHT or size + its_size > limits.MAX_ENTRY_SIZE):
            yield _part(group, some, weight)
            some = []
            weight = size = 0
        some.append(one)
        weight += its_weight
        size += its_size
    yield _part(group, some, weight)


def _part(group: pb.WriteGroup, some: Sequence[_Accepted], weight: int) -> Part:
    part = pb.WriteGroup(session=group.session, ack_below=group.ack_below)
    part.writes.extend([write for write, _, _, _ in some])
    return Part(part, part.SerializeToString(), len(some), weight, _all_ready(some))


def _invalid(seq: int, message: str) -> pb.WriteResult:
    return pb.WriteResult(seq=seq, outcome=pb.OUTCOME_INVALID, message=message)


def refuse_all(group: pb.WriteGroup, outcome: "pb.Outcome", message: str = "") -> pb.ResultGroup:
    """The same answer to every write of a group."""
    answer = pb.ResultGroup(session=group.session)
    for write in group.writes:
        answer.results.add(seq=write.seq, outcome=outcome, message=message)
    return answer
