"""Files that take the place of others: by a rename, which does not ask what is there."""

import errno
import stat
from pathlib import Path


def check_replaceable(path: Path) -> None:
    """Raises OSError where there is anything but a regular file: a rename would put one in its place, and who
    is root would have no /dev/stdout any more."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise OSError(errno.EEXIST, "Not a regular file", str(path))
