"""`brokers serve` as a process: it reads settings, and obeys signals and standard input.

`host` serves. This module is what an operator and an init system see of it.
"""

import contextlib
import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

import structlog
import trio

from brokers import plugins
from brokers.commands.flags import ServeCommand
from brokers.errors import ExitCode, Failure
from brokers.host import announcing, logs
from brokers.host.collector import Collector
from brokers.host.fairness import LoopWatch
from brokers.host.host import Host
from brokers.settings.checking import require_startable
from brokers.settings.config import Config, load
from brokers.settings.reloading import PartlyReloaded
from brokers.termination import hear_interrupts
from shared.errors import BrokerError
from shared.plugin import Plugin
from shared.process_limits import (
    FILES_FEW,
    FILES_LEAST,
    connections_within,
    keep_freed_memory,
    raise_file_limit,
)
from shared.turns import CLOCK
from shared.units import MIB

HEARD_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
KEPT_BYTES = 32 * MIB
"""Freed memory that malloc keeps for the next read, and for what is made of it. Processor time of a message,
one producer to one consumer, before and after. Kqmsgq with 1 kB 1.74 and 0.57 us, with 64 kB 126 and 66; DMP
direct with 100 B 0.28 and 0.13, with 10 kB 21 and 9.5; basic.publish with 10 kB 18.2 and 9.5."""
KEPT_BLOCK_BYTES_MAX = 1 * MIB
"""Larger blocks go back as they come: what is left of these in the heap would be in the way of others."""


def serve(command: ServeCommand) -> int:
    """Serve until a signal or `exit` ends it; the exit code. Raises BrokerError, in words for a user."""
    working, broken = plugins.load_working()
    read = partial(
        load,
        working,
        file=command.config,
        environ=os.environ,
        flags=command.flags,
        defaults=command.defaults,
        broken=broken,
    )
    config = read()
    chosen = config.enabled(working)
    if not chosen:
        raise Failure("no protocol is installed that could be served", ExitCode.CONFIGURATION)
    require_startable(config, [plugin.name for plugin in chosen])
    log = logs.configure(config.serve.log_level, config.serve.log_format)
    _require_files(log)
    keep_freed_memory(KEPT_BYTES, KEPT_BLOCK_BYTES_MAX)
    if trio.run(_serve, chosen, config, command, log, read):
        log.info("starting anew on the promoted folder")
        os.execv(sys.executable, [sys.executable, "-m", "brokers", *command.words])
    return ExitCode.OK


def _require_files(log: structlog.stdlib.BoundLogger) -> None:
    """Raise Failure if the system lets us open too few files to serve anybody."""
    limit = raise_file_limit()
    how = "raise the limit with ulimit -n, or LimitNOFILE= in a systemd unit"
    if limit < FILES_LEAST:
        text = f"this process may open {limit} files, and needs {FILES_LEAST} at least: {how}"
        raise Failure(text, ExitCode.CONFIGURATION)
    if limit < FILES_FEW:
        log.warning(
            f"this process may open few files, so few can connect: {how}",
            files_max=limit,
            connections_max=connections_within(limit),
        )


async def _serve(
    chosen: Sequence[Plugin],
    config: Config,
    command: ServeCommand,
    log: structlog.stdlib.BoundLogger,
    read: Callable[[], Config],
) -> bool:
    """Whether the same command is to be run anew: the folder was promoted."""
    ready_file = command.ready_file
    CLOCK.now = perf_counter
    collector = Collector()
    watch = LoopWatch(log, plugins.packages())
    say = _say if command.says else None
    host = Host(chosen, config, log, say=say, watch=watch, reread=read, leave=partial(_leave, ready_file))
    # SIGHUP stays ignored under nohup. The others are obeyed even if the caller ignores them. A shell makes
    # background jobs of scripts ignore SIGINT, but whoever sends it to a server means it.
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heard = [number for number in HEARD_SIGNALS if number != signal.SIGHUP or not nohup]
    with trio.open_signal_receiver(*heard) as signals, _standard_input() as said_exit:
        hear_interrupts()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey, signals, host, log, ready_file, nursery)
            nursery.start_soon(_obey_input, said_exit, host, log)
            nursery.start_soon(_tell_left_out)
            nursery.start_soon(announcing.feed_watchdog)
            announcing.remove_stale(ready_file)
            collector.prepare()
            try:
                async with trio.open_nursery() as running:
                    running.start_soon(announcing.still_starting, starting := trio.CancelScope(), log)
                    bound = await running.start(host.run)
                    starting.cancel()
                    collector.install()
                    nursery.start_soon(watch.run)
                    announcing.ready(bound, config, ready_file, host.page, host.admin_token)
            finally:
                collector.remove()
                announcing.remove(ready_file)
            nursery.cancel_scope.cancel()
    return host.serves_anew


async def _obey(
    signals: AsyncIterator[int],
    host: Host,
    log: structlog.stdlib.BoundLogger,
    ready_file: Path | None,
    nursery: trio.Nursery,
) -> None:
    async for number in signals:
        if number == signal.SIGHUP:
            nursery.start_soon(_reload, host, log)
        elif host.stopping:
            if number == signal.SIGINT:
                log.warning("stopped at once: the next start replays the journal", signal="SIGINT")
                announcing.remove(ready_file)
                os._exit(ExitCode.INTERRUPTED)
        else:
            _stop(host, log, signal=signal.Signals(number).name)


async def _obey_input(said_exit: socket.socket, host: Host, log: structlog.stdlib.BoundLogger) -> None:
    # At the input's end nothing comes.
    if await trio.socket.from_stdlib_socket(said_exit).recv(1) and not host.stopping:
        _stop(host, log, input="exit")


async def _tell_left_out() -> None:
    try:
        while True:
            await trio.sleep(1)
            logs.tell_left_out()
    finally:
        logs.tell_left_out()


async def _reload(host: Host, log: structlog.stdlib.BoundLogger) -> None:
    """SIGHUP: somebody has changed something, or the terminal that we were started on is gone."""
    announcing.reloading()
    try:
        result = await host.reload(peer="SIGHUP")
    except PartlyReloaded as error:
        log.error("reloaded in part", error=str(error))
    except BrokerError as error:
        log.error("reload refused: nothing has changed; put it right and reload again", error=str(error))
    else:
        log.info("reloaded; to stop the server send SIGTERM", signal="SIGHUP", **result)
    finally:
        announcing.notify("READY=1")


def _stop(host: Host, log: structlog.stdlib.BoundLogger, **why: str) -> None:
    log.info("stopping", **why)
    announcing.notify("STOPPING=1")
    host.stop()


def _leave(ready_file: Path | None, code: ExitCode) -> None:
    """End the process in order although a task in it goes on."""
    announcing.remove(ready_file)
    os._exit(code)


def _say(line: str) -> None:
    """Print a service's own line on standard output. A reader that has left is no error."""
    with contextlib.suppress(OSError, ValueError):
        print(line, flush=True)


@contextlib.contextmanager
def _standard_input() -> Iterator[socket.socket]:
    """Give a socket that gets a byte once standard input has the line `exit`, and EOF at its end."""
    # Put in the background of a terminal, we must not be stopped for reading from it: reads fail instead.
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)
    ours, readers = socket.socketpair()
    ours.setblocking(False)
    # A plain thread and os.read: nothing can cancel a read from a terminal. A thread that holds the lock of
    # sys.stdin would abort the interpreter at its end.
    reader = threading.Thread(
        target=_read_standard_input, args=(readers,), name="standard input", daemon=True
    )
    with ours:
        try:
            reader.start()
        except RuntimeError:  # the system has no thread for us
            readers.close()
            raise
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
