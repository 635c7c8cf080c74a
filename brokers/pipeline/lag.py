"""How far streams are behind, for Prometheus.

    from brokers.pipeline import lag, session

    spark = session()
    lag.serve(spark)  # http://127.0.0.1:9464/metrics

Spark tells a listener of each batch of every query, in the driver. What the source `logmq` says there of the
bytes behind a batch, and how long batches take, are metrics of one small endpoint.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

PORT = 9464


class StreamLag(StreamingQueryListener):
    """Metrics of all queries of a session. Queries go by their names, and by their ids without one."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        query = ["query"]
        self.behind = Gauge(
            "brokers_stream_behind_bytes",
            "Bytes of a log that were there behind the last batch when it was planned.",
            [*query, "source", "topic"],
            registry=self.registry,
        )
        self.batch_seconds = Gauge(
            "brokers_stream_batch_seconds", "How long the last batch took.", query, registry=self.registry
        )
        self.told_at = Gauge(
            "brokers_stream_told_timestamp_seconds",
            "When Spark told of the query last: a batch, or that there is nothing new.",
            query,
            registry=self.registry,
        )
        self.rows = Counter("brokers_stream_rows", "Rows read.", query, registry=self.registry)
        self.failures = Counter(
            "brokers_stream_failures", "Queries that ended with an error.", query, registry=self.registry
        )
        self._names: dict[str, str] = {}
        self._topics: dict[str, set[tuple[str, str]]] = {}

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:  # noqa: N802 - Spark's name, as those below
        name = self._named(event.id, event.name)
        self.failures.labels(name)
        self._told(name, event.timestamp)

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:  # noqa: N802
        progress = event.progress
        name = self._named(progress.id, progress.name)
        self._told(name, progress.timestamp)
        self.batch_seconds.labels(name).set(progress.batchDuration / 1000)
        self.rows.labels(name).inc(progress.numInputRows or 0)
        found = {place: size for source in progress.sources for place, size in _behind(source.latestOffset)}
        for place in self._topics.get(name, set()) - found.keys():
            self.behind.remove(name, *place)
        for place, size in found.items():
            self.behind.labels(name, *place).set(size)
        self._topics[name] = set(found)

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:  # noqa: N802
        name = self._named(event.id)
        self._told(name, event.timestamp)
        for place in self._topics.get(name, set()):
            self.behind.labels(name, *place).set(0)

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:  # noqa: N802
        name = self._names.pop(str(event.id), str(event.id))
        if event.exception is not None:
            self.failures.labels(name).inc()
        for place in self._topics.pop(name, set()):
            self.behind.remove(name, *place)
        for metric in (self.batch_seconds, self.told_at):
            with suppress(KeyError):
                metric.remove(name)

    def _named(self, query: Any, name: str | None = None) -> str:
        return self._names.setdefault(str(query), name or str(query))

    def _told(self, name: str, timestamp: str) -> None:
        self.told_at.labels(name).set(datetime.fromisoformat(timestamp).timestamp())


def _behind(offset: str | None) -> list[tuple[tuple[str, str], int]]:
    """Return the bytes behind a batch by source and topic, as the source `logmq` tells them."""
    try:
        found = json.loads(offset or "{}")["behind_bytes"]
    except (ValueError, KeyError, TypeError):  # of another source
        return []
    return [((source, topic), size) for source, topics in found.items() for topic, size in topics.items()]


class LagServer(NamedTuple):
    """An endpoint for Prometheus, at `/metrics` of this port."""

    lag: StreamLag
    port: int
    close: Callable[[], None]


def serve(spark: "SparkSession", port: int = PORT, address: str = "127.0.0.1") -> LagServer:
    """Listen to a session's queries, and answer Prometheus. Raises OSError for a used port.

    Queries that start from now on are told of, until `close`, or the process's end.
    """
    lag = StreamLag()
    server, thread = start_http_server(port, address, registry=lag.registry)
    spark.streams.addListener(lag)

    def close() -> None:
        spark.streams.removeListener(lag)
        server.shutdown()
        server.server_close()
        thread.join()

    return LagServer(lag, server.server_port, close)
