"""A process that replays records which it makes itself, without Spark: one to kill."""

import signal
import sys
from pathlib import Path
from typing import Any

import trio

from brokers.replaying import engine as job
from brokers.replaying.engine import Progress, SourcedRecord
from logmq.replay import target

OF = {"topic": "orders"}
SIZES = (1500, 1, 1000)
BATCH_MESSAGES = 64
"""40 batches of them all, on any machine: none is waited for."""


def logs(*sizes: int) -> list[SourcedRecord]:
    """Records of several logs, `sizes` each, as they came: no two of one log share a time."""
    found = []
    for number, size in enumerate(sizes):
        offset = 0
        for at in range(size):
            value = b"%d" % at * (at % 9)
            found.append(SourcedRecord.of_log(f"there topic{number}", offset, at / 10 + number / 97, value))
            offset += 4 + len(value)
    return sorted(found, key=lambda record: record.time)


class Halting(Progress):
    """Says when it has come so far, before or after it is noted, and stands still, to be killed there."""

    def __init__(self, file: Path, at: int) -> None:
        super().__init__(file, OF)
        self.at = at

    def save(self, place: Any) -> None:
        if place.seq < self.at or self.at % 2:
            super().save(place)
        if place.seq >= self.at:
            print("there", flush=True)
            signal.pause()


async def main(host: str, port: int, file: Path, at: int) -> None:
    job.BATCH_MESSAGES = BATCH_MESSAGES
    progress, records = Halting(file, at), logs(*SIZES)
    place = progress.load() or progress.begin({record.log: (0, record.offset + 1) for record in records})
    left = [record for record in records if record.offset >= place.at[record.log]]
    async with target(host, port, {}) as server:
        await job.replay(left, server, place, progress)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
