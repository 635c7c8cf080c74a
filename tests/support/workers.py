"""More than one core for the tests that recover thousands of stores."""

import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import structlog

from shared.storage import table


@contextmanager
def worker_processes() -> Iterator[ProcessPoolExecutor]:
    """A process for each core: fresh interpreters, so that nothing of the test run's own is shared."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context, _prepare) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # thousands of tasks may wait behind it
            raise


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it in the middle of a task
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    table.SLACK_BYTES = 200  # tables tidy themselves up early
