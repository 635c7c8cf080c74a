"""`write.format("logmq")` and `writeStream.format("logmq")`: rows appended to topics, once each.

A task writes its rows by BATCH (see `writing.py`), under names that a task which runs again finds again: the
write's own random name in a batch query, the query's id and the epoch in a stream, or the options `writer`
and `epoch`; and the number of the partition. What is written is visible at once, so there is nothing left to
do in `commit`, and nothing that could be taken back in `abort`: it says what stays.

Runs in Spark's Python workers: no trio.
"""

import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from brokers.pipeline.source.address import Reach, Server
from brokers.pipeline.source.packing import Packer
from brokers.pipeline.source.writing import Writer, Written
from shared.errors import BrokerError

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 1024 * 1024
"""The largest that a server with the usual settings takes."""
HELD_BYTES_MAX = 64 * 1024 * 1024
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_OURS = ("offset", "timestamp")
"""Columns of what the source reads, which a record gets anew."""


class WrongSchema(BrokerError):
    """Rows of these columns are no records."""


@attrs.frozen
class SinkOptions:
    """Where rows go. `writer`: the name under which they are written once; None: the query's."""

    server: Server
    reach: Reach
    topic: str | None = None
    writer: str | None = None
    epoch: int = 0
    batch_bytes: int = BATCH_BYTES


class Committed(WriterCommitMessage):
    """What one task wrote."""

    def __init__(self, written: Sequence[Written]) -> None:
        self.written = tuple(written)


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: one write, whose tasks may run again."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._name = options.writer or f"spark-{secrets.token_hex(8)}"

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Committed:
        return _write(self._options, self._name, self._options.epoch, iterator)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        again = "Written again with the same writer and epoch, nothing of it is there twice."
        if self._options.writer is None:
            again = "A new write does not know of it: the options writer and epoch make one that does."
        _say_what_stays(messages, self._options.server, again)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: epochs, each of which may be run again after a crash."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Committed:
        context = TaskContext.get()
        assert context is not None, "a sink's write runs in a task"
        query = self._options.writer or f"spark-{context.getLocalProperty(_QUERY_ID)}"
        epoch = context.getLocalProperty(_BATCH_ID)
        assert epoch is not None, "a stream's task knows its batch"
        return _write(self._options, query, int(epoch), iterator)

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        """Nothing is left to do: BATCH has made every record durable and visible."""

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        again = f"Batch {batchId} from the same checkpoint will not write it twice."
        _say_what_stays(messages, self._options.server, again)


def check_schema(schema: StructType, topic: str | None) -> None:
    """Raises WrongSchema where rows of this schema are not records."""
    fields = {field.name: field.dataType for field in schema.fields}
    value = fields.get("value")
    if value is None:
        names = ", ".join(fields) or "none"
        raise WrongSchema(
            f"a record needs a column value, binary or string; the columns are: {names}. For all of them in "
            "one: selectExpr('to_json(struct(*)) AS value')"
        )
    if not isinstance(value, BinaryType | StringType):
        raise WrongSchema(f"the column value is {value.simpleString()}; binary or string is expected")
    if topic is None and "topic" not in fields:
        raise WrongSchema("no row says where it goes: a column topic, or the option topic, is needed")
    if topic is None and not isinstance(fields["topic"], StringType):
        raise WrongSchema(f"the column topic is {fields['topic'].simpleString()}; string is expected")
    more = sorted(fields.keys() - {"value", "topic", *_OURS})
    if more:
        raise WrongSchema(
            f"a record has no place for the column {', '.join(more)}; it has value, and topic where it goes"
        )


def _write(options: SinkOptions, name: str, epoch: int, batches: "Iterable[pa.RecordBatch]") -> Committed:
    context = TaskContext.get()
    assert context is not None, "a sink's write runs in a task"
    packer = Packer(options.batch_bytes, HELD_BYTES_MAX)
    writer = Writer(options.server, options.reach, f"{name}-{context.partitionId()}", epoch)
    try:
        for batch in batches:
            topics: pa.Array | str = options.topic or batch.column("topic")
            values = batch.column("value")
            for column, what in ((values, "value"), (topics, "topic")):
                if not isinstance(column, str) and column.null_count:
                    raise WrongSchema(f"a row's {what} is null")
            for piece in packer.add(topics, values):
                writer.write(piece)
        for piece in packer.rest():
            writer.write(piece)
        return Committed(writer.finish())
    finally:
        writer.close()


def _say_what_stays(messages: "list[WriterCommitMessage | None]", server: Server, again: str) -> None:
    done = [message for message in messages if isinstance(message, Committed)]
    records = sum(written.records for message in done for written in message.written)
    print(
        f"logmq: the write to {server} was given up. {records} records of the {len(done)} tasks that had "
        f"ended stay in their topics, and so does what others had sent. {again}",
        file=sys.stderr,
    )
