"""What Spark says of itself stays out of a user's sight; what he set himself stays."""

import importlib.util
import os
import pkgutil
import subprocess
import sys
from typing import TYPE_CHECKING

from brokers.pipeline.session import LITTLE, LOGGING, of_a_command, with_logging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = "spark.driver.extraJavaOptions"
PARTITIONS = "spark.sql.shuffle.partitions"


def test_javas_options_of_the_user_stand_behind_ours() -> None:
    found = with_logging({OPTIONS: "-Xss4m -Dlog4j2.configurationFile=mine", "a": "b"}, environ={})
    ours, mine = found[OPTIONS].split(" -Xss4m ")
    assert ours.startswith(f"-Dlog4j2.configurationFile={LOGGING.as_uri()} ")
    assert mine == "-Dlog4j2.configurationFile=mine"  # of two Java takes the last
    assert found["a"] == "b"
    assert LOGGING.exists()


def test_a_configuration_of_the_users_own_is_left_alone() -> None:
    assert with_logging({"a": "b"}, environ={"SPARK_CONF_DIR": "/etc/spark"}) == {"a": "b"}


def test_workers_of_this_machine_say_nothing_of_a_pipe_that_nobody_reads() -> None:
    key = "spark.python.daemon.module"
    assert importlib.util.find_spec(of_a_command({})[key]) is not None
    assert key not in of_a_command({}, "spark://there:7077")
    program = (
        "import sys, traceback; from brokers.pipeline import workers\n"
        "for error in (BrokenPipeError(32, 'nobody'), ValueError('news')):\n"
        "    try: raise error\n"
        "    except Exception: workers.print_exc()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "ValueError: news" in done.stderr
    assert "BrokenPipeError" not in done.stderr


def test_a_worker_that_looks_for_data_sources_comes_by_here(spark: "SparkSession") -> None:
    path = spark._jvm.System.getenv("PYTHONPATH")  # type: ignore[union-attr]
    found = pkgutil.iter_modules(path.split(os.pathsep))
    assert "pyspark_brokers" in {module.name for module in found}


def test_a_verb_says_errors_alone_unless_told() -> None:
    assert of_a_command({})["spark.log.level"] == "ERROR"
    assert "brokers.log.level=error" in of_a_command({})[OPTIONS]
    assert of_a_command({"spark.log.level": "INFO"})["spark.log.level"] == "INFO"


def test_what_a_user_says_wins() -> None:
    given = {PARTITIONS: "7", OPTIONS: "-XX:+UseG1GC"}
    found = of_a_command(given, "local[2]", LITTLE, {})
    assert found[PARTITIONS] == "7"
    assert found[OPTIONS].endswith(" -XX:+UseG1GC")
    assert "TieredStopAtLevel" not in found[OPTIONS]


def test_a_cluster_and_settings_of_ones_own_are_left_alone() -> None:
    for place, environ in (("spark://there:7077", {}), ("local", {"SPARK_CONF_DIR": "/etc/spark"})):
        plain = of_a_command({"a": "b"}, place, environ=environ)
        assert of_a_command({"a": "b"}, place, LITTLE, environ) == plain
        assert plain["a"] == "b"
