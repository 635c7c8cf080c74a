"""From what the options say to offsets in logs that are there."""

from collections.abc import Mapping

from brokers.pipeline.source.options import At, Bound, Kind
from brokers.pipeline.source.origin import LogSpot, Origin, Policy
from shared.errors import ConfigError

Spots = Mapping[str, LogSpot]
"""Logs of one place, by topic."""


def offsets(origin: Origin, spots: Spots, bound: Bound, policy: Policy) -> dict[str, int]:
    """Where reading begins or ends in each log. Raises ConfigError."""
    return {topic: _place(origin, spot, bound, policy) for topic, spot in spots.items()}


def _place(origin: Origin, spot: LogSpot, bound: Bound, policy: Policy) -> int:
    at = bound.of(spot.name)
    if at.kind is Kind.EARLIEST:
        return spot.first
    if at.kind is Kind.LATEST:
        return spot.end
    if at.kind is Kind.TIME:
        found = origin.at_time(spot, at.value)
        if found is None and not bound.past_end_is_latest:
            text = f"{spot.name} in {spot.source} has no record of that time or later"
            raise ConfigError(
                bound.option, f"{text} (startingOffsetsByTimestampStrategy=latest: begin at the end)"
            )
        return spot.end if found is None else found
    return _exact(origin, spot, at, bound.option, policy)


def _exact(origin: Origin, spot: LogSpot, at: At, name: str, policy: Policy) -> int:
    if at.value < spot.first:
        policy.lose(f"{spot.name} in {spot.source} begins at {spot.first}, {name} says {at.value}")
        return spot.first
    if at.value > spot.end:
        policy.lose(f"{spot.name} in {spot.source} ends at {spot.end}, {name} says {at.value}")
        return spot.end
    below = origin.start_below(spot, at.value)
    if below != at.value:
        raise ConfigError(
            name, f"{at.value} is not the start of a record of {spot.name}; the nearest below is {below}"
        )
    return at.value
