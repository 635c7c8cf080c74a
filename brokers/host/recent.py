"""The last rows of a stream, such as log lines or copies of messages."""

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

KEPT = 200

Row = Mapping[str, Any]


class Recent:
    """The last `KEPT` rows, numbered from 1. Any thread may add one."""

    def __init__(self) -> None:
        self.last = 0
        self._rows: deque[tuple[int, Row]] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def add(self, row: Row) -> None:
        with self._lock:
            self.last += 1
            self._rows.append((self.last, row))

    def after(self, number: int) -> list[tuple[int, Row]]:
        """The kept rows with greater numbers."""
        with self._lock:
            return [each for each in self._rows if each[0] > number]
