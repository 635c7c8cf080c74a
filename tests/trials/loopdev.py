"""A file system of the trial's own, in an image file on a loop device, whose power can be cut.

The cut is the ioctl FS_IOC_SHUTDOWN without a flush of the file system's log: from then on nothing reaches
the image, and what was not synced is gone at the next mount, as when a machine loses its power. (What a
drive's own cache may lose or reorder is not simulated: a returned sync is taken at its word.)

Mounts are made in a mount namespace of this process where that can be had, with loop devices that free
themselves: whatever ends the trial, nothing of it stays.
"""

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Self

_FS_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32), linux/fs.h and xfs_fs.h
_NO_LOG_FLUSH = struct.pack("I", 2)  # FSOP_GOING_FLAGS_NOLOGFLUSH
_CLONE_NEWNS = 0x00020000
IMAGE_BYTES = 512 << 20
"""Sparse. XFS wants 300 MiB; the broker keeps 64 MiB free and takes an eighth for its journal."""

_MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
KINDS = tuple(_MAKE)


class CannotMountError(Exception):
    """This machine, or this user, cannot do it; the text says why."""


class Volume:
    """One file system. `with` unmounts it at the end."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.root = folder / "mnt"
        self._image = folder / f"{kind}.img"
        self._mounted = False

    def make(self) -> None:
        """Make it anew. Raises CannotMountError."""
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self._image, "wb") as image:
            image.truncate(IMAGE_BYTES)
        _do(*_MAKE[self.kind], str(self._image))

    def mount(self) -> None:
        """Mount it; after a cut the file system recovers here. Raises CannotMountError."""
        _do("mount", "-t", self.kind, "-o", "loop,noatime", str(self._image), str(self.root))
        self._mounted = True

    def cut(self) -> None:
        """Lose the power."""
        root = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(root, _FS_IOC_SHUTDOWN, _NO_LOG_FLUSH)
        finally:
            os.close(root)

    def sync(self) -> None:
        """As a machine has done after a while by itself, whatever its programs do."""
        _do("sync", "-f", str(self.root))

    def unmount(self) -> None:
        if self._mounted:
            _do("umount", str(self.root))
            self._mounted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._mounted:
            subprocess.run(["umount", "--lazy", str(self.root)], capture_output=True)


def own_mounts() -> None:
    """Mounts that this process makes are seen by it and its children alone, and end with them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) == 0:
        subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True)


def usable_kinds() -> list[str]:
    """The file systems that can be made and mounted here. Raises CannotMountError if there is none."""
    if os.geteuid() != 0:
        raise CannotMountError("only root may mount file systems")
    kinds, problems = [], []
    for kind in KINDS:
        if shutil.which(_MAKE[kind][0]) is None:
            problems.append(f"there is no {_MAKE[kind][0]}")
            continue
        with (
            tempfile.TemporaryDirectory(prefix="trial-volume-") as folder,
            Volume(kind, Path(folder)) as volume,
        ):
            try:
                volume.make()
                volume.mount()
                volume.cut()
                volume.unmount()
                kinds.append(kind)
            except (CannotMountError, OSError) as error:
                problems.append(f"{kind}: {error}")
    if not kinds:
        raise CannotMountError("; ".join(problems))
    return kinds


def _do(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True)
    except OSError as error:
        raise CannotMountError(f"{command[0]}: {error.strerror}") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise CannotMountError(f"{' '.join(command)}: {said}") from None
