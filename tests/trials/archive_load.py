"""A load for the archive's trial: it knows every record that was acknowledged, with its offset, by life."""

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.trials.archive_judge import Row

STEADY = ("steady-a", "steady-b")
COMING = "coming"
"""The topic that is deleted and made again."""

_BATCH_MAX = 60
_LINE_BYTES = 4096


class ArchiveLoad:
    """Writes from a thread of its own until it is stopped. `error`: what ended it before that."""

    def __init__(self, address: tuple[str, int], source: random.Random) -> None:
        self.lives: dict[str, list[list[Row]]] = {topic: [[]] for topic in (*STEADY, COMING)}
        self.error: BaseException | None = None
        self._source = source
        self._socket = socket.create_connection(address)
        self._answers = self._socket.makefile("rb")
        self._turn = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def records(self) -> int:
        return sum(len(life) for lives in self.lives.values() for life in lives)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Everything that was sent is acknowledged, and nothing is sent meanwhile."""
        with self._turn:
            yield

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                with self._turn:
                    self._write()
                time.sleep(self._source.uniform(0, 0.1))
        except BaseException as error:
            self.error = error

    def _write(self) -> None:
        topic = self._source.choice((*STEADY, COMING))
        lives = self.lives[topic]
        if topic == COMING and lives[-1] and self._source.random() < 0.02:
            self._ask([f"DELETE {topic}".encode()])
            lives.append([])
        count = self._source.randint(1, _BATCH_MAX)
        done = len(lives[-1])
        values = [
            f"{topic}/{len(lives)}/{done + number} ".encode() + b"." * self._source.randrange(200)
            for number in range(count)
        ]
        answers = self._ask([b"PRODUCE %b %b" % (topic.encode(), value) for value in values])
        for value, answer in zip(values, answers, strict=True):
            lives[-1].append(Row(int(answer.removeprefix(b"OK ")), value))

    def _ask(self, lines: list[bytes]) -> list[bytes]:
        self._socket.sendall(b"\n".join(lines) + b"\n")
        answers = [self._answers.readline(_LINE_BYTES).rstrip() for _ in lines]
        refused = [answer for answer in answers if not answer.startswith(b"OK")]
        if refused:
            raise ConnectionError(f"the broker refused: {refused[0]!r}")
        return answers
