"""The command `brokers replay` with small batches, which stands still at one of them, to be killed there."""

import signal
import sys
from typing import Any

from brokers.__main__ import main
from brokers.replaying import engine

BATCH_MESSAGES = 64


class Halting(engine.Progress):
    """Says when it has come to batch `at`, before or after that is noted, and stands still."""

    at = int(sys.argv[1])

    def save(self, position: Any) -> None:
        if position.seq < self.at or self.at % 2:
            super().save(position)
        if position.seq >= self.at:
            print("there", flush=True)
            signal.pause()


if __name__ == "__main__":
    engine.Progress = Halting  # type: ignore[misc]
    engine.BATCH_MESSAGES = BATCH_MESSAGES
    del sys.argv[1]
    main()
