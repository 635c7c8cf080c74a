"""What a server tells of its own state: the addresses and `ready` in the log, the ready file, systemd."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import structlog
import trio

from brokers import logs
from brokers.config import Config
from brokers.errors import ExitCode, Refusal
from brokers.service import Bound
from shared.local_path import check_replaceable

STILL_STARTING_SECONDS = 5.0
"""A start that takes longer, as after a crash with much to recover, says so, and again each time."""
STILL_STARTING = (
    "still starting: the data folder is read; after a crash its journal is replayed, which takes long"
)


def make_way(ready_file: Path | None) -> None:
    """Remove an earlier run's: nobody may take it for ours. Raises Refusal where ours cannot be written."""
    if ready_file is not None:
        with _beside(ready_file) as near:
            check_replaceable(ready_file)
            forget(ready_file)
            near.touch()


def forget(ready_file: Path | None) -> None:
    """Remove it: we are not ready any more."""
    if ready_file is not None:
        with contextlib.suppress(OSError):
            ready_file.unlink()


async def still_starting(starting: trio.CancelScope, log: structlog.stdlib.BoundLogger) -> None:
    """Until `starting` is cancelled. Whoever waits should know that we are at it; systemd would kill us."""
    began = trio.current_time()
    with starting:
        while True:
            await trio.sleep(STILL_STARTING_SECONDS)
            log.info(STILL_STARTING, seconds=round(trio.current_time() - began))
            notify(f"EXTEND_TIMEOUT_USEC={3 * STILL_STARTING_SECONDS * 1e6:.0f}")


async def feed_watchdog() -> None:
    """Tell systemd, where it asks (`WatchdogSec=`), that the loop runs: what stands still it restarts."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    if microseconds.isdecimal() and int(microseconds):
        while True:
            notify("WATCHDOG=1")
            await trio.sleep(int(microseconds) / 2e6)


def ready(bound: Sequence[Bound], config: Config, ready_file: Path | None) -> None:
    """Say where we listen, to people and to programs, at any log level."""
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
    notify("READY=1")


def notify(state: str) -> None:
    """Tell systemd, where it started us as `Type=notify` (sd_notify(3)); nobody else asks."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


def _write_whole(path: Path, value: Mapping[str, Any]) -> None:
    """Put JSON there in one step: whoever finds the file finds all of it. Raises Refusal."""
    with _beside(path) as near:
        near.write_text(json.dumps(value) + "\n")
        near.replace(path)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A temporary name beside that of the ready file; gone at the end. Raises Refusal for an OSError."""
    if not path.name:  # `.`, or the root
        raise Refusal(f"--ready-file {path}: Not a regular file", ExitCode.USAGE)
    near = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield near
        near.unlink(missing_ok=True)
    except OSError as error:
        with contextlib.suppress(OSError):
            near.unlink(missing_ok=True)
        raise Refusal(f"--ready-file {path}: {error.strerror}", ExitCode.USAGE) from None
