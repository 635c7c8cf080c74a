"""The source as Spark sees it: what it reads is what plain Python reads of the same logs."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.folders import placed
from tests.pipeline.served import where
from tests.support.folders import fill
from tests.support.server import Server, speak

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

Read = Callable[..., "DataFrame"]


def rows(frame: "DataFrame") -> list[tuple[Any, ...]]:
    return [(row.topic, row.offset, bytes(row.value)) for row in frame.orderBy("topic", "offset").collect()]


def ended(writer: "DataStreamWriter") -> None:
    """Run a stream to its end. Spark gives a Python process 10 s to start, which a busy machine may not."""
    from pyspark.errors import StreamingQueryException

    for attempts_left in reversed(range(10)):
        try:
            writer.start().awaitTermination()
            return
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error) or not attempts_left:
                raise


def expected(topic: str, payloads: list[bytes]) -> list[tuple[Any, ...]]:
    return [(topic, *record) for record in placed(payloads)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "data"
    fill(folder, {("logmq", "orders"): ORDERS, ("logmq", "bills"): BILLS})
    return folder


ORDERS = [b"%06d" % n + b"." * (n % 97) for n in range(3000)]
BILLS = [b"%06d" % n for n in range(1000)]


def test_a_batch_read_has_every_record_once(read: Read, folder: Path) -> None:
    frame = read(folder, subscribe="orders,bills", minPartitions="3")
    assert frame.dtypes == [
        ("topic", "string"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("value", "binary"),
    ]
    assert rows(frame) == expected("bills", BILLS) + expected("orders", ORDERS)


def test_a_wrong_option_is_an_error_that_names_it(read: Read, folder: Path) -> None:
    with pytest.raises(Exception, match=r"subscribepatern: .* did you mean subscribePattern"):
        read(folder, subscribePatern="o.*")


def test_a_stream_follows_a_log_and_goes_on_where_it_was(spark: "SparkSession", tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, {("logmq", "orders"): ORDERS[:100]})

    def run(**options: str) -> None:
        frame = spark.readStream.format("logmq").options(subscribe="orders", **options).load(str(data))
        writer = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "out"))
            .trigger(availableNow=True)
        )
        ended(writer)

    run(startingOffsets="latest")
    fill(data, {("logmq", "orders"): ORDERS[100:1000]})
    run(maxOffsetsPerTrigger="500")
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]"))) == 1 + 2
    got = rows(spark.read.parquet(str(tmp_path / "out")))
    assert got == expected("orders", ORDERS[:1000])[100:]


def test_columns_that_are_not_asked_for_are_not_read(spark: "SparkSession", folder: Path) -> None:
    reader = spark.read.format("logmq").option("subscribe", "orders")
    frame = reader.schema("offset bigint, topic string").load(str(folder))
    assert frame.dtypes == [("offset", "bigint"), ("topic", "string")]
    assert frame.orderBy("offset").tail(1)[0] == (expected("orders", ORDERS)[-1][1], "orders")
    fronts = reader.option("maxValueBytes", "4").schema("value binary").load(str(folder)).collect()
    assert sorted(bytes(row.value) for row in fronts) == sorted(each[:4] for each in ORDERS)
    with pytest.raises(Exception, match="schema: the source has these columns"):
        reader.schema("offset string").load(str(folder)).count()


def test_sql_reads_through_a_temporary_view(spark: "SparkSession", folder: Path) -> None:
    what = f"logs USING logmq OPTIONS (path '{folder}', subscribe 'bills', endingOffsets '{{\"bills\": 20}}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {what}")
    try:
        found = spark.sql("SELECT topic, offset, value FROM logs")
        assert rows(found) == expected("bills", BILLS[:2])
    finally:
        spark.catalog.dropTempView("logs")
    with pytest.raises(Exception, match=r"CREATE TABLE: .* CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE {what}")


def test_a_table_that_spark_has_no_options_for_says_what_to_do(
    spark: "SparkSession", server: Server, tmp_path: Path
) -> None:
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.txt").write_text("x\n")
    stream = spark.readStream.format("text").load(str(tmp_path / "lines")).writeStream.format("logmq")
    stream = stream.options(servers=where(server), topic="left", checkpointLocation=str(tmp_path / "c"))
    stream.trigger(availableNow=True).toTable("left_behind").awaitTermination()
    try:
        for statement in ("SELECT * FROM left_behind", "INSERT INTO left_behind VALUES ('x')"):
            with pytest.raises(Exception, match=r"saveAsTable or toTable cannot be used: drop it;"):
                spark.sql(statement).collect()
    finally:
        spark.sql("DROP TABLE left_behind")


def test_rows_can_be_added_to_a_view_of_a_topic(spark: "SparkSession", server: Server) -> None:
    options = f"servers '{where(server)}', subscribe 'viewed', startingOffsets 'earliest'"
    speak(server.address("logmq"), b"PRODUCE viewed a\n")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW viewed USING logmq OPTIONS ({options})")
    spark.sql("INSERT INTO viewed (value) VALUES (cast('b' AS binary))")
    spark.sql("INSERT INTO viewed VALUES ('viewed', 7, now(), cast('c' AS binary))")
    rows = spark.sql("SELECT value FROM viewed ORDER BY `offset`").collect()
    assert [bytes(row.value) for row in rows] == [b"a", b"b", b"c"]
    with pytest.raises(Exception, match="a topic is only ever added to"):
        spark.sql("INSERT OVERWRITE viewed (value) VALUES (cast('d' AS binary))")
