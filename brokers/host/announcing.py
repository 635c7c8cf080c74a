"""Tells a server's state: its addresses and `ready` in the log, the ready file, and systemd."""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import structlog
import trio

from brokers.errors import ExitCode, Failure
from brokers.host import logs
from brokers.host.service import Bound
from brokers.settings.config import Config
from shared.local_path import check_replaceable
from shared.net.listeners import handed_over

STILL_STARTING_SECONDS = 5.0
"""A start that takes longer, as after a crash, says so each time that this has passed."""
STILL_STARTING = (
    "still starting: the data folder is read; after a crash its journal is replayed, which takes long"
)


def remove_stale(ready_file: Path | None) -> None:
    """Remove the ready file of an earlier run. Raises Failure where ours cannot be written."""
    if ready_file is not None:
        with _temporary_for(ready_file) as near:
            check_replaceable(ready_file)
            remove(ready_file)
            near.touch()


def remove(ready_file: Path | None) -> None:
    """Remove the ready file: the server is not ready any more."""
    if ready_file is not None:
        with contextlib.suppress(OSError):
            ready_file.unlink()


async def still_starting(starting: trio.CancelScope, log: structlog.stdlib.BoundLogger) -> None:
    """Log that the start goes on, until `starting` is cancelled; systemd kills a start that is silent."""
    began = trio.current_time()
    with starting:
        while True:
            await trio.sleep(STILL_STARTING_SECONDS)
            log.info(STILL_STARTING, seconds=round(trio.current_time() - began))
            notify(f"EXTEND_TIMEOUT_USEC={3 * STILL_STARTING_SECONDS * 1e6:.0f}")


async def feed_watchdog() -> None:
    """Tell systemd that the loop runs, where the unit has `WatchdogSec=`; it restarts a silent server."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    if microseconds.isdecimal() and int(microseconds):
        while True:
            notify("WATCHDOG=1", waits=False)
            await trio.sleep(int(microseconds) / 2e6)


def ready(
    bound: Sequence[Bound], config: Config, ready_file: Path | None, page: str | None = None, token: str = ""
) -> None:
    """Tell people and programs where we listen, at any log level. `page`: the address of the admin port.

    With its `token` it is shown on a terminal alone: a log is read by more than one.
    """
    tell = logs.unfiltered()
    shown = {"page": page} if page else {}
    for each in bound:
        tell.info(
            "listening",
            protocol=each.protocol,
            address=each.address,
            **({"transport": "udp"} if each.transport == "udp" else {}),
            **({"tls": True} if each.tls else {}),
        )
    for sock in handed_over():
        tell.warning(
            "systemd handed over a socket that nothing here serves, so clients wait there: mend its unit",
            address=str(sock.getsockname()),
        )
    if ready_file is not None:
        ready_row = {
            "pid": os.getpid(),
            "data_dir": str(config.serve.data_dir.absolute()),
            "addresses": [attrs.asdict(each) for each in bound],
            **shown,
        }
        with _temporary_for(ready_file) as near:  # renamed, so that no reader sees half of it
            near.write_text(json.dumps(ready_row) + "\n")
            near.replace(ready_file)
    tell.info("ready", data_dir=str(config.serve.data_dir), pid=os.getpid(), **shown)
    if page and token and sys.stderr.isatty():
        print(f"open {page}?token={token}", file=sys.stderr)
    notify("READY=1")


def notify(state: str, *, waits: bool = True) -> None:
    """Send a state to systemd (sd_notify(3)), if it started us as `Type=notify`.

    `waits`: where nobody reads it for now; else it is lost, and the loop goes on.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(waits)
            sender.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


def reloading() -> None:
    """Tell systemd that a reload has begun (`Type=notify-reload`); READY=1 is its end."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")


@contextlib.contextmanager
def _temporary_for(path: Path) -> Iterator[Path]:
    """A temporary path in the folder of the ready file, removed at the end. Raises Failure for an OSError."""
    if not path.name:  # `.`, or the root
        raise Failure(f"--ready-file {path}: Not a regular file", ExitCode.USAGE)
    near = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield near
        near.unlink(missing_ok=True)
    except OSError as error:
        with contextlib.suppress(OSError):
            near.unlink(missing_ok=True)
        raise Failure(f"--ready-file {path}: {error.strerror}", ExitCode.USAGE) from None
