"""What is refused before it is decoded, and what the limits together allow."""

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.admission import MAX_WEIGHT, Shortage, admit
from tests.unit.store.harness import add, delete, delete_range, put, touch, write


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


def test_what_an_older_member_cannot_apply_is_refused_until_all_are_upgraded() -> None:
    """And nothing but that."""
    ops = [put(b"a"), touch(b"a", 1), delete(b"a"), delete_range(b"a", b"b"), add(b"n", 1)]
    group = pb.WriteGroup(writes=[pb.Write(seq=at, op=write(op).SerializeToString()) for at, op in enumerate(ops)])
    group.writes.add(seq=9, op=write(put(b"a"), touch(b"a")).SerializeToString())
    parts, refused = admit(group, data_version=1)
    assert [(result.seq, result.outcome) for result in refused] == [(seq, pb.OUTCOME_OVERLOADED) for seq in (1, 3, 9)]
    assert all("need data version 2" in result.message and "upgrade" in result.message for result in refused)
    assert [entry.seq for part in parts for entry in part.group.writes] == [0, 2, 4]
    parts, refused = admit(group, data_version=2)
    assert not refused
    assert [entry.seq for part in parts for entry in part.group.writes] == [0, 1, 2, 3, 4, 9]


def test_a_range_weighs_what_it_may_delete_up_to_half_an_entry() -> None:
    ops = [put(b"a"), delete_range(b"a", b"b"), delete_range(b"a", b"b"), delete_range(b"a", b"b", limit=3)]
    group = pb.WriteGroup(writes=[pb.Write(seq=at, op=write(op).SerializeToString()) for at, op in enumerate(ops)])
    parts, _ = admit(group, data_version=2)
    assert [[entry.seq for entry in part.group.writes] for part in parts] == [[0, 1], [2, 3]]
    assert [part.weight for part in parts] == [1 + 257, 257 + 4]
    assert MAX_WEIGHT < 2 * 257


def test_while_space_is_short_ranges_go_and_touches_only_end_an_expiry() -> None:
    shortage = Shortage("full", lambda key: True)
    assert not shortage.forbids(write(delete_range(b"a", b"b"), touch(b"a"), delete(b"a")))
    assert shortage.forbids(write(touch(b"a", 5)))
    assert shortage.forbids(write(delete_range(b"a", b"b"), put(b"a")))


def test_a_large_group_becomes_parts_that_each_say_what_they_make_ready() -> None:
    group = pb.WriteGroup(session=b"s" * 10, ack_below=4)
    for seq in range(2 * MAX_WEIGHT):
        op = pb.AtomicWrite(enqueues=[pb.Enqueue(queue="ab"[seq % 2], payload=b"%d" % seq)])
        group.writes.add(seq=seq, op=op.SerializeToString())
    parts, refused = admit(group)
    assert not refused
    half = MAX_WEIGHT // 2
    expected = (MAX_WEIGHT, MAX_WEIGHT, {"a": half, "b": half})
    assert [(part.weight, part.commits, part.enqueues) for part in parts] == [expected] * 2
    assert [write.seq for part in parts for write in part.group.writes] == list(range(2 * MAX_WEIGHT))
    assert all(pb.WriteGroup.FromString(part.data) == part.group for part in parts)
    assert {(part.group.session, part.group.ack_below) for part in parts} == {(b"s" * 10, 4)}
    del group.writes[MAX_WEIGHT:]
    assert [part.weight for part in admit(group)[0]] == [MAX_WEIGHT]
