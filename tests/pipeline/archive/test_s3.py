"""Archives in a bucket, over S3: the private one, and both kinds of table. The server is moto's."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brokers.errors import Failure
from brokers.pipeline import archive
from brokers.pipeline.archiving.cli import archived
from brokers.pipeline.archiving.folder import opened
from brokers.pipeline.archiving.lake import register
from brokers.pipeline.archiving.places import BucketPlace, place_of
from tests.pipeline.archive.model import Spark, archiver
from tests.pipeline.archive.test_lake import account, once, plain
from tests.support.folders import fill


@pytest.fixture
def bucket(s3: str, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket's URL; the environment has a catalog of Iceberg in it, too."""
    for name, value in {
        "TYPE": "sql",
        "URI": f"sqlite:///{tmp_path}/catalog.db",
        "WAREHOUSE": f"{s3}/warehouse",
        "S3__ENDPOINT": s3_endpoint,
        "S3__REGION": "us-east-1",
        "S3__ACCESS_KEY_ID": "key",
        "S3__SECRET_ACCESS_KEY": "secret",
    }.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    return s3


def test_an_archive_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    data, url = tmp_path / "data", f"{bucket}/some/archive"
    fill(data, {("logmq", "orders"): [b"one", b"two"], ("logmq", "a%b"): [b"x"]})
    with archiver(Spark(), url, data) as job:
        assert sum(each.records for each in job.once()) == 3
        with archiver(Spark(), url, data) as second:  # it takes the archive over
            assert list(second.once()) == []
        fill(data, {("logmq", "orders"): [b"six"]})
        with pytest.raises(Failure, match="another archiver"):
            list(job.once())
    with archiver(Spark(), url, data) as job:
        assert [each.records for each in job.once()] == [1]
    place = place_of(url)
    assert isinstance(place, BucketPlace)
    values = []
    for path in archive.paths(url):
        data_file = pa.BufferReader(place.read_whole(path.removeprefix(f"{url}/")))
        values += pq.read_table(data_file)["value"].to_pylist()
    assert sorted(values) == [b"one", b"six", b"two", b"x"]
    assert [log.end for log in archive.position(url)] == [5, 21]
    assert archive.faults(place) == []
    assert len(archived(url)) == 2  # type: ignore[arg-type]
    assert place.names("_archive/fresh") == []


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_table_in_a_bucket(bucket: str, tmp_path: Path, kind: str) -> None:
    data, folder = tmp_path / "data", f"{bucket}/table"
    table = f"delta:{bucket}/table" if kind == "delta" else "iceberg:lake.logs.everything"
    fill(data, {("logmq", "a b%"): [b"one", b"two"]})
    with archiver(Spark(), folder, data) as job:
        list(job.once())
    found = account(table)
    with opened(place_of(folder), found.origin) as there:
        register(found, there, place_of(folder))
    fill(data, {("logmq", "a b%"): [b"six"]})
    assert sum(each.records for each in once(table, data)) == 1
    assert plain(table) == [("a b%", 0, b"one"), ("a b%", 7, b"two"), ("a b%", 14, b"six")]


def test_a_bucket_that_is_not_there_is_one_line(bucket: str) -> None:
    with pytest.raises((OSError, Failure)) as caught:
        archive.position(f"{bucket}-not/archive")
    assert "\n" not in str(caught.value)
