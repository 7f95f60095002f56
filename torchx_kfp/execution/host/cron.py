"""Times at which a cron expression fires, as KFP's controller of schedules understands it.

KFP reads an expression as Go's robfig/cron 1 does: six fields, of which the first has the seconds, and times in UTC
unless an administrator sets another zone. The usual expressions of five fields fire in the second 0.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchx_kfp.common.text import shown
from torchx_kfp.errors import ArgumentError

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
#: The fields by name: the least and the greatest value, and words for values from the least on.
_FIELDS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "second": (0, 59, ()),
    "minute": (0, 59, ()),
    "hour": (0, 23, ()),
    "day of the month": (1, 31, ()),
    "month": (1, 12, _MONTHS),
    "day of the week": (0, 6, _DAYS),
}
_SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_PART = re.compile(r"(\*|\?|\w+)(?:-(\w+))?(?:/(\d+))?")
#: The years in which a time is looked for: 29 February may be 8 years away.
_YEARS = 9
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Cron:
    """A cron expression; ``text`` has the six fields that KFP takes."""

    text: str
    _values: tuple[frozenset[int], ...]
    #: Whether the days of the month, and those of the week, are not restricted.
    _any_day: tuple[bool, bool]

    @classmethod
    def parse(cls, text: str) -> Cron:
        """Read an expression of five fields, of KFP's six, or a shorthand such as ``@daily``.

        Raises:
            ArgumentError: it is none of these, or never fires.
        """
        words = _SHORTHANDS.get(text.strip().lower(), text).split()
        if len(words) == 5:
            words.insert(0, "0")
        if len(words) != len(_FIELDS):
            raise _wrong(
                text,
                f"has {len(words)} fields in place of 5: minute, hour, day of the month, month and day of "
                "the week, such as '0 3 * * *' for 03:00 of each day",
            )
        values = tuple(_values_of(text, word, name) for word, name in zip(words, _FIELDS, strict=True))
        any_day = (words[3][0] in "*?", words[5][0] in "*?")
        if "7" in re.split(r"\W", words[5]):
            words[5] = ",".join(map(str, sorted(values[5])))  # Sunday, which is 0 alone for KFP
        found = cls(" ".join(words), values, any_day)
        if found.next(datetime.datetime(2024, 1, 1).timestamp()) is None:
            raise _wrong(text, "never fires: there is no such day")
        return found

    def next(self, after: float) -> float | None:
        """Return the first time after another one, both in seconds since the epoch; None if there is none."""
        start = datetime.datetime.fromtimestamp(int(after) + 1, datetime.timezone.utc)
        seconds, minutes, hours = (sorted(values) for values in self._values[:3])
        for day in self._days(start.date()):
            least = (start.hour, start.minute, start.second) if day == start.date() else (0, 0, 0)
            for hour in hours:
                for minute in minutes:
                    if (hour, minute, 59) < least:
                        continue
                    for second in seconds:
                        if (hour, minute, second) >= least:
                            when = datetime.time(hour, minute, second, tzinfo=datetime.timezone.utc)
                            return datetime.datetime.combine(day, when).timestamp()
        return None

    def _days(self, first: datetime.date) -> Iterator[datetime.date]:
        """Yield the days on which it fires."""
        _, _, _, days, months, weekdays = self._values
        any_day, any_weekday = self._any_day
        for number in range(_YEARS * 366):
            day = first + number * _DAY
            in_month, in_week = day.day in days, day.isoweekday() % 7 in weekdays
            # As everywhere in cron: of two restrictions, one is enough.
            is_day = (in_month and in_week) if any_day or any_weekday else (in_month or in_week)
            if day.month in months and is_day:
                yield day


def _values_of(text: str, word: str, name: str) -> frozenset[int]:
    least, greatest, names = _FIELDS[name]
    is_week = name == "day of the week"
    found: set[int] = set()
    for part in word.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise _wrong(
                text, f"has {part!r} as the {name}: write a number, *, a range such as 1-5, or a step such as */2"
            )
        first, last, step = match[1], match[2], int(match[3] or 1)
        if first in "*?":
            if last:
                raise _wrong(text, f"has {part!r} as the {name}")
            start, end = least, greatest
        else:
            start = _number(text, first, name, names)
            end = _number(text, last, name, names) if last else greatest if match[3] else start
        # 7 is Sunday, too.
        if start < least or end > greatest + is_week or start > end or step < 1:
            raise _wrong(text, f"has {part!r} as the {name}, which goes from {least} to {greatest}")
        found.update(value % 7 if is_week else value for value in range(start, end + 1, step))
    return frozenset(found)


def _number(text: str, word: str, name: str, names: tuple[str, ...]) -> int:
    if word.lower() in names:
        return names.index(word.lower()) + _FIELDS[name][0]
    if not word.isdecimal() or len(word) > 4:
        least, greatest, _ = _FIELDS[name]
        words = f" or one of {', '.join(names)}" if names else ""
        raise _wrong(text, f"has {word!r} as the {name}, which is not a number from {least} to {greatest}{words}")
    return int(word)


def _wrong(text: str, why: str) -> ArgumentError:
    return ArgumentError(f"The cron expression {shown(text)} {why}.")
