"""Finds the records of topics that are sent to a broker again, from logs or an archive, through Spark.

`brokers.replaying` sends them.

A log's name here is `<place> <topic>`, because a topic may have several logs: on several brokers, or made
again after it was deleted.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from brokers.errors import ExitCode, Failure
from brokers.pipeline.jobs.frames import union
from brokers.pipeline.jobs.job_input import (
    SERVED,
    ConnectOptions,
    JobInput,
    ReadOptions,
    a_folder,
    checked_input,
)
from brokers.pipeline.source.options import Server, TopicChoice
from brokers.pipeline.source.planning import open_origin
from brokers.replaying.engine import Extents, SourcedRecord, topic_of
from shared.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def opened(words: Sequence[str], reading: ReadOptions) -> "tuple[FromLogs | FromArchive, Sequence[str]]":
    """Return the source, and the words that are left: topics. Raises UsageError, ConfigError, OSError."""
    reading = attrs.evolve(reading, connection=ConnectOptions())  # the flags of login are the target's
    if reading.servers is not None:
        return FromLogs(checked_input((), reading, bounded=False)), words
    if not words:
        raise UsageError("PATH", "give a data folder or an archive, or --servers")
    path = a_folder(words[0])
    if not (path / "FORMAT").exists() and (path / "_archive").is_dir():
        return FromArchive(path), words[1:]
    return FromLogs(checked_input([path], reading, bounded=False)), words[1:]


@attrs.frozen
class FromLogs:
    """Topics as a broker has them."""

    job_input: JobInput

    def extents(self, topics: TopicChoice) -> Extents:
        """Return the logs of topics as they are now. Raises Failure if a named topic is not there."""
        options = self.job_input.parsed()
        found = {}
        for source in options.sources:
            with open_origin(options, source) as origin:
                for name, spot in origin.spots(topics).items():
                    found[f"{source} {name}"] = spot.first, spot.end
        _require(topics, found, ", ".join(options.sources))
        return found

    def is_at(self, host: str, port: int | None) -> bool:
        """Whether the records are that server's, by its address."""
        there = Server(host) if port is None else Server(host, port)
        return self.job_input.servers is not None and str(there) in self.job_input.sources

    def frame(self, spark: "SparkSession", ranges: Mapping[str, tuple[int, int]]) -> "DataFrame":
        """Return the records of these ranges: columns log, offset, timestamp, value. Logs have any order."""
        from pyspark.sql import functions as fn

        def of(source: str) -> Iterator["DataFrame"]:
            mine = {topic_of(log): span for log, span in ranges.items() if log == f"{source} {topic_of(log)}"}
            if not mine:
                return
            reader = spark.read.format("logmq").options(**self.job_input.options_of(source))
            reader = reader.option("assign", json.dumps(list(mine)))
            for side, number in (("starting", 0), ("ending", 1)):
                reader = reader.option(
                    f"{side}Offsets", json.dumps({topic: span[number] for topic, span in mine.items()})
                )
            log = fn.concat(fn.lit(f"{source} "), "topic").alias("log")
            yield reader.load().select(log, "offset", "timestamp", "value")

        # As `extents` names them: a folder's path may be given relative to the current folder.
        return union(frame for source in self.job_input.parsed().sources for frame in of(source))


@attrs.frozen
class FromArchive:
    """What `brokers pipeline archive` has written. Its methods are those of `FromLogs`."""

    path: Path

    def extents(self, topics: TopicChoice) -> Extents:
        from brokers.pipeline.archive import committed
        from brokers.pipeline.archiving.files import LocalFiles

        manifest = committed(LocalFiles(self.path)).manifest
        if manifest.origin not in ("servers", f"a data folder's {SERVED}"):
            raise Failure(f"{self.path} is an archive of {manifest.origin}: no messages to send again")
        wanted = set(topics.matching({log.topic: log for log in manifest.logs.values()}))
        logs = [log for log in manifest.logs.values() if log.topic in wanted]
        found = {f"{log.key} {log.topic}": (log.start, log.end) for log in logs}
        _require(topics, found, str(self.path))
        return found

    def is_at(self, host: str, port: int | None) -> bool:
        return False

    def frame(self, spark: "SparkSession", ranges: Mapping[str, tuple[int, int]]) -> "DataFrame":
        from pyspark.sql import functions as fn

        from brokers.pipeline.archive import read

        spans = [(log, *span) for log, span in ranges.items()]
        wanted = fn.broadcast(spark.createDataFrame(spans, "log string, start long, stop long"))
        every = read(spark, self.path).where(fn.col("topic").isin(sorted({topic_of(log) for log in ranges})))
        named = every.select(fn.concat_ws(" ", "log", "topic").alias("log"), "offset", "timestamp", "value")
        return named.join(wanted, "log").where("offset >= start AND offset < stop").drop("start", "stop")


def topics_of(names: Sequence[str], pattern: str | None) -> TopicChoice:
    """Raises UsageError."""
    if bool(names) == (pattern is not None):
        raise UsageError("TOPIC", "say which topics, or with --pattern those whose whole name matches")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError("--pattern", f"not a regular expression: {error}") from None
        return TopicChoice(pattern=pattern)
    return TopicChoice(names=tuple(dict.fromkeys(names)))


def records_of(frame: "DataFrame", *, one_log: bool) -> Iterator[SourcedRecord]:
    """Yield the rows of a frame in the order to send them: by time, and in each log's own order.

    Within a log times never go back. `one_log`: there is only one log, so there is less to sort.
    """
    ordered = frame.orderBy("offset") if one_log else frame.orderBy("timestamp", "log", "offset")
    columns = ordered.selectExpr("log", "offset", "unix_micros(timestamp) AS us", "value")
    for row in columns.toLocalIterator(prefetchPartitions=True):
        yield SourcedRecord.of_log(row["log"], row["offset"], row["us"] / 1e6, bytes(row["value"]))


def _require(topics: TopicChoice, found: Extents, there: str) -> None:
    missing = set(topics.names) - {topic_of(log) for log in found}
    if missing:
        raise Failure(f"there is no topic {min(missing)} in {there}", ExitCode.MISSING)
    if not found:
        raise UsageError("--pattern", f"no topic in {there} matches")
