"""A real `brokers serve` process, for tests and trials that start, speak, kill, and start again.

    with Server(tmp_path) as server:
        speak(server.address("logmq"), b"PRODUCE orders hello\\n")
        server.kill()
        server.start()

Everything binds port 0 on loopback, unless told otherwise; `start` returns when the server says that it is
ready, so nothing here sleeps or guesses.
"""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from brokers.commands import cli, control
from brokers.plugins import names
from tests.support import forked

START_SECONDS = 60.0
"""More than any start takes, so that only a hang fails for it."""

SMALL_JOURNAL = {"BROKERS_STORAGE_SEGMENT_BYTES": "1MiB"}
"""A hundred starts need not each write the usual 128 MiB of zeros ahead."""

SHORT_LINGER = {"BROKERS_NET_LINGER_SECONDS": "100ms"}
"""For a server that is stopped while a client stays: it need not wait the usual second for it to leave."""


Process = subprocess.Popen[bytes] | forked.Process


class NotReadyError(Exception):
    """The server ended before it was ready; the text is what it said."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"exit {code}\n{said}")
        self.code = code
        self.said = said


class Server:
    """A server on a data folder. `arguments` are those of `brokers serve`.

    `command` replaces `serve` (`("logmq", "serve")`), `prefix` goes before the command (`("strace", "-f")`).
    `quick`: it takes the passwords of `forked.quick_passwords`. `bug`: it has that one, of
    tests/trials/planted.py.
    """

    defaults: Mapping[str, str] = SMALL_JOURNAL
    """Settings that are no test's business; its own flags and variables win."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        command: Sequence[str] = ("serve",),
        environ: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        data: Path | None = None,
        stdin: int | None = subprocess.DEVNULL,
        quick: bool = False,
        bug: str = "",
    ) -> None:
        self.folder = folder
        self.data = data or folder / "data"
        self.ready_file = folder / "ready.json"
        self.process: Process | None = None
        self.ready: dict[str, Any] = {}
        self._command = [*prefix, sys.executable, "-m", "brokers"] if prefix else []
        self._words = [
            *command,
            "--data-dir",
            str(self.data),
            "--ready-file",
            str(self.ready_file),
            *arguments,
        ]
        self._quick, self._bug = quick, bug
        self._environ = environ or {}
        self._stdin = stdin
        self._said: list[str] = []
        self._reader: threading.Thread | None = None

    def start(self, *more: str) -> Self:
        """Start, or start again on the same folder, and wait until it is ready. Raises NotReadyError."""
        environ = {key: value for key, value in os.environ.items() if not key.startswith("BROKERS_")}
        # Port 0 for every protocol, by the weakest means: a test's own flags and variables win.
        environ |= {f"BROKERS_{name.upper()}_PORT": "0" for name in (*names(), "admin")}
        environ |= self.defaults
        environ |= self._environ
        self._said = []
        self.process = self._begin([*self._words, *more], environ)
        is_ready = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(self.process, is_ready), daemon=True)
        self._reader.start()
        if not is_ready.wait(START_SECONDS):
            self.kill()
            raise NotReadyError(-1, f"not ready after {START_SECONDS} s\n{self.said}")
        if not self.ready_file.exists():
            raise NotReadyError(self.wait(), self.said)
        self.ready = json.loads(self.ready_file.read_text())
        return self

    def _begin(self, words: Sequence[str], env: Mapping[str, str]) -> Process:
        streams: dict[str, Any] = {
            "stdin": self._stdin,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.PIPE,
        }
        if self._command:
            return subprocess.Popen([*self._command, *words], env=env, **streams)
        return forked.start(words, env=env, quick=self._quick, bug=self._bug, **streams)

    @property
    def said(self) -> str:
        """Standard error since the last start."""
        return "".join(self._said)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def address(self, protocol: str, endpoint: str | None = None) -> tuple[str, int]:
        """Where a protocol (or one of its endpoints) listens."""
        for bound in self.ready["addresses"]:
            if bound["protocol"] == protocol and endpoint in (None, bound["endpoint"]):
                return bound["host"], bound["port"]
        raise LookupError(f"{protocol} {endpoint or ''} is not among {self.ready['addresses']}")

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, seconds: float = START_SECONDS) -> int:
        """The exit code, once it has ended and all it said is read."""
        assert self.process is not None
        assert self._reader is not None
        code = self.process.wait(seconds)
        self._reader.join()
        return code

    def stop(self) -> int:
        """SIGTERM: drain and end."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> int:
        """SIGKILL: no last words."""
        assert self.process is not None
        self.process.kill()
        return self.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.kill()
            if self.process.stdin is not None:
                self.process.stdin.close()

    def _read(self, process: Process, is_ready: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                text = line.decode(errors="backslashreplace")
                self._said.append(text)
                if " info    ready  " in text or '"event": "ready"' in text:
                    is_ready.set()
        is_ready.set()


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another process does. Raises AssertionError after START_SECONDS."""
    give_up = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.005)


def counter(data: Path, name: str) -> int:
    """A counter of the server on this data folder, all its labels together."""
    lines = str(control.request(data, "GET", "/metrics")).splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(f"brokers_{name}"))


def speak(address: tuple[str, int], data: bytes, *, seconds: float = 30.0) -> bytes:
    """Send all of `data`, half-close, and return everything that comes until the server closes."""
    with socket.create_connection(address, timeout=seconds) as connection:
        sender = threading.Thread(target=_send, args=(connection, data))
        sender.start()
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        sender.join()
        return answer


def _send(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:  # the server closed first; what it said is what the test looks at
        pass


def run(
    *arguments: str,
    stdin: bytes = b"",
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    quick: bool = False,
) -> Any:
    """One `brokers` command, to its end: `returncode`, `stdout` and `stderr` (text)."""
    with begun(*arguments, environ=environ, cwd=cwd, quick=quick) as process:
        try:
            out, err = process.communicate(stdin, START_SECONDS)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(
        process.args, process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")
    )


def begun(*arguments: str, environ: Mapping[str, str] | None = None, **options: Any) -> Process:
    """One `brokers` command, as it runs; its streams are pipes. `options`: those of `forked.start`."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BROKERS_")}
    clean |= {"BROKERS_ADMIN_PORT": "0"} | SMALL_JOURNAL  # the usual port may be anybody's
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return forked.start(arguments, env=clean | dict(environ or {}), **pipes | options)


class Begun:
    """A `brokers` command that goes on while a test does something else."""

    def __init__(self, *arguments: str) -> None:
        self.process = begun(*arguments)

    def end(self) -> bytes:
        """What it has said, once it has ended by itself."""
        out, err = self.process.communicate(timeout=START_SECONDS)
        assert (self.process.returncode, err) == (0, b"")
        return out


def run_here(*arguments: str) -> Any:
    """As `run`, in this process: many times as fast, for what is asked again and again."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = cli.run(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@pytest.fixture
def small_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is opened in this process."""
    for name, value in SMALL_JOURNAL.items():
        monkeypatch.setenv(name, value)


Command = Callable[..., tuple[int, str, str]]
"""What `commands` makes: it takes arguments, and returns exit code, standard output and standard error."""


@pytest.fixture
def commands(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Server, str], Command]:
    """`commands(server, "dms")("list", "--json")` runs `brokers dms list --json` for that server, here."""

    def of(server: Server, protocol: str) -> Command:
        monkeypatch.setenv(f"BROKERS_{protocol.upper()}_PORT", str(server.address(protocol)[1]))
        monkeypatch.setenv("BROKERS_SERVE_DATA_DIR", str(server.data))

        def command(*arguments: str) -> tuple[int, str, str]:
            code = cli.run([protocol, *arguments])
            out, err = capfdbinary.readouterr()
            return code, out.decode("utf-8", "surrogateescape"), err.decode()

        return command

    return of


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes servers, not yet started, each on a data folder of its own; ends them after the test."""
    made: list[Server] = []

    def make(*arguments: str, folder: Path | None = None, **options: Any) -> Server:
        folder = folder or tmp_path / f"server-{len(made)}"
        folder.mkdir(parents=True, exist_ok=True)
        made.append(Server(folder, *arguments, **options))
        return made[-1]

    yield make
    for server in made:
        server.__exit__()


@pytest.fixture
def server(new_server: Callable[..., Server]) -> Server:
    """A server with every protocol, ready."""
    return new_server().start()
