"""What the storage's tests share."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.support.workers import worker_processes


@pytest.fixture(scope="package")
def workers() -> Iterator[ProcessPoolExecutor]:
    with worker_processes() as pool:
        yield pool
