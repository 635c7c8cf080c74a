"""`make serve` and `make test` set themselves up: with a Python that only writes down what it is asked."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in
    *"import pip"*) test -e "{folder}/pip" ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && touch "{folder}/pip" ;;
    *"{refused}"*) exit 1 ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What the set-up needs of this project, in a folder with spaces in its name."""
    folder = tmp_path / "with some spaces"
    (folder / ".ci").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "requirements.lock", ".ci/python-check"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def make(project: Path, *words: str, refused: str = "nothing") -> tuple[int, str, list[str]]:
    """Run make: its exit code, what it said, and what its Python was asked."""
    log, python = project / "asked", project.parent / "python"
    log.write_text("")
    python.write_text(PYTHON.format(log=log, folder=project, refused=refused))
    python.chmod(0o755)
    # Not what a make that runs these tests was given.
    outer = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "ARGS", "VENV", "SEEDS", "WORKERS")
    environ = {name: value for name, value in os.environ.items() if name not in outer}
    done = subprocess.run(
        ["make", *words, f"PYTHON={python}"],
        cwd=project,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, log.read_text().splitlines()


def test_it_sets_up_once_and_serves(project: Path) -> None:
    code, said, asked = make(project, "serve", "ARGS=--port logmq=0")
    assert (code, said) == (0, "setting up .venv, this once\n")
    assert sum("--require-hashes" in line for line in asked) == 1
    assert asked[-1] == "-m brokers serve --port logmq=0"
    installed = (project / ".venv" / "serve.txt").read_text()
    assert "\ntrio==" in installed
    assert "pyspark" not in installed
    assert make(project, "serve") == (0, "", ["-m brokers serve"])


def test_the_pipeline_needs_spark_and_nothing_of_the_tests(project: Path) -> None:
    code, said, asked = make(project, "pipeline", "ARGS=doctor --json")
    assert code == 0, said
    assert asked[-1] == "-m brokers pipeline doctor --json"
    installed = (project / ".venv" / "spark.txt").read_text()
    assert "\npyspark==" in installed
    assert "pytest" not in installed
    # PySpark comes as source; what builds it is locked too, so nothing may be fetched besides.
    assert any("--no-build-isolation" in line and "spark.txt" in line for line in asked)
    assert "\nsetuptools==" in (project / ".venv" / "serve.txt").read_text()


def test_the_tests_need_all_of_it(project: Path) -> None:
    code, said, asked = make(project, "test", "ARGS=-k one")
    assert code == 0, said
    assert asked[-1] == "-m pytest -n auto -k one"
    assert sum("--require-hashes" in line for line in asked) == 4
    assert "\npytest==" in (project / ".venv" / "test.txt").read_text()
    assert "\npyspark==" in (project / ".venv" / "spark.txt").read_text()


def test_a_set_up_that_was_interrupted_is_taken_up_again(project: Path) -> None:
    assert make(project, "serve")[0] == 0
    (project / ".venv" / ".serve").unlink()
    (project / "pip").unlink()  # a venv is its Python first, and pip last
    code, _, asked = make(project, "serve")
    assert code == 0
    assert "-m venv .venv" in asked


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        ("version_info", "Python 3.11 or later is needed, this is"),
        ("ensurepip", "This Python lacks venv: install it"),
    ],
)
def test_a_python_that_will_not_do_is_told_in_one_line(project: Path, refused: str, says: str) -> None:
    code, said, _ = make(project, "serve", refused=refused)
    assert code != 0
    line, make_itself = said.splitlines()
    assert line.startswith(says)
    assert make_itself.startswith("make: ***")
    assert not (project / ".venv").exists()
