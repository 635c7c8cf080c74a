"""Tables through Spark: what protocols say of their logs is what plain Python reads in them."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brokers.errors import ExitCode, Failure
from brokers.pipeline.jobs import tables as job
from brokers.pipeline.jobs.frames import rows_of
from brokers.pipeline.jobs.job_input import JobInput, check_folder
from brokers.pipeline.jobs.tables import NoTable, offered
from dms import events, records
from dms.lifecycles import lifecycles, lifecycles_of
from dms.records import RecordKind
from shared.errors import StoreFormat
from shared.tables.table import LIVES, VOLUMES
from tests.dms import plain_events
from tests.dms.busy import QUEUES, busy
from tests.pipeline.jobs.conftest import BILLS, ORDERS, records_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMES = ("produced", "delivered", "redelivered", "returned", "ended")


def by_message(rows: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """As `plain_events.lives` has them."""
    found = {}
    for row in rows:
        assert row.pop("protocol") == "dms"
        assert row.pop("name") == row["log"]
        for name in TIMES:
            row[name] = None if row[name] is None else round(row[name].timestamp() * 1000)
        found[row.pop("log"), row.pop("seq")] = row
    assert len(found) == len(rows)
    return found


def test_a_life_is_what_the_records_tell_one_by_one(engine: "SparkSession | None") -> None:
    those = []
    for seed in range(8):
        world = busy(seed)
        for queue in QUEUES:
            those += [(f"{queue} {seed}", *record[1:]) for record in plain_events.log_of(world, queue)]
    batch = events.events(plain_events.batch_of(those))
    if engine is None:
        table = lifecycles_of(batch.slice(at, 7) for at in range(0, len(batch), 7))
    else:
        table = lifecycles(engine.createDataFrame(pa.Table.from_batches([batch])))
    expected = plain_events.lives(those)
    found = by_message(rows_of(table))
    assert found == expected
    assert {life["outcome"] for life in expected.values()} >= {
        *("acknowledged", "dead-lettered", "redriven", "purged", "waiting", "held", "returned")
    }


def test_what_a_bridge_held_ahead_and_never_tried_was_not_delivered(engine: "SparkSession | None") -> None:
    record = records.pack
    those = [
        record(RecordKind.ENQUEUED, 3, 1, 5, 0, records.pack_bodies([b"a", b"b", b"c"])),
        record(RecordKind.RETURNED, 2, 0, 5, 0, records.pack_returned([(1, 0, 0), (2, 0, 0)])),
        records.pack_run_record(RecordKind.DELIVERED, [(2, 2)], 5, 0),
        records.pack_run_record(RecordKind.ACKED, [(3, 1)], 5, 0),
    ]
    placed = [("jobs", 100 * number, each[4:]) for number, each in enumerate(those)]
    batch = events.events(plain_events.batch_of(placed))
    if engine is None:
        table = lifecycles_of([batch])
    else:
        table = lifecycles(engine.createDataFrame(pa.Table.from_batches([batch])))
    found = by_message(rows_of(table))
    assert found == plain_events.lives(placed)
    told = [(seq, life["outcome"], life["deliveries"]) for (_, seq), life in sorted(found.items())]
    assert told == [(1, "returned", 0), (2, "held", 1), (3, "acknowledged", 1)]


def test_lives_of_what_a_server_wrote(engine: "SparkSession | None", passed: Path) -> None:
    found = by_message(rows_of(job.read(engine, JobInput((passed,)), offered(LIVES))))
    those = [record for queue in ("jobs", "dead") for record in records_of(passed, "dms", queue)]
    assert found == plain_events.lives(those)
    outcomes = Counter((queue, life["outcome"]) for (queue, _), life in found.items())
    assert outcomes == {
        ("jobs", "acknowledged"): 5,
        ("jobs", "dead-lettered"): 3,
        ("jobs", "returned"): 2,
        ("jobs", "waiting"): 10,
        ("dead", "waiting"): 3,
    }
    assert all(life["deliveries"] == 2 for life in found.values() if life["outcome"] == "dead-lettered")


def test_volumes_count_every_protocols_messages(engine: "SparkSession | None", passed: Path) -> None:
    rows = rows_of(job.read(engine, JobInput((passed,)), offered(VOLUMES)))
    sums: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        assert row["fault"] is None
        assert (row["time"].second, row["time"].microsecond) == (0, 0)
        sums[row["protocol"], row["name"], "messages"] += row["messages"]
        sums[row["protocol"], row["name"], "bytes"] += row["bytes"]
    expected = {("logmq", "orders"): ORDERS, ("logmq", "bills"): BILLS}
    for queue in ("jobs", "dead"):
        bodies = [life["bytes"] for life in plain_events.lives(records_of(passed, "dms", queue)).values()]
        expected["dms", queue] = [bytes(size) for size in bodies]
    assert sums == {
        (*key, what): size
        for key, bodies in expected.items()
        for what, size in (("messages", len(bodies)), ("bytes", sum(map(len, bodies))))
    }


def test_parquet_holds_the_table_and_is_not_replaced_unasked(
    spark: "SparkSession", passed: Path, tmp_path: Path
) -> None:
    rows = job.read(spark, JobInput((passed,)), offered("events", "dms"))
    job.write(rows, tmp_path / "events")
    back = rows_of(spark.read.parquet(str(tmp_path / "events")).orderBy("log", "offset", "seq"))
    assert back == rows_of(rows.orderBy("log", "offset", "seq"))
    assert len(back) > 20
    file = next((tmp_path / "events").glob("*.parquet"))
    written = pq.read_schema(file).field("time").type
    assert (str(written), pq.ParquetFile(file).schema.column(2).physical_type) == (
        "timestamp[us, tz=UTC]",
        "INT64",
    )
    with pytest.raises(Exception, match="already exists"):
        job.write(rows, tmp_path / "events")
    job.write(rows.limit(1), tmp_path / "events", overwrite=True)
    assert spark.read.parquet(str(tmp_path / "events")).count() == 1


def test_a_sessions_own_time_zone_and_strings_do_not_matter(
    spark: "SparkSession", configure: Callable[[str, str], None], passed: Path
) -> None:
    def events_of() -> list[dict[str, Any]]:
        rows = job.read(spark, JobInput((passed,)), offered("events", "dms"))
        return rows_of(rows.orderBy("log", "offset", "seq"))

    expected = events_of()
    configure("spark.sql.session.timeZone", "Asia/Kolkata")
    configure("spark.sql.execution.arrow.useLargeVarTypes", "true")
    assert events_of() == expected


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoTable, match="dms lives"):
        offered("live")
    with pytest.raises(StoreFormat, match="not a data folder"):
        check_folder(tmp_path)
    with pytest.raises(Failure, match="nowhere") as refused:
        check_folder(tmp_path / "nowhere")
    assert refused.value.code is ExitCode.DATA_FOLDER


def test_a_followed_table_is_written_once_each_over_a_restart(
    spark: "SparkSession", passed: Path, tmp_path: Path
) -> None:
    to = tmp_path / "events"
    for _ in range(2):
        query = job.write_on(
            job.following(spark, JobInput((passed,)), offered("events", "dms")), to, once=True
        )
        query.awaitTermination()
    order = ("log", "offset", "seq")
    expected = rows_of(job.read(spark, JobInput((passed,)), offered("events", "dms")).orderBy(*order))
    assert rows_of(spark.read.parquet(str(to)).orderBy(*order)) == expected
