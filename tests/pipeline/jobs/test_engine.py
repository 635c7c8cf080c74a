"""Both engines give the same rows, and little is answered without Spark."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from brokers.pipeline.jobs import cli, lag, report, tables
from brokers.pipeline.jobs.job_input import JobInput
from brokers.pipeline.jobs.running import FewRows, is_little, is_local
from brokers.pipeline.jobs.tables import offered
from brokers.pipeline.source.origin import DataLoss
from dms import lifecycles
from shared.errors import UsageError
from shared.tables.table import LIVES, VOLUMES
from tests.pipeline.folders import RECORDS, offset_of
from tests.pipeline.served import where
from tests.support.folders import flip
from tests.support.server import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHOUT = """
import sys
from pathlib import Path
from brokers.pipeline.jobs import cli
folder = Path(sys.argv[1])
cli.tables()
for command in (cli.throughput, cli.latency, cli.lag, cli.anomaly):
    command(folder)
cli.decode(str(folder), "volumes")
assert "pyspark" not in sys.modules
"""


def as_text(rows: Any) -> list[str]:
    """In an order of their own; Spark gives what it has gathered in any."""
    return sorted(map(repr, rows))


@pytest.mark.parametrize(
    "ask",
    [
        lambda folder, by: cli.throughput(folder, window="1 second", reading=by),
        lambda folder, by: cli.throughput(folder, protocol="dms", window="2 days", reading=by),
        lambda folder, by: cli.latency(folder, window="1 hour", reading=by),
        lambda folder, by: cli.lag(folder, reading=by),
        lambda folder, by: cli.decode(str(folder), VOLUMES, limit=0, reading=by),
        lambda folder, by: cli.decode(str(folder), LIVES, limit=0, reading=by),
        lambda folder, by: cli.decode(str(folder), "events", limit=0, reading=by),
    ],
)
def test_both_engines_give_the_same_rows(
    spark: "SparkSession", passed: Path, ask: Callable[[Path, FewRows], Any]
) -> None:
    local_rows = ask(passed, FewRows(engine="local"))
    assert as_text(local_rows) == as_text(ask(passed, FewRows(engine="spark")))
    assert local_rows


def test_a_report_tells_the_same_of_both(spark: "SparkSession", passed: Path) -> None:
    here, there = (report.figures(each, JobInput((passed,))) for each in (None, spark))
    assert here.totals
    assert here.latency
    for name in ("window", "totals", "throughput", "latency", "outcomes", "lag", "anomalies", "faults"):
        assert getattr(here, name) == getattr(there, name)


def test_little_is_answered_without_spark(passed: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, passed], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_much_and_what_is_sparks_own_is_for_spark(passed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, chosen = JobInput((passed,)), [*offered(VOLUMES), *lag.sources()]
    assert is_little(there, chosen)
    assert is_local(FewRows(), little=True)
    assert not is_local(FewRows(master="local[1]"), little=True)
    assert not is_local(FewRows(conf=("a=b",)), little=True)
    assert not is_local(FewRows(engine="spark"), little=True)
    with pytest.raises(UsageError, match="--master and --conf are Spark's"):
        is_local(FewRows(engine="local", conf=("a=b",)), little=True)
    monkeypatch.setattr(tables, "BYTES_MAX", tables.size(there, chosen) - 1)
    assert not is_little(there, chosen)
    assert not is_local(FewRows(), little=False)
    assert is_local(FewRows(engine="local"), little=False)


def test_an_index_counts_for_a_hundredth_of_its_log(passed: Path) -> None:
    there = JobInput((passed,))
    whole = tables.size(there, offered("records", "logmq"))
    assert tables.size(there, offered(VOLUMES, "logmq")) == whole // tables.INDEX_SHARE > 0


def test_more_messages_than_one_process_holds_are_for_spark(
    spark: "SparkSession", passed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = cli.latency(passed)
    monkeypatch.setattr(lifecycles, "MESSAGES_MAX", -(1 << 20))
    assert cli.latency(passed) == expected
    with pytest.raises(UsageError, match="which is for Spark: --engine spark"):
        cli.latency(passed, reading=FewRows(engine="local"))


@pytest.mark.parametrize("name", ["local", "spark"])
def test_what_a_topics_index_says_is_enough_for_its_volumes(
    spark: "SparkSession", folder: Path, name: Any
) -> None:
    """Records that are asked for from within an entry are counted, and damage does not hide how many came."""
    start = f'startingOffsets={{"orders": {offset_of(700)}}}'
    (row,) = cli.throughput(folder, window="1 day", reading=FewRows(engine=name, option=(start,)))
    assert (row["messages"], row["bytes"]) == (len(RECORDS) - 700, sum(map(len, RECORDS[700:])))
    flip(folder / "logmq" / "orders.log", 8 * offset_of(5) + 40)
    (row,) = cli.throughput(folder, window="1 day", reading=FewRows(engine=name))
    assert (row["messages"], row["bytes"]) == (len(RECORDS), sum(map(len, RECORDS)))


def test_a_server_is_asked_for_marks_alone_where_they_are_enough(
    folder: Path, new_server: Callable[..., Server]
) -> None:
    """And so tells how much came, whatever has become of it since."""
    server = new_server("--enable", "logmq", data=folder).start()
    flip(folder / "logmq" / "orders.log", 8 * offset_of(5) + 40)
    reading = FewRows(servers=where(server))
    (row,) = cli.throughput(window="1 day", reading=reading)
    assert (row["messages"], row["bytes"]) == (len(RECORDS), sum(map(len, RECORDS)))
    start = f'startingOffsets={{"orders": {offset_of(700)}}}'
    (row,) = cli.throughput(window="1 day", reading=attrs.evolve(reading, option=(start,)))
    assert (row["messages"], row["bytes"]) == (len(RECORDS) - 700, sum(map(len, RECORDS[700:])))


def test_records_themselves_are_checked_here_too(folder: Path) -> None:
    flip(folder / "logmq" / "orders.log", 8 * offset_of(5) + 40)
    with pytest.raises(DataLoss, match="CRC"):
        cli.decode(str(folder), "records", reading=FewRows(engine="local"))
