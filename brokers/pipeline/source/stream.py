"""Following logs: where a stream stands, and how far its next batch goes.

A stream's offset is `{"logs": {source: {topic: [offset, id]}}}`. If a batch is the first to have a log, the
offset also has `{"began": {source: {topic: offset}}}`, where the batch begins in that log. So the end of the
first batch, which Spark keeps in its checkpoint, says what `latest` meant then. The initial offset is always
`{}`, so Spark may ask for it again when it recovers the first batch.
"""

import os
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import attrs

from brokers.pipeline.source import planning
from brokers.pipeline.source.batch_range import BatchRange
from brokers.pipeline.source.options import SourceOptions
from brokers.pipeline.source.planning import open_readers
from brokers.pipeline.source.ranges import LogRange, fair_shares
from brokers.pipeline.source.reader import LossPolicy, SourceReader, rules, warn
from shared.errors import ConfigError
from shared.storage.format import LENGTH_BYTES

Offset = dict[str, Any]
Known = Mapping[str, Mapping[str, tuple[int, int]]]
"""By source and topic: the offset at which a stream stands, and the log's id."""

INITIAL: Offset = {}


@attrs.frozen
class Limit:
    """The most records, and the most bytes of the logs, that a batch has. None means no limit."""

    records: int | None = None
    length: int | None = None


Target = Mapping[str, Mapping[str, LogRange]]
"""By source and topic: the logs that a stream reads, each up to its end."""


def target(options: SourceOptions) -> Target:
    """Return what there is now, for a stream that ends there (`availableNow`)."""
    with open_readers(options) as readers:
        return {source: reader.logs(options.topics) for source, reader in readers.items()}


@attrs.frozen
class Plan:
    """Where a batch ends, and how many bytes each log has after that, by source and topic."""

    end: Offset
    behind: Mapping[str, Mapping[str, int]]


def planned(options: SourceOptions, start: Offset, limit: Limit, target: Target | None = None) -> Plan:
    """Plan the batch that begins at `start`. Without anything to read it ends at `start`, too.

    `target`: go no further. Raises DataLoss by the rules, ConfigError, OSError.
    """
    known, policy = _known(options, start), rules(options)
    parts: list[BatchRange] = []
    for source in (known or {}).keys() - set(options.sources):
        policy.lose(
            f"{source}, which the stream has read, is not among {', '.join(options.sources)} any more"
        )
    with open_readers(options) as readers:
        for source, reader in readers.items():
            logs = reader.logs(options.topics)
            if target is not None:
                logs = _within(logs, target.get(source, {}))
            if known is None:
                for name in set(options.topics.names) - logs.keys():
                    warn(f"there is no {name} in {source} yet: the stream reads it once it is there")
                parts += _first(options, policy, reader, logs)
            else:
                parts += _next(options, policy, reader, logs, known.get(source, {}))
        _advance(readers, parts, limit)
    logs_end: dict[str, dict[str, list[int]]] = {source: {} for source in options.sources}
    began: dict[str, dict[str, int]] = {}
    behind: dict[str, dict[str, int]] = {}
    for part in parts:
        source, name = part.log.source, part.log.topic
        logs_end[source][name] = [part.stop, part.log.log_id]
        behind.setdefault(source, {})[name] = part.log.stop - part.stop
        if part.is_new:
            began.setdefault(source, {})[name] = part.start
    end: Offset = {"logs": logs_end} | ({"began": began} if began else {})
    is_still = not began and known is not None and _offsets(logs_end) == _offsets(known)
    return Plan(start if is_still else end, behind)


def ranges(options: SourceOptions, start: Offset, end: Offset) -> list[LogRange]:
    """Return the ranges between two offsets of a stream."""
    known = _known(options, start) or {}
    between = []
    for source, logs in (_known(options, end) or {}).items():
        began = _here(options, end, "began").get(source, {})
        for name, (stop, log_id) in logs.items():
            begin = began[name] if name in began else known[source][name][0]
            between.append(LogRange(source, name, log_id, begin, stop))
    return between


def _known(options: SourceOptions, offset: Offset) -> Known | None:
    """Return where an offset stands; None for the initial offset."""
    return _here(options, offset, "logs") if offset else None


def _here(options: SourceOptions, offset: Offset, part: str) -> Any:
    """Return a part of an offset, by the options' sources.

    If the offset and the options have one source each, it is the same one: folders are moved, and brokers get
    new names. A folder is also known by its other paths; offsets of older releases may have several of them.
    Raises ConfigError for a checkpoint of a folder that goes on with servers, or the other way: the ids of
    its logs mean nothing there.
    """
    by_source = offset.get(part, {})
    for source in offset["logs"]:
        if os.path.isabs(source) == bool(options.servers):
            before, now = ("a data folder", "servers") if options.servers else ("servers", "a data folder")
            raise ConfigError(
                "servers" if options.servers else "path",
                f"the checkpoint is of {before} ({source}), and cannot go on with {now}: it takes a new "
                "checkpoint, with startingOffsets that say from where",
            )
    if len(offset["logs"]) == 1 and len(options.sources) == 1:
        return dict(zip(options.sources, by_source.values(), strict=False))
    if options.servers:
        return by_source
    names = {os.path.realpath(path): path for path in options.paths}
    return {names.get(os.path.realpath(source), source): logs for source, logs in by_source.items()}


def _within(logs: Mapping[str, LogRange], target: Mapping[str, LogRange]) -> dict[str, LogRange]:
    """Return the logs of a source that belong to the target, each cut at the target's end."""
    return {
        name: log.part(log.start, max(min(log.stop, target[name].stop), log.start))
        for name, log in logs.items()
        if name in target
    }


def _first(
    options: SourceOptions, policy: LossPolicy, reader: SourceReader, logs: Mapping[str, LogRange]
) -> list[BatchRange]:
    starts = planning.offsets(reader, logs, options.starting, policy)
    return [BatchRange(log, min(starts[name], log.stop), is_new=True) for name, log in logs.items()]


def _next(
    options: SourceOptions,
    policy: LossPolicy,
    reader: SourceReader,
    logs: Mapping[str, LogRange],
    known: Mapping[str, tuple[int, int]],
) -> list[BatchRange]:
    wanted = options.topics.matching(known)
    for name in known.keys() - logs.keys():
        what = (
            "has been deleted" if name in wanted else f"is not asked for any more ({options.topics.option})"
        )
        policy.lose(f"{name} in {reader.source}, read up to {known[name][0]}, {what}")
    parts = []
    for name, log in logs.items():
        offset, log_id = known.get(name, (None, 0))
        if offset is not None and reader.is_other(log, log_id, offset):
            policy.lose(f"{name} in {reader.source}, read up to {offset}, has been deleted and made again")
            offset = None
        if offset is None:
            parts.append(BatchRange(log, log.start, is_new=True))
        else:  # an index entry that is being written can hide an end that was seen before
            parts.append(BatchRange(attrs.evolve(log, stop=max(log.stop, offset)), offset))
    return parts


def _advance(readers: Mapping[str, SourceReader], parts: Sequence[BatchRange], limit: Limit) -> None:
    """Go on with each part as far as the batch goes.

    Logs get equal shares. What short logs leave goes to the longer ones. Each gets one record at least.
    """
    going = [part for part in parts if part.length > 0]
    going.sort(key=lambda part: (part.length, part.log.source, part.log.topic))
    if limit.length is not None:
        sizes = fair_shares(limit.length, [part.length for part in going], least=1)
        for part, size in zip(going, sizes, strict=True):
            part.bytes_max = size
    if limit.records is not None:
        _advance_together(readers, going, limit.records)
    elif limit.length is not None:
        for part in going:
            part.advance(readers[part.log.source])
    else:
        for part in going:
            part.stop = part.log.stop
    for part in going:
        assert part.stop > part.start, "a stream that does not move on would stand still for ever"


def _advance_together(readers: Mapping[str, SourceReader], every: Sequence[BatchRange], total: int) -> None:
    """Advance all until they have `total` records together.

    How many records a log has is known only after it was advanced. So what short logs leave is shared out in
    further rounds.
    """
    going, records, least = every, total, 1
    while going and records > 0:
        wanted = [ceil((part.log.stop - part.stop) / LENGTH_BYTES) for part in going]
        shares = fair_shares(records, wanted, least=least)
        given = [(part, share) for part, share in zip(going, shares, strict=True) if share]
        for part, share in given:
            part.records_max = part.records + share
            part.advance(readers[part.log.source])
        going = [part for part, _ in given if part.records == part.records_max and part.stop < part.log.stop]
        records, least = total - sum(part.records for part in every), 0


def _offsets(logs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    return {
        source: {name: known[0] for name, known in of_source.items()} for source, of_source in logs.items()
    }
