"""Logs as Parquet, partitioned by topic and date, each record exactly once: `brokers pipeline archive`.

    from brokers.pipeline import archive
    archive.read(spark, "/srv/archive")      # every committed record, as of now
    archive.paths("/srv/archive")            # the same as a list of files, for pandas, DuckDB, polars

What a round does (`job.py`): ask where the logs end; cut what is new into ranges; let Spark's executors read
each range and write its records with pyarrow (`writer.py`); commit a manifest that names the files
(`folder.py`). The records go from the log to Parquet in one process, and never through the JVM.

**Why it is exactly once.** The manifest (`manifest.py`) is the one thing that says up to which offset a log
is in the archive, and the same write that adds files moves that offset. So there is no second place, no
checkpoint beside it, that could disagree after a crash. A range's offsets are in its file's name, and its
writer has checked that the records follow each other byte by byte from its start to its end.

**What readers see.** Files are written in a hidden folder; once a commit has named them they are renamed to
`topic=.../date=.../`. A continuous archive commits every second or so, which would make many small files:
until enough came together they stay hidden as *fresh* files, which `read` and `paths` know of, and are then
*settled*: written anew as one. A glob over `topic=*/date=*/*.parquet` sees settled files only, each record at
most once.
"""

from brokers.pipeline.archive.reading import paths, position, read

__all__ = ["paths", "position", "read"]
