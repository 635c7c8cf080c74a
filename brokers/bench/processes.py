"""The processor time of a server that is measured."""

import os
from pathlib import Path
from time import clock_gettime

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def server_process(data: Path) -> int:
    """The process that serves a data folder."""
    return int((data / "LOCK").read_text())


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
