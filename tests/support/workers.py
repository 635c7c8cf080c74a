"""More than one core for the tests that recover thousands of stores."""

import logging
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import structlog

from shared.storage import table


@contextmanager
def worker_processes(log_level: int = logging.CRITICAL) -> Iterator[ProcessPoolExecutor]:
    """A process for each core: fresh interpreters, so that nothing of the test run's own is shared."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context, _prepare, (log_level,)) as pool:
        yield pool


def _prepare(log_level: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(log_level))
    table._SLACK_BYTES = 200  # tables tidy themselves up early
