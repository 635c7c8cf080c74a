"""What an archive is made of and cut by: hours, columns of JSON, ages, days built again. No JVM."""

import importlib.util
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pyarrow.dataset as ds
import pytest

from brokers.errors import Failure
from brokers.pipeline import archive
from brokers.pipeline.archive import REMOVED, faults
from brokers.pipeline.archiving import cli
from brokers.pipeline.archiving.cli import ShapeOptions
from brokers.pipeline.archiving.job import Round, Settings
from brokers.pipeline.archiving.places import FolderPlace
from shared.errors import BrokerError, UsageError
from tests.pipeline.archive.model import AT_ONCE, Spark, archiver
from tests.support.folders import fill

JSON = attrs.evolve(AT_ONCE, parse_json=True)
TODAY = datetime.now(UTC).date()


def once(folder: Path, data: Path, settings: Settings = AT_ONCE, **options: str) -> list[Round]:
    with archiver(Spark(), folder, data, settings, **options) as job:
        return list(job.once())


def rows(folder: Path) -> list[dict[str, Any]]:
    tables = [ds.dataset(path).to_table().to_pylist() for path in archive.paths(folder)]
    return sorted((row for table in tables for row in table), key=lambda row: row["offset"])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "data", {("logmq", "orders"): [b'{"id": 1}', b'{"id": 2, "item": "pen"}']})
    return tmp_path / "data"


def test_hours_are_folders_of_their_days(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    once(folder, data, attrs.evolve(AT_ONCE, by_hour=True))
    (path,) = archive.paths(folder)
    time = rows(folder)[0]["timestamp"]
    assert path.startswith(f"{folder}/topic=orders/date={time:%Y-%m-%d}/hour={time:%H}/")
    assert faults(FolderPlace(folder)) == []
    assert once(folder, data) == []


def test_columns_of_json_grow_and_are_told_by_the_manifest(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    once(folder, data)
    once(folder, data, JSON)
    fill(data, {("logmq", "orders"): [b'{"id": 3.5}', b"none"]})
    (one,) = once(folder, data, JSON)
    assert (one.conflicts, one.unparsed) == (0, 1)
    fill(data, {("logmq", "orders"): [b'{"id": "x"}', b'{"id": 4}']})
    (one,) = once(folder, data, JSON)
    assert (one.conflicts, one.unparsed) == (1, 0)
    assert [row.get("id") for row in rows(folder)] == [None, None, 3.5, None, None, 4.0]
    assert [row.get("id_text") for row in rows(folder)] == [None] * 4 + ["x", None]
    assert archive.columns(folder) == {"id": "double", "id_text": "string"}
    assert not list(folder.rglob("_archive/fresh/*/*/*"))


def test_a_day_is_built_again_under_the_same_names(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    once(folder, data)
    before = archive.paths(folder)
    with archiver(Spark(), folder, data, JSON) as job:
        assert job.rebuild(rows(folder)[0]["timestamp"].date()).records == 2
    assert archive.paths(folder) == before
    assert [row["id"] for row in rows(folder)] == [1, 2]
    assert faults(FolderPlace(folder)) == []
    assert once(folder, data) == []


def test_a_day_that_would_be_cut_otherwise_is_left_as_it_is(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    once(folder, data)
    day, before = rows(folder)[0]["timestamp"].date(), archive.paths(folder)
    with (
        archiver(Spark(), folder, data, attrs.evolve(AT_ONCE, by_hour=True)) as job,
        pytest.raises(Failure, match="other files"),
    ):
        job.rebuild(day)
    assert archive.paths(folder) == before


def test_what_is_older_than_since_is_left_out(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    later = str(int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000))
    late = {"startingTimestamp": later, "startingOffsetsByTimestampStrategy": "latest"}
    assert once(folder, data, **late) == []
    assert sum(each.records for each in once(folder, data, startingTimestamp="2020-01-01T00:00:00Z")) == 2
    fill(data, {("logmq", "orders"): [b"new"]})  # of a log that is there already the time is not asked
    assert [each.records for each in once(folder, data, **late)] == [1]


def test_days_that_are_too_old_go_as_a_whole(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    once(folder, data)
    (path,) = map(Path, archive.paths(folder))
    old = path.parent.with_name(f"date={TODAY - timedelta(days=30)}")
    path.parent.rename(old)
    once(folder, data, attrs.evolve(AT_ONCE, keep_days=31))
    assert old.exists()
    fill(data, {("logmq", "orders"): [b"new"]})
    assert [each.records for each in once(folder, data, attrs.evolve(AT_ONCE, keep_days=29))] == [1]
    assert not old.exists()
    assert [row["value"] for row in rows(folder)] == [b"new"]
    assert [fault.what for fault in faults(FolderPlace(folder))] == [REMOVED]
    assert once(folder, data) == []


def test_mistakes_are_told_before_anything_is_opened(tmp_path: Path) -> None:
    for folder, shape, text in (
        ("", ShapeOptions(), "FOLDER"),
        ("s4://bucket/x", ShapeOptions(), "not of this machine"),
        ("x", ShapeOptions(rebuild="2026-01-01"), "--rebuild"),
        ("x", ShapeOptions(rebuild="date=yesterday"), "--rebuild"),
        ("x", ShapeOptions(keep_days=0), "--keep-days"),
        ("x", ShapeOptions(since="yesterday"), "startingTimestamp"),
        ("", ShapeOptions(table="hudi:x"), "--table"),
    ):
        with pytest.raises((UsageError, BrokerError), match=text):
            cli.archive(folder, path=("x",), shape=shape)


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    missing = {"obstore", "deltalake", "pyiceberg"}
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else there(name))
    for folder, table, extra in (
        ("s3://b/x", None, "ship"),
        ("", "delta:x", "lake"),
        ("", "iceberg:a.b.c", "lake"),
    ):
        with pytest.raises(Failure, match=rf"pip install 'brokers\[{extra}\]'"):
            cli.archive(folder, path=(str(data),), shape=ShapeOptions(table=table))
