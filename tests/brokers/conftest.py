"""What the host's tests share."""

import logging
import signal
from collections.abc import Callable, Iterator

import pytest
import structlog

from brokers import plugs
from brokers.cli import run
from tests.support.server import Server

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """Serving sets up logging and signals for a whole process; here it is undone after each test."""
    root, stop_reading = logging.getLogger(), signal.getsignal(signal.SIGTTIN)
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:], root.level = handlers, level
    signal.signal(signal.SIGTTIN, stop_reading)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a `brokers` command in this process, which is what its own would do, a second sooner.

    Gives the exit code, standard output and standard error.
    """
    for name in plugs.names():  # the usual ones may be anybody's
        monkeypatch.setenv(f"BROKERS_{name.upper()}_PORT", "0")

    def call(*words: str) -> tuple[int, str, str]:
        code = run(words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture(scope="package")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that only look, or write to topics of their own."""
    with Server(tmp_path_factory.mktemp("shared"), "--log-level", "debug") as server:
        yield server
