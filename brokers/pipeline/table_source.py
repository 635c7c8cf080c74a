"""The format `logmq-table`: a protocol's records as rows of a table.

    spark.read.format("logmq-table").option("table", "dms.events").load("data")

Records are decoded in the process that reads them, so their bytes never reach the JVM. It has all options of
`logmq`, except those that choose logs, which the table does, or a part of a record.
"""

from collections.abc import MutableMapping
from functools import partial

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from brokers.pipeline.source import rows
from brokers.pipeline.source.data_source import BatchReader, LogmqDataSource, StreamReader
from brokers.pipeline.source.framing import IN_INDEX, SCHEMA
from brokers.pipeline.source.options import parse
from brokers.pipeline.tables import table_of
from shared.errors import ConfigError

FORMAT = "logmq-table"
_OWN = "table"
_WHICH = f"which logs are read, option {_OWN} says"
_NOT_OURS = {
    **dict.fromkeys(("namespace", "subscribe", "subscribepattern", "assign"), _WHICH),
    "maxvaluebytes": "records are decoded whole",
    "prunebyfilters": "a table's columns are not the records'",
}


class TableDataSource(LogmqDataSource):
    """Logs as rows of a table's columns."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        given = {key.lower(): value for key, value in self._given.items()}
        for key, why in _NOT_OURS.items():
            if key in given:
                raise ConfigError(key, why)
        name = given.pop(_OWN, "")
        if not name:
            raise ConfigError(_OWN, "say which, as in dms.events; `brokers pipeline tables` lists them")
        found = table_of(name)
        self._table = found.table
        self._given = given | found.logs(served="servers" in given)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        super().schema()  # reports mistakes in the options
        return from_arrow_schema(self._table.schema)

    def reader(self, schema: StructType) -> BatchReader:
        table = self._table
        columns = SCHEMA.names if table.measure is None else IN_INDEX
        read = partial(rows.decoded, decode=table.decode, measure=table.measure)
        return BatchReader(parse(self._given, streaming=False), columns, read)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        read = partial(rows.decoded, decode=self._table.decode)
        return StreamReader(parse(self._given, streaming=True), read=read)
