"""Logs as Parquet: what readers may read of an archive, while an archiver goes on writing it.

    from brokers.pipeline import archive
    archive.read(spark, "/srv/archive")      # every committed record, as of now
    archive.paths("/srv/archive")            # the same as a list of files, for pandas, DuckDB, polars
    archive.position("s3://bucket/archive")  # up to which offset which log is there

The plain glob `topic=*/date=*/*.parquet` is right at every moment, too: it finds committed files only, each
record at most once. `archiving` says how files get there.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from brokers.errors import ExitCode, Failure
from brokers.pipeline.archiving import names
from brokers.pipeline.archiving.columns import TYPES
from brokers.pipeline.archiving.folder import exists, final_files, newest
from brokers.pipeline.archiving.manifest import ByteRange, LogState, Manifest
from brokers.pipeline.archiving.places import Files, place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "offset bigint, timestamp timestamp, value binary, log string, topic string, date date"
"""The columns for readers. The last two are in the paths; untyped, a topic `123` would be a number."""


@attrs.frozen
class CommittedFiles:
    """Paths below the folder. `settled` and `fresh` together have every record of the manifest, once.

    `fresh`: files that an archiver moves to their final places at this moment, or died before.
    """

    manifest: Manifest
    settled: Sequence[str]
    fresh: Sequence[str]

    def named(self) -> Iterator[tuple[names.FileName, str]]:
        """Yield every path, with what the file's name says."""
        for path in (*self.settled, *self.fresh):
            name = names.parse_file(path.rpartition("/")[2])
            assert name is not None
            yield name, path


def committed(files: Files) -> CommittedFiles:
    """Return the committed files as of one manifest. Raises Failure if nothing was archived yet."""
    manifest = newest(files)
    if manifest is None:
        raise Failure("nothing was archived here yet", ExitCode.MISSING)
    moving = {part.path: part for part in (*manifest.hot, *manifest.moves)}
    settled = []
    for path, name in final_files(files):
        log = manifest.logs.get(name.key)
        if log is not None and name.end <= log.end:  # one that ends later is a later commit's
            settled.append(path)
            moving.pop(path, None)
    fresh = []
    for path, part in moving.items():
        if exists(files, part.fresh_path):
            fresh.append(part.fresh_path)
        elif exists(files, path):
            settled.append(path)
    return CommittedFiles(manifest, settled, fresh)


def paths(folder: str | Path) -> list[str]:
    """Return the path, or URL, of every committed Parquet file, for any reader of Parquet."""
    place = place_of(folder)
    return [place.url(path) for _, path in committed(place).named()]


def position(folder: str | Path) -> Sequence[LogState]:
    """Return up to where each log is in the archive."""
    return list(committed(place_of(folder)).manifest.logs.values())


def columns(folder: str | Path) -> Mapping[str, str]:
    """Return the columns that are made of JSON, with their types in SQL. Older files have not all of them."""
    return committed(place_of(folder)).manifest.columns


def read(spark: "SparkSession", folder: str | Path) -> "DataFrame":
    """Return the archive as a DataFrame: every committed record, once, as of now.

    Columns: offset, timestamp, value, log (tells several logs of a topic apart), those of what is JSON,
    topic, date (UTC), and hour where files are cut by it. A bucket is read by Spark's own connector, which
    is no part of PySpark (`hadoop-aws` for `s3a://`).
    """
    place = place_of(folder)
    found = committed(place)
    schema = _schema(found)
    frames = []
    for base, some in (("", found.settled), (names.FRESH, found.fresh)):
        if some:
            reader = spark.read.schema(schema).option("basePath", _for_spark(place.url(base)))
            frames.append(reader.parquet(*(_for_spark(place.url(path)) for path in some)))
    if not frames:
        return spark.createDataFrame([], schema)
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _schema(found: CommittedFiles) -> str:
    """Return the columns of these files. A file that was made without one of them has nulls there."""
    columns = [SCHEMA.partition(", topic ")[0]]
    columns += [f"`{name}` {kind}" for name, kind in found.manifest.columns.items() if kind in TYPES]
    columns.append("topic string, date date")
    if any("/hour=" in path for path in (*found.settled, *found.fresh)):
        columns.append("hour int")
    return ", ".join(columns)


def _for_spark(url: str) -> str:
    return url.replace("s3://", "s3a://", 1)


REMOVED = "removed"
"""What is older than a log's first file. An archive has an age: its first days may be removed."""


@attrs.frozen
class ArchiveFault:
    """What is not right with a log's files: the records of `range` are removed, missing or double."""

    topic: str
    what: str
    range: ByteRange


def faults(files: Files) -> list[ArchiveFault]:
    """Compare the names of all committed files with the manifest: they must cover each log except its gaps.

    A name says which records its file has. The commit has checked that, so no file is opened.
    """
    found = committed(files)
    ranges: dict[str, list[ByteRange]] = {key: list(log.gaps) for key, log in found.manifest.logs.items()}
    for name, _ in found.named():
        ranges[name.key].append(ByteRange(name.start, name.end))
    wrong = []
    for key, log in found.manifest.logs.items():
        at = log.start
        for piece in sorted(ranges[key]):
            if piece.start > at:
                what = REMOVED if at == log.start else "missing"
                wrong.append(ArchiveFault(log.topic, what, ByteRange(at, piece.start)))
            elif piece.start < at:
                wrong.append(ArchiveFault(log.topic, "double", ByteRange(piece.start, min(at, piece.end))))
            at = max(at, piece.end)
        if at < log.end:
            what = REMOVED if at == log.start else "missing"
            wrong.append(ArchiveFault(log.topic, what, ByteRange(at, log.end)))
    return wrong
