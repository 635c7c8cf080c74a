"""What verbs return, shown on a terminal, in a pipe, and as JSON."""

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from brokers.render import Output, progress


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


def test_on_a_narrow_terminal_long_texts_are_folded_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    some = {"name": "orders", "body": "x" * 200}
    assert all(len(line) <= 80 for line in shown([some], stream=Terminal()).splitlines() if "xx" in line)
    many = {f"column_{number}": 1_795_324_814_000 + number for number in range(9)}
    text = shown([some | many], stream=Terminal())
    assert all(name in text and str(value) in text for name, value in many.items())
    assert "x" * 30 not in text


def test_a_cell_with_a_newline_stays_one_row_in_a_pipe() -> None:
    assert shown([Topic("a\nb", 1)]).splitlines()[1] == r"a\nb    1"


def test_one_object_is_a_field_a_line() -> None:
    assert shown(Topic("orders", 5)) == "name  orders\nend   5\n"
    assert json.loads(shown(Topic("orders", 5), as_json=True)) == {"name": "orders", "end": 5}


def test_a_small_number_does_not_read_as_none_at_all() -> None:
    assert shown({"seconds": 0.00027017699994758004}) == "seconds  0.00027\n"
    assert shown({"seconds": 12.5}) == "seconds  12.5\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5"), (0.1234, "0.123"), (100.0, "100"), (0.0, "0"), (-0.0004, "-0.0004"), (1e6, "1000000")],
)
def test_a_number_is_written_without_what_says_nothing(value: float, text: str) -> None:
    assert shown({"value": value}) == f"value  {text}\n"


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


def test_no_rows_show_nothing() -> None:
    assert shown([]) == shown(None) == shown([], stream=Terminal()) == ""


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
