"""What Spark's worker that looks for data sources finds: the format `logmq`, for all of a JVM's sessions.

A source that is registered is one session's, and `newSession()` makes one without. Not for a cluster: what is
found so goes to executors without the files that it needs.
"""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from brokers.pipeline.source.data_source import LogmqDataSource


class DefaultSource(DataSource):  # the name that Spark asks for
    """Makes ours, which is imported only then: each JVM looks, and needs no more than the name for that."""

    def __new__(cls, options: MutableMapping[str, str]) -> "LogmqDataSource":  # type: ignore[misc]
        from brokers.pipeline.source.data_source import LogmqDataSource

        return LogmqDataSource(options)

    @classmethod
    def name(cls) -> str:
        return "logmq"
