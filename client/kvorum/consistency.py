"""How fresh a read must be."""

from typing import Final, Literal

from kvorum._proto import kvorum_pb2 as pb
from kvorum.durations import Duration, milliseconds
from kvorum.errors import InvalidArgument, shown

Consistency = Literal["strong", "bounded", "eventual"]
"""`strong`: sees every write that was acknowledged before the read began. `bounded`: a state that was newest at most
`max_age` ago. `eventual`: what the node at hand has. None shows a client less than it has seen before."""

_MAX_AGE: Final = (1 << 32) - 1


STRONG: Final = pb.CONSISTENCY_STRONG


def freshness(consistency: Consistency, max_age: Duration | None) -> "tuple[pb.Consistency, int]":
    """What a read asks for: the consistency, and milliseconds. Errors: InvalidArgument."""
    if consistency == "bounded":
        if max_age is None:
            raise InvalidArgument("consistency 'bounded' needs max_age")
        return pb.CONSISTENCY_BOUNDED, min(milliseconds(max_age, "max_age"), _MAX_AGE)
    if max_age is not None:
        raise InvalidArgument(f"max_age belongs to consistency 'bounded', not to {shown(consistency)}")
    if consistency == "eventual":
        return pb.CONSISTENCY_EVENTUAL, 0
    if consistency != "strong":
        raise InvalidArgument(f"unknown consistency {shown(consistency)}, expected 'strong', 'bounded' or 'eventual'")
    return STRONG, 0


def relax(read: pb.Read, consistency: Consistency, max_age: Duration | None) -> None:
    """Set what a read asks for. Errors: InvalidArgument."""
    read.consistency, read.max_age_ms = freshness(consistency, max_age)
