"""Throughput, latency and lag are what plain Python makes of the same logs."""

import datetime
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from brokers.pipeline.jobs import lag, measures, tables
from brokers.pipeline.jobs.frames import Frame, rows_of, union
from brokers.pipeline.jobs.job_input import JobInput
from brokers.pipeline.jobs.tables import offered
from shared.storage.tools.logs import RecordRow, log_dump
from shared.tables.table import LIVES, PLACES, time_type, volumes_schema
from tests.dms import plain_events
from tests.pipeline.jobs.conftest import BILLS, ORDERS, READ, records_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)


Frames = Callable[[Any], Frame]


def volumes(frame: Frames, rows: list[tuple[float, str, int]]) -> Frame:
    """Seconds after START, name, messages of 10 bytes."""
    found = [
        {
            "log": name,
            "time": START + datetime.timedelta(seconds=seconds),
            "protocol": "logmq",
            "name": name,
            "messages": messages,
            "bytes": 10 * messages,
        }
        for seconds, name, messages in rows
    ]
    return frame(pa.Table.from_pylist(found, schema=volumes_schema()))


def test_throughput_adds_up_what_came_in_each_window(frame: Frames) -> None:
    given = [(0, "a", 3), (59, "a", 4), (60, "a", 5), (0.5, "b", 6), (200, "b", 7)]
    bad = pa.Table.from_pylist([{"log": "a", "time": START, "fault": "bad"}], schema=volumes_schema())
    both = union([volumes(frame, given), frame(bad)])
    sums: dict[tuple[int, str], int] = defaultdict(int)
    for seconds, name, messages in given:
        sums[int(seconds // 60), name] += messages
    rows = rows_of(measures.throughput(both))
    assert [
        {
            "start": START + datetime.timedelta(minutes=minute),
            "protocol": "logmq",
            "name": name,
            "messages": messages,
            "bytes": 10 * messages,
            "messages_per_second": messages / 60,
            "bytes_per_second": messages / 6,
        }
        for (minute, name), messages in sorted(sums.items())
    ] == rows


def rank(values: list[int], percent: float) -> int:
    return sorted(values)[max(math.ceil(percent / 100 * len(values)), 1) - 1]


def test_latency_percentiles_are_those_of_the_sorted_times(frame: Frames) -> None:
    lives = [
        {
            "produced": START + datetime.timedelta(minutes=number % 3),
            "protocol": "dms",
            "name": f"q{number % 2}",
            "until_delivered_ms": None if number % 7 == 0 else number * 37 % 1000,
            "in_queue_ms": None if number % 5 == 0 else number * 91 % 5000,
        }
        for number in range(400)
    ]
    schema = pa.schema(
        [("produced", time_type()), ("protocol", pa.string()), ("name", pa.string())]
        + [(name, pa.int64()) for name in measures.MEASURES]
    )
    given = frame(pa.Table.from_pylist(lives, schema=schema))
    for window in (None, "1 minute"):
        groups: dict[Any, list[int]] = defaultdict(list)
        for life in lives:
            start = (life["produced"],) if window else ()
            for measure in measures.MEASURES:
                if life[measure] is not None:
                    groups[(*start, life["name"], measure)].append(life[measure])
        rows = rows_of(measures.latency(given, window))
        expected = [
            (*key, len(values), *(rank(values, each) for each in measures.PERCENTILES), max(values))
            for key, values in sorted(groups.items())
        ]
        assert [tuple(value for name, value in row.items() if name != "protocol") for row in rows] == expected


def test_latency_of_what_a_server_wrote(engine: "SparkSession | None", passed: Path) -> None:
    rows = rows_of(measures.latency(tables.read(engine, JobInput((passed,)), offered(LIVES))))
    lives = plain_events.lives(records_of(passed, "dms", "jobs"))
    for measure in measures.MEASURES:
        values = [life[measure] for life in lives.values() if life[measure] is not None]
        (row,) = [row for row in rows if (row["name"], row["measure"]) == ("jobs", measure)]
        assert (row["messages"], row["p50_ms"], row["max_ms"]) == (len(values), rank(values, 50), max(values))


def test_lag_is_what_lies_between_a_commit_and_the_end(engine: "SparkSession | None", passed: Path) -> None:
    places = rows_of(lag.newest(tables.read(engine, JobInput((passed,)), offered(PLACES, "logmq"))))
    rows = {(row.reader, row.name): row for row in lag.lag(passed, places, [])}
    assert set(rows) == {("billing", "orders"), ("billing", "bills"), ("audit", "orders")}  # `old` is deleted
    unread = ORDERS[READ:]
    billing = rows["billing", "orders"]
    assert (billing.messages, billing.bytes) == (len(unread), sum(map(len, unread)))
    assert (rows["billing", "bills"].messages, rows["billing", "bills"].position) == (len(BILLS), 0)
    audit = rows["audit", "orders"]
    assert (audit.messages, audit.bytes, audit.lost_bytes, audit.seconds) == (0, 0, 0, 0.0)
    assert audit.position == audit.end
    dumped = [row for row in log_dump(passed, "logmq", "bills") if isinstance(row, RecordRow)]
    assert audit.protocol == "logmq"
    assert rows["billing", "bills"].end == dumped[-1].offset + 4 + len(BILLS[-1])


def test_sessions_have_what_is_kept_for_them_and_groups_what_was_dropped(passed: Path) -> None:
    places = [
        {
            "protocol": "pubsub",
            "reader": "c1",
            "read_namespace": None,
            "log_id": None,
            "name": name,
            "position": None,
        }
        for name in ("a/*", "b")
    ]
    kept = [{"protocol": "pubsub", "reader": "c1", "messages": 3, "bytes": 30}]
    (row,) = lag.lag(passed, places, kept)
    assert (row.reader, row.name, row.messages, row.bytes, row.position) == ("c1", "a/*, b", 3, 30, None)


def test_a_window_is_given_once_it_is_over(spark: "SparkSession", tmp_path: Path) -> None:
    """Each file is a batch. The window of the last is not over."""
    folder = str(tmp_path / "volumes")
    for those in ((0, 30), (100,), (250,)):
        rows = volumes(spark.createDataFrame, [(float(seconds), "a", 1) for seconds in those])
        rows.coalesce(1).write.mode("append").parquet(folder)
    stream = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(folder)
    windows = measures.following(stream, "1 minute", "10 seconds")
    given = tables.rows_as_they_come(windows, once=True)
    assert [(row["start"], row["messages"]) for row in given] == [
        (START, 2),
        (START + datetime.timedelta(minutes=1), 1),
    ]
