"""What becomes of ticks that are due, and of those that were missed; and the ticker over the real state machine."""

from collections.abc import Callable
from datetime import datetime

import pytest

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.cron import Cron
from kvorum_node.schedules import plan
from tests.unit.node.harness import START_MS, Node

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
SKIP, ONCE, ALL = pb.MISFIRE_SKIP, pb.MISFIRE_ONCE, pb.MISFIRE_ALL


def at(text: str) -> int:
    return int(datetime.fromisoformat(text + "+00:00").timestamp()) * 1000


def planned(schedule: pb.Schedule, next_ms: int, now_ms: int, caught_up_ms: int = 0) -> tuple[pb.Tick, int]:
    """What is proposed, and the number of steps that it took."""
    steps, count = plan(schedule, Cron(schedule.cron, schedule.time_zone), next_ms, now_ms, caught_up_ms), 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            tick: pb.Tick = end.value
            return tick, count


def carried_out(schedule: pb.Schedule, next_ms: int, now_ms: int) -> tuple[list[int], int]:
    """Ticks with a message until nothing is due any more, and the moment of the next one."""
    sent, caught_up_ms = [], 0
    while next_ms <= now_ms:
        tick, _ = planned(schedule, next_ms, now_ms, caught_up_ms)
        assert tick.tick_ms == next_ms < tick.next_ms
        caught_up_ms = now_ms
        if not tick.skip:
            sent.append(next_ms)
        next_ms = tick.next_ms
    return sent, next_ms


@pytest.mark.parametrize("misfire", [SKIP, ONCE, ALL])
def test_a_tick_within_its_grace_is_taken(misfire: int) -> None:
    daily = pb.Schedule(cron="0 6 * * *", misfire=misfire)  # type: ignore[arg-type]
    first = at("2026-11-30T06:00:00")
    for late in (0, limits.DEFAULT_GRACE):
        tick, _ = planned(daily, first, first + late)
        assert (tick.tick_ms, tick.next_ms, tick.skip) == (first, first + DAY, False)


@pytest.mark.parametrize(
    ("misfire", "sent"), [(SKIP, []), (ONCE, ["12-01"]), (ALL, ["11-29", "11-30", "12-01"]), (0, ["12-01"])]
)
def test_p82_missed_ticks_are_left_out_or_run_once_or_all(misfire: int, sent: list[str]) -> None:
    """P82: daily cron, down across the tick → policy: skip, run once, or run all; default run once."""
    daily = pb.Schedule(cron="0 6 * * *", misfire=misfire)  # type: ignore[arg-type]
    ticks, following = carried_out(daily, at("2026-11-29T06:00:00"), at("2026-12-01T06:01:01"))
    assert ticks == [at(f"2026-{day}T06:00:00") for day in sent]
    assert following == at("2026-12-02T06:00:00")


def test_the_last_tick_of_a_long_absence_may_be_in_time() -> None:
    minutely = pb.Schedule(cron="* * * * *", misfire=SKIP)
    now = at("2026-11-30T12:00:30")
    assert carried_out(minutely, now - DAY - 30_000, now)[0] == [now - 30_000]
    minutely.misfire = ONCE
    assert carried_out(minutely, now - DAY - 30_000, now)[0] == [now - 90_000, now - 30_000]


def test_a_grace_of_its_own() -> None:
    daily = pb.Schedule(cron="0 6 * * *", misfire=SKIP, grace_ms=DAY // 2)
    first = at("2026-11-30T06:00:00")
    assert carried_out(daily, first, first + DAY // 2)[0] == [first]
    assert carried_out(daily, first, first + DAY // 2 + 1)[0] == []


def test_no_more_than_max_catch_up_are_made_up_for_and_they_are_the_last_ones() -> None:
    secondly = pb.Schedule(cron="* * * * * *", misfire=ALL)
    now = at("2026-11-30T12:00:00")
    first = now - 30 * DAY
    tick, steps = planned(secondly, first, now)
    assert tick.skip and steps <= limits.MAX_CATCH_UP + 2
    sent, _ = carried_out(secondly, first, now)
    missed = [moment for moment in sent if moment < now - limits.DEFAULT_GRACE]
    assert len(missed) == limits.MAX_CATCH_UP
    assert sent == list(range(missed[0], now + 1, 1000))


def test_a_plan_after_years_takes_few_steps() -> None:
    for misfire in (SKIP, ONCE):
        secondly = pb.Schedule(cron="*/2 * * * * *", misfire=misfire)
        _, steps = planned(secondly, START_MS, START_MS + 20 * 365 * DAY)
        assert steps < 5


# ---- the ticker


def define(node: Node, name: str, cron: str, **more: object) -> pb.QueueReply:
    message = pb.Enqueue(queue="q", payload=name.encode())
    definition = pb.Schedule(cron=cron, message=message, **more)  # type: ignore[arg-type]
    return node.call(schedule=pb.DefineSchedule(name=name, definition=definition.SerializeToString()))


def sent(node: Node) -> list[tuple[bytes, int]]:
    """Messages in the queue: name and tick, in the order in which they were sent."""
    found: list[tuple[bytes, int]] = []
    after = b""
    while True:
        with node.store.snapshot() as snapshot:
            page, after = snapshot.peek("q", pb.PEEK_KIND_UNSPECIFIED, after, 100, node.consensus.now_ms())
        found += [(info.payload, pb.Headers.FromString(info.headers).tick_ms) for info in page]
        if not after:
            return found


def ticks_until(node: Node, step: int, begin: int = START_MS) -> list[int]:
    """Multiples of `step` ms from the beginning to now."""
    return list(range(begin + step - begin % step, node.consensus.now_ms() + 1, step))


def test_one_message_for_each_tick(node: Node) -> None:
    assert define(node, "minutely", "* * * * *").status == pb.READ_STATUS_OK
    assert define(node, "ten", "* * * * * */10").status == pb.READ_STATUS_OK
    node.timers.advance(600)
    messages = sent(node)
    assert [tick for name, tick in messages if name == b"minutely"] == ticks_until(node, MINUTE)
    assert [tick for name, tick in messages if name == b"ten"] == ticks_until(node, 10_000)
    assert node.service.ticker.statistics() == {"schedules_waiting": 2, "ticks": len(messages), "ticks_skipped": 0}


def test_a_tick_is_in_time(node: Node) -> None:
    define(node, "minutely", "* * * * *")
    tick = ticks_until(node, MINUTE) or [START_MS + MINUTE - START_MS % MINUTE]
    node.timers.advance((tick[0] - node.consensus.now_ms()) / 1000 - 0.002)
    assert sent(node) == []
    node.timers.advance(0.010)
    assert sent(node) == [(b"minutely", tick[0])]


@pytest.mark.parametrize("pause", [0.0, 0.4, 3.0, 45.0])
def test_exactly_one_message_for_each_tick_over_leader_changes(node: Node, pause: float) -> None:
    define(node, "ten", "* * * * * */10")
    for _ in range(40):
        node.timers.advance(7.3)
        node.consensus.held = True  # what is proposed now is lost, or applied under the next leader
        node.timers.advance(0.7)
        waiting = list(node.consensus._waiting)
        node.consensus.held = False
        node.consensus.depose()
        for payload, _ in waiting:
            node.consensus.apply(payload)
        node.timers.advance(pause)
        node.consensus.elect()
    node.timers.advance(1)
    assert [tick for _, tick in sent(node)] == ticks_until(node, 10_000)


def test_two_leaders_that_propose_the_same_tick_send_one_message(node: Node) -> None:
    define(node, "minutely", "* * * * *")
    node.timers.advance(90)
    ticks = sent(node)
    command = next(
        command
        for payload in node.consensus.payloads
        for command in pb.Batch.FromString(payload).commands
        if command.WhichOneof("command") == "tick"
    )
    batch = pb.Batch(data_version=3, commands=[command])
    assert node.consensus.apply(batch.SerializeToString()).outputs == [False]
    assert sent(node) == ticks


@pytest.mark.parametrize(("misfire", "count"), [(SKIP, 0), (ONCE, 1), (ALL, 3)])
def test_p82_a_restart_across_ticks(node: Node, misfire: int, count: int) -> None:
    define(node, "daily", "0 6 * * *", misfire=misfire)
    node.consensus.depose()
    node.timers.advance(3 * DAY / 1000)
    node.consensus.elect()
    node.timers.advance(1)
    assert len(sent(node)) == count
    node.timers.advance(DAY / 1000)
    assert len(sent(node)) == count + 1


def test_p82_a_jump_of_the_clock(node: Node) -> None:
    define(node, "daily", "0 6 * * *")
    node.timers.advance(1)
    node.consensus.jump_ms = 5 * DAY
    node.enqueue(b"x", queue="other")
    node.timers.advance(1)
    assert len(sent(node)) == 1, "missed, once"
    node.timers.advance(DAY / 1000)
    assert len(sent(node)) == 2


def test_a_changed_schedule_goes_by_its_new_times_and_a_removed_one_ends(node: Node) -> None:
    define(node, "a", "* * * * * */10")
    node.timers.advance(60)
    before = len(sent(node))
    define(node, "a", "* * * * * 30")
    node.timers.advance(60)
    assert [tick % MINUTE for _, tick in sent(node)[before:]] == [30_000]
    define(node, "a", "* * * * * */5")
    node.timers.advance(10)
    assert [tick % 5_000 for _, tick in sent(node)[before + 1 :]] == [0, 0]
    assert node.call(schedule=pb.DefineSchedule(name="a")).status == pb.READ_STATUS_OK
    after = sent(node)
    node.timers.advance(600)
    assert sent(node) == after


def test_defining_it_again_as_it_is_loses_no_tick(node: Node) -> None:
    define(node, "daily", "0 6 * * *")
    node.consensus.depose()
    node.timers.advance(2 * DAY / 1000)
    node.consensus.elect()
    assert define(node, "daily", "0 6 * * *").status == pb.READ_STATUS_OK
    node.timers.advance(1)
    assert len(sent(node)) == 1


@pytest.mark.parametrize(
    ("cron", "zone", "why"),
    [
        ("0 0 30 2 *", "", "not a cron expression"),
        ("0 0 */31 * 1#5", "", "names no moment"),
        ("* * * *", "", "five fields"),
        ("* * * * *", "Mars/Base", "no such time zone"),
        ("1," * 128 + "1 * * * *", "", "MAX_CRON_SIZE"),
    ],
)
def test_what_can_never_tick_is_refused_before_the_log(node: Node, cron: str, zone: str, why: str) -> None:
    entries = len(node.consensus.payloads)
    reply = define(node, "bad", cron, time_zone=zone)
    assert reply.status == pb.READ_STATUS_INVALID and why in reply.message
    assert len(node.consensus.payloads) == entries


def test_many_schedules_of_the_same_second_are_begun_in_small_parts(make_node: Callable[..., Node]) -> None:
    node = make_node()
    for number in range(300):
        define(node, f"s{number:03}", "* * * * *")
    node.timers.advance(60)
    assert sorted(name for name, _ in sent(node)) == [b"s%03d" % number for number in range(300)]
    node.consensus.depose()
    node.consensus.elect()
    node.timers.advance(60)
    assert len(sent(node)) == 600
