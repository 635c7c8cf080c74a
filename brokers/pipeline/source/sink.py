"""`write.format("logmq")` and `writeStream.format("logmq")`: rows appended to topics, once each.

A task writes its rows in pieces, by BATCH (see `writing.py`), under a name that a repeated task has again.
The name has the number of the partition, and the option `writer`. Without that option a batch has a random
name of its own, and a stream its query's id. The same rows always make the same full pieces.

The last pieces may differ: if the source of the rows fails, Spark ends a Python task's input as if it were
whole. So a task passes the last piece of each topic to the driver, which writes these in `commit`, when all
tasks have ended well. Written pieces cannot be taken back, which `abort` says.

Runs in Spark's Python workers: no trio.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from brokers.pipeline.source.options import Server, SinkOptions, parse_sink
from brokers.pipeline.source.origin import warn
from brokers.pipeline.source.writing import REMEMBERED, NotWritten, PackedRecords, Packer, Writer
from shared.errors import BrokerError, ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

WRITERS_MAX = 1024
"""How many writers a server with default settings remembers, over all topics."""
HELD_BYTES_MAX = 16 * 1024 * 1024
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_OURS = ("offset", "timestamp")
"""Columns that the source reads and the sink ignores: the server sets them."""


class WrongSchema(BrokerError):
    """Rows with these columns cannot become records."""


@attrs.define(eq=False)
class Done(WriterCommitMessage):
    """What a partition's task wrote (its name, pieces by topic, records), and the pieces that are left."""

    name: str
    partition: int
    pieces: dict[str, int]
    records: int
    rest: Sequence[PackedRecords]


Messages = list[WriterCommitMessage | None]


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: one write. Its tasks may run again."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._name = options.writer or f"spark-{secrets.token_hex(8)}"

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Done:
        return _write(self._options, self._name, self._options.epoch, iterator)

    def commit(self, messages: Messages) -> None:
        _commit(self._options, self._options.epoch, messages)

    def abort(self, messages: Messages) -> None:
        again = "Written again with the same writer and epoch, nothing of it is there twice."
        if self._options.writer is None:
            again = "A new write does not know of it: the options writer and epoch make one that does."
        _say_what_stays(messages, self._options.server, again)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: epochs, each of which may run again after a crash."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Done:
        context = _task()
        query, epoch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or epoch is None:  # a name that is not this query's alone would lose rows
            raise NotWritten("Spark does not tell the sink which query and batch this is")
        return _write(self._options, self._options.writer or f"spark-{query}", int(epoch), iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        _commit(self._options, batchId, messages)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        again = f"Batch {batchId} from the same checkpoint will not write it twice."
        _say_what_stays(messages, self._options.server, again)


def checked(given: Mapping[str, str], schema: StructType, overwrite: bool, *, streaming: bool) -> SinkOptions:
    """Check what a query asks for. Raises ConfigError, and WrongSchema if its rows cannot become records."""
    if overwrite:
        raise ConfigError("mode", "a topic is only ever added to: mode, or a stream's outputMode, append")
    options = parse_sink(given, streaming=streaming)
    topic = options.topic
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
    return options


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a sink's write runs in a task"
    return context


def _write(options: SinkOptions, name: str, epoch: int, batches: "Iterable[pa.RecordBatch]") -> Done:
    """Write all full pieces of a partition, in an executor."""
    partition = _task().partitionId()
    packer = Packer(options.batch_bytes, HELD_BYTES_MAX)
    written: dict[str, int] = {}
    records = 0
    with closing(Writer(options.server, options.reach, epoch)) as writer:
        for batch in batches:
            topics: pa.Array | str = options.topic or batch.column("topic")
            values = batch.column("value")
            for column, what in ((values, "value"), (topics, "topic")):
                if not isinstance(column, str) and column.null_count:
                    raise WrongSchema(f"a row's {what} is null")
            for piece in packer.add(topics, values):
                number = written.get(piece.topic, 0)
                writer.write(piece, f"{name}-{partition}", number)
                written[piece.topic] = number + 1
                records += piece.count
        writer.finish()
    return Done(name, partition, written, records, list(packer.rest()))


def _commit(options: SinkOptions, epoch: int, messages: Messages) -> None:
    """Write the pieces that the tasks have left, in the driver."""
    writers = 0
    with closing(Writer(options.server, options.reach, epoch)) as writer:
        for done in _done(messages):
            for piece in done.rest:
                number = done.pieces[piece.topic] = done.pieces.get(piece.topic, 0) + 1
                writer.write(piece, f"{done.name}-{done.partition}", number - 1)
            writers += sum(-(-number // REMEMBERED) for number in done.pieces.values())
        writer.finish()
    if writers > WRITERS_MAX:
        warn(
            f"this write had {writers} writers (one for each topic and partition), and {options.server} "
            f"remembers {WRITERS_MAX}, unless writers_max of [logmq] says more. Run again, a part of "
            "it may be written twice"
        )


def _done(messages: Messages) -> list[Done]:
    return [message for message in messages if isinstance(message, Done)]


def _say_what_stays(messages: Messages, server: Server, again: str) -> None:
    done = _done(messages)
    warn(
        f"the write to {server} was given up. {sum(each.records for each in done)} records of the "
        f"{len(done)} tasks that had ended stay in their topics, and so does what others had sent. {again}"
    )
