"""Folders that tests name to others."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def near_path(tmp_path: Path) -> Iterator[Path]:
    """`tmp_path` by a name that fits a socket's address, of a hundred bytes, wherever temporary files are.

    It holds for this process and those that it starts, until the end of the test.
    """
    handle = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        near = Path(f"/proc/{os.getpid()}/fd/{handle}")
        yield near if near.is_dir() else tmp_path
    finally:
        os.close(handle)
