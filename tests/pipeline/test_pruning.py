"""What a query's filters leave to be read: only theirs, and every record that they keep."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from brokers.pipeline.source import data_source, rows
from brokers.pipeline.source.options import parse
from brokers.pipeline.source.origin import DataLoss
from brokers.pipeline.source.spans import Span
from shared.errors import ConfigError
from tests.pipeline.folders import ORDERS, RECORDS, entries_of, retimed, rewrite_entry
from tests.support.folders import fill, flip

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC, OFFSET, TIME = ("topic",), ("offset",), ("timestamp",)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
Place = Callable[[Path], dict[str, str]]


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("timed") / "data"
    fill(data, {ORDERS: RECORDS, ("logmq", "bills"): [b"x"] * 10, ("logmq", "t3"): [b"y"]})
    retimed(data)
    return data


def reader(place: dict[str, str], **given: str) -> data_source.PruningReader:
    return data_source.PruningReader(parse({"subscribePattern": ".*"} | given | place, streaming=False))


def planned(chosen: data_source.PruningReader, *filters: Filter) -> tuple[list[Span], list[Filter]]:
    left = list(chosen.pushFilters(list(filters)))
    shares = chosen.partitions()
    return [span for share in shares for span in data_source.spans_of(share)], left


def at(ms: float) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


def test_only_the_topics_of_a_filter_are_planned_and_looked_for(timed: Path, place: Place) -> None:
    where = place(timed)
    for filters, topics in (
        ([EqualTo(TOPIC, "t3")], ["t3"]),
        ([In(TOPIC, ("t3", "orders", "none"))], ["orders", "t3"]),
        ([In(TOPIC, ("t3", "orders")), EqualTo(TOPIC, "orders")], ["orders"]),
        ([EqualTo(TOPIC, "no topic's name\n")], []),
    ):
        found, left = planned(reader(where), *filters)
        assert ([span.topic for span in found], left) == (topics, [])
    assert [
        span.topic for span in planned(reader(where, subscribePattern="t.*"), EqualTo(TOPIC, "orders"))[0]
    ] == []
    chosen = parse(where | {"subscribe": "orders,none"}, streaming=False)
    assert [
        span.topic for span in planned(data_source.PruningReader(chosen), EqualTo(TOPIC, "orders"))[0]
    ] == ["orders"]
    with pytest.raises(ConfigError, match="there is no none"):
        planned(data_source.PruningReader(chosen), EqualTo(TOPIC, "none"))


def test_what_is_not_known_to_say_anything_is_left_to_spark(timed: Path, place: Place) -> None:
    filters = [
        IsNotNull(TOPIC),
        Not(EqualTo(TOPIC, "orders")),
        GreaterThan(("value",), b"x"),
        EqualTo(TOPIC, None),
        EqualTo(OFFSET, None),
        In(OFFSET, (1, None)),
        GreaterThan(TIME, datetime(2020, 1, 1)),
        LessThan(TOPIC, "a"),
    ]
    found, left = planned(reader(place(timed)), *filters)
    assert left == filters
    assert found == planned(reader(place(timed)))[0]


def test_bounds_of_offsets_and_times_leave_whole_entries_out(timed: Path, place: Place) -> None:
    every = entries_of(timed)
    last = len(every) - 1
    middle = every[2].offset + 10

    def entries(*filters: Filter) -> tuple[int, int]:
        (span,), left = planned(reader(place(timed), subscribePattern="orders"), *filters)
        assert left == list(filters)
        starts, ends = [entry.offset for entry in every], [entry.end for entry in every]
        return starts.index(span.start), ends.index(span.stop)

    for filters, expected in (
        ([GreaterThanOrEqual(OFFSET, middle)], (2, last)),
        ([LessThan(OFFSET, middle)], (0, 2)),
        ([LessThanOrEqual(OFFSET, every[2].offset)], (0, 2)),
        ([LessThan(OFFSET, every[2].offset)], (0, 1)),
        ([EqualTo(OFFSET, middle)], (2, 2)),
        ([In(OFFSET, (middle, every[3].offset))], (2, 3)),
        ([GreaterThan(OFFSET, middle), LessThan(OFFSET, every[3].offset + 1)], (2, 3)),
    ):
        assert entries(*filters) == expected
    for filters, expected in (  # an entry more at each side is allowed; entry 2 is of 3000 ms
        ([GreaterThanOrEqual(TIME, at(3000))], (1, last)),
        ([GreaterThan(TIME, at(2999.5))], (1, last)),
        ([LessThanOrEqual(TIME, at(3000))], (0, 2)),
        ([LessThan(TIME, at(3000))], (0, 2)),
        ([EqualTo(TIME, at(3000)), GreaterThan(OFFSET, middle)], (2, 2)),
    ):
        first, final = entries(*filters)
        assert expected[0] <= first <= expected[0] + 1, filters
        assert expected[1] <= final <= expected[1] + 1, filters


def test_nothing_is_planned_where_nothing_can_be_kept(timed: Path, place: Place) -> None:
    beyond = entries_of(timed)[-1].end
    for filters in (
        [GreaterThan(OFFSET, beyond)],
        [LessThan(OFFSET, 0)],
        [GreaterThan(OFFSET, 900_000), LessThan(OFFSET, 100)],
    ):
        assert planned(reader(place(timed)), *filters)[0] == []


def test_damage_whose_time_nobody_knows_is_told_and_not_left_out(folder: Path) -> None:
    every = retimed(folder)
    rewrite_entry(folder, 3, lambda entry: entry[:40] + b"torn" + entry[44:])
    flip(folder / "logmq" / "orders.log", every[3].offset * 8)
    chosen = reader({"path": str(folder)})
    spans, _ = planned(chosen, GreaterThanOrEqual(TIME, at(4000)))
    with pytest.raises(DataLoss, match=f"offsets {every[3].offset} to {every[3].end} are lost"):
        list(rows.read(parse({"path": str(folder), "subscribe": "orders"}, streaming=False), spans))


def test_a_query_has_the_rows_that_its_filters_keep(
    configure: Callable[[str, str], None], timed: Path, read: Callable[..., "DataFrame"]
) -> None:
    def rows_where(text: str, **more: str) -> list[Any]:
        found = read(timed, subscribePattern=".*", **more).where(text)
        return sorted((row.topic, row.offset, row.ms) for row in found.selectExpr(*columns).collect())

    columns = ("topic", "offset", "unix_millis(timestamp) AS ms")
    every = rows_where("true")
    low, high = entries_of(timed)[2].offset + 10, entries_of(timed)[4].offset
    configure(PUSHDOWN, "true")
    for text, kept in (
        ("topic = 't3'", lambda topic, offset, ms: topic == "t3"),
        (
            "topic in ('t3', 'bills') AND offset > 20",
            lambda topic, offset, ms: topic != "orders" and offset > 20,
        ),
        (f"offset BETWEEN {low} AND {high}", lambda topic, offset, ms: low <= offset <= high),
        (
            "timestamp >= '1970-01-01 00:00:03' AND topic = 'orders'",
            lambda topic, offset, ms: ms >= 3000 and topic == "orders",
        ),
        (
            "timestamp < '1970-01-01 00:00:03' OR offset = 0",
            lambda topic, offset, ms: ms < 3000 or offset == 0,
        ),
    ):
        assert rows_where(text, pruneByFilters="true") == [row for row in every if kept(*row)], text


def test_queries_of_one_frame_do_not_get_each_others_rows(
    configure: Callable[[str, str], None], timed: Path, read: Callable[..., "DataFrame"]
) -> None:
    """As they would where Spark told the source of filters: hence the option."""
    configure(PUSHDOWN, "true")
    frame = read(timed, subscribePattern="bills|t3")
    bills, t3 = frame.where("topic = 'bills'"), frame.where("topic = 't3'")
    assert bills.count() == 10
    assert (bills.union(t3).count(), frame.count(), t3.count()) == (11, 11, 1)
