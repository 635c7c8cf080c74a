"""From a query's filters to what it wants of the logs (`planning.Wanted`).

Only whole index entries are left out, never a record that a filter might keep. So Spark applies all filters
again, except those on the topic, which are exact here.
"""

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

from brokers.pipeline.source.planning import NumberRange, Wanted

_EPOCH = datetime.fromtimestamp(0, UTC)
_MICROSECOND = timedelta(microseconds=1)


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
