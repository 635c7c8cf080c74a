"""`brokers serve` as a process: settings read, signals and standard input obeyed, readiness announced.

What it serves is `host`'s; this module is what an operator and an init system see of it.
"""

import contextlib
import errno
import gc
import json
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import structlog
import trio

from brokers import logs, plugs
from brokers.config import Config, load
from brokers.errors import ExitCode, Refusal
from brokers.flags import ServeCommand
from brokers.host import Host
from brokers.part import Bound
from shared.plug import Plug
from shared.replacing import check_replaceable

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(command: ServeCommand) -> int:
    """Serve until a signal or `exit` ends it; the exit code. Raises BrokerError, in words for a user."""
    working, broken = plugs.load_working()
    config = load(
        working,
        file=command.config,
        environ=os.environ,
        flags=command.flags,
        defaults=command.defaults,
        broken=broken,
    )
    chosen = config.enabled(working)
    if not chosen:
        raise Refusal("no protocol is installed that could be served", ExitCode.CONFIGURATION)
    log = logs.configure(config.serve.log_level, config.serve.log_format)
    trio.run(_serve, chosen, config, command, log)
    return ExitCode.OK


async def _serve(
    chosen: Sequence[Plug], config: Config, command: ServeCommand, log: structlog.stdlib.BoundLogger
) -> None:
    ready_file = command.ready_file
    host = Host(chosen, config, log, say=_say if command.says else None)
    # A nohup stays one. The others count also where the caller ignores them, as a shell does with SIGINT for
    # what a script starts in the background: whoever sends them to a server means it.
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heard = [number for number in STOP_SIGNALS if number != signal.SIGHUP or not nohup]
    with trio.open_signal_receiver(*heard) as signals, _standard_input() as said_exit:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey, signals, host, log, ready_file)
            nursery.start_soon(_obey_input, said_exit, host, log)
            _make_way(ready_file)
            try:
                async with trio.open_nursery() as running:
                    _tell_ready(await running.start(host.run), config, ready_file)
            finally:
                _forget(ready_file)
            nursery.cancel_scope.cancel()


async def _obey(
    signals: AsyncIterator[int], host: Host, log: structlog.stdlib.BoundLogger, ready_file: Path | None
) -> None:
    async for number in signals:
        if host.stopping:
            if number == signal.SIGINT:
                log.warning("stopped at once", signal="SIGINT")
                _forget(ready_file)
                os._exit(ExitCode.INTERRUPTED)
        else:
            _stop(host, log, signal=signal.Signals(number).name)


async def _obey_input(said_exit: socket.socket, host: Host, log: structlog.stdlib.BoundLogger) -> None:
    # Nothing comes where the input has ended instead.
    if await trio.socket.from_stdlib_socket(said_exit).recv(1) and not host.stopping:
        _stop(host, log, input="exit")


def _stop(host: Host, log: structlog.stdlib.BoundLogger, **why: str) -> None:
    log.info("stopping", **why)
    _notify("STOPPING=1")
    host.stop()


def _tell_ready(bound: Sequence[Bound], config: Config, ready_file: Path | None) -> None:
    """Say where we listen, to people and to programs, at any log level."""
    # What was made to get here lives until the end: the collector need not walk it in the middle of serving.
    gc.collect()
    gc.freeze()
    tell = logs.unfiltered()
    for each in bound:
        tell.info(
            "listening",
            protocol=each.protocol,
            address=each.address,
            **({"transport": "udp"} if each.transport == "udp" else {}),
            **({"tls": True} if each.tls else {}),
        )
    if ready_file is not None:
        _write_whole(
            ready_file,
            {
                "pid": os.getpid(),
                "data_dir": str(config.serve.data_dir.absolute()),
                "addresses": [attrs.asdict(each) for each in bound],
            },
        )
    tell.info("ready", data_dir=str(config.serve.data_dir), pid=os.getpid())
    _notify("READY=1")


def _make_way(ready_file: Path | None) -> None:
    """Remove an earlier run's: nobody may take it for ours. Raises Refusal where ours cannot be written."""
    if ready_file is not None:
        with _beside(ready_file) as near:
            check_replaceable(ready_file)
            _forget(ready_file)
            near.touch()


def _write_whole(path: Path, value: Mapping[str, Any]) -> None:
    """Put JSON there in one step: whoever finds the file finds all of it. Raises Refusal."""
    with _beside(path) as near:
        near.write_text(json.dumps(value) + "\n")
        near.replace(path)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A temporary name beside that of the ready file; gone at the end. Raises Refusal for an OSError."""
    near = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield near
        near.unlink(missing_ok=True)
    except OSError as error:
        with contextlib.suppress(OSError):
            near.unlink(missing_ok=True)
        raise Refusal(f"--ready-file {path}: {error.strerror}", ExitCode.USAGE) from None


def _say(line: str) -> None:
    """A service's own line. Nobody reading it any more stops nobody here."""
    with contextlib.suppress(OSError, ValueError):
        print(line, flush=True)


def _forget(ready_file: Path | None) -> None:
    if ready_file is not None:
        with contextlib.suppress(OSError):
            ready_file.unlink()


def _notify(state: str) -> None:
    """Tell systemd, where it started us as `Type=notify` (sd_notify(3)); nobody else asks."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


@contextlib.contextmanager
def _standard_input() -> Iterator[socket.socket]:
    """A socket that gets a byte once the line `exit` was read from standard input; at its end, only EOF."""
    # Put in the background of a terminal, we must not be stopped for reading from it: reads fail instead.
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)
    ours, readers = socket.socketpair()
    ours.setblocking(False)
    # A plain thread and os.read: nothing can cancel a read from a terminal, and a thread that holds the lock
    # of sys.stdin would abort the interpreter at its end.
    threading.Thread(target=_read_standard_input, args=(readers,), name="standard input", daemon=True).start()
    with ours:
        yield ours


def _read_standard_input(readers: socket.socket) -> None:
    line = b""
    with readers:
        while True:
            try:
                data = os.read(0, 4096)
            except OSError as error:
                if error.errno != errno.EIO:
                    return
                time.sleep(1)  # in the background of our terminal: perhaps not for ever
                continue
            if not data:
                return
            *lines, line = (line + data).split(b"\n")
            line = line[-4096:]
            if any(each.strip() == b"exit" for each in lines):
                with contextlib.suppress(OSError):  # we are ending already
                    readers.send(b"x")
                return
