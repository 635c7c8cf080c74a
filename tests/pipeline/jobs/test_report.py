"""The page: everything in it is shown as text, every picture is drawn, and an empty folder makes one too."""

import datetime
import re
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attrs
import pytest

from brokers.pipeline.jobs import frames, plots, report
from brokers.pipeline.jobs.report import Figures, window_for
from shared.errors import UsageError
from tests.pipeline.jobs.test_measures import START

NASTY = '<script>alert("x")</script>$\\frac{1}$\x1b[31m\u202e漢_'
MINUTE = datetime.timedelta(minutes=1)


def filled(name: str) -> Figures:
    """Something of everything, under that name."""
    by_minute = [
        {
            "start": START + number * MINUTE,
            "protocol": "logmq",
            "name": each,
            "messages": 60 * number,
            "bytes": 600 * number,
            "messages_per_second": float(number),
        }
        for each in (name, *(f"other {other}" for other in range(12)))
        for number in range(5)
    ]
    band: dict[str, Any] = {
        "protocol": "logmq",
        "name": name,
        "measure": "value",
        "usual": 5.0,
        "low": 4.0,
        "high": 6.0,
    }
    bands = [
        band | {"start": START + number * MINUTE, "value": value, "distance": value - 5, "outside": value > 6}
        for number, value in enumerate((5.0, 5.5, 9.0))
    ]
    ranks = {"p50_ms": 0, "p90_ms": 70, "p99_ms": 9000, "max_ms": 90_000_000}
    reader = {
        "protocol": "logmq",
        "reader": name,
        "name": name,
        "messages": 7,
        "bytes": 7000,
        "seconds": None,
    }
    return Figures(
        window="1 minute",
        totals=[
            {
                "protocol": "logmq",
                "name": name,
                "messages": 600,
                "bytes": 6000,
                "first": START,
                "last": START + 4 * MINUTE,
            }
        ],
        throughput=by_minute,
        latency=[{"protocol": "dms", "name": name, "measure": "in_queue_ms", "messages": 9, **ranks}],
        outcomes={name: {"acknowledged": 5, "expired": 1}},
        lag=[reader],
        anomalies=[row for row in bands if row["outside"]],
        bands=bands,
        faults=[{"log": name, "fault": "kind 9", "records": 3}],
    )


def test_a_page_shows_names_and_never_obeys_them(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of characters that the font does not have
        files = report.write(filled(NASTY), NASTY, tmp_path, START)
    page = files[0].read_text()
    assert "<script" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;" in page
    pictures = [file.read_bytes() for file in files[1:]]
    assert len(pictures) == len(re.findall(r"data:image/svg\+xml;base64,", page)) == 5
    for picture in pictures:
        assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
        assert not re.search(rb"<script|\x1b|\xe2\x80\xae", picture)
    assert not re.search(r"(src|href)=\"(?!data:image/svg|#)", page)  # it needs nothing else


def test_names_are_text_in_pictures_and_drawn_by_whoever_has_the_font(tmp_path: Path) -> None:
    files = report.write(filled("bills \U0001f9fe"), "data", tmp_path, START)
    texts = {
        text.strip()
        for file in files[1:]
        for each in ElementTree.fromstring(file.read_bytes()).iter("{http://www.w3.org/2000/svg}text")
        if (text := "".join(each.itertext()))
    }
    assert {"bills \U0001f9fe", "bills \U0001f9fe\u00a0 (6)"} & texts
    assert not any("\\U" in text for text in texts)
    assert plots.shown("\x1b\u202e") == "\\x1b\\u202e"
    assert plots.shown("漢" * 40).startswith("漢" * 15 + "…")


def test_small_names_have_a_scale_on_which_they_can_be_seen(tmp_path: Path) -> None:
    figures = filled("orders")
    page = report.write(figures, "data", tmp_path, START)[0].read_text()
    assert "powers of ten" not in page
    small = [
        dict(row)
        | ({"messages_per_second": row["messages_per_second"] / 1000} if row["name"] != "orders" else {})
        for row in figures.throughput
    ]
    page = report.write(attrs.evolve(figures, throughput=small), "data", tmp_path, START)[0].read_text()
    assert "powers of ten" in page


def test_an_axis_of_time_has_a_tick_below_and_one_above_all() -> None:
    assert plots.ticks_ms(12, 80) == [10, 20, 50, 100]
    assert plots.ticks_ms(3, 3) == [2, 5]
    assert plots.ticks_ms(0.5, 9e8)[0] == 0.5
    for low, high in ((0.5, 0.5), (1, 86_400_000), (7, 7e9), (1e10, 3e10), (59_000, 61_000)):
        ticks = plots.ticks_ms(low, high)
        assert 2 <= len(ticks) <= 13
        assert (ticks[0] <= low or ticks[0] == 0.5, ticks[-1] >= high) == (True, True)


def test_points_in_a_row_are_one_row_and_how_many_are_shown_is_said(tmp_path: Path) -> None:
    figures = filled("orders")
    (point,) = figures.anomalies
    rows = [
        dict(point) | {"name": f"n{name}", "start": START + minute * MINUTE, "distance": 2.0 + minute}
        for name in range(report.TABLE_MAX + 5)
        for minute in (0, 1, 2, 7)
    ]
    (worst, those), *_, last = report.stretches(rows[:4], "1 minute")
    assert [row["start"] for row in those] == [START + 7 * MINUTE]
    assert worst == those[0]
    assert [row["start"] for row in last[1]] == [START + minute * MINUTE for minute in (0, 1, 2)]
    page = report.write(attrs.evolve(figures, anomalies=rows), "data", tmp_path, START)[0].read_text()
    assert "80 points are outside, in 40 rows of 20 names." in page
    assert "The pictures are of 1 of 20 names." in page
    assert "15 of 40, the farthest first:" in page


def test_each_picture_comes_with_words(tmp_path: Path) -> None:
    page = report.write(filled("orders"), "data", tmp_path, START)[0].read_text()
    assert page.count("How to read it.") == page.count("<img ") == page.count(' alt="') == 5
    assert "600 messages (6 kB) to 1 name, from 2026-11-21 12:00:00 to 2026-11-21 12:04:00." in page
    assert "Of every queue half of the messages left within a millisecond. The slowest" in page
    assert "The slowest message of all stayed 1.04 d in orders." in page
    assert "9, above its band of 4 to 6." in page
    assert "Of 6 messages 5 (83.3 %) were acknowledged, and 1 (16.7 %) failed or grew too old." in page


def test_what_stands_out_is_the_most_of_all_wherever_it_stands(tmp_path: Path) -> None:
    figures = filled("orders")
    rows = [
        dict(row) | {"name": name, "p50_ms": half, "max_ms": most, "measure": measure}
        for row in figures.latency
        for name, half, most, measure in (
            ("even", 400, 400, "in_queue_ms"),
            ("quick", 1, 2000, "in_queue_ms"),
            ("slow", 500, 1000, "in_queue_ms"),
            ("other", 9000, 9000, "until_delivered_ms"),
        )
    ]
    far = [
        dict(figures.anomalies[0]) | {"name": f"n{number}", "distance": distance}
        for number, distance in enumerate([3.0, -40.0, *[2.0] * report.TABLE_MAX])
    ]
    many = [
        dict(figures.totals[0]) | {"name": f"t{number}", "bytes": 1000}
        for number in range(report.TABLE_MAX + 1)
    ]
    busy = [
        dict(row) | {"messages": 7 - number, "messages_per_second": (7 - number) / 60}
        for number, row in enumerate(figures.throughput[:3])
    ]
    changed = attrs.evolve(
        figures,
        latency=rows,
        anomalies=far,
        totals=many,
        throughput=busy,
        outcomes={"a": {"acknowledged": 1, "dead-lettered": 2, "expired": 3, "exhausted": 4}},
        faults=[],
    )
    page = report.write(changed, "data", tmp_path, START)[0].read_text()
    assert "In slow it took longest: half of the messages stayed 500 ms or longer." in page
    assert "The slowest message of all stayed 2 s in quick." in page
    assert ">other<" not in page
    assert "The farthest is n1 at" in page
    assert "below its band" in page
    assert page.index(">n1<") < page.index(">n0<")
    assert f"{report.TABLE_MAX} of {len(far)}, the farthest first:" in page
    assert ">t14<" in page
    assert ">t15<" not in page
    assert "began at 2026-11-21 12:00:00, with 7 messages" in page
    assert "9 (90 %) failed or grew too old" in page
    assert ">1 kB<" in page
    assert "What could not be read" not in page


@pytest.mark.parametrize(
    ("text", "length", "words"),
    [
        ("1 minute", "1 minute", "1 minute"),
        (" 30 Seconds ", "30 second", "30 seconds"),
        ("2days", "2 day", "2 days"),
    ],
)
def test_a_length_of_time_is_read_and_said(text: str, length: str, words: str) -> None:
    assert frames.length(text, "--window") == length
    assert frames.in_words(text) == words
    for wrong in (
        "0 minutes",
        "01 minute",
        "minute",
        "1000000 days",
        "1 week",
        "-1 day",
        "1.5 hours",
        "1 day; x",
        "",
    ):
        with pytest.raises(UsageError, match="--late"):
            frames.length(wrong, "--late")


def test_a_silence_is_drawn_from_its_first_window_to_its_last() -> None:
    starts = [START + number * MINUTE for number in (1, 0, 9, 11)]
    found = plots.with_silences(starts, MINUTE)
    assert [(start - START) // MINUTE for start in found] == [0, 1, 2, 8, 9, 10, 11]
    assert plots.with_silences([START], MINUTE) == [START]


def test_nothing_makes_a_page_too(tmp_path: Path) -> None:
    empty = attrs.evolve(
        filled("x"),
        totals=[],
        throughput=[],
        latency=[],
        outcomes={},
        lag=[],
        anomalies=[],
        bands=[],
        faults=[],
    )
    (page,) = report.write(empty, "data", tmp_path, START)
    assert "Nothing did." in page.read_text()


@pytest.mark.parametrize(
    ("seconds", "window"),
    [
        (0, "1 second"),
        (299, "1 second"),
        (300, "1 second"),
        (301, "10 seconds"),
        (86_400, "10 minutes"),
        (9e8, "1 day"),
    ],
)
def test_the_window_lets_all_time_be_a_few_hundred_points(seconds: float, window: str) -> None:
    assert window_for([{"first": START, "last": START + datetime.timedelta(seconds=seconds)}]) == window
    assert window_for([]) == "1 second"
    early, late = ({"first": START + at * MINUTE, "last": START + at * MINUTE} for at in (0, 60))
    assert window_for([late, early]) == window_for([early, late]) == "1 minute"


def test_lengths_of_time_are_in_the_unit_that_fits() -> None:
    lengths = (0, 12, 999, 1500, 90_000, 7_200_000, 1e9)
    assert [plots.span(ms) for ms in lengths] == [
        "0 ms",
        "12 ms",
        "999 ms",
        "1.5 s",
        "1.5 min",
        "2 h",
        "11.6 d",
    ]
