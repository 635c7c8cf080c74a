"""The format `logmq-table`: a protocol's records as rows of a table.

    spark.read.format("logmq-table").option("table", "dms.events").load("data")

Records are decoded in the process that reads them, so their bytes never reach the JVM. It has all options of
`logmq`, except those that choose logs, which the table does, or a part of a record.
"""

from collections.abc import MutableMapping
from functools import partial

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from brokers.pipeline import workers
from brokers.pipeline.jobs.tables import logs_of, offered
from brokers.pipeline.source import rows
from brokers.pipeline.source.data_source import BatchReader, LogmqDataSource, StreamReader
from brokers.pipeline.source.framing import IN_INDEX, SCHEMA
from brokers.pipeline.source.options import parse
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
        workers.prepare()  # a worker that raises for a mistake lives on
        given = {key.lower(): value for key, value in options.items()}
        for key, why in _NOT_OURS.items():
            if key in given:
                raise ConfigError(key, why)
        protocol, _, name = given.pop(_OWN, "").partition(".")
        if not name:
            raise ConfigError(_OWN, "say which, as in dms.events; `brokers pipeline tables` lists them")
        (found,) = offered(name, protocol)
        self._table = found.table
        super().__init__(given | logs_of(found, served="servers" in given))

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
