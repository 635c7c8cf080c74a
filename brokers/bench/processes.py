"""Processes: helpers of a benchmark, and what processes have used of the processors."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import clock_gettime
from typing import IO, Literal

import attrs

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Helper:
    """A process of a module here. `requests`: its standard input; `answers`: its standard output."""

    pid: int
    requests: IO[bytes]
    answers: IO[bytes]

    def number(self) -> int:
        """The next line that it says; the first one is its port."""
        return int(self.answers.readline())


@contextmanager
def helper(module: str, *words: str) -> Iterator[Helper]:
    """Run a module here in a process of its own, which is killed at the end."""
    command = [sys.executable, "-m", f"brokers.bench.{module}", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Helper(process.pid, process.stdin, process.stdout)
        finally:
            process.kill()


def server_process(data: Path) -> int:
    """Whose data folder it is."""
    return int((data / "LOCK").read_text())


def processor_seconds(process: int) -> float | None:
    """What a process, and its children that have ended, have used of the processors so far; None where the
    system does not say, or there is no such process."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        # There its own are in hundredths of a second: too coarse for a server that has little to do. This is
        # what clock_getcpuclockid(3) gives on Linux, which Python does not have for other processes.
        own = clock_gettime(~process << 3 | 2)
    except OSError:
        return None
    return own + sum(map(int, fields[13:15])) / _CLOCK_TICKS


def resident_bytes(process: int | Literal["self"] = "self") -> int | None:
    """Memory of a process; None where the system does not say."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def processes_of(root: int) -> list[int]:
    """A process, those that it has started, and those that they have; only itself where there is no /proc."""
    found, pids = [], [root]
    while pids:
        found.append(pids.pop())
        try:
            for task in Path(f"/proc/{found[-1]}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        except OSError:  # it has just ended
            continue
    return found


def cpu_seconds(root: int) -> float:
    """What a process and all below it have used, those that have ended too; 0 where there is no /proc."""
    return sum(cpu_by_process(root).values())


def cpu_by_process(root: int) -> dict[int, float]:
    """The seconds of each process. One that has ended counts for its parent, if that waited for it."""
    seconds = {}
    for pid in processes_of(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        seconds[pid] = sum(map(int, fields[11:15])) / _CLOCK_TICKS
    return seconds
