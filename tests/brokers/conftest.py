"""What the host's tests share."""

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from brokers import plugins
from brokers.commands.cli import run
from tests.support.server import Server

Run = Callable[..., tuple[int, str, str]]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a `brokers` command in this process, which is what its own would do, a second sooner.

    Gives the exit code, standard output and standard error.
    """
    for name in (*plugins.names(), "admin"):  # the usual ones may be anybody's
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium of the system. Pages of one context share a process, which stays while one of them does.

    It ends with its module: while it is there asyncio runs nothing else in this thread.
    """
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    few = "--process-per-site", "--renderer-process-limit=1"  # or it keeps a spare one, too
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=[*few, *sandbox])
