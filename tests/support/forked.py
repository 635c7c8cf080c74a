"""`brokers` processes that begin as forks of one that has imported everything, which costs 600 ms each.

Such a process is one like any other: with a pid, descriptors, environment and folder of its own, killed by
signals, ended by the interpreter. Where the beginning matters (what a command imports, Python's own options,
the locale), `start` makes a fresh interpreter.
"""

import contextlib
import gc
import importlib.util
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from brokers import __main__ as process
from brokers import plugins
from brokers.access import logins
from shared import access

QUICK_SCRYPT_N = 2
"""The cost of a password where `quick_passwords` is asked for. The real one takes 50 ms."""

_PLANTED = "tests.trials.planted"
_AT_START = ("PYTHON", "LANG", "LC_")
"""Variables that an interpreter reads as it starts."""


@contextlib.contextmanager
def quick_passwords() -> Iterator[None]:
    """Here too, for what makes, reads and writes users."""
    usual, access.SCRYPT_N = access.SCRYPT_N, QUICK_SCRYPT_N
    try:
        yield
    finally:
        access.SCRYPT_N = usual


def start(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    quick: bool = False,
    bug: str = "",
    **streams: Any,
) -> "Process | subprocess.Popen[bytes]":
    """Run `brokers` with these words, or `-c`, a program and its words.

    `streams`: stdin, stdout and stderr, as for subprocess.Popen.
    `quick`: it takes the passwords of `quick_passwords`, and refuses the wrong ones without delay. `bug`: it
    has that bug (tests/trials/planted.py).
    """
    read = [name for name in {*env, *os.environ} if name.startswith(_AT_START)]
    if sys.platform == "linux" and all(env.get(name, "") == os.environ.get(name, "") for name in read):
        return Process(words, env, cwd, quick, bug, **streams)
    assert not quick
    assert not bug
    module = () if words[0] == "-c" else ("-m", "brokers")
    return subprocess.Popen([sys.executable, *module, *words], env=env, cwd=cwd, **streams)


def popen(command: Sequence[str], **options: Any) -> "Process | subprocess.Popen[bytes]":
    """In place of subprocess.Popen, where it may be asked for `python -m brokers`."""
    words = [word for word in command if word != "-P"]
    if words[:3] != [sys.executable, "-m", "brokers"]:
        return subprocess.Popen(command, **options)
    return start(words[3:], **options)


class Process:
    """What is used of subprocess.Popen, for a fork of the process that has imported everything."""

    _parent: socket.socket | None = None

    def __init__(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | None,
        quick: bool,
        bug: str,
        stdin: int | IO[bytes] | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> None:
        self.args = [sys.executable, "-m", "brokers", *words]
        self.returncode: int | None = None
        with contextlib.ExitStack() as theirs:
            into, self.stdin = _reader(stdin, theirs)
            out, self.stdout = _writer(stdout, 1, theirs)
            err, self.stderr = _writer(stderr, out if stderr == subprocess.STDOUT else 2, theirs)
            self._status, status = socket.socketpair()
            theirs.callback(status.close)
            begun = {
                "words": words,
                "env": dict(env),
                "cwd": str(cwd or Path.cwd()),
                "quick": quick,
                "bug": bug,
            }
            socket.send_fds(self._forker(), [json.dumps(begun).encode()], [into, out, err, status.fileno()])
        self._said = b""
        while b"\n" not in self._said:
            said = self._status.recv(100)
            assert said, "the process that forks has ended: python -m tests.support.forked 0 shows why"
            self._said += said
        pid, _, self._said = self._said.partition(b"\n")
        self.pid = int(pid)

    @classmethod
    def _forker(cls) -> socket.socket:
        if cls._parent is None:
            cls._parent, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            cls._parent.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            with theirs:
                subprocess.Popen(
                    [sys.executable, "-m", "tests.support.forked", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    cwd=Path(__file__).parents[2],
                ).returncode = 0  # it ends with us
        return cls._parent

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        while self.returncode is None:
            self._status.settimeout(timeout)
            try:
                data = self._status.recv(100)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._said += data
            if not data:
                self.returncode = int(self._said)
                self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: bytes = b"", timeout: float | None = None) -> tuple[bytes, bytes]:
        """All that it says until its end."""
        said: dict[int, bytes] = {}
        streams = [stream for stream in (self.stdout, self.stderr) if stream is not None]
        threads = [
            threading.Thread(target=lambda s=stream: said.update({id(s): s.read()}), daemon=True)
            for stream in streams
        ]
        for thread in threads:
            thread.start()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self.stdin:
                self.stdin.write(input)
        self.wait(timeout)
        for thread, stream in zip(threads, streams, strict=True):
            thread.join()
            stream.close()
        return said.get(id(self.stdout), b""), said.get(id(self.stderr), b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


def _reader(given: int | IO[bytes] | None, theirs: contextlib.ExitStack) -> tuple[int, IO[bytes] | None]:
    if given != subprocess.PIPE:
        return _given(given, 0, theirs), None
    read, write = os.pipe()
    theirs.callback(os.close, read)
    return read, os.fdopen(write, "wb")


def _writer(
    given: int | IO[bytes] | None, usual: int, theirs: contextlib.ExitStack
) -> tuple[int, IO[bytes] | None]:
    if given != subprocess.PIPE:
        return _given(given, usual, theirs), None
    read, write = os.pipe()
    theirs.callback(os.close, write)
    return write, os.fdopen(read, "rb")


def _given(given: int | IO[bytes] | None, usual: int, theirs: contextlib.ExitStack) -> int:
    if given is None or given == subprocess.STDOUT:
        return usual
    if given == subprocess.DEVNULL:
        return theirs.enter_context(open(os.devnull, "r+b", buffering=0)).fileno()
    return given if isinstance(given, int) else given.fileno()


# The process that forks. It has no thread and no loop.


def _begun(requests: socket.socket) -> Sequence[str]:
    """Returns in each fork, with the words of its command."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, descriptors, *_ = socket.recv_fds(requests, 1 << 20, 4)
        if not data:
            sys.exit()
        begun = json.loads(data)
        if begun["bug"]:
            importlib.import_module(_PLANTED)  # once for all forks
        if not os.fork():
            requests.close()
            return _forked(begun, *descriptors)
        for each in descriptors:
            os.close(each)


def _forked(begun: Mapping[str, Any], stdin: int, stdout: int, stderr: int, status: int) -> Sequence[str]:
    """Fork again: one waits for the other, and says how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        for each in (stdin, stdout, stderr):
            os.close(each)
        os.write(status, b"%d\n" % pid)
        _, ended = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError):  # nobody waits any more
            os.write(status, b"%d" % os.waitstatus_to_exitcode(ended))
        os._exit(0)
    os.close(status)
    for number, each in enumerate((stdin, stdout, stderr)):
        os.dup2(each, number)
        os.close(each)
    # Those of the process that forks are made for what its own descriptors were: a file that can seek, say.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(begun["env"])
    os.chdir(begun["cwd"])
    if begun["quick"]:
        access.SCRYPT_N = QUICK_SCRYPT_N
        logins.SLOW_SECONDS = 0.01
    if begun["bug"]:
        importlib.import_module(_PLANTED).plant(begun["bug"])
    words: Sequence[str] = begun["words"]
    return words


def _import_all() -> None:
    """What commands import where they need it, too."""
    for name in (
        *("cyclopts.help", "docstring_parser", "brokers.commands.cli", "brokers.host.serving"),
        *("shared.net.poll", "anyio._backends._trio", "encodings.idna"),
    ):
        importlib.import_module(name)
    for room in ("host", "admin", "commands", "access", "settings"):
        opened = importlib.import_module(f"brokers.{room}")
        for module in pkgutil.iter_modules(opened.__path__, f"{opened.__name__}."):
            importlib.import_module(module.name)
    for name in plugins.names():
        importlib.import_module(plugins.load(name).cli.partition(":")[0])
    for package in plugins.packages():
        for part in ("client", "listener", "admin"):
            if importlib.util.find_spec(f"{package}.{part}"):
                importlib.import_module(f"{package}.{part}")
    gc.collect()
    gc.freeze()  # else each fork copies all of it, to look through it and as it ends


if __name__ == "__main__":
    _import_all()
    sys.argv = [str(process.__file__), *_begun(socket.socket(fileno=int(sys.argv[1])))]
    if sys.argv[1] == "-c":
        _, _, program, *words = sys.argv
        sys.argv = ["-c", *words]
        exec(program, {"__name__": "__main__"})  # noqa: S102 - a test's
    else:
        process.main()
