"""`make trial-replay`: replays of several topics, killed -9 with their JVM at random and given again.

From a data folder, from its server and from an archive of it, all into one server. In the end each topic
there must have each record of its source once, in order.
"""

import json
import math
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.process_group import ProcessGroup
from tests.support.server import speak
from tests.trials import outcomes
from tests.trials.archive import PATIENCE_SECONDS, ArchiverProcess
from tests.trials.plain_reader import log_bytes
from tests.trials.serving import TrialServer

TOPICS = {"orders": 30_000, "bills": 12_000, "rare": 7}
"""Records of each."""
RATE = 6000


class ReplayError(Exception):
    """It did not do what it should; the text is what it said."""


class Replaying:
    """One replay, killed and given again until it is done."""

    def __init__(self, progress: Path, arguments: Sequence[str]) -> None:
        self.kills = 0
        self._progress = progress
        self._words = ["pipeline", "replay", *arguments]
        self._words += ["--progress", str(progress), "--rate", str(RATE), "--master", "local[2]"]

    def run(self, batches: int | None) -> bool:
        """Once: killed after so many more batches (None: left alone); returns whether it came to its end."""
        replay = ProcessGroup(self._words)
        try:
            goal = math.inf if batches is None else self._seq() + batches
            give_up = time.monotonic() + PATIENCE_SECONDS
            while replay.process.poll() is None and self._seq() < goal:
                if time.monotonic() > give_up:
                    raise ReplayError(f"nothing happens at batch {self._seq()}")
                time.sleep(0.002)
        finally:
            ended = replay.process.poll()
            if ended is None:
                self.kills += 1
            replay.signal_all(signal.SIGKILL)
            replay.end(PATIENCE_SECONDS)
        if ended:
            raise ReplayError(f"exit {ended}\n{replay.said}")
        return ended == 0

    def _seq(self) -> int:
        try:
            return int(json.loads(self._progress.read_bytes())["seq"])
        except FileNotFoundError:
            return 0


def fill(server: TrialServer, chance: random.Random) -> None:
    """The topics, their records mixed."""
    left = [topic for topic, count in TOPICS.items() for _ in range(count)]
    chance.shuffle(left)
    for begin in range(0, len(left), 5000):
        lines = [
            f"PRODUCE {topic} {begin + at} {'x' * chance.randrange(120)}\n"
            for at, topic in enumerate(left[begin : begin + 5000])
        ]
        speak(server.address("logmq"), "".join(lines).encode())


def trial(place: Path, kills: int, chance: random.Random) -> list[str]:
    """What is wrong."""
    source = TrialServer(place, place / "source", "--enable", "logmq")
    there = place / "there"
    there.mkdir()
    target = TrialServer(there, place / "target", "--enable", "logmq")
    try:
        source.begin()
        target.begin()
        fill(source, chance)
        address = ":".join(map(str, source.address("logmq")))
        archiver = ArchiverProcess(place / "archive", place / "source", "--once")
        if archiver.end(PATIENCE_SECONDS):
            raise ReplayError(archiver.said)
        host, port = target.address("logmq")
        ways = {
            "folder": [str(place / "source"), *TOPICS],
            "server": ["--servers", address, "--pattern", ".*"],
            "archive": [str(place / "archive"), "--pattern", "orders|bills|rare"],
        }
        for number, (way, words) in enumerate(ways.items()):
            prefix = f"{way}-"
            replaying = Replaying(
                place / f"{way}.noted", [*words, "--prefix", prefix, "--host", host, "--port", str(port)]
            )
            share = (kills + number) // len(ways)
            while not replaying.run(chance.randint(1, 60) if replaying.kills < share else None):
                pass
            print(f"from {way}: {replaying.kills} kills", flush=True)
        source.kill()
        if code := target.stop():
            return [f"the target ended with {code}"]
        return [
            f"{way}-{topic} is not {topic}"
            for way in ways
            for topic in TOPICS
            if log_bytes(place / "target", f"{way}-{topic}") != log_bytes(place / "source", topic)
        ]
    finally:
        for server in (source, target):
            if server.alive:
                server.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = outcomes.parser("replay", __doc__)
    parser.add_argument("--kills", type=int, default=9)
    options = parser.parse_args(arguments)
    return outcomes.judged(
        "replay",
        options,
        lambda place, seed: trial(place, options.kills, random.Random(seed)),
        kept="each topic has each record once, in order",
    )


if __name__ == "__main__":
    sys.exit(main())
