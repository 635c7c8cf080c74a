"""Paths as people write them: of this machine, and nothing else is taken for one."""

from pathlib import Path

import pytest

from shared.local_path import local_path


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
