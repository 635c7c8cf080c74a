"""Settings for little data, and for what comes bit by bit: for Spark on this machine, below a user's own."""

import pytest

from brokers.pipeline import lean
from brokers.pipeline.jobs.where import Reading

PARTITIONS = "spark.sql.shuffle.partitions"
JAVA = "spark.driver.extraJavaOptions"


def test_little_data_has_a_java_that_starts_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    found = Reading().lean
    assert found[PARTITIONS] == "2"
    assert "-XX:TieredStopAtLevel=1" in found[JAVA]
    assert "-Dlog4j2.configurationFile" in found[JAVA]
    assert PARTITIONS not in Reading().config
    assert "TieredStopAtLevel" not in Reading().config[JAVA]
    assert "TieredStopAtLevel" not in Reading().following[JAVA]
    assert int(Reading().following[PARTITIONS]) >= 1


def test_what_a_user_says_wins() -> None:
    given = {PARTITIONS: "7", JAVA: "-XX:+UseG1GC"}
    assert lean.little(given, "local[*]", {}) == given
    assert lean.bit_by_bit({PARTITIONS: "7"}, "local[2]", {}) == {PARTITIONS: "7"}


def test_a_cluster_and_settings_of_ones_own_are_left_alone() -> None:
    assert lean.little({"a": "b"}, "spark://there:7077", {}) == {"a": "b"}
    assert lean.bit_by_bit({"a": "b"}, "local", {"SPARK_CONF_DIR": "/etc/spark"}) == {"a": "b"}
