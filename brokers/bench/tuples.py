"""The baseline of `brokers bench pipeline`: a source as it is usually written, which yields tuples.

It reads the same logs as ours does, and takes them apart one record after the other. It gives all columns of
each, or as little as it is asked for.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

FORMAT = "bench-tuples"


def source() -> type:
    """The data source's class, for Spark."""
    from pyspark.sql.datasource import DataSourceReader, InputPartition
    from pyspark.sql.types import StructType

    from brokers.pipeline.source import origin
    from brokers.pipeline.source.data_source import BatchReader, LogmqDataSource, spans_of
    from brokers.pipeline.source.options import SourceOptions, parse
    from brokers.pipeline.source.planning import open_origin

    class TupleReader(DataSourceReader):
        def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
            self._options = options
            self._columns = columns

        def partitions(self) -> Sequence[InputPartition]:
            return BatchReader(self._options).partitions()

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            rules = origin.rules(self._options)
            times, values = (self._columns == [name] for name in ("timestamp", "value"))
            most = self._options.max_value_bytes
            for span in spans_of(partition):
                with open_origin(self._options, span.source) as opened:
                    for chunk in opened.chunks(span, rules):
                        data, at = chunk.data, 0
                        for entry in chunk.entries:
                            time = datetime.fromtimestamp(entry.first_ms / 1000, UTC)
                            for _ in range(entry.records):
                                begin = at + 4
                                end = begin + int.from_bytes(data[at:begin], "big")
                                offset = chunk.offset + at
                                if span.start <= offset < span.stop:
                                    if times:
                                        yield (time,)
                                    elif values:
                                        yield (data[begin : end if most is None else min(begin + most, end)],)
                                    else:
                                        yield span.topic, offset, time, data[begin:end]
                                at = end

    class TupleSource(LogmqDataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def reader(self, schema: StructType) -> Any:
            return TupleReader(parse(self._given, streaming=False), schema.names)

    return TupleSource
