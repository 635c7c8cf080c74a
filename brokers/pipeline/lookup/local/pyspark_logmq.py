"""The format `logmq` for Spark's lookup worker, and so for all sessions of a JVM.

A registered source belongs to one session, and `newSession()` makes one without it. A cluster does not get
this folder, because a source that is found here goes to executors without its files.
"""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from brokers.pipeline.source.data_source import LogmqDataSource


class DefaultSource(DataSource):  # Spark looks for this name
    """Makes a `LogmqDataSource`, imported only when needed: the lookup itself needs only the name."""

    def __new__(cls, options: MutableMapping[str, str]) -> "LogmqDataSource":  # type: ignore[misc]
        from brokers.pipeline.source.data_source import LogmqDataSource

        return LogmqDataSource(options)

    @classmethod
    def name(cls) -> str:
        return "logmq"
