"""What Spark says of itself stays out of a user's sight; what he set himself stays."""

import importlib.util
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokers.pipeline import quiet, workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = "spark.driver.extraJavaOptions"


def test_javas_options_of_the_user_stand_behind_ours() -> None:
    found = quiet.settings({OPTIONS: "-Xss4m -Dlog4j2.configurationFile=mine", "a": "b"}, environ={})
    ours, mine = found[OPTIONS].split(" -Xss4m ")
    assert ours.startswith(f"-Dlog4j2.configurationFile={quiet.LOGGING.as_uri()} ")
    assert mine == "-Dlog4j2.configurationFile=mine"  # of two Java takes the last
    assert found["a"] == "b"
    assert quiet.LOGGING.exists()


def test_it_is_put_in_once() -> None:
    once = quiet.settings({"a": "b"}, "error", environ={})
    assert quiet.settings(once, environ={}) == once


def test_a_configuration_of_the_users_own_is_left_alone() -> None:
    assert quiet.settings({"a": "b"}, environ={"SPARK_CONF_DIR": "/etc/spark"}) == {"a": "b"}


def test_workers_of_this_machine_say_nothing_of_a_pipe_that_nobody_reads() -> None:
    key = "spark.python.daemon.module"
    assert importlib.util.find_spec(quiet.of_a_verb({})[key]) is not None
    assert key not in quiet.of_a_verb({}, "spark://there:7077")
    program = (
        "import sys, traceback; from brokers.pipeline import workers\n"
        "for error in (BrokenPipeError(32, 'nobody'), ValueError('news')):\n"
        "    try: raise error\n"
        "    except Exception: workers.print_exc()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "ValueError: news" in done.stderr
    assert "BrokenPipeError" not in done.stderr


@pytest.mark.parametrize(
    "ours",
    ["import pyspark_brokers", "from brokers.pipeline.source import worker; worker.prepare()"],
    ids=["looks for data sources", "plans a read"],
)
def test_so_do_those_that_spark_starts_in_its_own_way(tmp_path: Path, ours: str) -> None:
    """Theirs is a program of the name `pyspark.daemon`, which prints what ended a worker."""
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "daemon.py").write_text(
        f"import sys, traceback; {ours}\n"
        "for error in (BrokenPipeError(32, 'nobody'), ValueError('news')):\n"
        "    try: raise error\n"
        "    except Exception: traceback.print_exc()"
    )
    lookup = Path(workers.__file__).parent / "lookup"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(lookup), *sys.path])}
    for module, told in [("pyspark.daemon", False), ("daemon", True)]:
        program = [sys.executable, "-m", module]
        done = subprocess.run(program, cwd=package, env=environ, capture_output=True, text=True, check=True)
        assert "ValueError: news" in done.stderr
        assert ("BrokenPipeError" in done.stderr) is told


def test_a_worker_that_looks_for_data_sources_comes_by_here(spark: "SparkSession") -> None:
    path = spark._jvm.System.getenv("PYTHONPATH")  # type: ignore[union-attr]
    found = pkgutil.iter_modules(path.split(os.pathsep))
    assert {"pyspark_brokers", "pyspark_logmq"} <= {module.name for module in found}


def test_a_verb_says_errors_alone_unless_told() -> None:
    assert quiet.of_a_verb({})["spark.log.level"] == "ERROR"
    assert "brokers.log.level=error" in quiet.of_a_verb({})[OPTIONS]
    assert quiet.of_a_verb({"spark.log.level": "INFO"})["spark.log.level"] == "INFO"
