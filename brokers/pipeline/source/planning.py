"""Which spans of logs a batch reads, from what its options and a query's filters say."""

from contextlib import closing
from typing import TYPE_CHECKING

from brokers.pipeline.source import positions, rows
from brokers.pipeline.source.options import NAMESPACE, Kind, Options
from brokers.pipeline.source.places import open_place
from brokers.pipeline.source.spans import Span
from shared.errors import ConfigError

if TYPE_CHECKING:
    from brokers.pipeline.source.pruning import Wanted


def planned(options: Options, wanted: "Wanted | None" = None) -> list[Span]:
    """Each log's, empty ones too. Raises ConfigError, OSError, and DataLoss by the rules."""
    topics = options.topics if wanted is None else wanted.among(options.topics)
    rules = rows.rules(options)
    found: list[Span] = []
    there: set[str] = set()
    for source in options.sources:
        with closing(open_place(options, source)) as place:
            spots = place.spots(topics)
            there |= spots.keys()
            starts = positions.offsets(place, spots, options.starting, rules)
            ends = positions.offsets(place, spots, options.ending, rules)
            for name in spots:
                check_order(options, name, starts[name], ends[name])
            for name, spot in spots.items():
                span = Span(source, name, spot.id, starts[name], ends[name])
                found.append(span if wanted is None else wanted.within(place, spot, span))
    missing = sorted(set(topics.names) - there)
    if missing:
        where = ", ".join(options.sources)
        if options.namespace != NAMESPACE:
            where += f", namespace {options.namespace}"
        raise ConfigError(options.topics.option, f"there is no {missing[0]} in {where}")
    return found


def check_order(options: Options, topic: str, start: int, end: int) -> None:
    """Raises ConfigError where reading would end before it begins.

    Not for times in order: clocks are set back, and then a later one may stand in front.
    """
    first, last = options.starting.of(topic), options.ending.of(topic)
    in_order = first.kind is last.kind is Kind.TIME and first.value <= last.value
    if start > end and not in_order:
        raise ConfigError(options.ending.option, f"{topic} ends there at {end}, and is to begin at {start}")
