"""Archives that are tables, without a JVM: this process does what executors do."""

import signal
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import attrs
import pytest

from brokers.errors import Failure
from brokers.pipeline.archiving import lake
from brokers.pipeline.archiving.feed import ArchiveInput
from brokers.pipeline.archiving.folder import ArchiveInUse, opened
from brokers.pipeline.archiving.job import Archiver, Round, Settings
from brokers.pipeline.archiving.lake import TableAccount, open_table, register
from brokers.pipeline.archiving.manifest import ArchivedSpan, ByteRange, Manifest
from brokers.pipeline.archiving.places import place_of
from brokers.pipeline.source.options import parse
from shared.errors import UsageError
from tests.pipeline.archive.model import AT_ONCE, Spark, archiver
from tests.pipeline.archive.test_archive import changed
from tests.pipeline.folders import placed
from tests.support.folders import fill

KINDS = ("iceberg", "delta")
ODD = "Queue A/B=1%2F"
LOGS = {"orders": [b"%05d" % number + b"." * 400 for number in range(500)], ODD: [b"job"]}
Rows = list[tuple[str, int, bytes]]


def expected(logs: dict[str, list[bytes]]) -> Rows:
    return sorted((topic, *record) for topic, values in logs.items() for record in placed(values))


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `--table` says."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    return "iceberg:lake.logs.everything" if request.param == "iceberg" else f"delta:{tmp_path}/table"


def account(table: str, **options: Any) -> TableAccount:
    return open_table(table, "a data folder's logmq", **{"by_hour": False} | options)


def job(table: str, data: Path, settings: Settings = AT_ONCE, **options: str) -> Archiver:
    feed = ArchiveInput(parse({"path": str(data), "subscribePattern": ".*", **options}))
    opened = account(table, by_hour=settings.by_hour)
    return Archiver(Spark(), feed, opened, opened.place, settings)  # type: ignore[arg-type]


def once(table: str, data: Path, settings: Settings = AT_ONCE, **options: str) -> list[Round]:
    return list(job(table, data, settings, **options).once())


def read(table: str) -> list[dict[str, Any]]:
    """All rows, as the format's own library has them."""
    found = account(table, by_hour=False)
    if table.startswith("iceberg:"):
        rows = found.table.scan().to_arrow().to_pylist()
    else:
        rows = found.table.to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["topic"], row["log"], row["offset"]))


def plain(table: str) -> Rows:
    return [(row["topic"], row["offset"], row["value"]) for row in read(table)]


def test_each_record_is_there_once_and_a_second_time_only_what_came_since(table: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, {("logmq", topic): values for topic, values in LOGS.items()})
    rounds = once(table, data, attrs.evolve(AT_ONCE, round_bytes=80_000))
    assert len(rounds) > 1
    assert once(table, data) == []
    fill(data, {("logmq", "orders"): [b"new"]})
    (one,) = once(table, data)
    assert (one.records, one.version) == (1, len(rounds) + 1)
    assert plain(table) == expected({**LOGS, "orders": [*LOGS["orders"], b"new"]})
    assert not list(tmp_path.rglob("_archive"))  # the private account is not used


KILLED = """
import importlib, os, signal, sys
from brokers.pipeline.archiving.feed import ArchiveInput
from brokers.pipeline.archiving.job import Archiver
from brokers.pipeline.archiving.lake import open_table
from brokers.pipeline.source.options import parse
from tests.pipeline.archive.model import AT_ONCE, Spark
table, data = sys.argv[1:]
importlib.import_module(f"brokers.pipeline.archiving.{table.partition(':')[0]}")  # before the processes part
for point in ("written", "committed"):
    child = os.fork()
    if not child:
        feed = ArchiveInput(parse({"path": data, "subscribePattern": ".*"}))
        opened = open_table(table, feed.origin, by_hour=False)
        archiver = Archiver(Spark(), feed, opened, opened.place, AT_ONCE)
        kind = type(archiver.folder)
        commit = kind.try_commit
        def killed(*arguments):
            if point == "committed":
                commit(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        kind.try_commit = killed
        list(archiver.once())
    print(point, os.waitpid(child, 0)[1], flush=True)
    input()
"""


def test_killed_around_its_commit_each_record_is_there_once(table: str, tmp_path: Path) -> None:
    """Its files are written, and no commit has been made; then it is killed behind one."""
    data = tmp_path / "data"
    fill(data, {("logmq", topic): values for topic, values in LOGS.items()})
    words = [sys.executable, "-c", KILLED, table, str(data)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for point, rows in (("written", 0), ("committed", 501)):
            assert process.stdout.readline() == f"{point} {signal.SIGKILL}\n"
            assert len(list(tmp_path.rglob("topic=orders/**/*.parquet"))) == (2 if point == "written" else 4)
            assert len(read(table)) == rows
            process.stdin.write("\n")
            process.stdin.flush()
    assert once(table, data) == []
    assert plain(table) == expected(LOGS)


def test_two_archivers_the_slower_of_which_is_refused(table: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, {("logmq", "orders"): [b"one"]})
    slow, quick = job(table, data), job(table, data)
    assert len(list(quick.once())) == 1
    with pytest.raises(ArchiveInUse):
        list(slow.once())
    assert plain(table) == [("orders", 0, b"one")]


def test_a_commit_of_others_is_no_hindrance(table: str, tmp_path: Path) -> None:
    """A compaction, or the age of old days, comes between."""
    data = tmp_path / "data"
    fill(data, {("logmq", "orders"): [b"one"]})
    waiting = job(table, data)
    account(table).expire(date(2000, 1, 1))
    other = account(table)
    if table.startswith("delta:"):
        other.table.alter.set_table_properties({"delta.checkpointInterval": "7"})
    else:
        other.table.append(other.table.scan().to_arrow())
    assert [each.records for each in waiting.once()] == [1]
    assert plain(table) == [("orders", 0, b"one")]


def test_a_commit_whose_answer_is_lost_is_found_to_be_made(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    fill(data, {("logmq", "orders"): [b"one"]})
    archiver = job(table, data)
    kind = type(archiver.folder)
    commit = kind.try_commit

    def lost(*arguments: Any) -> None:
        commit(*arguments)
        raise lake.CommitConflict

    monkeypatch.setattr(kind, "try_commit", lost)
    assert [each.records for each in archiver.once()] == [1]
    assert plain(table) == [("orders", 0, b"one")]


def test_files_of_an_archive_are_registered_and_not_written_again(table: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    folder = tmp_path / ("table" if table.startswith("delta") else "archive")
    fill(data, {("logmq", topic): values for topic, values in LOGS.items()})
    with archiver(Spark(), folder, data) as before:
        list(before.once())
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    found = account(table)
    with opened(place_of(folder), found.origin) as archive:
        assert register(found, archive, place_of(folder)) == len(files)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("topic=*/**/*.parquet")} == files
    assert once(table, data) == []
    fill(data, {("logmq", "orders"): [b"new"]})
    assert sum(each.records for each in once(table, data)) == 1
    assert plain(table) == expected({**LOGS, "orders": [*LOGS["orders"], b"new"]})


def test_a_table_of_something_else_is_refused(table: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, {("logmq", "orders"): [b"one"]})
    once(table, data)
    for text, of, by_hour in (
        ("has logs of", "servers", False),
        ("a partition for each day", "a data folder's logmq", True),
    ):
        with pytest.raises(Failure, match=text):
            open_table(table, of, by_hour=by_hour)
    for wrong in ("hudi:x", "iceberg:lake.orders", "delta:", "orders"):
        with pytest.raises(UsageError):
            open_table(wrong, "servers", by_hour=False)


def name_of(data: Path) -> str:
    """The name of the only log."""
    with ArchiveInput(parse({"path": str(data), "subscribePattern": ".*"})).look() as look:
        ((name, _),) = look.logs(Manifest())
    return name


def test_a_gap_alone_is_a_commit(table: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, {("logmq", "orders"): [b"one"]})
    once(table, data)
    found = account(table)
    found.learn([name_of(data)])
    (log,) = found.manifest.logs.values()
    span = ArchivedSpan(log.identity, log.name, log.topic, log.seen, ByteRange(7, 20), [], [ByteRange(7, 20)])
    found.commit(found.manifest.advance([span], 0))
    again = account(table)
    again.learn([log.name])
    assert [each.end for each in again.manifest.logs.values()] == [20]


def test_hours_are_partitions(table: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, {("logmq", "orders"): [b"one"]})
    once(table, data, attrs.evolve(AT_ONCE, by_hour=True))
    found = account(table, by_hour=True)
    if table.startswith("delta:"):
        (row,) = found.table.to_pyarrow_table().to_pylist()
        assert row["hour"] == row["timestamp"].hour
    else:
        (task,) = found.table.scan().plan_files()
        (row,) = found.table.scan().to_arrow().to_pylist()
        assert task.file.partition[1] == int(row["timestamp"].timestamp()) // 3600


def test_days_that_are_too_old_are_deleted_and_the_account_stands(table: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, {("logmq", "orders"): [b"one"]})
    once(table, data)
    found = account(table)
    found.expire(date(2000, 1, 1))
    assert len(read(table)) == 1
    found.expire(date(2100, 1, 1))
    assert read(table) == []
    assert once(table, data) == []
    fill(data, {("logmq", "orders"): [b"two"]})
    assert [each.records for each in once(table, data)] == [1]


def test_json_becomes_columns_that_grow(table: str, tmp_path: Path) -> None:
    data, parsing = tmp_path / "data", attrs.evolve(AT_ONCE, parse_json=True)
    fill(data, {("logmq", "orders"): [b'{"id": 1, "price": 2, "item": "pen"}', b"no json"]})
    (first,) = once(table, data, parsing)
    assert (first.unparsed, first.conflicts) == (1, 0)
    fill(data, {("logmq", "orders"): [b'{"id": "x", "price": 3.5, "new": {"a": [1]}, "topic": true}']})
    (second,) = once(table, data, parsing)
    assert (second.unparsed, second.conflicts) == (0, 2)
    made = ("id", "price", "item", "new", "id_text", "price_text", "json_topic")
    rows = [tuple(row[name] for name in made) for row in read(table)]
    assert rows == [
        (1, 2, "pen", None, None, None, None),
        (None,) * 7,
        (None, None, None, '{"a":[1]}', "x", "3.5", True),
    ]
    assert once(table, data) == []


def test_a_day_is_built_again_in_one_transaction(table: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for value in (b'{"id": 1}', b'{"id": 2}'):
        fill(data, {("logmq", "orders"): [value]})
        once(table, data)
    before = read(table)
    again = job(table, data, attrs.evolve(AT_ONCE, parse_json=True))
    done = again.rebuild(before[0]["timestamp"].date())
    assert (done.records, done.files) == (2, 2)
    rows = read(table)
    assert [row.pop("id") for row in rows] == [1, 2]
    assert rows == before
    assert once(table, data) == []


def test_a_day_whose_records_are_gone_is_not_built_again(table: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, {("logmq", "orders"): [b"one", b"two"]})
    once(table, data)
    changed(data, lambda topics: topics.logs["orders"].drop_below(7))
    with pytest.raises(Failure, match="not in the log any more"):
        job(table, data).rebuild(read(table)[0]["timestamp"].date())
    assert len(read(table)) == 2
