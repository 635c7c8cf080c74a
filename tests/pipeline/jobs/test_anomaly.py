"""Planted anomalies are found, quiet series have none, and the bands are those of plain Python's medians."""

import datetime
import math
import random
import statistics
from typing import Any

import pyarrow as pa
import pytest

from brokers.pipeline.jobs import anomaly
from brokers.pipeline.jobs.frames import Frame, ordered, rows_of
from shared.tables.table import time_type
from tests.pipeline.jobs.test_measures import START, Frames, volumes

MINUTES = 270
MEANS = {"busy": 5000, "calm": 100, "rare": 2, "even": 0}


def poisson(chance: random.Random, mean: float) -> int:
    return max(round(chance.gauss(mean, math.sqrt(mean))), 0)


def traffic(frame: Frames, planted: dict[tuple[str, int], int]) -> Frame:
    """Four names by the minute, and four like them; what is planted replaces a minute's count."""
    chance = random.Random(7)
    rows = []
    for minute in range(MINUTES):
        for name, mean in [*MEANS.items(), *((f"{name} too", mean) for name, mean in MEANS.items())]:
            count = planted.get((name, minute), poisson(chance, mean) if mean else 60)
            # Spread over the minute: rows of one second, as decoding gives them.
            parts = (count // 3, count // 3, count - 2 * (count // 3))
            rows += [(60 * minute + at, name, part) for at, part in zip((5, 50, 59), parts, strict=True)]
    return volumes(frame, [row for row in rows if row[2]])


def named(rows: list[dict[str, Any]]) -> set[tuple[str, int]]:
    return {(row["name"], round((row["start"] - START).total_seconds() / 60)) for row in rows}


def test_what_was_planted_is_found_and_nothing_else(frame: Frames) -> None:
    """Nor in the names where nothing was."""
    planted = {("busy", 100): 9000, ("calm", 150): 0, ("calm", 220): 400, ("rare", 250): 60}
    planted["even", 90] = 200
    rows = rows_of(anomaly.anomalies(anomaly.bands(anomaly.rates(traffic(frame, planted)))))
    assert named(rows) == set(planted)
    for row in rows:
        assert row["value"] == planted[row["name"], round((row["start"] - START).total_seconds() / 60)]
        assert not row["low"] <= row["value"] <= row["high"]
        assert row["measure"] == "messages in 1 minute"


def test_the_window_of_the_last_message_is_not_over_and_left_out(frame: Frames) -> None:
    rows = rows_of(anomaly.rates(volumes(frame, [(5, "a", 1), (65, "a", 2), (125, "b", 3)])))
    assert sorted((row["name"], row["start"] - START, row["value"]) for row in rows) == [
        ("a", datetime.timedelta(), 1.0),
        ("a", datetime.timedelta(minutes=1), 2.0),
    ]


def test_a_new_level_is_told_until_it_is_usual_and_silence_is_one(frame: Frames) -> None:
    """Eight windows long, and not again where it ends before the old one is forgotten."""
    rows = [(60.0 * minute, "alive", 50) for minute in range(200)]
    rows += [(60.0 * minute, "dies", 50) for minute in range(100)]
    rows += [(60.0 * minute, "grows", 400 if 100 <= minute < 125 else 5) for minute in range(200)]
    found = named(rows_of(anomaly.anomalies(anomaly.bands(anomaly.rates(volumes(frame, rows))))))
    assert found == {(name, minute) for name in ("dies", "grows") for minute in range(100, 108)}


def readings(frame: Frames, points: list[tuple[str, int, float]]) -> Frame:
    schema = pa.schema(
        {
            "time": time_type(),
            "protocol": pa.string(),
            "name": pa.string(),
            "value": pa.float64(),
            "fault": pa.string(),
        }
    )
    rows = [
        {
            "time": START + datetime.timedelta(seconds=seconds),
            "protocol": "pubsub",
            "name": name,
            "value": value,
        }
        for name, seconds, value in points
    ]
    return frame(pa.Table.from_pylist(rows, schema=schema))


@pytest.mark.parametrize("at_once", [1 << 20, 100])
def test_values_and_their_bands_are_those_of_sorted_lists(
    frame: Frames, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(anomaly, "NUMBERS_AT_ONCE", at_once)
    chance = random.Random(11)
    points = [("oven", 60 * minute + 7, chance.gauss(200, 3)) for minute in range(150) if minute % 11]
    points += [("door", 60 * minute, 1.0 if minute == 120 else 0.0) for minute in range(150)]
    wild = next(at for at, point in enumerate(points) if point[1] >= 6000)
    points[wild] = ("oven", points[wild][1], 140.0)
    history, least, tolerance = 40, 15, 5.0
    banded = anomaly.bands(
        anomaly.values(readings(frame, points)), history=history, least=least, tolerance=tolerance
    )
    rows = rows_of(ordered(banded, "name", "start"))
    assert len(rows) == len(points)
    for name in ("oven", "door"):
        series = [value for each, _, value in points if each == name]
        for at, row in enumerate(row for row in rows if row["name"] == name):
            before = series[max(at - history, 0) : at]
            assert row["value"] == series[at]
            if len(before) < least:
                assert (row["usual"], row["high"], row["outside"]) == (None, None, False)
                continue
            usual = statistics.median(before)
            spread = 1.4826 * statistics.median(abs(value - usual) for value in before)
            spread = max(spread, abs(usual) / 100, 1e-9)
            assert math.isclose(row["usual"], usual)
            assert math.isclose(row["low"], usual - tolerance * spread)
            assert math.isclose(row["high"], usual + tolerance * spread)
            assert row["outside"] == (abs(series[at] - usual) > tolerance * spread)
    assert {(row["name"], row["value"]) for row in rows if row["outside"]} == {("oven", 140.0), ("door", 1.0)}


def test_a_history_longer_than_all_there_is_takes_no_memory(frame: Frames) -> None:
    points = [("oven", 60 * minute, 200.0 + minute % 3) for minute in range(30)]
    values = anomaly.values(readings(frame, points))
    options = {"least": 5, "tolerance": 6.0}
    all_of_it, endless = (
        rows_of(ordered(anomaly.bands(values, history=history, **options), "start"))
        for history in (30, 10**11)
    )
    assert endless == all_of_it


def test_a_daily_course_is_usual_by_the_hour(frame: Frames) -> None:
    """Quiet nights and busy days: only by the hour is a busy night seen, and a morning none."""
    days = 12
    level = {hour: 20 if hour < 8 else 2000 for hour in range(24)}
    rows = [
        (3600.0 * (24 * day + hour - 12), "shop", 900 if (day, hour) == (10, 3) else level[hour])
        for day in range(days)
        for hour in range(24)
    ]
    series = anomaly.rates(volumes(frame, rows), "1 hour")
    found = rows_of(anomaly.anomalies(anomaly.bands(series, least=5, by_hour=True)))
    assert [(row["start"].hour, row["value"]) for row in found] == [(3, 900.0)]
