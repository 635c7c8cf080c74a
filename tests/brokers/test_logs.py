"""Log lines: one event a line, whatever a peer puts into it."""

import io
import json
import logging
import os
import re
from collections.abc import Iterator
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.escape import escape, escape_name
from brokers.host.logs import (
    KINDS_MAX,
    LINES_PER_SECOND,
    MATTERS_MAX,
    RECENT,
    Gathered,
    audit,
    configure,
    line_of,
    tell_left_out,
    unfiltered,
)

Pipe = tuple[io.BufferedReader, TextIO]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """Its two ends; a write that would wait is an error, and so is seen."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with open(reading, "rb") as reader, open(writing, "w") as stream:
        yield reader, stream


def lines(form: str, *events: tuple[str, dict[str, object]], level: str = "info") -> list[str]:
    stream = io.StringIO()
    log = configure(level, form, stream)  # type: ignore[arg-type]
    for name, fields in events:
        log.warning(name, **fields)
    return stream.getvalue().splitlines()


def test_a_text_line_has_time_level_event_and_fields() -> None:
    (line,) = lines("text", ("listening", {"protocol": "logmq", "port": 8080, "note": "two words"}))
    time, level, rest = line.split(maxsplit=2)
    assert len(time) == len("2026-03-01T09:30:00.125Z")
    assert time.endswith("Z")
    assert level == "warning"
    assert rest == 'listening  protocol=logmq port=8080 note="two words"'


def test_a_json_line_is_one_object() -> None:
    (line,) = lines("json", ("listening", {"protocol": "logmq", "ports": [1, 2]}))
    record = json.loads(line)
    assert record["event"] == "listening"
    assert record["level"] == "warning"
    assert record["ports"] == [1, 2]


@pytest.mark.parametrize("form", ["text", "json"])
@given(name=st.text() | st.binary())
def test_no_name_makes_a_second_line_or_reaches_a_terminal_raw(form: str, name: str | bytes) -> None:
    got = lines(form, ("refused", {"topic": name}))
    assert len(got) == 1
    assert escape(got[0]) == got[0]


def test_a_forged_line_in_a_name_is_shown_as_the_name_it_is() -> None:
    (line,) = lines("text", ("refused", {"topic": "a\n2026 info all is well\x1b[2J\u202e"}))
    assert line.endswith(r'topic="a\n2026 info all is well\x1b[2J\u202e"')


@pytest.mark.parametrize(
    "harmful",
    [
        "\x7f",
        "\x85",
        "\x9b",
        "\xad",
        "\u061c",
        "\u200b",
        "\u2028",
        "\u202e",
        "\u2060",
        "\u2066",
        "\ufeff",
        "\U000e0041",
    ],
)
def test_what_is_invisible_or_misleading_is_shown_by_its_number(harmful: str) -> None:
    (shown,) = {escape(harmful), escape_name(harmful)}
    assert shown.isascii()
    assert int(shown[2:], 16) == ord(harmful)
    assert len(shown) == {"x": 4, "u": 6, "U": 10}[shown[1]]
    assert escape("é\u0100漢😀") == "é\u0100漢😀"


def test_a_value_with_quotes_or_none_is_one_value_and_names_are_as_harmless() -> None:
    (line,) = lines("text", ("refused", {"topic": 'a"b', "note": "", "a\nb": "x", "of": {"c\nd": 1}}))
    assert line.endswith(r"""topic="a\"b" note="" a\nb=x of={"c\\nd": 1}""")


def test_a_long_name_is_cut_and_a_payload_is_only_measured() -> None:
    assert escape_name("x" * 257) == "x" * 256 + "…"
    assert escape_name("x" * 256) == "x" * 256
    assert escape_name(b"x" * 5000) == "<5000 bytes>"
    (line,) = lines("text", ("refused", {"body": memoryview(b"secret" * 1000)}))
    assert "secret" not in line


def test_a_flood_of_lines_is_left_out_and_told_of() -> None:
    stream = io.StringIO()
    now = [5.0]
    log = configure("info", "text", stream, lambda: now[0])
    for number in range(3 * LINES_PER_SECOND):
        log.info("protocol error", number=number)
        log.error("a session crashed")
    log.warning("connections refused")
    unfiltered().info("ready")
    now[0] += 1
    log.info("protocol error", number="last")
    log.info("stopping")
    told = stream.getvalue()
    assert told.count("protocol error  number") == LINES_PER_SECOND + 1
    assert told.count("a session crashed") == 3 * LINES_PER_SECOND, "errors are never left out"
    *_, refused, ready, left_out, last, stopping = told.splitlines()
    assert refused.endswith("connections refused")
    assert ready.endswith("ready")
    count = 2 * LINES_PER_SECOND
    assert left_out.endswith(f'info    lines left out  left_out={count} of={{"protocol error": {count}}}')
    assert last.endswith("protocol error  number=last")
    assert stopping.endswith("stopping")


def test_no_matter_hides_another_and_what_was_left_out_is_told_of_each() -> None:
    stream = io.StringIO()
    now = [5.0]
    log = configure("info", "json", stream, lambda: now[0])
    logmq, dmp = log.bind(protocol="logmq"), log.bind(protocol="dmp")
    for _ in range(1000):
        logmq.info("protocol error")
        logging.getLogger("library").warning("line %d", _)
    for _ in range(200):
        dmp.info("amqp login refused")
    dmp.info("protocol error")
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert sum(line["event"] == "amqp login refused" for line in told) == LINES_PER_SECOND
    assert sum(line["event"] == "protocol error" for line in told) == LINES_PER_SECOND + 1
    tell_left_out()
    assert len(stream.getvalue().splitlines()) == len(told), "its second is not over"
    now[0] += 1
    for _ in range(2):
        tell_left_out()
    *_, left_out = (json.loads(line) for line in stream.getvalue().splitlines())
    assert len(stream.getvalue().splitlines()) == len(told) + 1
    assert left_out["of"] == {
        "logmq: protocol error": 1000 - LINES_PER_SECOND,
        "library": 1000 - LINES_PER_SECOND,
        "dmp: amqp login refused": 200 - LINES_PER_SECOND,
    }
    assert (left_out["level"], left_out["left_out"]) == ("warning", sum(left_out["of"].values()))


def test_matters_that_somebody_makes_up_have_one_bound_together() -> None:
    stream = io.StringIO()
    log = configure("info", "text", stream, lambda: 5.0)
    for number in range(10 * MATTERS_MAX):
        log.info(f"matter {number}")
    assert len(stream.getvalue().splitlines()) == MATTERS_MAX + LINES_PER_SECOND


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_is_told_and_cannot_forge_a_line(form: str) -> None:
    stream = io.StringIO()
    log = configure("info", form, stream)  # type: ignore[arg-type]
    try:
        raise ValueError("bad\n2026-01-01T00:00:00.000Z info    all is well\x1b[2J")
    except ValueError:
        log.exception("crashed", topic="orders")
    got = stream.getvalue().splitlines()
    assert "ValueError" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
    if form == "json":
        assert len(got) == 1
    else:
        assert all(line.startswith("  | ") for line in got[1:])


def test_the_level_is_the_least_that_is_logged() -> None:
    assert lines("text", ("refused", {}), level="error") == []


def test_what_libraries_log_comes_out_the_same_way() -> None:
    stream = io.StringIO()
    configure("info", "text", stream)
    logging.getLogger("somebody.else").warning("odd\nthing")
    logging.getLogger("somebody.else").info("chatter")
    (line,) = stream.getvalue().splitlines()
    assert r"odd\nthing  logger=somebody.else" in line


def test_a_log_that_cannot_be_written_stops_nobody() -> None:
    stream = io.StringIO()
    log = configure("info", "text", stream)
    stream.close()
    log.warning("unheard")


@pytest.mark.parametrize("level", ["info", "debug"])
def test_a_log_that_nobody_reads_stops_nobody_and_tells_what_was_left_out(pipe: Pipe, level: str) -> None:
    reader, stream = pipe
    log = configure(level, "json", stream)  # type: ignore[arg-type]
    for number in range(2000):
        log.error("unread", number=number, text="x" * 200)
    found = reader.read1(1 << 20).decode().splitlines()
    kept = [json.loads(line)["number"] for line in found]
    assert kept == list(range(len(kept)))
    assert len(kept) < 2000
    log.error("read again")
    assert json.loads(reader.read1())["left_out"] == 2000 - len(kept)


def test_a_line_that_was_cut_by_a_full_pipe_does_not_run_into_the_next(pipe: Pipe) -> None:
    reader, stream = pipe
    log = configure("info", "text", stream)
    for _ in range(200):
        try:
            raise ValueError("x" * 10_000)
        except ValueError:
            log.exception("long")
    cut = reader.read1(1 << 20)
    assert not cut.endswith(b"\n")
    log.error("read again")
    last = (cut + reader.read1()).splitlines()[-1]
    assert re.fullmatch(rb"\S+ error +read again +left_out=\d+", last)


def test_a_line_that_repeats_comes_once_a_second_and_is_counted() -> None:
    told: list[dict[str, Any]] = []
    lines = Gathered(lambda **fields: told.append(fields), "user", "name")
    for _ in range(1000):
        lines(user="ann", name="q", peer="1.2.3.4:5")
    lines(user="bob", name="q", peer="1.2.3.4:6")
    assert [line["user"] for line in told] == ["ann", "bob"]
    tell_left_out()
    assert told[2:] == [{"user": "ann", "name": "q", "peer": "1.2.3.4:5", "count": 999}]
    lines(user="ann", name="q", peer="1.2.3.4:5")
    assert len(told) == 3, "the flood goes on: a line a second"
    tell_left_out()
    tell_left_out()
    assert (len(told), told[3]["count"]) == (4, 1)
    lines(user="ann", name="q", peer="1.2.3.4:5")
    assert len(told) == 5, "it is over: the next line comes at once"


def test_lines_of_very_many_names_are_one_that_counts_them_and_names_the_first() -> None:
    told: list[dict[str, Any]] = []
    lines = Gathered(lambda **fields: told.append(fields), "user", "name")
    for n in range(KINDS_MAX + 1000):
        lines(user="ann", name=f"q{n}", peer="1.2.3.4:5")
    assert [line["name"] for line in told] == [f"q{n}" for n in range(KINDS_MAX)]
    tell_left_out()
    (line,) = told[KINDS_MAX:]
    named = [f"q{n}" for n in range(KINDS_MAX, 2 * KINDS_MAX)]
    assert line == {"user": "ann", "name": named, "peer": "1.2.3.4:5", "count": 1000}


def test_a_line_that_is_kept_is_shown_as_it_was_written() -> None:
    stream = io.StringIO()
    log = configure("info", "text", stream)
    before = RECENT.last
    log.bind(protocol="dms").warning("it waits", queue="a b", count=2)
    log.info("nothing more")
    audit(user="ann", peer="1.2.3.4:5", protocol="dms", action="kick", name="dms-1", result="done")
    log.error("a bug", exc_info=ValueError("no"))
    shown = [line_of(row) for _, row in RECENT.after(before)]
    assert "\n".join(shown) + "\n" == stream.getvalue()
