"""Many writes in one call: each has its own outcome, and what was taken is what lies in the files."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.storage import aio
from shared.storage.os_disk import OsDisk

pytestmark = pytest.mark.skipif(
    aio.write_many([]) is None, reason="this system's C library has no such calls, or others"
)


def write(fd: int, data: bytes, offset: int) -> aio.Write:
    return fd, memoryview(bytearray(data)), offset


@given(st.lists(st.tuples(st.integers(0, 4), st.binary(min_size=1, max_size=300)), max_size=200))
def test_every_write_lands_where_it_should(writes: list[tuple[int, bytes]]) -> None:
    files = [os.memfd_create(f"file {number}") for number in range(5)]
    try:
        expected = [bytearray() for _ in files]
        parts = []
        for number, data in writes:
            parts.append(write(files[number], data, len(expected[number])))
            expected[number] += data
        assert aio.write_many(parts) == [len(data) for _, data in writes]
        assert [os.pread(fd, 1 << 20, 0) for fd in files] == expected
    finally:
        for fd in files:
            os.close(fd)


def test_one_that_fails_says_why_and_the_others_are_done(tmp_path: Path) -> None:
    (tmp_path / "read").touch()
    bad = os.open(tmp_path / "read", os.O_RDONLY)
    good = os.open(tmp_path / "write", os.O_RDWR | os.O_CREAT)
    try:
        parts = [write(good, b"a", 0), write(bad, b"b", 0), write(good, b"c", 1), write(good, b"d", -1)]
        assert aio.write_many(parts) == [1, -errno.EBADF, 1, -errno.EINVAL]
        assert os.pread(good, 9, 0) == b"ac"
    finally:
        os.close(bad)
        os.close(good)


def test_a_disk_does_the_same_where_there_is_no_such_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk(tmp_path)
    fd = disk.open("file", create=True)
    parts = [write(fd, b"one", 0), write(10**6, b"two", 0), write(fd, b"three", 3)]
    together = disk.write_many(parts)
    monkeypatch.setattr(aio, "write_many", lambda writes: None)
    disk.truncate(fd, 0)
    assert disk.write_many(parts) == together == [3, -errno.EBADF, 5]
    assert disk.read(fd, 99, 0) == b"onethree"
    disk.close(fd)
