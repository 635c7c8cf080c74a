"""What jobs read: several places told apart, servers as far as the wire goes, and refusals before Spark."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from brokers.pipeline.jobs import cli, tables
from brokers.pipeline.jobs.job_input import JobInput, checked_input
from brokers.pipeline.jobs.measures import following
from brokers.pipeline.jobs.running import FewRows
from brokers.pipeline.jobs.tables import NoTable, offered, only_served, rows_as_they_come
from shared.errors import ConfigError, StoreFormat, UsageError
from tests.pipeline.folders import RECORDS, entries_of, offset_of
from tests.pipeline.jobs.conftest import BILLS, ORDERS, READ
from tests.pipeline.served import where
from tests.support.folders import flip
from tests.support.server import Server, speak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def servers(passed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """One that serves what passed, and one that has other records under the same name."""
    copied = shutil.copytree(passed, tmp_path_factory.mktemp("copied") / "data").parent
    with (
        Server(copied, "--enable", "logmq") as first,
        Server(tmp_path_factory.mktemp("other"), "--enable", "logmq") as other,
    ):
        speak(other.address("logmq"), b"PRODUCE orders a\nPRODUCE orders bb\nCOMMIT audit orders 5\n")
        yield where(first), where(other)


def messages(rows: list[dict[str, Any]]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for row in rows:
        found[row.get("broker"), row["name"]] += row["messages"]
    return found


def test_jobs_read_servers_and_tell_several_apart(spark: "SparkSession", servers: tuple[str, str]) -> None:
    first, other = servers
    both = FewRows(servers=",".join(servers))
    expected = {(first, "orders"): len(ORDERS), (first, "bills"): len(BILLS), (other, "orders"): 2}
    assert messages(cli.throughput(reading=both)) == expected
    assert messages(cli.decode("volumes", reading=both)) == expected
    assert messages(cli.throughput(reading=FewRows(servers=other))) == {(None, "orders"): 2}
    (topics,) = offered("volumes", "logmq")
    windows = following(
        tables.following(spark, JobInput(servers=both.servers), [topics]), "1 hour", "5 seconds"
    )
    # What ends with what is there closes no window: each change of one is looked at instead.
    assert messages(list(rows_as_they_come(windows, once=True, mode="update"))) == expected
    rows = cli.anomaly(window="1 second", every=True, reading=both)
    assert all(row["broker"] in servers for row in rows)


def test_folders_with_the_same_queues_are_told_apart(
    spark: "SparkSession", passed: Path, tmp_path: Path
) -> None:
    """Gathered tables too: messages of the same number in queues of the same name are different ones."""
    copied = shutil.copytree(passed, tmp_path / "copied")
    lives = cli.decode(str(passed), str(copied), "lives", limit=0)
    assert Counter(row["broker"] for row in lives) == {str(passed): 23, str(copied): 23}
    found = cli.latency(passed, copied)
    assert {row["broker"] for row in found} == {str(passed), str(copied)}
    behind = {(row["broker"], row["reader"], row["name"]): row["messages"] for row in cli.lag(passed, copied)}
    assert behind[str(copied), "billing", "orders"] == len(ORDERS) - READ
    assert len(behind) == 6


def test_groups_of_servers_are_behind_as_the_folder_has_it(
    spark: "SparkSession", passed: Path, servers: tuple[str, str]
) -> None:
    """From the index and without Spark; times are at their grain."""
    expected = [row | {"seconds": 0} for row in cli.lag(passed)]
    found = cli.lag(groups="billing, audit", reading=FewRows(servers=servers[0]))
    assert [row | {"seconds": 0} for row in found] == expected
    both = cli.lag(groups="audit", reading=FewRows(servers=",".join(servers)))
    assert [(row["broker"], row["messages"], row["bytes"]) for row in both] == [
        (servers[0], 0, 0),
        (servers[1], 1, 2),
    ]


def test_a_group_in_a_damaged_range_costs_its_own_row_alone(
    folder: Path, new_server: Callable[..., Server], capsys: pytest.CaptureFixture[str]
) -> None:
    server = new_server("--enable", "logmq", data=folder).start()
    entry, inside = entries_of(folder)[1], offset_of(700)
    assert entry.offset < inside < entry.end
    commits = {"early": 0, "hurt": inside, "late": entry.end}
    lines = "".join(f"COMMIT {group} orders {place}\n" for group, place in commits.items())
    assert speak(server.address("logmq"), lines.encode()).count(b"OK") == 3
    server.stop()
    flip(folder / "logmq" / "orders.log", entry.offset * 8 + 1)
    server.start()
    reading = FewRows(servers=where(server))
    rows = {row["reader"]: row for row in cli.lag(groups=",".join(commits), reading=reading)}
    behind = [offset_of(number) for number in range(len(RECORDS))]
    late = len(RECORDS) - behind.index(entry.end)
    assert [(rows[group]["messages"], rows[group]["position"]) for group in commits] == [
        (len(RECORDS), 0),
        (None, inside),
        (late, entry.end),
    ]
    assert f"brokers: orders: the place of hurt, {inside}, is in a damaged range" in capsys.readouterr().err


def test_what_servers_do_not_give_is_said(servers: tuple[str, str]) -> None:
    reading = FewRows(servers=servers[0])
    with pytest.raises(NoTable, match=r"does not give what dms lives is made of.*logmq volumes"):
        cli.decode("lives", reading=reading)
    with pytest.raises(NoTable, match="dms lives"):
        cli.latency(reading=reading)
    with pytest.raises(UsageError, match="do not list their groups"):
        cli.lag(reading=reading)
    with pytest.raises(UsageError, match="no_group"):
        cli.lag(groups="no_group!", reading=reading)
    with pytest.raises(UsageError, match="no server gives"):
        cli.report(reading=reading)
    chosen = only_served(offered("volumes"), JobInput(servers="x"))
    assert [each.protocol for each in chosen] == ["logmq"]


def test_what_cannot_be_read_is_said_before_spark_is_started(passed: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="either data folders or --servers"):
        checked_input([])
    with pytest.raises(UsageError, match="either data folders or --servers"):
        checked_input([passed], FewRows(servers="127.0.0.1:1"))
    with pytest.raises(ConfigError, match="servers: names no server"):
        checked_input([], FewRows(servers=""))
    with pytest.raises(UsageError, match="named twice"):
        checked_input([passed, passed.parent / "." / ".." / passed.parent.name / passed.name])
    with pytest.raises(StoreFormat, match="not a data folder"):
        checked_input([passed, tmp_path])
    for option, error, text in (
        ("verifyCrc", UsageError, "not KEY=VALUE"),
        ("namespace=dms", UsageError, "set by the command itself"),
        ("maxValueBytes=7", UsageError, "set by the command itself"),
        ("verifyCrcs=true", ConfigError, "did you mean verifyCrc"),
    ):
        with pytest.raises(error, match=text):
            checked_input([passed], FewRows(option=(option,)))
    with pytest.raises(UsageError, match="set by the command itself"):
        checked_input([passed], FewRows(option=("startingOffsets=latest",)), bounded=False)
    away = FewRows(servers="127.0.0.1:1", option=("retryTimeoutMs=1",))
    with pytest.raises(ConnectionRefusedError, match=r"127\.0\.0\.1:1"):
        checked_input([], away)
