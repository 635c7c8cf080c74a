"""The tables of protocols: what SQL says of a log is what its records say one by one."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from brokers.pipeline.source.data_source import TableDataSource
from brokers.pipeline.tables import NoTable, table_of
from dms import records
from dms.records import RecordKind
from dms.tables import events
from dms.tables.lifecycles import LIFECYCLES
from shared.errors import ConfigError
from tests.dms import plain_events
from tests.dms.busy import QUEUES, busy
from tests.pipeline.conftest import viewed
from tests.pipeline.passed import BILLS, ORDERS, records_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMES = ("produced", "delivered", "redelivered", "returned", "ended")


def by_message(frame: "DataFrame") -> dict[tuple[str, int], dict[str, Any]]:
    """As `plain_events.lives` has them."""
    found = {}
    rows = frame.toArrow().to_pylist()
    for row in rows:
        assert row.pop("protocol") == "dms"
        assert row.pop("name") == row["log"]
        for name in TIMES:
            row[name] = None if row[name] is None else round(row[name].timestamp() * 1000)
        found[row.pop("log"), row.pop("seq")] = row
    assert len(found) == len(rows)
    return found


def lives(spark: "SparkSession", placed: list[plain_events.Placed]) -> dict[tuple[str, int], dict[str, Any]]:
    batch = events.events(plain_events.batch_of(placed))
    spark.createDataFrame(pa.Table.from_batches([batch])).createOrReplaceTempView("decoded_here")
    return by_message(spark.sql(LIFECYCLES.replace("{decoded}", "decoded_here")))


def test_a_life_is_what_the_records_tell_one_by_one(spark: "SparkSession") -> None:
    those = []
    for seed in range(8):
        world = busy(seed)
        for queue in QUEUES:
            those += [(f"{queue} {seed}", *record[1:]) for record in plain_events.log_of(world, queue)]
    expected = plain_events.lives(those)
    assert lives(spark, those) == expected
    assert {life["outcome"] for life in expected.values()} >= {
        *("acknowledged", "dead-lettered", "redriven", "purged", "waiting", "held", "returned")
    }


def test_what_a_bridge_held_ahead_and_never_tried_was_not_delivered(spark: "SparkSession") -> None:
    record = records.pack
    those = [
        record(RecordKind.ENQUEUED, 3, 1, 5, 0, records.pack_bodies([b"a", b"b", b"c"])),
        record(RecordKind.RETURNED, 2, 0, 5, 0, records.pack_returned([(1, 0, 0), (2, 0, 0)])),
        records.pack_run_record(RecordKind.DELIVERED, [(2, 2)], 5, 0),
        records.pack_run_record(RecordKind.ACKED, [(3, 1)], 5, 0),
    ]
    placed = [("jobs", 100 * number, each[4:]) for number, each in enumerate(those)]
    found = lives(spark, placed)
    assert found == plain_events.lives(placed)
    told = [(seq, life["outcome"], life["deliveries"]) for (_, seq), life in sorted(found.items())]
    assert told == [(1, "returned", 0), (2, "held", 1), (3, "acknowledged", 1)]


def test_lives_of_what_a_server_wrote(spark: "SparkSession", passed: Path) -> None:
    viewed(spark, passed)
    found = by_message(spark.table("dms.lives"))
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


def test_volumes_count_every_protocols_messages(spark: "SparkSession", passed: Path) -> None:
    viewed(spark, passed)
    sums: Counter[tuple[str, str, str]] = Counter()
    for row in spark.table("volumes").toArrow().to_pylist():
        assert row["fault"] is None
        assert row["time"].microsecond == 0
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


def test_a_sessions_own_time_zone_and_strings_do_not_matter(
    spark: "SparkSession", configure: Callable[[str, str], None], passed: Path
) -> None:
    viewed(spark, passed)

    def events_of() -> list[dict[str, Any]]:
        rows = spark.sql("SELECT * FROM dms.events ORDER BY log, `offset`, seq").toArrow().to_pylist()
        return [row | {"time": row["time"] and row["time"].timestamp()} for row in rows]

    expected = events_of()
    assert len(expected) > 20
    configure("spark.sql.session.timeZone", "Asia/Kolkata")
    configure("spark.sql.execution.arrow.useLargeVarTypes", "true")
    assert events_of() == expected


def test_a_table_that_nobody_has_is_said() -> None:
    with pytest.raises(NoTable, match=r"no protocol has a table 'dms\.live'; there are: .*dms\.lives"):
        table_of("dms.live")


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"namespace": "dms"}, "which logs"),
        ({"Subscribe": "x"}, "which logs"),
        ({"maxValueBytes": "7"}, "whole"),
        ({"table": ""}, "say which"),
    ],
)
def test_an_option_that_is_the_tables_business_is_refused_by_its_name(
    option: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        TableDataSource({"table": "dms.events", "path": "data", **option})
    assert refused.value.key in {key.lower() for key in option}
