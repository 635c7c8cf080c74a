"""`brokers bench floor`: what this machine does without a broker.

A server that answers when its data is on disk takes at least a write, its `fdatasync` and a round trip over
loopback. `brokers bench logmq` shows one durable client beside these three together.
"""

import mmap
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

from brokers.bench.load import Measured, Spread, connect, histogram
from brokers.bench.options import DataDir, Seconds
from brokers.bench.processes import helper
from shared.cli.options import Json
from shared.cli.progress import progress

PAGE_BYTES = 4096
BLOCKS = 4096
"""Blocks of the file that is written in a circle: preallocated, so a sync writes no metadata."""
REQUEST = b"x" * 100
COPIED_BYTES = 64 << 20
"""Larger than the processor's caches."""


def bench(*, seconds: Seconds = 1.0, data_dir: DataDir = None, json: Json = False) -> list[Spread]:
    """Measure this machine: its disk, its loopback and its memory.

    A sync alone, a write of 4 KiB with its sync, and a round trip of 100 bytes between two processes. Also
    the bandwidth of copies in memory.
    """
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=data_dir) as folder,
        progress("measuring", total=3) as update,
    ):
        both, syncs = synced(Path(folder), PAGE_BYTES, seconds)
        update(1)
        trips = round_trips(seconds)
        update(2)
        copies = _copies(seconds)
    rates = Spread.of("copy in memory", [COPIED_BYTES * 1000 // spent for spent in copies], "MB/s", per=1)
    return [
        Spread.of("fdatasync after a write of 4 KiB", syncs),
        Spread.of("write of 4 KiB and fdatasync", both),
        Spread.of("loopback round trip of 100 bytes", trips),
        rates,
    ]


def closed_loop(folder: Path, size: int, seconds: float) -> Measured:
    """A write with its sync and a round trip: the least that a durable answer takes."""
    writes = sync_loop(folder, size, seconds / 2)
    trips = sorted(round_trips(seconds / 2))
    median, p99 = (trips[len(trips) * percent // 100] / 1000 for percent in (50, 99))
    whole = median + writes.median_us
    return Measured(1e6 / whole, whole, p99 + writes.p99_us)


def sync_loop(folder: Path, size: int, seconds: float) -> Measured:
    """One write and its fdatasync after the other."""
    trips, begun = histogram(), perf_counter_ns()
    both, _ = synced(folder, size, seconds)
    for spent in both:
        trips.record_value(max(spent // 1000, 1))
    return Measured.of(len(both), perf_counter_ns() - begun, trips)


def synced(folder: Path, size: int, seconds: float) -> tuple[list[int], list[int]]:
    """Nanoseconds of each write (4 KiB at most) with its fdatasync, and of the fdatasync alone."""
    page = mmap.mmap(-1, PAGE_BYTES)  # as the journal writes: from whole pages
    page.write(b"x" * min(size, PAGE_BYTES))
    data = memoryview(page)[:size]
    syncs: list[int] = []
    fd = os.open(folder / "fdatasync", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, bytes(PAGE_BYTES * BLOCKS), 0)
        os.fsync(fd)

        def write() -> None:
            os.pwrite(fd, data, len(syncs) % BLOCKS * PAGE_BYTES)
            begun = perf_counter_ns()
            os.fdatasync(fd)
            syncs.append(perf_counter_ns() - begun)

        return _timed(write, seconds), syncs
    finally:
        os.close(fd)


def round_trips(seconds: float) -> list[int]:
    """Nanoseconds of each request of 100 bytes and its echo, by bare system calls of two processes."""
    with helper("floor") as process, connect(("127.0.0.1", process.number())) as sock:

        def ask() -> None:
            sock.sendall(REQUEST)
            left = len(REQUEST)
            while left:
                left -= len(sock.recv(left))

        ask()
        return _timed(ask, seconds)


def _copies(seconds: float) -> list[int]:
    source, target = bytearray(b"x" * COPIED_BYTES), memoryview(bytearray(COPIED_BYTES))

    def copy() -> None:
        target[:] = source

    copy()  # its pages are there now
    return _timed(copy, seconds)


def _timed(action: Callable[[], None], seconds: float) -> list[int]:
    """Nanoseconds of each call, for so long."""
    spent: list[int] = []
    now = perf_counter_ns()
    ends = now + int(seconds * 1e9)
    while now < ends or not spent:
        begun = perf_counter_ns()
        action()
        now = perf_counter_ns()
        spent.append(now - begun)
    return spent


def _serve() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := sock.recv(PAGE_BYTES):
            sock.sendall(data)


if __name__ == "__main__":
    _serve()
