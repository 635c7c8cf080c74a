"""A round, and what the server took of the processors for a message."""

import os
from pathlib import Path
from time import clock_gettime

import attrs

from brokers.bench.adapter import Load, Point
from brokers.bench.cli import loaded
from brokers.bench.load import Address, Measured

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def metered(load: Load, address: Address, data: Path | None, point: Point, seconds: float) -> Measured:
    """`data`: the server's folder, if it is known."""
    server = None if data is None else int((data / "LOCK").read_text())
    before = None if server is None else processor_seconds(server)
    measured = loaded(load, address, point, seconds)
    after = None if server is None else processor_seconds(server)
    cpu = None if before is None or after is None else (after - before) * 1e6 / max(measured.total, 1)
    return attrs.evolve(measured, cpu_us=cpu)


def processor_seconds(process: int) -> float | None:
    """What a process, and its children that have ended, have used of the processors so far; None if the
    system does not say, or there is no such process."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        # There its own are in hundredths of a second: too coarse for a server that has little to do. This is
        # what clock_getcpuclockid(3) gives on Linux, which Python does not have for other processes.
        own = clock_gettime(~process << 3 | 2)
    except OSError:
        return None
    return own + sum(map(int, fields[13:15])) / _CLOCK_TICKS
