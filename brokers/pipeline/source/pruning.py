"""From a query's filters to what it wants of the logs, and to the part of each log that has it.

Only whole index entries are left out, never a record that a filter might keep. So Spark applies all filters
again, except those on the topic, which are exact here.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from brokers.pipeline.source.options import TopicChoice
from brokers.pipeline.source.origin import Origin
from brokers.pipeline.source.spans import LogSpot, Span
from shared.errors import BrokerError

_EPOCH = datetime.fromtimestamp(0, UTC)
_MICROSECOND = timedelta(microseconds=1)


@attrs.frozen
class NumberRange:
    """Whole numbers from `low` to `high`, both included. None means no bound."""

    low: int | None = None
    high: int | None = None

    def __and__(self, other: "NumberRange") -> "NumberRange":
        lows = [each for each in (self.low, other.low) if each is not None]
        highs = [each for each in (self.high, other.high) if each is not None]
        return NumberRange(max(lows, default=None), min(highs, default=None))


@attrs.frozen
class Wanted:
    """What a query wants: topics (None: all), offsets, and times in milliseconds.

    Times never go down from entry to entry (STORAGE.md), and a record's `timestamp` is that of its entry.
    Damaged ranges have no time: they are read, and reported.
    """

    topics: frozenset[str] | None = None
    offsets: NumberRange = NumberRange()
    times: NumberRange = NumberRange()

    def among(self, topics: TopicChoice) -> TopicChoice:
        if self.topics is None:
            return topics
        names = [name for name in sorted(self.topics) if not topics.names or name in topics.names]
        if topics.pattern is None:
            return attrs.evolve(topics, names=tuple(names))
        names = [re.escape(name) for name in names if re.fullmatch(topics.pattern, name)]
        return attrs.evolve(topics, pattern="|".join(names) or r"(?!)")

    def within(self, place: Origin, spot: LogSpot, span: Span) -> Span:
        """Return the wanted part of a log's span, with at most one entry more at each side."""
        start, stop = span.start, span.stop
        low, high = self.offsets.low, self.offsets.high
        if low is not None and low > start:
            start = place.cut(span, low) if low < stop else stop
        if high is not None and high < stop:
            stop = max(place.entry_end(spot, high), high + 1) if high >= start else start
        try:
            start, stop = self._in_time(place, spot, span, start, stop)
        except BrokerError:  # the place cannot tell; the reader reports why
            pass
        return attrs.evolve(span, start=max(start, span.start), stop=min(stop, span.stop))

    def _in_time(self, place: Origin, spot: LogSpot, span: Span, start: int, stop: int) -> tuple[int, int]:
        low, high = self.times.low, self.times.high
        if low is not None:
            first = place.at_time(spot, max(low, 0))
            # Begin with the entry before the first one that is late enough: damage may lie between the two.
            start = max(start, place.cut(span, max((spot.end if first is None else first) - 1, span.start)))
        if high is not None:
            last = place.at_time(spot, max(high + 1, 0))  # the last entry that may have begun early enough
            stop = stop if last is None else min(stop, place.entry_end(spot, last))
        return start, stop


def wanted(filters: Iterable[Filter]) -> tuple[Wanted, list[Filter]]:
    """Return what all filters together leave, and the filters that Spark still has to apply."""
    found, left = Wanted(), []
    for each in filters:
        name = ".".join(getattr(each, "attribute", ()))
        if name == "topic" and (topics := _topics(each)) is not None:
            found = attrs.evolve(found, topics=topics if found.topics is None else found.topics & topics)
            continue
        if name == "offset":
            found = attrs.evolve(found, offsets=found.offsets & _range(each, _whole, 1))
        elif name == "timestamp":
            found = attrs.evolve(found, times=found.times & _range(each, _micros, 1000))
        left.append(each)
    return found, left


def _values(filter_: Filter) -> tuple[Any, ...]:
    """Return the values of an equality filter; none for another filter."""
    if isinstance(filter_, EqualTo | EqualNullSafe):
        return (filter_.value,)
    return tuple(filter_.value) if isinstance(filter_, In) else ()


def _topics(filter_: Filter) -> frozenset[str] | None:
    values = _values(filter_)
    return frozenset(values) if values and all(isinstance(value, str) for value in values) else None


def _range(filter_: Filter, number: Any, unit: int) -> NumberRange:
    """Return a filter's bounds in units of `unit`. `number` converts a value, or returns None: no bounds."""
    if values := [number(value) for value in _values(filter_)]:
        return (
            NumberRange(-(-min(values) // unit), max(values) // unit) if None not in values else NumberRange()
        )
    bound = number(getattr(filter_, "value", None))
    match filter_:
        case _ if bound is None:
            return NumberRange()
        case GreaterThan():
            return NumberRange(low=bound // unit + 1)
        case GreaterThanOrEqual():
            return NumberRange(low=-(-bound // unit))
        case LessThan():
            return NumberRange(high=-(-bound // unit) - 1)
        case LessThanOrEqual():
            return NumberRange(high=bound // unit)
    return NumberRange()


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _micros(value: Any) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND
