"""What is lost with a machine, beside a peer: litestream on SQLite, and a server with each `ack`.

One client writes a row after the other, each once the one before is acknowledged, and notes when it was.
Then writer and replicator are killed, their disk is not looked at any more, and the replica is counted. All
of them replicate each second, to a folder: the figures are of what each promises, and of no network.
"""

import os
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from shared.storage.tools.logs import log_dump
from tests.support.server import Server, run
from tests.trials.s3_stores import tool

_SECONDS = 5.3
_READY_SECONDS = 30.0


@attrs.frozen
class Loss:
    """Of `written` acknowledged rows `lost` are gone, of the last `seconds` before the end."""

    name: str
    written: int
    lost: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.name}: {self.lost:,} of {self.written:,} lost, of the last {self.seconds:.2f} s"


def losses(place: Path) -> Iterator[Loss]:
    """One after the other; litestream only where it is installed."""
    if (program := tool("litestream")) is not None:
        yield _of_litestream(program, place / "litestream")
    for ack in ("disk", "bucket"):
        yield _of_server(ack, place / f"acks-by-{ack}")


def _written(write: Callable[[], object]) -> list[float]:
    """When each row was acknowledged."""
    until, told = time.monotonic() + _SECONDS, []
    while time.monotonic() < until:
        write()
        told.append(time.monotonic())
    return told


def _loss(name: str, told: list[float], cut: float, kept: int) -> Loss:
    return Loss(name, len(told), len(told) - kept, cut - told[kept] if kept < len(told) else 0.0)


def _of_litestream(program: Path, place: Path) -> Loss:
    place.mkdir()
    rows, out, config, replica = (place / name for name in ("rows.db", "out.db", "config.yml", "replica"))
    config.write_text(f"dbs:\n  - path: {rows}\n    replica:\n      type: file\n      path: {replica}\n")
    database = sqlite3.connect(rows, isolation_level=None)
    database.execute("PRAGMA journal_mode = wal")
    database.execute("PRAGMA synchronous = full")
    database.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, body BLOB)")
    process = subprocess.Popen(
        [program, "replicate", "-config", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        give_up = time.monotonic() + _READY_SECONDS
        while not list(replica.rglob("*.ltx")):
            assert time.monotonic() < give_up, "litestream replicates nothing"
            time.sleep(0.02)
        told = _written(lambda: database.execute("INSERT INTO rows (body) VALUES (?)", (os.urandom(100),)))
    finally:
        process.kill()
        process.wait()
    cut = time.monotonic()
    database.close()
    subprocess.run([program, "restore", "-config", config, "-o", out, rows], check=True, capture_output=True)
    (kept,) = sqlite3.connect(out).execute("SELECT count(*) FROM rows").fetchone()
    return _loss("litestream on SQLite", told, cut, kept)


def _of_server(ack: str, place: Path) -> Loss:
    place.mkdir()
    url = f"file://{place}/bucket"
    environ = {"BROKERS_SHIP_URL": url, "BROKERS_SHIP_ACK": ack}
    with (
        Server(place, "--enable", "logmq", environ=environ) as server,
        socket.create_connection(server.address("logmq"), timeout=_READY_SECONDS) as connection,
    ):

        def write() -> None:
            connection.sendall(b"PRODUCE rows %s\n" % os.urandom(50).hex().encode())
            assert connection.recv(100).startswith(b"OK")

        told = _written(write)
        server.kill()
        cut = time.monotonic()
    back = place / "back"
    restored = run("restore", url, "--data-dir", str(back))
    assert restored.returncode == 0, restored.stderr
    return _loss(f'ack = "{ack}"', told, cut, sum(1 for _ in log_dump(back, "logmq", "rows")))
