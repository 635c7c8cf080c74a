"""Paths as people write them: of this machine, and nothing else is taken for one."""

import os
import stat
import threading
from pathlib import Path

import pytest

from shared.local_path import local_path, read_file, replace_file


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("data", "data"),
        ("/srv/data", "/srv/data"),
        ("a:b/data", "a:b/data"),
        ("./s3:/b", "s3:/b"),
        ("file:///srv/data", "/srv/data"),
        ("file:/srv/data", "/srv/data"),
        ("FILE://localhost/srv/the%20data", "/srv/the data"),
    ],
)
def test_a_path_of_this_machine_is_taken_plainly_or_as_a_url(text: str, path: str) -> None:
    assert local_path(text) == Path(path)


@pytest.mark.parametrize(
    "text", ["s3://b/ar", "S3A://b", "hdfs:/x", "file://host/x", "file://host", "dbfs:/x", Path("s3://b"), ""]
)
def test_what_cannot_be_reached_is_refused_and_no_folder_of_that_name(text: str | Path) -> None:
    with pytest.raises(ValueError, match=r"not of this machine|a path is needed"):
        local_path(text)


def test_a_file_is_replaced_and_a_device_or_a_pipe_is_not(tmp_path: Path) -> None:
    """`brokers definitions export /dev/null`, by root, left a file in place of the device."""
    file, pipe, link = tmp_path / "file", tmp_path / "pipe", tmp_path / "link"
    device = tmp_path / "device"  # a link: the real one would be lost where this fails
    for text in (b"one", b"two"):
        replace_file(file, text)
        assert file.read_bytes() == text
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    device.symlink_to("/dev/null")
    for path in (pipe, link, device):
        with pytest.raises(OSError, match="Not a regular file"):
            replace_file(path, b"x")
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert link.is_symlink()
    assert device.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["device", "file", "link", "pipe"]


def test_what_has_no_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_file(tmp_path / "file", 5) == b"12345"
    for path, most in ((tmp_path / "file", 4), (Path("/dev/zero"), 1000)):
        with pytest.raises(OSError, match=f"it has more than {most} bytes"):
            read_file(path, most)
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"settings",))
    writer.start()
    assert read_file(tmp_path / "pipe") == b"settings"
    writer.join()
