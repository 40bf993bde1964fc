"""Moments that a cron expression names in a time zone.

Five fields, or six with seconds at the end; cronsim reads and searches them. How clocks that are set forward and back
are met is cron's way, for both forms: where minute and hour are given, the local time counts. One that does not exist
that day stands for the moment at which the clock was set forward, one that exists twice for the first of the two: a
tick each, neither none nor two. Where minute or hour begin with a star, time goes on as it passes.

Times are Unix milliseconds, ticks whole seconds. Searching costs some 0.1 ms, 30 ms at worst: where nothing matches
within 50 years.
"""

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

from cronsim import CronSim, CronSimError

from kvorum.errors import InvalidArgument, LimitExceeded
from kvorum.limits import MAX_CRON_SIZE

_MINUTE = timedelta(minutes=1)
_SECOND = timedelta(seconds=1)
_MAX_GAP = 2 * 1_440
"""Minutes by which a zone may set its clock forward or back: some have left out a day."""
_OF_THE_MACHINE = frozenset(("localtime", "posixrules", "Factory"))
"""Files beside the zones that mean something else on each node."""


class Cron:
    """Raises InvalidArgument or LimitExceeded if there is no such expression or zone."""

    def __init__(self, expression: str, time_zone: str = "") -> None:
        for what, text in (("a cron expression", expression), ("a time zone", time_zone)):
            if (size := len(text.encode())) > MAX_CRON_SIZE:
                raise LimitExceeded("MAX_CRON_SIZE", MAX_CRON_SIZE, size, f"bytes of {what}")
        self._zone = _zone(time_zone)
        fields = expression.split()
        if len(fields) not in (5, 6):
            raise InvalidArgument(
                f"a cron expression has five fields, or six with seconds at the end, got {len(fields)}: {expression!r}"
            )
        if not expression.isascii():
            raise InvalidArgument(f"a cron expression is ASCII, got {expression!r}")
        seconds = fields.pop() if len(fields) == 6 else "0"
        self._by_clock = not fields[0].startswith("*") and not fields[1].startswith("*")
        self._fields = " ".join((seconds, *fields))
        try:
            CronSim(self._fields, datetime(2000, 1, 1))
        except (CronSimError, ValueError, AssertionError) as error:
            raise InvalidArgument(f"not a cron expression: {expression!r}: {error}") from None

    def next(self, after_ms: int) -> int | None:
        """The first tick after this moment; None if there is none within 50 years."""
        after = after_ms // 1000
        for tick in self._ticks(after):
            if tick > after:
                return tick * 1000
        return None

    def last(self, from_ms: int, to_ms: int) -> int:
        """The last tick that is not before `from_ms`, which is one, and not after `to_ms`."""
        low, high = from_ms // 1000 - 1, to_ms // 1000
        # Low is before the last tick, high is not.
        while high - low > 1:
            middle = (low + high) // 2
            tick = self.next(middle * 1000)
            if tick is not None and tick <= to_ms:
                low = middle
            else:
                high = middle
        return high * 1000

    def before(self, before_ms: int) -> Iterator[int]:
        """Ticks before this moment, the last one first; at the moments when clocks are changed, about."""
        try:
            begin = datetime.fromtimestamp(before_ms // 1000, self._zone)
            for found in CronSim(self._fields, begin.replace(tzinfo=None) if self._by_clock else begin, reverse=True):
                yield int((self._moment(found) if self._by_clock else found).timestamp()) * 1000
        except (OverflowError, ValueError, OSError):
            return  # the end of the calendar

    def _ticks(self, after: int) -> Iterator[int]:
        """Seconds, ascending, from about `after` on."""
        try:
            begin = datetime.fromtimestamp(after, self._zone)
            if not self._by_clock:
                for found in CronSim(self._fields, begin):
                    yield int(found.timestamp())
            for found in CronSim(self._fields, _past_repetition(begin)):
                yield int(self._moment(found).timestamp())
        except (OverflowError, ValueError, OSError):
            return  # the end of the calendar

    def _moment(self, local: datetime) -> datetime:
        """When the clocks of the zone first show this time, or the next minute that they do show."""
        moment = local.replace(tzinfo=self._zone, fold=0)
        for _ in range(_MAX_GAP):
            if moment.astimezone(UTC).astimezone(self._zone).replace(tzinfo=None) == moment.replace(tzinfo=None):
                break
            local = local.replace(second=0) + _MINUTE
            moment = local.replace(tzinfo=self._zone, fold=0)
        return moment


def _past_repetition(moment: datetime) -> datetime:
    """The local time to search on from, without a zone. While the clocks show an hour for the second time, all that it
    could name has been when they showed it first."""
    local = moment.replace(tzinfo=None, fold=0)
    if not moment.fold:
        return local
    end = moment.replace(second=0)
    for _ in range(_MAX_GAP):
        end += _MINUTE
        if end.replace(fold=0).utcoffset() == end.replace(fold=1).utcoffset():
            break
    return end.replace(tzinfo=None, fold=0) - _SECOND


def _zone(name: str) -> tzinfo:
    if not name:
        return UTC
    try:
        if name in _OF_THE_MACHINE:
            raise ValueError(name)
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidArgument(f"no such time zone: {name!r}; an IANA name like 'Europe/Berlin' is wanted") from None
