"""What a leader may send to a follower, and which answers are stale."""

from kvorum_raft.progress import Progress


def replicating(match: int = 10) -> Progress:
    progress = Progress(match + 1, 0.0)
    progress.acknowledged(match, match)
    return progress


def test_nothing_is_streamed_before_the_first_success() -> None:
    progress = Progress(11, 0.0)
    assert not progress.may_send(1000, 10)
    progress.acknowledged(4, 10)
    assert progress.may_send(1000, 10)
    assert (progress.match_index, progress.next_index) == (4, 11)


def test_the_window_is_bounded_in_messages_and_bytes() -> None:
    progress = replicating()
    for last in (12, 14, 16):
        assert progress.may_send(1000, 3)
        progress.sent(last, 100)
    assert not progress.may_send(1000, 3)
    assert not progress.may_send(300, 10)
    progress.acknowledged(14, 14)
    assert progress.in_flight == (1, 100)
    assert progress.may_send(300, 3)
    assert progress.next_index == 17


def test_match_never_shrinks() -> None:
    progress = replicating(10)
    progress.acknowledged(3, 3)
    assert (progress.match_index, progress.next_index) == (10, 11)


def test_a_refusal_leads_back_to_probing_behind_what_is_known() -> None:
    progress = replicating(10)
    progress.sent(20, 100)
    assert progress.refused(20, 5)
    assert progress.probing
    assert progress.next_index == 11
    assert progress.in_flight == (0, 0)


def test_stale_refusals_are_ignored() -> None:
    progress = replicating(10)
    assert not progress.refused(10, 1)
    progress.sent(20, 100)
    assert progress.refused(15, 12)
    assert progress.next_index == 12
    assert not progress.refused(15, 3), "probing elsewhere by now"
    assert progress.next_index == 12


def test_a_broken_connection_sends_again_from_what_is_known() -> None:
    progress = replicating(10)
    progress.sent(20, 100)
    progress.lost_connection()
    assert progress.probing
    assert progress.next_index == 11
