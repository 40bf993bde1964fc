"""What `tests/unit/backup/test_archiver.py` demands of an archive in a folder, of one in an S3-compatible store."""

from collections.abc import Iterator

import pytest

from kvorum_node.backup.s3_objects import S3Bucket
from kvorum_node.backup.targets import ArchiveTarget
from tests.s3_server import s3_server
from tests.unit.backup.test_archiver import (  # noqa: F401
    bench,
    test_a_base_and_then_segments_without_a_gap,
    test_a_damaged_file_in_the_way_is_written_anew,
    test_a_full_disk_makes_a_gap_that_is_told,
    test_a_gap_over_a_restart,
    test_a_lost_answer_leaves_a_file_that_is_known_again,
    test_a_node_that_is_behind_waits,
    test_a_restart_goes_on_where_the_archive_ends,
    test_a_segment_is_closed_when_it_is_large,
    test_a_target_that_fails_costs_nothing_but_time,
    test_another_history_is_not_mixed_in,
    test_another_history_of_the_same_name_is_never_replaced,
    test_bases_by_schedule_while_segments_go_on,
    test_retention,
    test_the_loop_goes_on_after_failures,
)


@pytest.fixture
def target() -> Iterator[ArchiveTarget]:
    with s3_server() as server:
        yield S3Bucket(server.place())
