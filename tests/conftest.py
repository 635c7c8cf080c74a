"""Fixtures that any test may ask for, and which worker runs what."""

import contextlib
import functools
import gc
import importlib
import inspect
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from shared import turns

pytest_plugins = ["tests.support.places", "tests.support.server", "tests.support.worlds"]

# A busy machine is no failure, nor are sources that only others may write.
kept = {} if os.access(".", os.W_OK) else {"database": None}
# Each run draws other examples, so few are enough; `ARGS=--hypothesis-profile=thorough` looks for longer.
settings.register_profile("unhurried", deadline=None, max_examples=25, **kept)
settings.register_profile("thorough", deadline=None, max_examples=1000, **kept)
settings.load_profile("unhurried")

# Collecting makes a million objects that stay: nothing is gained by looking through them again and again.
gc.disable()

# Hundreds of processes import the same modules: they are compiled once, whatever the environment says.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What somebody likes for himself, in colours too, is not what tests start from.
for name in [each for each in os.environ if each.startswith("BROKERS_") or each == "FORCE_COLOR"]:
    del os.environ[name]

# Who starts the suite in the background of a script lets it ignore SIGINT, and so would all that it starts,
# which tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Under nohup SIGHUP is ignored, likewise. A handler is not inherited: servers hear it again.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

FIRST = ("tests/pipeline/", "tests/e2e/", "tests/trials/", "tests/test_arrows.py")
"""The longest, so that none of them is left to one worker while the others have nothing to do."""
SPARK = re.compile(r"\b(spark|asked|configure|read): ")
"""The fixtures by which a test asks for a session of Spark."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Each worker imports in another order, so that what one has compiled is there for the others.

    All import all files. Where nothing is compiled yet, as in CI, that took 33 s of processor time in three
    workers that went through them side by side.
    """
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    places = [Path(word.partition("::")[0]) for word in session.config.args]
    files = [file for place in places for file in sorted(place.resolve().rglob("test_*.py"))]
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in files[first:] + files[:first]:
        # What fails, for a warning too, fails again as it is collected, which tells it.
        with contextlib.suppress(Exception, pytest.skip.Exception), warnings.catch_warnings(action="error"):
            name = ".".join(file.relative_to(session.config.rootpath).with_suffix("").parts)
            importlib.import_module(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function):
            # pytest-trio takes the clock from a test's own arguments, and sleeps for real without one.
            asked = {"autojump_clock", "mock_clock"}.intersection(item.fixturenames)
            if asked and (lost := asked.difference(inspect.signature(item.obj).parameters)):
                raise pytest.UsageError(f"{item.nodeid}: a test names {lost} itself, or it does nothing")
    items.sort(key=lambda item: [not item.nodeid.startswith(folder) for folder in FIRST])


def pytest_collection_finish() -> None:
    gc.freeze()
    # Behind it little is old, and all of that is looked through whenever it has grown by a quarter: a third
    # of the time of tests with very many queues.
    gc.set_threshold(50_000)
    gc.enable()
    plain_tracebacks()


class OneSparkSession(LoadScopeScheduling):
    """A file goes to whichever worker is free, and what its tests share is made once.

    Those that ask for Spark all go to one, the first: they share a session. So do those that parse all files.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith("tests/pipeline/") and asks_for_spark(self.config.rootpath / file):
            return "spark"
        return re.sub(r"test_(words|prose)\.py", "test_arrows.py", file)


@functools.cache
def asks_for_spark(file: Path) -> bool:
    return SPARK.search(file.read_text()) is not None


@pytest.hookimpl(optionalhook=True)  # without xdist nobody asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # the order is ours
    return OneSparkSession(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """More than processors: a third of the time is spent waiting for servers, disks and JVMs."""
    return (os.cpu_count() or 1) * 2


def plain_tracebacks() -> None:
    """The usual ones, with colours, frames and every variable, take up to a second each."""
    structlog.reset_defaults()
    *others, last = structlog.get_config()["processors"]
    assert isinstance(last, structlog.dev.ConsoleRenderer)
    last = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*others, last])


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """Serving, and asking a folder that nobody serves, change logging, signals and the clock of a process.

    Here it is undone after each test: which one comes next on a worker is chance.
    """
    root, stop_reading = logging.getLogger(), signal.getsignal(signal.SIGTTIN)
    handlers, level = root.handlers[:], root.level
    clock = turns.CLOCK.now
    yield
    turns.CLOCK.now = clock
    plain_tracebacks()
    root.handlers[:], root.level = handlers, level
    signal.signal(signal.SIGTTIN, stop_reading)
