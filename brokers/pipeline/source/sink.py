"""`write.format("logmq")` and `writeStream.format("logmq")`: rows appended to topics, once each.

A task writes its rows in pieces, by BATCH (see `writing.py`), under a name that a repeated task has again.
The name has the number of the partition, and the option `writer`. Without that option a batch has a random
name of its own; a stream's always has its query's id. The same rows always make the same full pieces.

The last pieces may differ: if the source of the rows fails, Spark ends a Python task's input as if it were
whole. So a task writes the last piece of each topic once Spark has said that the rows have ended
(`require_whole_input`). Nothing passes the driver. Written pieces cannot be taken back, which `abort` says.

Runs in Spark's Python workers: no trio.
"""

import inspect
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from brokers.pipeline.source.options import Server, SinkOptions, parse_sink
from brokers.pipeline.source.reader import warn
from brokers.pipeline.source.writing import REMEMBERED, NotWritten, Packer, Writer
from shared.errors import BrokerError, ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from brokers.pipeline.source.writing import PackedRecords

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
    """What a partition's task wrote: pieces by topic, and records."""

    pieces: dict[str, int]
    records: int


Messages = list[WriterCommitMessage | None]


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: one write. Its tasks may run again."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._name = options.writer or f"spark-{secrets.token_hex(8)}"

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Done:
        _refuse_table()
        return _write(self._options, self._name, self._options.epoch, iterator)

    def commit(self, messages: Messages) -> None:
        _check_writers(self._options, messages)

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
        # A writer's name alone would be another query's, too, whose epochs begin at 0 again.
        return _write(self._options, f"{self._options.writer or 'spark'}-{query}", int(epoch), iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        _check_writers(self._options, messages)

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


def _refuse_table() -> None:
    """Raise ConfigError in `saveAsTable` and CREATE TABLE ... AS, whose table nobody could read.

    Spark runs their write within another execution, as else only the function of `foreachBatch` does. When
    the write fails, it drops the table.
    """
    context = _task()
    own, root = map(context.getLocalProperty, ("spark.sql.execution.id", "spark.sql.execution.root.id"))
    if own != root and context.getLocalProperty(_QUERY_ID) is None:
        text = (
            "a source in Python is not told a table's options, so nobody could read it; rows are written by"
        )
        raise ConfigError("saveAsTable", f"{text} save(), or by INSERT INTO a temporary view")


def _write(options: SinkOptions, name: str, epoch: int, batches: "Iterable[pa.RecordBatch]") -> Done:
    """Write the rows of a partition, in an executor."""
    partition = _task().partitionId()
    packer = Packer(options.batch_bytes, HELD_BYTES_MAX)
    written: dict[str, int] = {}
    records = 0
    with closing(Writer(options.server, options.reach, epoch)) as writer:

        def send(pieces: "Iterable[PackedRecords]") -> None:
            nonlocal records
            for piece in pieces:
                number = written.get(piece.topic, 0)
                writer.write(piece, f"{name}-{partition}", number)
                written[piece.topic] = number + 1
                records += piece.count

        for batch in batches:
            topics: pa.Array | str = options.topic or batch.column("topic")
            values = batch.column("value")
            for column, what in ((values, "value"), (topics, "topic")):
                if not isinstance(column, str) and column.null_count:
                    raise WrongSchema(f"a row's {what} is null")
            send(packer.add(topics, values))
        require_whole_input()
        send(packer.rest())
        writer.finish()
    return Done(written, records)


def require_whole_input() -> None:
    """Wait for Spark's word that a task's rows have ended. Raises NotWritten if what makes them has failed.

    Spark (4.3) then ends the rows all the same, and shuts the connection; else a word of its own follows the
    rows. A sink is not told of that word: it is seen where Spark's worker is about to read it.
    """
    frame = inspect.currentframe()
    while frame is not None and "input_data_stream" not in frame.f_locals:
        frame = frame.f_back
    if frame is None:
        raise NotWritten("this Spark does not tell a sink in Python whether its rows ended or failed")
    if not frame.f_locals["input_data_stream"].peek(1):
        raise NotWritten("what makes the rows of this partition has failed")


def _check_writers(options: SinkOptions, messages: Messages) -> None:
    """Say so if a server may have forgotten some of the writers, in the driver."""
    pieces = [number for done in _done(messages) for number in done.pieces.values()]
    writers = sum(-(-number // REMEMBERED) for number in pieces)
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
