"""`write.format("logmq")` under Spark: each row is in its topic once, whatever Spark runs again."""

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import attrs
import pyarrow as pa
import pytest

from brokers.pipeline.source import sink
from brokers.pipeline.source.options import Server as Address
from brokers.pipeline.source.options import parse_sink
from brokers.pipeline.source.writing import NotWritten, PackedRecords
from logmq.connector import records_of
from shared.errors import ConfigError
from tests.pipeline.served import log, where
from tests.support.server import Server, speak

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def messages(server: Server, topic: str) -> list[bytes]:
    return [record.payload for record in records_of(log(server, topic), 0)]


def append(server: Server, frame: "DataFrame", **options: str) -> None:
    frame.write.format("logmq").options(servers=where(server), **options).mode("append").save()


def test_rows_go_to_the_topics_they_name(spark: "SparkSession", server: Server) -> None:
    frame = spark.range(0, 3000, 1, 3).selectExpr("concat('m', id) AS value", "concat('t', id % 2) AS topic")
    append(server, frame)
    for topic in (0, 1):
        expected = sorted(f"m{number}".encode() for number in range(3000) if number % 2 == topic)
        assert sorted(messages(server, f"t{topic}")) == expected
    rows = spark.read.format("logmq").option("servers", where(server)).option("subscribe", "t0").load()
    assert len(rows.toPandas()) == 1500
    assert {field.name for field in attrs.fields(sink.Done)} == {"pieces", "records"}, (
        "no row passes the driver"
    )


def test_a_task_that_runs_again_writes_nothing_twice(
    spark: "SparkSession", configure: Callable[[str, str], None], server: Server, tmp_path: Path
) -> None:
    address = server.address("logmq")
    failed = tmp_path / "failed"

    def fails_once_half_way(numbers: Iterator[int]) -> Iterator[tuple[str]]:
        for number in numbers:
            if number == 3000 and not failed.exists():
                while b" 0 0" in (said := speak(address, b"OFFSETS retried\n")) or said.startswith(b"ERR"):
                    pass  # until the sink has written a part
                failed.touch()
                raise RuntimeError("the first attempt fails here")
            yield (f"{number:02000}",)  # more by then than all buffers on the way hold

    configure("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    rows = spark.sparkContext.parallelize(range(5000), 1).mapPartitions(fails_once_half_way)
    append(server, spark.createDataFrame(rows, "value string"), topic="retried", batchBytes="20000")
    assert failed.exists()
    assert messages(server, "retried") == [b"%02000d" % number for number in range(5000)]


def test_rows_that_fail_end_no_piece(
    spark: "SparkSession", configure: Callable[[str, str], None], server: Server
) -> None:
    """Spark ends a task's rows as if they were whole. What is behind the last full piece is not written."""

    def fails(numbers: Iterator[int]) -> Iterator[tuple[str]]:
        for number in numbers:
            if number == 3000:
                raise RuntimeError("the rows fail here")
            yield (f"{number:02000}",)  # more by then than all buffers on the way hold

    configure("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    rows = spark.sparkContext.parallelize(range(5000), 1).mapPartitions(fails)
    with pytest.raises(Exception, match="the rows fail here"):
        append(server, spark.createDataFrame(rows, "value string"), topic="cut", batchBytes="64m")
    assert speak(server.address("logmq"), b"OFFSETS cut\n").startswith(b"ERR NO_TOPIC")


def test_a_stream_with_the_writer_of_another_writes_its_own_rows(
    spark: "SparkSession", server: Server, tmp_path: Path
) -> None:
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "x.txt").write_text(f"{run}1\n{run}2\n")
        stream = spark.readStream.format("text").load(str(tmp_path / run)).writeStream.format("logmq")
        stream = stream.option("servers", where(server)).option("topic", "both").option("writer", "w")
        query = stream.option("checkpointLocation", str(tmp_path / f"{run}-checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
    assert messages(server, "both") == [b"a1", b"a2", b"b1", b"b2"]


def test_an_epoch_that_is_run_again_writes_nothing_twice(
    spark: "SparkSession", server: Server, tmp_path: Path
) -> None:
    lines, checkpoint = tmp_path / "lines", tmp_path / "checkpoint"
    lines.mkdir()

    def run() -> None:
        stream = spark.readStream.format("text").load(str(lines)).writeStream.format("logmq")
        stream = stream.option("servers", where(server)).option("topic", "epochs")
        query = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    (lines / "a.txt").write_text("".join(f"a{number}\n" for number in range(100)))
    run()
    for file in (checkpoint / "commits").glob("*0*"):  # as if the driver had died before it could note this
        file.unlink()
    (lines / "b.txt").write_text("".join(f"b{number}\n" for number in range(100)))
    run()
    expected = [f"{file}{number}".encode() for file in "ab" for number in range(100)]
    assert messages(server, "epochs") == expected


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (["id AS offset"], "needs a column value, .* the columns are: offset"),
        (["id AS value", "'t' AS topic"], "the column value is bigint; binary or string is expected"),
        (["'x' AS value"], "a column topic, or the option topic, is needed"),
        (["'x' AS value", "1 AS topic"], "the column topic is int"),
        (["'x' AS value", "'t' AS topic", "1 AS more"], "no place for the column more"),
    ],
)
def test_rows_that_are_no_records_are_refused(spark: "SparkSession", columns: list[str], text: str) -> None:
    schema = spark.range(1).selectExpr(*columns).schema
    with pytest.raises(sink.WrongSchema, match=text):
        sink.checked({"servers": "a"}, schema, overwrite=False, streaming=False)


def test_a_row_without_a_value_is_refused(spark: "SparkSession", server: Server) -> None:
    with pytest.raises(Exception, match="a row's value is null"):
        append(server, spark.range(1).selectExpr("cast(null AS string) AS value", "'t' AS topic"))


def test_more_writers_than_a_server_remembers_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "WRITERS_MAX", 4)
    for pieces, told in ((512, False), (513, True)):
        options = parse_sink({"servers": "here"}, streaming=False)
        sink.BatchWriter(options).commit([sink.Done({"many": pieces}, 1), None])
        assert ("had 5 writers" in capsys.readouterr().err) is told


class Written:
    """Instead of a writer to a server: what each was given."""

    pieces: ClassVar[list[tuple[int, str, int, PackedRecords]]] = []

    def __init__(self, server: Address, reach: object, epoch: int) -> None:
        self.epoch = epoch

    def write(self, piece: PackedRecords, name: str, number: int) -> None:
        self.pieces.append((self.epoch, name, number, piece))

    def finish(self) -> None: ...
    def close(self) -> None: ...


def test_pieces_of_all_partitions_have_names_and_numbers_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or a server would take one for the other, sent again."""
    monkeypatch.setattr(sink, "Writer", Written)
    monkeypatch.setattr(Written, "pieces", [])
    monkeypatch.setattr(sink, "require_whole_input", lambda: None)
    rows = [("ab"[number % 2], b"%02d" % number) for number in range(12)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([topic for topic, _ in rows]), pa.array([value for _, value in rows])], ["topic", "value"]
    )
    options = parse_sink({"servers": "a", "batchBytes": "12", "writer": "w", "epoch": "7"}, streaming=False)
    writer, done = sink.BatchWriter(options), []
    for partition in (0, 1):
        task = Task(partition)
        monkeypatch.setattr(sink.TaskContext, "get", lambda task=task: task)
        done.append(writer.write(iter([batch])))
    assert [(each.records, dict(each.pieces)) for each in done] == [(12, {"a": 3, "b": 3})] * 2
    writer.commit([done[0], None, done[1]])
    expected = {
        (7, f"w-{partition}", number, topic): framed
        for partition in (0, 1)
        for topic, values in (("a", range(0, 12, 2)), ("b", range(1, 12, 2)))
        for number, framed in enumerate(pairs(b"%02d" % value for value in values))
    }
    found = {(epoch, name, number, each.topic): each.records for epoch, name, number, each in Written.pieces}
    assert found == expected
    assert len(Written.pieces) == len(expected)


@attrs.frozen
class Task:
    """Of Spark's. `number`: of its partition."""

    number: int

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self.number

    def getLocalProperty(self, name: str) -> None:  # noqa: N802 - Spark's name
        return None


def pairs(values: Iterable[bytes]) -> list[bytes]:
    """Two records of two bytes fill a piece."""
    records = [b"\0\0\0\2" + value for value in values]
    return [b"".join(records[at : at + 2]) for at in range(0, len(records), 2)]


def test_what_stays_of_a_write_that_is_given_up_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse_sink({"servers": "here", "writer": "w", "epoch": "1"}, streaming=False)
    sink.BatchWriter(options).abort([None, sink.Done({"t": 1}, 70)])
    said = capsys.readouterr().err
    assert "the write to here:8080 was given up. 70 records of the 1 tasks that had ended stay" in said
    assert "with the same writer and epoch, nothing of it is there twice" in said
    sink.StreamWriter(options).abort([], 7)
    assert "Batch 7 from the same checkpoint will not write it twice" in capsys.readouterr().err


def test_a_table_that_nobody_could_read_is_refused_before_a_row_is_written(
    spark: "SparkSession", server: Server
) -> None:
    rows = spark.range(2).selectExpr("'x' AS value", "'refused' AS topic")
    with pytest.raises(Exception, match="saveAsTable: a source in Python is not told a table's options"):
        rows.write.format("logmq").option("servers", where(server)).mode("append").saveAsTable("refused")
    assert not spark.catalog.tableExists("refused")
    assert b"refused" not in speak(server.address("logmq"), b"TOPICS\n")


def test_the_function_of_a_stream_may_write_each_of_its_batches(
    spark: "SparkSession", server: Server, tmp_path: Path
) -> None:
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.txt").write_text("one\ntwo\n")
    stream = spark.readStream.format("text").load(str(tmp_path / "lines")).writeStream
    stream = stream.foreachBatch(
        lambda rows, batch: append(server, rows, topic="by-function", writer="w", epoch=str(batch))
    )
    stream = stream.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    stream.start().awaitTermination()
    assert sorted(messages(server, "by-function")) == [b"one", b"two"]


def test_a_topic_is_not_overwritten(spark: "SparkSession", server: Server) -> None:
    frame = spark.range(1).selectExpr("'x' AS value", "'t' AS topic")
    with pytest.raises(Exception, match="mode: a topic is only ever added to"):
        frame.write.format("logmq").option("servers", where(server)).mode("overwrite").save()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "servers: one broker's address is needed"),
        ({"servers": "a,b"}, "servers: one broker's address"),
        ({"servers": "a", "path": "x"}, "path: only its broker writes a data folder"),
        ({"servers": "a", "topik": "x"}, "topik: the sink has no such option; did you mean topic"),
        ({"servers": "a", "topic": ".x"}, "topic: '.x': a name is"),
        ({"servers": "a", "writer": "x" * 121}, "writer: longer than 120"),
        ({"servers": "a", "epoch": "1"}, "epoch: needs the option writer"),
        ({"servers": "a", "writer": "w"}, "writer: needs the option epoch"),
        ({"servers": "a", "subscribePattern": "["}, "subscribePattern: not a regular expression"),
        ({"servers": "a", "writer": "w", "epoch": "-1"}, "epoch: not a whole number"),
        ({"servers": "a", "batchBytes": "65m"}, "batchBytes: above 67108864"),
    ],
)
def test_a_wrong_option_of_the_sink_is_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_sink(options, streaming=False)


@pytest.mark.parametrize(
    ("following", "failure"),
    [(b"\xff\xff\xff\xfc", None), (b"", "what makes the rows of this partition has failed")],
)
def test_a_task_ends_its_pieces_when_spark_has_ended_its_rows(following: bytes, failure: str | None) -> None:
    """Rows that failed look whole; the word that follows comes only if they are."""

    def worker(
        input_data_stream: io.BufferedReader,
    ) -> None:  # Spark's, by the name that its stream has there
        sink.require_whole_input()
        assert input_data_stream.read() == following, "it is left for the worker to read"

    stream = io.BufferedReader(io.BytesIO(following))
    with pytest.raises(NotWritten, match=failure) if failure else nullcontext():
        worker(stream)


def test_a_spark_that_says_nothing_of_its_rows_end_is_refused() -> None:
    with pytest.raises(NotWritten, match="does not tell a sink in Python"):
        sink.require_whole_input()
