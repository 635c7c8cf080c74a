"""Reading tables in this process, as Arrow and without Spark."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from brokers.pipeline import workers
from brokers.pipeline.jobs.frames import told_apart
from brokers.pipeline.jobs.offers import Offered, logs_of
from brokers.pipeline.jobs.where import Where
from brokers.pipeline.source import rows as records
from brokers.pipeline.source.options import Options, parse
from brokers.pipeline.source.planning import planned

BYTES_MAX = 2 << 30
"""More than that to read is for Spark, which reads it side by side and needs no room for all of it."""
INDEX_SHARE = 100
"""Where a log's index is enough, of each so many of its bytes one is counted."""


def size(where: Where, chosen: Iterable[Offered]) -> int:
    """How much there is to read for these tables, as bytes of logs. Raises as the reading does."""
    return sum(_size(where, source, each) for each in chosen for source in where.sources)


def _size(where: Where, source: str, each: Offered) -> int:
    total = sum(max(span.length, 0) for span in planned(_options(where, source, each)))
    return total // INDEX_SHARE if each.table.measure is not None else total


def decoded(where: Where, each: Offered) -> pa.Table:
    """What the records are as rows, one by one, in the order of each log."""
    schema = each.table.schema
    return told_apart(
        {
            source: pa.Table.from_batches(batches(where, source, each), schema=schema)
            for source in where.sources
        }
    )


def rows(where: Where, each: Offered) -> pa.Table:
    """The table: gathered where it has to be, of each broker by itself. Raises TooMany."""
    if each.table.fold is None:
        return decoded(where, each)
    return told_apart({source: each.table.fold(batches(where, source, each)) for source in where.sources})


def batches(where: Where, source: str, each: Offered) -> Iterator[pa.RecordBatch]:
    """What is decoded of one of the places."""
    workers.prepare()
    options = _options(where, source, each)
    spans, table = planned(options), each.table
    if table.measure is not None:
        return map(table.measure, records.entries(options, spans))
    return map(table.decode, records.read(options, spans))


def _options(where: Where, source: str, each: Offered) -> Options:
    served = where.servers is not None
    return parse(where.options_of(source) | logs_of(each, served=served), streaming=False)
