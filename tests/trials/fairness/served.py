"""The server of one operation, in its own process: it tells the longest step of its loop."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import trio

from brokers import plugins
from brokers.commands import control
from brokers.host import logs
from brokers.host.collector import Collector
from brokers.host.host import Host
from brokers.settings.config import load
from shared.process_limits import raise_file_limit
from shared.turns import CLOCK

PATIENCE_SECONDS = 120.0
OBJECTS = 5_000
"""Of a kind: queues, topics, sessions, bindings, connections."""
MESSAGES = 50_000
"""That one client holds, or sends."""
_LIMITS = """
[serve]
durability = "interval:50ms"
[dms]
clients_max = 10000
depth = 1000000
queues_max = 60000
[net]
connections_per_address_max = 20000
"""

Address = tuple[str, int]


class StepWatch(trio.abc.Instrument):
    """The longest step of a task since `begin`, in seconds of the processor, and which task that was."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._began = time.thread_time()
        self.longest_seconds, self.longest_task = 0.0, ""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        seconds = time.thread_time() - self._began
        if seconds > self.longest_seconds:
            self.longest_seconds, self.longest_task = seconds, task.name


class Served:
    """A server of its own. `begin` forgets what was before, `longest` tells the longest since then."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        command = [sys.executable, "-m", "tests.trials.fairness", "--serve", str(folder)]
        with (folder / "server.log").open("wb") as log:  # thousands of lines of the audit log, too
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._last: Sequence[Any] = ()
        self._addresses: dict[str, Address] = {name: tuple(address) for name, address in self._told().items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def address(self, endpoint: str) -> Address:
        return self._addresses[endpoint]

    def begin(self) -> None:
        self._say("begin")

    def longest(self) -> tuple[float, str]:
        if not self._last:
            self._last = self._say("longest")
        seconds, task = self._last
        return seconds, task

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It finds all at once what is done to it within."""
        self._process.send_signal(signal.SIGSTOP)
        yield
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Until it has ended, as it does when it is asked to; `longest` tells of that, too."""
        self._last = self._say("stop")

    # -- by its control socket

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        return control.request(self._folder / "data", method, path, body)

    def get(self, path: str) -> Any:
        """An answer of the API; how long it took is told."""
        began = time.perf_counter()
        found = self.ask("GET", f"/api/v1/{path}")
        print(f"       {(time.perf_counter() - began) * 1000:7.1f} ms  {path}", flush=True)
        return found

    def reload_with(self, more: str) -> None:
        """Its settings, and these; "": none but those that it began with."""
        (self._folder / "brokers.toml").write_text(_LIMITS + more)
        self.ask("POST", "/reload", {})

    def take_users(self, rows: str) -> None:
        file = self._folder / "data" / "users.toml"
        file.write_text(rows)
        file.chmod(0o600)
        self.ask("POST", "/reload", {})

    def allow(self, *rules: str) -> None:
        """Clients that have not logged in may do this from now on, and no more."""
        self.take_users(f"[users.anonymous]\nallow = [{', '.join(map(repr, rules))}]\n")

    def _say(self, word: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._told()

    def _told(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def until(check: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_SECONDS
    while not check():
        assert time.monotonic() < ends, "it does not come"
        time.sleep(0.02)


def serve(folder: Path) -> None:
    """The server's side: obey lines of standard input."""
    raise_file_limit()
    (folder / "brokers.toml").write_text(_LIMITS)
    working, _ = plugins.load_working()
    environ = {f"BROKERS_{plugin.name.upper()}_PORT": "0" for plugin in working}
    environ["BROKERS_SERVE_DATA_DIR"] = str(folder / "data")
    read = partial(load, working, file=folder / "brokers.toml", environ=environ)
    config = read()
    log = logs.configure("error", "text")
    watch = StepWatch()
    CLOCK.now = perf_counter
    collector = Collector()

    async def run() -> None:
        host = Host(config.enabled(working), config, log, reread=read)
        async with trio.open_nursery() as lines, trio.open_nursery() as nursery:
            bound = await nursery.start(host.run)
            collector.install()
            _tell({each.endpoint: (each.host, each.port) for each in bound})
            lines.start_soon(obey, host)
        _tell((watch.longest_seconds, watch.longest_task))

    async def obey(host: Host) -> None:
        async for line in _lines():
            if line == "stop":
                host.stop()
                return
            if line == "begin":
                watch.begin()
            _tell((watch.longest_seconds, watch.longest_task))

    trio.run(run, instruments=[watch])


async def _lines() -> AsyncIterator[str]:
    while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
        yield line.strip()


def _tell(value: object) -> None:
    print(json.dumps(value), flush=True)
