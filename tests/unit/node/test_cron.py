"""Moments of cron expressions; what clocks that are changed do to them."""

import random
import zoneinfo
from datetime import UTC, datetime
from itertools import islice

import pytest

from kvorum.errors import InvalidArgument, LimitExceeded
from kvorum_node.cron import Cron

BERLIN = "Europe/Berlin"


def at(text: str) -> int:
    """Unix milliseconds of an ISO time with an offset."""
    return int(datetime.fromisoformat(text).timestamp()) * 1000


def ticks(cron: Cron, after: str, count: int, zone: str = BERLIN) -> list[str]:
    """The next ticks, as that zone's clocks show them, without the year."""
    found, moment = [], at(after)
    for _ in range(count):
        following = cron.next(moment)
        assert following is not None and following > moment
        moment = following
        found.append(datetime.fromtimestamp(moment / 1000, zoneinfo.ZoneInfo(zone)).isoformat()[5:])
    return found


def test_five_fields_and_six_with_seconds_at_the_end() -> None:
    assert ticks(Cron("0 6 * * *"), "2026-11-30T06:00:00Z", 2, "UTC") == [
        "12-01T06:00:00+00:00",
        "12-02T06:00:00+00:00",
    ]
    assert ticks(Cron("*/30 6 * * * 15,45"), "2026-11-30T05:59:59Z", 3, "UTC") == [
        "11-30T06:00:15+00:00",
        "11-30T06:00:45+00:00",
        "11-30T06:30:15+00:00",
    ]


def test_a_local_time_that_does_not_exist_ticks_once_when_the_clock_is_set_forward() -> None:
    assert ticks(Cron("30 2 * * *", BERLIN), "2026-03-28T00:00:00+01:00", 3) == [
        "03-28T02:30:00+01:00",
        "03-29T03:00:00+02:00",
        "03-30T02:30:00+02:00",
    ]
    assert ticks(Cron("0,30 2 * * * 20,40", BERLIN), "2026-03-29T00:00:00+01:00", 2) == [
        "03-29T03:00:00+02:00",
        "03-30T02:00:20+02:00",
    ]


def test_a_local_time_that_exists_twice_ticks_once() -> None:
    cron = Cron("30 2 * * *", BERLIN)
    expected = ["10-25T02:30:00+02:00", "10-26T02:30:00+01:00"]
    assert ticks(cron, "2026-10-25T00:00:00+02:00", 2) == expected
    for after in ("2026-10-25T02:30:00+02:00", "2026-10-25T02:10:00+01:00", "2026-10-25T02:40:00+01:00"):
        assert ticks(cron, after, 1) == expected[1:]
    assert ticks(Cron("0-59 0-23 * * * 58", BERLIN), "2026-10-25T02:58:58+02:00", 2) == [
        "10-25T02:59:58+02:00",
        "10-25T03:00:58+01:00",
    ]


def test_every_hour_means_every_hour_that_passes() -> None:
    assert ticks(Cron("0 * * * *", BERLIN), "2026-10-25T01:30:00+02:00", 3) == [
        "10-25T02:00:00+02:00",
        "10-25T02:00:00+01:00",
        "10-25T03:00:00+01:00",
    ]


def test_a_day_that_a_zone_left_out_ticks_once() -> None:
    found = ticks(Cron("0 12 * * *", "Pacific/Apia"), "2011-12-28T00:00:00-10:00", 4, "Pacific/Apia")
    assert found == [
        "12-28T12:00:00-10:00",
        "12-29T12:00:00-10:00",
        "12-31T00:00:00+14:00",
        "12-31T12:00:00+14:00",
    ]


def test_the_last_tick_of_a_time() -> None:
    cron = Cron("0 6 * * *", BERLIN)
    first = at("2026-01-01T06:00:00+01:00")
    assert cron.last(first, first) == first
    assert cron.last(first, at("2026-01-02T05:59:59+01:00")) == first
    assert cron.last(first, at("2026-01-02T06:00:00+01:00")) == at("2026-01-02T06:00:00+01:00")
    assert cron.last(first, at("2026-07-01T00:00:00+02:00")) == at("2026-06-30T06:00:00+02:00")


def test_ticks_backwards() -> None:
    found = list(islice(Cron("0 */12 * * *").before(at("2026-11-30T12:00:00Z")), 3))
    assert found == [at("2026-11-30T00:00:00Z"), at("2026-11-29T12:00:00Z"), at("2026-11-29T00:00:00Z")]


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "* * * * * 60",
        "* * * * mon-",
        "1/1/1 * * * *",
        "0 0 30 2 *",
        "² * * * *",
        "*/0 * * * *",
        "5L/2 * * * *",
        "99999999999999999999 * * * *",
    ],
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(InvalidArgument):
        Cron(expression)


@pytest.mark.parametrize(
    "zone", ["Mars/Base", "Europe", "../../../etc/passwd", "/etc/passwd", "localtime", "a\0b", "Ä"]
)
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidArgument, match="no such time zone"):
        Cron("* * * * *", zone)


def test_long_ones_are_refused_before_they_are_read() -> None:
    with pytest.raises(LimitExceeded, match="MAX_CRON_SIZE"):
        Cron("1," * 200 + "1 * * * *")
    with pytest.raises(LimitExceeded, match="MAX_CRON_SIZE"):
        Cron("* * * * *", "x" * 257)


def test_one_that_never_matches_and_the_end_of_the_calendar_have_no_tick() -> None:
    assert Cron("0 0 */31 * 1#5").next(at("2026-11-30T00:00:00Z")) is None
    assert Cron("* * * * *").next(at("9999-12-31T23:59:59Z")) is None
    assert Cron("* * * * *", BERLIN).next(10**15) is None
    assert Cron("0 0 * * *", BERLIN).next(10**17) is None


@pytest.mark.parametrize("seed", range(4))
def test_ticks_of_any_expression_in_any_zone_ascend_and_are_whole_seconds(seed: int) -> None:
    rng = random.Random(seed)
    zones = sorted(zoneinfo.available_timezones() - {"localtime", "posixrules", "Factory"})

    def part(low: int, high: int) -> str:
        first, second = sorted((rng.randint(low, high), rng.randint(low, high)))
        return rng.choice(["*", f"*/{rng.randint(1, high)}", str(first), f"{first}-{second}", f"{first},{second}"])

    for _ in range(100):
        fields = [part(0, 59), part(0, 23), rng.choice(["*", "15", "L", "*/3"]), rng.choice(["*", "3", "10"])]
        fields += [rng.choice(["*", "1", "5L"]), part(0, 59)][: rng.randint(1, 2)]
        cron = Cron(" ".join(fields), rng.choice(zones))
        moment = rng.randint(0, 2**31) * 1000
        for _ in range(4):
            following = cron.next(moment)
            assert following is not None and following > moment and following % 1000 == 0
            assert cron.next(following - 1000) == following
            moment = following
        assert datetime.fromtimestamp(moment / 1000, UTC).year < 2100
