"""What is refused before it is decoded, and what the limits together allow."""

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.admission import admit


def test_an_operation_of_countless_tiny_parts_is_refused_unread() -> None:
    flood = b"\x12\x00" * (limits.MAX_ENTRY_SIZE // 2 + 1)  # empty mutations
    good = pb.AtomicWrite(mutations=[pb.Mutation(key=b"\x02a\x00", type=pb.MUTATION_TYPE_DELETE)])
    group = pb.WriteGroup(writes=[pb.Write(seq=1, op=flood), pb.Write(seq=2, op=good.SerializeToString())])
    parts, refused = admit(group)
    assert [(result.seq, result.outcome) for result in refused] == [(1, pb.OUTCOME_INVALID)]
    assert "MAX_ENTRY_SIZE" in refused[0].message
    assert [[write.seq for write in part.group.writes] for part in parts] == [[2]]


def test_the_largest_write_that_the_limits_allow_is_admitted() -> None:
    """All that counts at its limit at once, and around it all that does not count."""
    write = pb.AtomicWrite()
    size = 0
    for number in range(limits.MAX_CHECKS):
        write.checks.add(
            key=b"\x02c%03d" % number + bytes(0) + b"\x00", versionstamp=bytes(10), kind=pb.CHECK_KIND_NOT_NEWER
        )
        size += len(write.checks[-1].key)
    for number in range(limits.MAX_MUTATIONS):
        key = b"\x02%04d\x00" % number
        value = bytes(min(1_000, max(0, limits.MAX_TOTAL_WRITE_SIZE - size - len(key) - 7 * (999 - number))))
        write.mutations.add(
            key=key, type=pb.MUTATION_TYPE_SET, value=value, encoding=pb.VALUE_ENCODING_BYTES, expire_in_ms=1 << 40
        )
        size += len(key) + len(value)
    assert size <= limits.MAX_TOTAL_WRITE_SIZE
    op = write.SerializeToString()
    parts, refused = admit(pb.WriteGroup(writes=[pb.Write(seq=1, op=op)]))
    assert not refused
    assert len(parts) == 1
    assert len(op) > limits.MAX_TOTAL_WRITE_SIZE
