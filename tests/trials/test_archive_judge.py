"""The archive trial's judge itself: every fault that is planted is found, and only faults are."""

import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trials.archive_judge import Lives, Row, judge, rows, visible

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def life(prefix: str, count: int) -> list[Row]:
    found, at = [], 0
    for number in range(count):
        value = f"{prefix}-{number}".encode()
        found.append(Row(at, value))
        at += 4 + len(value)
    return found


WRITTEN: dict[str, Lives] = {"orders": [life("old", 6), life("new", 8)], "a b": [life("other", 3)]}


def put(folder: Path, topic: str, log: str, some: Sequence[Row], name: str, date: str = "2026-01-31") -> Path:
    path = folder / f"topic={topic}" / f"date={date}" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        "offset": pa.array([row.offset for row in some], pa.int64()),
        "timestamp": pa.array([NOON] * len(some), pa.timestamp("us", "UTC")),
        "value": pa.array([row.value for row in some], pa.binary()),
        "log": pa.array([log] * len(some)),
    }
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    old, new = WRITTEN["orders"]
    put(tmp_path, "orders", "1", old[:4], "a")
    put(tmp_path, "orders", "2", new[:5], "b")
    put(tmp_path, "orders", "2", new[5:], "c")
    put(tmp_path, "a b", "3", WRITTEN["a b"][0], "d")
    return tmp_path


def faults(folder: Path, *, complete: bool = True) -> list[str]:
    found: list[str] = []
    return found + judge(rows(visible(folder), found), WRITTEN, complete=complete) + found


def test_a_right_archive_has_no_faults(archive: Path) -> None:
    assert faults(archive) == []


OLD, NEW, OTHER = *WRITTEN["orders"], WRITTEN["a b"][0]
DAY = "topic=orders/date=2026-01-31"


def _other_day(folder: Path) -> None:
    (folder / "topic=a b/date=2026-01-31/d.parquet").unlink()
    put(folder, "a b", "3", OTHER, "d", date="2026-02-01")


def _torn(folder: Path) -> None:
    path = folder / DAY / "b.parquet"
    path.write_bytes(path.read_bytes()[:-10])


PLANTED: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / DAY / "b.parquet").unlink(), "record 0 is"),
    (lambda folder: shutil.copy(folder / DAY / "b.parquet", folder / DAY / "e.parquet"), "there twice"),
    (lambda folder: put(folder, "orders", "2", NEW[3:4], "e"), "there twice"),
    (lambda folder: put(folder, "a b", "3", [*OTHER[:2], Row(OTHER[2].offset, b"other-9")], "d"), "other-9"),
    (lambda folder: put(folder, "a b", "3", [Row(at + 1, text) for at, text in OTHER], "d"), "record 0 is 1"),
    (lambda folder: put(folder, "nobody", "4", [Row(0, b"x")], "e"), "nobody wrote to it"),
    (lambda folder: put(folder, "orders", "1", [*OLD[:2], *NEW[2:4]], "a"), "record 2 is"),
    (lambda folder: put(folder, "orders", "9", NEW, "e"), "two logs have the same life"),
    (lambda folder: (folder / DAY / "0.parquet").touch(), "0.parquet"),
    (_other_day, "a record of"),
    (_torn, "b.parquet"),
]


@pytest.mark.parametrize(("plant", "text"), PLANTED)
def test_a_planted_fault_is_found(archive: Path, plant: Callable[[Path], None], text: str) -> None:
    plant(archive)
    found = faults(archive)
    assert any(text in fault for fault in found), found
