"""From options to open folders and servers, to offsets, and to the spans that a batch reads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager

from brokers.pipeline.source.folder import Folder
from brokers.pipeline.source.options import (
    NAMESPACE,
    At,
    PositionKind,
    ReadBound,
    Server,
    SourceOptions,
    TopicChoice,
)
from brokers.pipeline.source.origin import LossPolicy, Origin, rules
from brokers.pipeline.source.servers import Served
from brokers.pipeline.source.spans import LogSpot, Span
from brokers.pipeline.source.stretch import Stretch
from shared.errors import ConfigError


@contextmanager
def open_origin(options: SourceOptions, source: str) -> Iterator[Origin]:
    """Open a folder or a server of the options. It is closed in the end."""
    origin: Origin
    if options.servers:
        origin = Served(Server.parse(source), options.reach)
    else:
        origin = Folder(source, options.namespace)
    with closing(origin):
        yield origin


@contextmanager
def open_origins(options: SourceOptions) -> Iterator[Mapping[str, Origin]]:
    """Open all sources of the options at once, by name."""
    with ExitStack() as opened:
        yield {source: opened.enter_context(open_origin(options, source)) for source in options.sources}


def advance(origins: Mapping[str, Origin], stretches: Sequence[Stretch]) -> None:
    """Go on with each stretch as far as its limits allow, with all of a source together."""
    by_source: dict[str, list[Stretch]] = {}
    for stretch in stretches:
        by_source.setdefault(stretch.spot.source, []).append(stretch)
    for source, those in by_source.items():
        origins[source].advance(those)


Narrowed = Callable[[Origin, LogSpot, Span], Span]
"""Returns the part of a log's span that is to be read."""


def planned(
    options: SourceOptions, topics: TopicChoice | None = None, narrowed: Narrowed | None = None
) -> list[Span]:
    """Return the span of each log, empty ones too. Raises ConfigError, OSError, and DataLoss by the rules.

    `topics`: of those of the options.
    """
    topics, policy = topics or options.topics, rules(options)
    found: list[Span] = []
    there: set[str] = set()
    for source in options.sources:
        with open_origin(options, source) as origin:
            spots = origin.spots(topics)
            there |= spots.keys()
            starts = offsets(origin, spots, options.starting, policy)
            ends = offsets(origin, spots, options.ending, policy)
            for name, spot in spots.items():
                check_order(options, name, starts[name], ends[name])
                span = spot.span(starts[name], ends[name])
                found.append(span if narrowed is None else narrowed(origin, spot, span))
    missing = sorted(set(topics.names) - there)
    if missing:
        where = ", ".join(options.sources)
        if options.namespace != NAMESPACE:
            where += f", namespace {options.namespace}"
        raise ConfigError(options.topics.option, f"there is no {missing[0]} in {where}")
    return found


def check_order(options: SourceOptions, topic: str, start: int, end: int) -> None:
    """Raise ConfigError if reading would end before it begins.

    Two times in order are accepted: after a clock was set back, the later one may come first in the log.
    """
    first, last = options.starting.of(topic), options.ending.of(topic)
    in_order = first.kind is last.kind is PositionKind.TIME and first.value <= last.value
    if start > end and not in_order:
        raise ConfigError(options.ending.option, f"{topic} ends there at {end}, and is to begin at {start}")


def offsets(
    origin: Origin, spots: Mapping[str, LogSpot], bound: ReadBound, policy: LossPolicy
) -> dict[str, int]:
    """Return where reading begins or ends in each log. Raises ConfigError."""
    return {topic: _place(origin, spot, bound, policy) for topic, spot in spots.items()}


def _place(origin: Origin, spot: LogSpot, bound: ReadBound, policy: LossPolicy) -> int:
    at = bound.of(spot.name)
    if at.kind is PositionKind.EARLIEST:
        return spot.first
    if at.kind is PositionKind.LATEST:
        return spot.end
    if at.kind is PositionKind.TIME:
        found = origin.at_time(spot, at.value)
        if found is None and not bound.past_end_is_latest:
            text = f"{spot.name} in {spot.source} has no record of that time or later"
            raise ConfigError(
                bound.option, f"{text} (startingOffsetsByTimestampStrategy=latest: begin at the end)"
            )
        return spot.end if found is None else found
    return _exact(origin, spot, at, bound.option, policy)


def _exact(origin: Origin, spot: LogSpot, at: At, name: str, policy: LossPolicy) -> int:
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
