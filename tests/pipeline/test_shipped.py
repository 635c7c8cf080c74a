"""Logs that were shipped to a bucket, read in place: as a data folder is read."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokers.pipeline.source import shipped, stream
from brokers.pipeline.source.options import parse
from brokers.pipeline.source.planning import open_reader
from brokers.pipeline.source.reader import DataLoss
from brokers.ship.bucket import Unusable
from shared.errors import BrokerError, ConfigError
from tests.pipeline.folders import (
    ORDERS,
    RECORDS,
    between,
    entries_of,
    follow,
    in_store,
    offset_of,
    options,
    placed,
    planned,
    retimed,
    values,
)
from tests.pipeline.shipping import ship
from tests.support.folders import ALWAYS, fill, flip

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look counts."""
    monkeypatch.setattr(shipped, "LOOK_SECONDS", -1.0)


@pytest.fixture
def bucket(folder: Path, tmp_path: Path) -> Path:
    """The folder's logs, in a bucket that is a folder."""
    ship(folder, f"file://{tmp_path}/bucket")
    return tmp_path / "bucket"


def test_spark_reads_a_bucket_as_it_reads_a_folder(read: "Callable[..., DataFrame]", bucket: Path) -> None:
    rows = read(bucket, subscribe="orders", minPartitions="3").orderBy("offset").collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == placed(RECORDS)


def test_parts_are_split_and_each_record_is_read_once(bucket: Path) -> None:
    ranges = planned(bucket, minPartitions="5")
    assert len(ranges) > 3
    assert values(options(bucket, streaming=False), *ranges) == RECORDS


def test_a_part_of_a_log_needs_its_own_objects_alone(folder: Path, bucket: Path) -> None:
    second = entries_of(folder)[1]
    (log,) = planned(bucket)
    for key in sorted((bucket / "parts").iterdir())[1:]:
        key.unlink()
    found = values(options(bucket), log.part(0, second.offset))
    assert found == RECORDS[: len(found)]
    assert found
    with pytest.raises(DataLoss, match=r"orders in .* are lost"):
        values(options(bucket), log)


def test_damage_is_told_by_the_crc_of_the_entry(folder: Path, bucket: Path) -> None:
    last = entries_of(folder)[-1]
    part = sorted((bucket / "parts").iterdir())[-1]
    flip(part, (part.stat().st_size - 10) * 8)
    with pytest.raises(DataLoss, match=f"offsets {last.offset} to {last.end} are lost"):
        values(options(bucket), *planned(bucket))
    found = values(options(bucket, failOnDataLoss="false"), *planned(bucket))
    assert found == RECORDS[: len(found)]
    assert len(found) < len(RECORDS)


def test_times_and_offsets_are_found_as_in_the_folder(folder: Path, tmp_path: Path) -> None:
    every = retimed(folder)
    ship(folder, f"file://{tmp_path}/bucket")
    bucket = tmp_path / "bucket"
    for time in (0, 999, 1000, 1500, 1501, 1000 * len(every), 1000 * len(every) + 501):
        late = {"startingTimestamp": str(time), "startingOffsetsByTimestampStrategy": "latest"}
        here, there = planned(folder, **late), planned(bucket, **late)
        assert [(each.start, each.stop) for each in here] == [(each.start, each.stop) for each in there]
    for number in (0, 1, 700, len(RECORDS) - 1):
        chosen = {"startingOffsets": f'{{"orders": {offset_of(number)}}}'}
        assert values(options(bucket), *planned(bucket, **chosen)) == RECORDS[number:]
    with pytest.raises(ConfigError, match="is not the start of a record"):
        planned(bucket, startingOffsets=f'{{"orders": {offset_of(1500) + 1}}}')


def test_an_instant_is_of_the_first_snapshot_behind_it(folder: Path, tmp_path: Path) -> None:
    url, bucket = f"file://{tmp_path}/bucket", tmp_path / "bucket"
    every = retimed(folder)
    ship(folder, url, time_ms=every[-1].last_ms)
    fill(folder, {ORDERS: [b"later"], ("logmq", "bills"): [b"x"]})
    ship(folder, url, time_ms=every[-1].last_ms + 1000)
    assert values(options(bucket), *planned(bucket)) == [*RECORDS, b"later"]
    assert values(options(bucket), *planned(bucket, endingInstant=str(every[-1].last_ms + 1))) == RECORDS
    at = planned(bucket, endingInstant=str(every[1].last_ms), subscribe="orders")
    assert [each.stop for each in at] == [every[1].offset]
    with pytest.raises(ConfigError, match="there is no bills"):
        planned(bucket, endingInstant=str(every[1].last_ms), subscribe="bills")


def test_a_stream_goes_on_with_each_snapshot(folder: Path, tmp_path: Path) -> None:
    url, bucket = f"file://{tmp_path}/bucket", tmp_path / "bucket"
    ship(folder, url)
    chosen = options(bucket, streaming=True, startingOffsets="earliest")
    first = follow(chosen, stream.INITIAL)
    assert between(chosen, stream.INITIAL, first) == RECORDS
    assert follow(chosen, first) == first
    fill(folder, {ORDERS: [b"one", b"two"]})
    ship(folder, url, time_ms=2000)
    second = follow(chosen, first)
    assert between(chosen, first, second) == [b"one", b"two"]


def test_what_retention_dropped_is_not_read(folder: Path, tmp_path: Path) -> None:
    async def drop(store: object) -> None:
        log = store.namespace("logmq", ALWAYS).logs["orders"]  # type: ignore[attr-defined]
        log.drop_below(offset_of(1000))
        store.commit_pending()  # type: ignore[attr-defined]

    in_store(folder, drop, clean=True)  # type: ignore[arg-type]
    ship(folder, f"file://{tmp_path}/bucket")
    bucket = tmp_path / "bucket"
    assert values(options(bucket), *planned(bucket)) == RECORDS[1000:]


def test_what_is_encrypted_needs_the_key(folder: Path, tmp_path: Path) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    key.write_text("ab" * 32)
    other.write_text("cd" * 32)
    ship(folder, f"file://{tmp_path}/bucket", encrypt=key)
    bucket = tmp_path / "bucket"
    assert values(options(bucket, encrypt=str(key)), *planned(bucket, encrypt=str(key))) == RECORDS
    with pytest.raises(Unusable, match="cannot be decrypted"):
        planned(bucket, encrypt=str(other))
    with pytest.raises(BrokerError):
        planned(bucket)


def test_a_bucket_over_s3(folder: Path, s3: str, s3_endpoint: str) -> None:
    ship(folder, f"{s3}/prefix", endpoint=s3_endpoint)
    chosen = parse({"path": f"{s3}/prefix", "subscribe": "orders", "endpoint": s3_endpoint})
    with open_reader(chosen, chosen.paths[0]) as reader:
        logs = reader.logs(chosen.topics)
    assert values(chosen, *logs.values()) == RECORDS


def test_options_that_do_not_fit_are_told(bucket: Path) -> None:
    with pytest.raises(ConfigError, match="endingInstant: is of a bucket"):
        parse({"servers": "x", "subscribe": "orders", "endingInstant": "1"})
    with pytest.raises(ConfigError, match="a stream has no end"):
        parse({"path": str(bucket), "subscribe": "orders", "endingInstant": "1"}, streaming=True)
    with pytest.raises(ConfigError, match=r"s4://x.* is not of this machine"):
        parse({"path": "s4://x/y", "subscribe": "orders"})
