"""Columns of records that are JSON, against a model in plain Python."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.pipeline.archiving.columns import COLUMNS_MAX, JsonColumns, merged


def parsed(records: list[Any]) -> tuple[list[dict[str, Any]], JsonColumns]:
    """The rows of records that are made until no column is new, as the archive does it."""
    known: dict[str, str] = {}
    values = pa.array([each if isinstance(each, bytes) else json.dumps(each).encode() for each in records])
    while True:
        columns = JsonColumns(known)
        arrays = columns.of(values)
        if not columns.fresh:
            return pa.Table.from_arrays(arrays, list(known)).to_pylist() if known else [], columns
        known = {**known, **columns.fresh}


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.lists(st.integers())
)


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "Id", "id", "value", "x y"]), VALUES)))
def test_nothing_that_is_said_is_left_out(records: list[dict[str, Any]]) -> None:
    rows, found = parsed(records)
    assert found.unparsed == 0
    for record, row in zip(records, rows, strict=False):
        said = {key: value for key, value in record.items() if value is not None}
        for key, value in said.items():
            if key in {"Id", "id"} and len({"Id", "id"} & said.keys()) == 2:
                continue  # one column for both
            name = {"value": "json_value", "x y": "x_y"}.get(key, key)
            name = next(each for each in row if each.lower() == name.lower())
            kept = row[name] if row[name] is not None else row[f"{name}_text"]
            assert kept == value or kept == json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def test_types_that_tasks_found_apart_are_put_together() -> None:
    found = [{"a": "bigint", "b": "bigint"}, {"a": "double", "B": "string"}, {"c": "boolean"}]
    assert merged(found) == {"a": "double", "b": "string", "c": "boolean"}


@pytest.mark.parametrize(
    "record", [b"", b"[1]", b'"x"', b"\xff", b"{", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"]
)
def test_what_is_no_object_has_no_columns(record: bytes) -> None:
    rows, found = parsed([record, {"a": 1}])
    assert rows == [{"a": None}, {"a": 1}]
    assert found.unparsed == 1


def test_what_json_can_say_and_a_column_cannot_does_not_end_it() -> None:
    rows, _ = parsed([b'{"a": "\\ud800", "\\ud800": 1, "": 2}', {"a": 1 << 70}])
    assert rows == [{"a": "?", "_": 1}, {"a": str(1 << 70), "_": None}]


def test_keys_without_end_make_no_columns_without_end() -> None:
    rows, _ = parsed([{f"key{number}": number} for number in range(3 * COLUMNS_MAX)])
    assert len(rows[0]) == COLUMNS_MAX
