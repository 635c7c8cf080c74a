"""From options to open folders and servers, to offsets, and to the ranges that a batch reads."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager

from brokers.pipeline.source.folder import FolderReader
from brokers.pipeline.source.options import NAMESPACE, At, PositionKind, ReadBound, Server, SourceOptions
from brokers.pipeline.source.ranges import LogRange
from brokers.pipeline.source.reader import LossPolicy, SourceReader, rules
from brokers.pipeline.source.servers import ServerReader
from brokers.pipeline.source.shipped import ShippedReader, is_bucket
from shared.errors import ConfigError


@contextmanager
def open_reader(options: SourceOptions, source: str) -> Iterator[SourceReader]:
    """Open a folder or a server of the options. It is closed in the end."""
    reader: SourceReader
    if options.servers:
        reader = ServerReader(Server.parse(source), options.reach)
    elif is_bucket(source):
        reader = ShippedReader(source, options)
    else:
        reader = FolderReader(source, options.namespace)
    with closing(reader):
        yield reader


@contextmanager
def open_readers(options: SourceOptions) -> Iterator[Mapping[str, SourceReader]]:
    """Open all sources of the options at once, by name."""
    with ExitStack() as opened:
        yield {source: opened.enter_context(open_reader(options, source)) for source in options.sources}


def planned(options: SourceOptions) -> list[LogRange]:
    """Return the range of each log, empty ones too.

    Raises ConfigError, OSError, and DataLoss by the rules.
    """
    policy = rules(options)
    ranges: list[LogRange] = []
    for source in options.sources:
        with open_reader(options, source) as reader:
            logs = reader.logs(options.topics)
            starts = offsets(reader, logs, options.starting, policy)
            ends = offsets(reader, logs, options.ending, policy)
            for name, log in logs.items():
                check_order(options, name, starts[name], ends[name])
                ranges.append(log.part(starts[name], ends[name]))
    missing = sorted(set(options.topics.names) - {each.topic for each in ranges})
    if missing:
        where = ", ".join(options.sources)
        if options.namespace != NAMESPACE:
            where += f", namespace {options.namespace}"
        raise ConfigError(options.topics.option, f"there is no {missing[0]} in {where}")
    return ranges


def check_order(options: SourceOptions, topic: str, start: int, end: int) -> None:
    """Raise ConfigError if reading would end before it begins.

    Two times in order are accepted: after a clock was set back, the later one may come first in the log.
    """
    first, last = options.starting.of(topic), options.ending.of(topic)
    in_order = first.kind is last.kind is PositionKind.TIME and first.value <= last.value
    if start > end and not in_order:
        raise ConfigError(options.ending.option, f"{topic} ends there at {end}, and is to begin at {start}")


def offsets(
    reader: SourceReader, logs: Mapping[str, LogRange], bound: ReadBound, policy: LossPolicy
) -> dict[str, int]:
    """Return where reading begins or ends in each log. Raises ConfigError."""
    return {topic: _offset(reader, log, bound, policy) for topic, log in logs.items()}


def _offset(reader: SourceReader, log: LogRange, bound: ReadBound, policy: LossPolicy) -> int:
    at = bound.of(log.topic)
    if at.kind is PositionKind.EARLIEST:
        return log.start
    if at.kind is PositionKind.LATEST:
        return log.stop
    if at.kind is PositionKind.TIME:
        offset = reader.at_time(log, at.value)
        if offset is None and not bound.past_end_is_latest:
            text = f"{log.topic} in {log.source} has no record of that time or later"
            raise ConfigError(
                bound.option, f"{text} (startingOffsetsByTimestampStrategy=latest: begin at the end)"
            )
        return log.stop if offset is None else offset
    return _exact(reader, log, at, bound.option, policy)


def _exact(reader: SourceReader, log: LogRange, at: At, name: str, policy: LossPolicy) -> int:
    if at.value < log.start:
        policy.lose(f"{log.topic} in {log.source} begins at {log.start}, {name} says {at.value}")
        return log.start
    if at.value > log.stop:
        policy.lose(f"{log.topic} in {log.source} ends at {log.stop}, {name} says {at.value}")
        return log.stop
    below = reader.start_below(log, at.value)
    if below != at.value:
        raise ConfigError(
            name, f"{at.value} is not the start of a record of {log.topic}; the nearest below is {below}"
        )
    return at.value
