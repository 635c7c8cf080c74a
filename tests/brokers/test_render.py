"""What commands return, shown on a terminal, in a pipe, and as JSON."""

import io
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest

from brokers.commands.render import Listing, Output
from shared.cli.progress import progress
from shared.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@attrs.frozen
class Topic:
    name: str
    end: int


def shown(result: Any, *, as_json: bool = False, stream: io.StringIO | None = None) -> str:
    stream = stream or io.StringIO()
    Output(stream, as_json=as_json).show(result)
    return stream.getvalue()


def test_rows_are_aligned_plain_text_in_a_pipe() -> None:
    text = shown([Topic("orders", 5), Topic("a", 1234)])
    assert text == "name     end\norders     5\na       1234\n"


def test_rows_are_json_lines_when_asked_for() -> None:
    text = shown([Topic("orders", 5), {"name": b"\xff", "path": Path("x")}], as_json=True)
    assert [json.loads(line) for line in text.splitlines()] == [
        {"name": "orders", "end": 5},
        {"name": {"base64": "/w=="}, "path": "x"},
    ]


def test_json_is_whole_where_the_locale_lacks_its_characters() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="iso-8859-2", errors="backslashreplace")
    Output(stream, as_json=True).show({"name": "zażółć 😀"})
    assert json.loads(stream.buffer.getvalue()) == {"name": "zażółć 😀"}  # type: ignore[attr-defined]


def test_rows_are_a_table_on_a_terminal_and_cannot_repaint_it() -> None:
    text = shown([Topic("[bold]x\x1b[2J", 5)], stream=Terminal())
    assert r"[bold]x\x1b[2J" in text
    assert "\x1b[2J" not in text
    assert "─" in text


def test_a_table_fits_its_terminal_and_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = {"name": "orders", "body": "word " * 40} | {f"column_{number}": number for number in range(9)}
    text = shown([row], stream=Terminal())
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("word") == 40
    left_out = re.findall(r"column_\d", text.partition("Not shown: ")[2])
    assert left_out == [f"column_{number}" for number in (0, *range(5, 9))], (
        "what says nothing, then the last"
    )
    assert "--wide or --columns" not in text, "this was no command that has them"
    whole = io.StringIO()
    Output(whole).show([row])
    wide = Terminal()
    Output(wide, wide=True, listed="names").show([row])
    assert all(name in whole.getvalue() and name in wide.getvalue() for name in row)


def test_columns_are_chosen_by_name_in_json_too() -> None:
    for as_json, text in ((False, "end  name\n  5  a\n"), (True, '{"end": 5, "name": "a"}\n')):
        stream = io.StringIO()
        Output(stream, as_json=as_json, columns=["end", "name"]).show([{"name": "a", "first": 1, "end": 5}])
        assert stream.getvalue() == text
    with pytest.raises(UsageError, match="no column nmae; did you mean name"):
        Output(columns=["nmae"]).show([{"name": "a"}])


def test_amounts_are_read_by_people_on_a_terminal_alone() -> None:
    row = {
        "disk_bytes": 1536,
        "depth": 12345,
        "ttl_ms": 90_000,
        "offset": 1048576,
        "created_ms": 1_795_324_814_000,
        "value": 20_000,
    }
    assert [line.split() for line in shown([row]).splitlines()][1] == [*map(str, row.values())]
    fields = shown(row, stream=Terminal()).splitlines()
    *amounts, created, value = [line.split("  ")[-1].strip() for line in fields]
    assert amounts == ["1.5 KiB", "12,345", "1 min 30 s", "1048576"]
    assert datetime.fromisoformat(created).timestamp() == 1_795_324_814
    assert datetime.fromisoformat(created).tzinfo is not None
    assert value == "20000"


def test_a_list_with_units_has_them_on_a_terminal_and_what_most_look_at_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    units = {"name": "", "ready": "count", "none": "rate", "in_rate": "bytes_rate", "more": "table"}
    rows = [{"name": "a", "ready": 0, "none": None, "in_rate": 2048.0, "more": {"key": "value " * 9}}]
    listing = Listing([{**rows[0], "since": "2026-01-31T12:00:00.000Z"}], {**units, "since": "time"}, "x/a b")
    local = datetime(2026, 1, 31, 12, tzinfo=UTC).astimezone().isoformat()
    assert shown(listing, stream=Terminal()).splitlines() == [
        "name  ready  none  in_rate  since",
        "─" * (28 + len(local)),
        f"a         0     -  2 KiB/s  {local}",
        "",
        "Not shown: more (--json).",
        "",
        "There are more: --after 'x/a b'",
    ]
    assert shown(listing).splitlines()[1].split()[:4] == ["a", "0", "-", "2048"]
    assert [json.loads(line) for line in shown(listing, as_json=True).splitlines()] == listing.rows


def test_a_list_of_nothing_says_so_on_a_terminal() -> None:
    terminal = Terminal()
    Output(terminal, listed="queues").show([])
    assert terminal.getvalue() == "no queues\n"
    for stream, as_json in ((io.StringIO(), False), (Terminal(), True)):
        Output(stream, as_json=as_json, listed="queues").show([])
        assert stream.getvalue() == ""


def test_one_object_is_a_field_a_line() -> None:
    assert shown(Topic("orders", 5)) == "name  orders\nend   5\n"
    assert json.loads(shown(Topic("orders", 5), as_json=True)) == {"name": "orders", "end": 5}


def test_rows_may_have_columns_that_others_have_not() -> None:
    text = shown([{"a": 1}, {"b": "x", "a": None}, {"a": 10}])
    assert text == " a  b\n 1  -\n -  x\n10  -\n"


def test_a_text_is_json_too_where_json_is_asked_for() -> None:
    assert shown('a "b"', as_json=True) == '"a \\"b\\""\n'


def test_rows_as_they_come_are_harmless_and_in_order_with_bytes(tmp_path: Path) -> None:
    assert shown(iter([Topic("a\x1b[2J\nb", 1)])) == "a\\x1b[2J\\nb  1\n"
    with (tmp_path / "out").open("w") as stream:
        stream.write("first ")
        Output(stream).show(b"then")
        assert (tmp_path / "out").read_bytes() == b"first then"  # and nothing waits
        Output(stream).show("a line")
        assert (tmp_path / "out").read_bytes() == b"first thena line\n"


def test_bytes_go_out_as_they_are() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw)
    Output(stream).show(b"\x00\xff")
    assert raw.getvalue() == b"\x00\xff"


def test_text_is_harmless_on_a_terminal_and_exact_in_a_pipe() -> None:
    assert shown("a\x1b[2J\nb") == "a\x1b[2J\nb\n"
    assert shown("a\x1b[2J\nb", stream=Terminal()) == "a\\x1b[2J\nb\n"


async def test_a_stream_of_rows_is_flushed_row_by_row() -> None:
    stream = io.StringIO()
    seen = []

    async def rows() -> AsyncIterator[Topic]:
        for number in range(3):
            yield Topic("orders", number)
            seen.append(stream.getvalue().count("\n"))

    flushed = []
    stream.flush = lambda: flushed.append(stream.getvalue().count("\n"))  # type: ignore[method-assign]
    await Output(stream, as_json=True).stream(rows())
    assert seen == flushed == [1, 2, 3]
    assert json.loads(stream.getvalue().splitlines()[2]) == {"name": "orders", "end": 2}


def test_progress_is_shown_on_a_terminal_only() -> None:
    pipe, terminal = io.StringIO(), Terminal()
    for stream in (pipe, terminal):
        with progress("copying", 10, stream) as update:
            update(5)
            update(10, 20)
    assert pipe.getvalue() == ""
    assert "copying" in terminal.getvalue()
