"""What work leaves in memory."""

import gc
import tracemalloc
from collections.abc import Callable


def growth_bytes(work: Callable[[], object]) -> int:
    """How much more memory Python holds after `work` than before it."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        gc.collect()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return held_bytes
