"""`brokers pipeline doctor`: what a Spark job needs on this machine, whether it is there, and how to get it.

It works without the extra `spark`, whose absence is one of the findings. It starts Java to ask for its
version, and Spark only if asked to.
"""

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
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

    Looks at the packages of the extra and their versions, and at Java; with --start
    all of it is tried. The exit code is 1 where something is missing without which
    nothing works.
    """
    rows = [*packages(), *javas(os.environ)]
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
    """Find every Java, and ask each for its version."""
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
