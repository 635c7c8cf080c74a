"""Views: a data folder, or what servers give, is tables of SQL in one call; and what is asked of them."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from brokers.pipeline import catalog, cli, report, views
from brokers.pipeline.report import Figures
from tests.pipeline.conftest import viewed
from tests.pipeline.passed import BILLS, ORDERS, READ
from tests.pipeline.served import where
from tests.support.folders import fill
from tests.support.server import Server, speak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)
NASTY = '<script>alert("x")</script>\x1b[31m\u202e'


Asked = Callable[[str], list[dict[str, Any]]]


# -- the queries that come along


def test_throughput_counts_what_passed(asked: Asked) -> None:
    sums: dict[str, int] = {}
    for row in asked(cli.query_of("throughput")):
        sums[row["name"]] = sums.get(row["name"], 0) + row["messages"]
        assert row["messages_per_second"] == row["messages"] / 60
    assert sums == {"orders": len(ORDERS), "bills": len(BILLS), "jobs": 20, "dead": 3}


def test_latency_ranks_those_that_left_a_queue(asked: Asked) -> None:
    rows = {(row["name"], row["measure"]): row for row in asked(cli.query_of("latency"))}
    assert rows["jobs", "in_queue_ms"]["messages"] == 8
    assert rows["jobs", "until_delivered_ms"]["messages"] == 10
    for row in rows.values():
        assert 0 <= row["p50_ms"] <= row["p99_ms"] <= row["p999_ms"] <= row["max_ms"]


def test_lag_is_what_each_group_has_not_read(asked: Asked) -> None:
    rows = {(row["reader"], row["name"]): row for row in asked(cli.query_of("lag"))}
    assert {key: (row["messages"], row["bytes"]) for key, row in rows.items()} == {
        ("billing", "orders"): (len(ORDERS) - READ, sum(map(len, ORDERS[READ:]))),
        ("billing", "bills"): (len(BILLS), sum(map(len, BILLS))),
        ("audit", "orders"): (0, 0),
    }
    assert rows["audit", "orders"]["position"] == rows["audit", "orders"]["end"]
    assert all(row["lost_bytes"] == 0 for row in rows.values())


def test_a_query_is_text_or_a_file(passed: Path, tmp_path: Path, spark: "SparkSession") -> None:
    viewed(spark, passed)  # as it is behind the command, too
    text = "SELECT outcome, count(*) AS messages FROM dms.lives GROUP BY outcome ORDER BY outcome"
    (tmp_path / "lives.sql").write_text(text)
    assert cli.query_of(str(tmp_path / "lives.sql")) == text
    long = f"{text} -- {'x' * 300}"  # longer than a file's name
    assert cli.sql(str(passed), long, limit=1) == [{"outcome": "acknowledged", "messages": 5}]


# -- the page


@pytest.fixture(scope="module")
def figures(passed: Path, spark: "SparkSession") -> Figures:
    viewed(spark, passed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "LARGEST", 2)
        return report.figures(spark)


@pytest.fixture
def page(figures: Figures) -> str:
    return report.page(figures, NASTY, NOW)


def test_a_report_says_what_passed(page: str) -> None:
    assert "563 messages" in page
    assert "to 4 names" in page
    assert page.count("<svg ") == 2
    behind = f"<td>billing</td><td>orders</td><td class=number>{len(ORDERS) - READ}</td>"
    assert behind in page.replace("\n", "")
    assert "<td>jobs</td>" in page
    assert "acknowledged: a consumer has done the work" in page
    assert "What could not be read" not in page


def test_names_are_text_in_a_report(page: str) -> None:
    assert "<script" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_names_behind_the_largest_are_one_row(figures: Figures) -> None:
    assert [(row["name"], row["messages"]) for row in figures.totals] == [
        ("orders", len(ORDERS)),
        ("bills", len(BILLS)),
        ("(2 others)", 23),
    ]
    assert [row["reader"] for row in figures.lag] == ["billing", "billing", ""]
    assert len({row["name"] for row in figures.outcomes}) == 2


def test_a_folder_in_which_nothing_passed_makes_a_page() -> None:
    page = report.page(Figures([], 1, [], [], [], [], []), "data", NOW)
    assert "Nothing has passed through yet." in page
    assert "0 messages (0 bytes) to 0 names." in page


# -- other tables in their place


@pytest.mark.usefixtures("others")
def test_every_topic_and_every_table_is_there_in_one_call_until_another_folder_takes_their_place(
    spark: "SparkSession",
    passed: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = spark.sql(query).toArrow().to_pylist()
        return rows

    made = viewed(spark, passed)
    assert {"dms.lives", "logmq.records", "logmq.orders", "logmq.bills", "volumes", "logs"} <= set(made)
    assert [row["value"] for row in asked("SELECT value FROM logmq.orders ORDER BY `offset`")] == ORDERS
    assert asked("SELECT count(*) AS count FROM logmq.records") == [{"count": len(ORDERS) + len(BILLS)}]
    assert asked("SELECT count(*) AS count FROM kept") == [{"count": 0}]
    others = {("logmq", name): [name.encode()] for name in ("a.b-c", "a.b.c", "orders", "records")}
    fill(tmp_path / "other", others)
    statements: list[str] = []
    sql = spark.sql

    def noted(statement: str) -> Any:
        statements.append(statement)
        return sql(statement)

    with monkeypatch.context() as patch:
        patch.setattr(spark, "sql", noted)
        made = views(spark, tmp_path / "other")
    assert any(statement.startswith("CREATE TABLE") for statement in statements)
    assert not any(statement.startswith("CREATE DATABASE") for statement in statements), "Spark would warn"
    assert "logmq.a_b_c" in made
    said = capsys.readouterr().err
    assert "topic 'a.b.c' gets no table: logmq.a_b_c is another's" in said
    assert "topic 'records' gets no table" in said
    assert asked("SELECT value FROM logmq.orders") == [{"value": b"orders"}]
    assert asked("SELECT count(*) AS count FROM lives") == [{"count": 0}]


@pytest.mark.usefixtures("others")
def test_servers_give_topics_and_rows_can_be_added_to_them(
    spark: "SparkSession",
    server: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speak(server.address("logmq"), b"PRODUCE shop a\nPRODUCE shop b\nPRODUCE shops c\n")
    monkeypatch.setattr(catalog, "TOPICS_MAX", 1)
    made = views(spark, servers=where(server), topics="shops?")
    assert "logmq.shop" in made
    assert "logmq.shops" not in made
    assert "2 topics: 1 of them get a table" in capsys.readouterr().err
    assert "dms.lives" not in made
    spark.sql("INSERT INTO logmq.shop (value) VALUES (cast('c' AS binary))")
    rows = spark.sql("SELECT value FROM logmq.shop ORDER BY `offset`").collect()
    assert [bytes(row.value) for row in rows] == [b"a", b"b", b"c"]
