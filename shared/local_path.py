"""Paths as people write them: of this machine, plainly or as a `file:` URL. Nothing else can be reached."""

import errno
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

WRITTEN_BYTES_MAX = 64 << 20
"""The bound of a file of settings, or of users: some 400,000 of them."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_FILE = re.compile(r"file:(?://(?:localhost)?(?=/)|(?=/[^/]))", re.IGNORECASE)


def local_path(text: str | Path) -> Path:
    """Parse `data`, `/srv/data` or `file:///srv/data`. Raises ValueError for anything else.

    pathlib would turn `s3://bucket` into a local folder `s3:`, unnoticed by the user.
    """
    text = str(text)
    if not text:
        raise ValueError("a path is needed")
    if (file := _FILE.match(text)) is not None:
        return Path(unquote(text[file.end() :]))
    if _SCHEME.match(text) is not None:
        raise ValueError(f"{text!r} is not of this machine; a path is expected, or file:///path")
    return Path(text)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def require_regular(path: Path) -> None:
    """Raises OSError for anything but a file, or a link to one: who reads a pipe may wait for ever."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, "Is a directory" if stat.S_ISDIR(mode) else "Not a regular file", str(path))


def read_file(path: Path, bytes_max: int = WRITTEN_BYTES_MAX) -> bytes:
    """The whole of a file that somebody has written, or of a pipe. Raises OSError, also above `bytes_max`:
    /dev/zero, or a wrong file, must not take all memory.
    """
    with path.open("rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"it has more than {bytes_max} bytes", str(path))
    return data


def replace_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Put `data` in place of a file, whole or not at all; `mode`: a new file's. Raises OSError, also where a
    rename would replace a device: root would lose /dev/null.
    """
    with suppress(FileNotFoundError):
        there = path.stat().st_mode
        if not (stat.S_ISREG(there) or stat.S_ISDIR(there)):
            raise OSError(errno.EEXIST, "Not a regular file", str(path))
    near = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(near, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        near.replace(path)
    except BaseException:
        near.unlink(missing_ok=True)
        raise


def check_replaceable(path: Path) -> None:
    """Raises OSError for anything but a regular file: a rename would replace it, and root would lose
    /dev/stdout.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise OSError(errno.EEXIST, "Not a regular file", str(path))
