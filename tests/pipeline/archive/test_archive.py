"""The archive as Spark makes it, of logs that the real store wrote, compared with plain Python."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pyarrow.dataset as ds
import pytest

from brokers.pipeline import archive
from brokers.pipeline.archive import faults
from brokers.pipeline.archiving.feed import ArchiveInput
from brokers.pipeline.archiving.folder import opened
from brokers.pipeline.archiving.job import Archiver, Round, Settings
from brokers.pipeline.archiving.places import FolderPlace, place_of
from brokers.pipeline.archiving.plan import Overtaken
from brokers.pipeline.source.options import parse
from shared.storage.inventory import Namespace
from shared.storage.store import Store
from tests.pipeline.archive.model import AT_ONCE, archiver
from tests.pipeline.folders import in_store, placed
from tests.support.folders import ALWAYS, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[tuple[str, int, bytes]]


def expected(logs: Mapping[str, Sequence[bytes]]) -> Rows:
    return sorted((topic, *record) for topic, payloads in logs.items() for record in placed(payloads))


def globbed(folder: Path) -> Rows:
    """What a reader finds that knows Parquet and nothing of archives."""
    files = [str(path) for path in folder.glob("topic=*/date=*/*.parquet")]
    if not files:
        return []
    partitioning = ds.partitioning(flavor="hive")
    table = ds.dataset(files, partitioning=partitioning, partition_base_dir=str(folder)).to_table()
    return sorted(
        (str(topic), offset, value)
        for topic, offset, value in zip(
            *(table[name].to_pylist() for name in ("topic", "offset", "value")), strict=True
        )
    )


def read(spark: "SparkSession", folder: Path) -> Rows:
    frame = archive.read(spark, folder)
    assert frame.columns == ["offset", "timestamp", "value", "log", "topic", "date"]
    return sorted((row.topic, row.offset, bytes(row.value)) for row in frame.collect())


def once(
    spark: "SparkSession", folder: Path, data: Path, settings: Settings = AT_ONCE, **options: str
) -> list[Round]:
    with archiver(spark, folder, data, settings, **options) as job:
        return list(job.once())


def changed(data: Path, change: Callable[[Namespace], object]) -> None:
    """The store does something to the topics."""

    async def act(store: Store) -> None:
        change(store.namespace("logmq", ALWAYS))
        store.commit_pending()

    in_store(data, act, clean=True)


ORDERS = [b"%05d" % number + b"." * (number % 97) for number in range(4000)]


def test_once_archives_what_is_there_and_a_second_time_only_what_came_since(
    spark: "SparkSession", tmp_path: Path
) -> None:
    data, folder = tmp_path / "data", tmp_path / "archive"
    fill(data, {("logmq", "orders"): ORDERS, ("logmq", "123"): [b"a", b"", b"\n\0"]})
    small = attrs.evolve(AT_ONCE, round_bytes=150_000)  # several rounds, several tasks
    rounds = once(spark, folder, data, small)
    assert len(rounds) > 1
    assert sum(each.records for each in rounds) == 4003
    assert once(spark, folder, data) == []
    logs = {"orders": ORDERS, "123": [b"a", b"", b"\n\0"]}
    assert read(spark, folder) == globbed(folder) == expected(logs)
    fill(data, {("logmq", "orders"): [b"new"]})
    (one,) = once(spark, folder, data)
    assert (one.records, one.files, one.behind_bytes) == (1, 1, 0)
    logs["orders"] = [*ORDERS, b"new"]
    assert read(spark, folder) == globbed(folder) == expected(logs)
    assert faults(FolderPlace(folder)) == []


def test_names_that_a_path_cannot_hold_come_back_as_they_were(spark: "SparkSession", tmp_path: Path) -> None:
    data, folder = tmp_path / "data", tmp_path / "archive"
    logs = {"Queue A/B=1%2F": [b"job"], "käse": [b"brot"], "[*]": [b"x"]}
    fill(data, {("dms", name): payloads for name, payloads in logs.items()})
    once(spark, folder, data, namespace="dms")
    assert read(spark, folder) == globbed(folder) == expected(logs)


def test_following_archives_what_comes_and_in_the_end_what_waits(
    spark: "SparkSession", tmp_path: Path
) -> None:
    data, folder = tmp_path / "data", tmp_path / "archive"
    fill(data, {("logmq", "orders"): [b"first"]})
    with archiver(spark, folder, data, attrs.evolve(AT_ONCE, trigger_seconds=1e9)) as job:
        rounds = job.follow()
        assert next(rounds).records == 1
        assert read(spark, folder) == globbed(folder) == expected({"orders": [b"first"]})
        fill(data, {("logmq", "orders"): [b"second"]})
        job.stop.set()
        (last,) = rounds
        assert last.records == 1
    assert read(spark, folder) == globbed(folder) == expected({"orders": [b"first", b"second"]})
    assert len(archive.paths(folder)) == 2


def test_a_topic_that_was_made_again_is_archived_as_another_log(
    spark: "SparkSession", tmp_path: Path
) -> None:
    data, folder = tmp_path / "data", tmp_path / "archive"
    fill(data, {("logmq", "orders"): [b"old", b"older"]})
    once(spark, folder, data)
    changed(data, lambda topics: topics.delete("orders"))
    fill(data, {("logmq", "orders"): [b"new"]})
    (one,) = once(spark, folder, data)
    assert "made again" in one.events[0]
    assert read(spark, folder) == sorted(
        [("orders", 0, b"new"), ("orders", 0, b"old"), ("orders", 7, b"older")]
    )
    assert len({row.log for row in archive.read(spark, folder).select("log").collect()}) == 2
    assert [(log.records, log.end) for log in archive.position(folder)] == [(2, 16), (1, 7)]


def test_several_brokers_topics_of_one_name_are_logs_of_it(spark: "SparkSession", tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    for name, value in (("one", b"a"), ("two", b"b")):
        fill(tmp_path / name, {("logmq", "orders"): [value, value]})
    paths = json.dumps([str(tmp_path / "one"), str(tmp_path / "two")])
    source = ArchiveInput(parse({"paths": paths, "subscribe": "orders"}))
    with opened(place_of(folder), source.origin) as account:
        (one,) = Archiver(spark, source, account, place_of(folder), AT_ONCE).once()
    assert one.records == 4
    both = [*expected({"orders": [b"a", b"a"]}), *expected({"orders": [b"b", b"b"]})]
    assert globbed(folder) == sorted(both)
    assert [log.end for log in archive.position(folder)] == [10, 10]


def test_what_retention_dropped_before_it_was_archived_ends_it_or_is_a_gap(
    spark: "SparkSession", tmp_path: Path
) -> None:
    data, folder = tmp_path / "data", tmp_path / "archive"
    fill(data, {("logmq", "orders"): ORDERS[:10]})
    once(spark, folder, data)
    fill(data, {("logmq", "orders"): ORDERS[10:]})
    everything = expected({"orders": ORDERS})
    end, first = everything[10][1], everything[2000][1]
    changed(data, lambda topics: topics.logs["orders"].drop_below(first))
    with pytest.raises(Overtaken, match=r"orders: offsets \d+ to \d+ were dropped"):
        once(spark, folder, data)
    settings = attrs.evolve(AT_ONCE, allow_loss=True)
    (one,) = once(spark, folder, data, settings, failOnDataLoss="false")
    assert "were dropped" in one.events[0]
    assert read(spark, folder) == [row for row in everything if row[1] < end or row[1] >= first]
    (log,) = archive.position(folder)
    assert log.gaps == ((end, first),)
    assert faults(FolderPlace(folder)) == []


def test_days_that_were_removed_do_not_stop_an_archive(spark: "SparkSession", tmp_path: Path) -> None:
    data, folder = tmp_path / "data", tmp_path / "archive"
    fill(data, {("logmq", "orders"): [b"old"], ("logmq", "bills"): [b"bill"]})
    once(spark, folder, data)
    shutil.rmtree(next((folder / "topic=orders").iterdir()))
    fill(data, {("logmq", "orders"): [b"new"]})
    (one,) = once(spark, folder, data)
    assert one.records == 1
    assert read(spark, folder) == globbed(folder) == [("bills", 0, b"bill"), ("orders", 7, b"new")]
    (fault,) = faults(FolderPlace(folder))
    assert (fault.what, fault.range) == (archive.REMOVED, (0, 7))


def test_a_file_that_is_missing_from_its_day_is_a_fault(spark: "SparkSession", tmp_path: Path) -> None:
    data, folder = tmp_path / "data", tmp_path / "archive"
    for value in (b"one", b"two", b"six"):
        fill(data, {("logmq", "orders"): [value]})
        once(spark, folder, data)
    sorted(folder.glob("topic=orders/*/*.parquet"))[1].unlink()
    (fault,) = faults(FolderPlace(folder))
    assert (fault.what, fault.range) == ("missing", (7, 14))
