"""A stream's rows, as they come, in the process that asked for them."""

import queue
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from brokers.pipeline.jobs.frames import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WAITING_MAX = 8
"""Batches that wait to be taken: the stream waits where whoever shows its rows is slower."""
LOOK_SECONDS = 0.5


def rows_as_they_come(
    stream: "DataFrame", *, every: str = "2 seconds", once: bool = False, mode: str = "append"
) -> Generator[dict[str, Any]]:
    """Until the stream ends or is left. `once`: it ends with what is there now. Raises what ended it."""
    batches: queue.Queue[list[dict[str, Any]]] = queue.Queue(WAITING_MAX)
    left = False

    def take(batch: "DataFrame", _: int) -> None:
        try:
            rows = rows_of(batch)
        except Exception:
            if left:  # stopped in the midst of it: Spark would take that for a failure, and say so
                return
            raise
        while rows and not left:
            try:
                batches.put(rows, timeout=LOOK_SECONDS)
                return
            except queue.Full:
                pass

    writer = stream.writeStream.foreachBatch(take).outputMode(mode)
    query = (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)).start()
    try:
        while True:
            ended = not query.isActive  # before the last look: it may have put rows until then
            try:
                yield from batches.get(timeout=0 if ended else LOOK_SECONDS)
            except queue.Empty:
                if ended:
                    break
        if (error := query.exception()) is not None:
            raise error
    finally:
        left = True
        query.stop()
