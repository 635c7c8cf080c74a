"""A disk in memory that knows what a power cut may do to it.

Each file remembers, sector by sector (512 bytes, written whole or not at all), which contents the medium may
hold: what was last synced, and every version written since. Names are remembered the same way: a create, a
rename or an unlink is certain only after its folder's sync, and until then may have happened or not,
independently of those on other names. That is the worst that POSIX allows (a name may be there before its
data, data may be zeros, a size may be any that the file ever had since its sync), so what ext4 and XFS do is
among it.

`power_cut()` gives a `Crash`: all legal states at once. `Crash.boot(choose)` starts the machine in one of
them, chosen lazily: only when a sector, a size or a name is first looked at is it settled, by `choose`. What
is never looked at stays open, so one boot stands for every state that differs only there; `states()` of the
booted disk is how many those are. (Writing over a whole sector does not look at it.)

`kill()` is the death of the process alone: everything written is there.
"""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tests.support.medium import SECTOR, File
from tests.support.names import ABSENT, FOLDER, Name, Names, split


class Operation(NamedTuple):
    """One call on the disk, as `before` is told of it."""

    number: int
    kind: str
    path: str
    offset: int = 0
    length: int = 0


What = tuple[str, int, int]
"""What can be chosen: ("sector", file, sector), ("size", file, 0) or ("names", group, 0)."""

Choose = Callable[[int, What], int]
"""`choose(n, what)`: which of n possibilities is the case for `what`; 0 is the newest."""


def newest(n: int, what: What) -> int:
    """The choice under which nothing was lost."""
    return 0


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class FakeDisk:
    """The `Disk` of shared/storage/disk.py, in memory.

    `before`, if set, is called ahead of every operation: it may raise OSError (the fault happens, nothing
    else), may call `power_cut()`, `kill()` or `lose()`, and for a write may return how many bytes to take.
    """

    def __init__(self) -> None:
        self.before: Callable[[Operation], int | None] | None = None
        self.operations = 0
        self.can_punch = True
        self.full = False
        """No file can be made, or grow."""
        self.read_only = False
        self.free, self.total = 1 << 40, 1 << 41
        self._names = Names()
        self._files: dict[int, File] = {}
        self._next_file = 1
        self._open: dict[int, File] = {}
        self._next_fd = 3
        self._crash: Crash | None = None
        self._choose: Choose = newest
        self._picked: dict[What, int] = {}

    # -- what the machine may look like afterwards

    def power_cut(self) -> "Crash":
        return Crash(self)

    def kill(self) -> "FakeDisk":
        """The same machine after the process died: nothing written is lost, no file is open."""
        new = self._machine(self._names.copy())
        new._files = {n: self._files[n].copy() for n in self._names.entries() if n in self._files}
        new._crash, new._choose, new._picked = self._crash, self._choose, dict(self._picked)
        return new

    def _machine(self, names: Names) -> "FakeDisk":
        new = type(self)()
        new.free, new.total, new.can_punch = self.free, self.total, self.can_punch
        new._names = names
        new._next_file = self._next_file
        return new

    def lose(self, path: str | None) -> None:
        """What a failed sync of `path` (None: of all) may do: unsynced bytes stay readable, never durable."""
        for file in self._files.values():
            if path in (None, file.path):
                file.lose()

    def forget_cache(self) -> None:
        """Reads now come from the medium: what a failed sync lost is as it was before."""
        for file in self._files.values():
            file.forget()

    def contents(self) -> dict[str, bytes]:
        """Every file as a reader sees it."""
        files: dict[str, bytes] = {}
        for (folder, name), entry in self._names.seen.items():
            if entry > ABSENT:
                files[f"{folder}/{name}" if folder else name] = bytes(self._files[entry].data)
        return files

    def flip(self, path: str, bit: int) -> None:
        """Turn one bit of a file over, on the medium and in memory."""
        file = self._files[self._find(path)[1]]
        file.data[bit // 8] ^= 1 << bit % 8

    def states(self) -> int:
        """How many legal states after the power cut this machine stands for: all that look like it so far."""
        return self._crash.states(self._picked) if self._crash is not None else 1

    def chosen(self) -> frozenset[object]:
        """What was chosen so far."""
        return frozenset(self._picked.items())

    def picked(self) -> str:
        """What was chosen so far, in words: for the message when something broke."""
        paths = {number: file.path for number, file in self._files.items()}
        return ", ".join(
            f"{kind} {paths.get(number, number)}{f' {at}' if kind == 'sector' else ''}: {pick}"
            for (kind, number, at), pick in self._picked.items()
        )

    # -- looking

    def _pick(self, n: int, what: What) -> int:
        if n == 1:
            return 0
        pick = self._picked[what] = self._choose(n, what)
        return pick

    def _entry(self, name: Name) -> int:
        if name not in self._names.group:  # nearly always
            return self._names.seen.get(name, ABSENT)
        return self._names.look(name, lambda n, group: self._pick(n, ("names", group, 0)))

    def _find(self, path: str) -> tuple[Name, int]:
        """The name, and what it stands for. The folder that it is in must be there."""
        name = split(path)
        if name[0] and self._entry(split(name[0])) != FOLDER:
            raise _error(errno.ENOENT, path)
        return name, self._entry(name)

    def _is_folder(self, path: str) -> bool:
        name = split(path)
        return (not name[0] or self._is_folder(name[0])) and self._entry(name) == FOLDER

    def _look(self, file: File, start: int = 0, end: int = 0) -> None:
        if file.sizes:
            file.settle_size(file.sizes[self._pick(len(file.sizes), ("size", file.number, 0))])
        if file.unsettled:
            for sector in range(start // SECTOR, -(-min(end, len(file.data)) // SECTOR)):
                if sector in file.unsettled:
                    versions = file.old[sector]
                    pick = self._pick(len(versions), ("sector", file.number, sector))
                    file.settle_sector(sector, versions[pick])

    def _told(self, kind: str, path: str, offset: int = 0, length: int = 0) -> int | None:
        self.operations += 1
        if self.before is None:
            return None
        return self.before(Operation(self.operations - 1, kind, path, offset, length))

    def _need_room(self, path: str) -> None:
        if self.full:
            raise _error(errno.ENOSPC, path)

    # -- the disk

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> int:
        name, entry = self._find(path)
        if entry == FOLDER:
            raise _error(errno.EISDIR, path)
        if entry == ABSENT:
            if not create:
                raise _error(errno.ENOENT, path)
            self._told("create", path)
            self._need_room(path)
            entry = self._next_file
            self._next_file += 1
            self._files[entry] = File(entry, path)
            self._names.change((name, entry))
        elif create and exclusive:
            raise _error(errno.EEXIST, path)
        else:
            self._told("open", path)
        fd = self._next_fd
        self._next_fd += 1
        self._open[fd] = self._files[entry]
        return fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    @property
    def open_paths(self) -> list[str]:
        """The files that somebody holds open."""
        return sorted(file.path for file in self._open.values())

    def size(self, fd: int) -> int:
        file = self._open[fd]
        self._look(file)
        return len(file.data)

    def read(self, fd: int, length: int, offset: int) -> bytes:
        file = self._open[fd]
        self._told("read", file.path, offset, length)
        self._look(file, offset, offset + length)
        return bytes(memoryview(file.data)[offset : offset + length])

    def read_into(self, fd: int, target: memoryview, offset: int) -> int:
        data = self.read(fd, len(target), offset)
        target[: len(data)] = data
        return len(data)

    def read_nowait(self, fd: int, length: int, offset: int) -> bytes | None:
        try:
            return self.read(fd, length, offset)
        except OSError:
            return None

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        file = self._open[fd]
        taken = self._told("write", file.path, offset, len(data))
        if offset + len(data) > len(file.data):
            self._need_room(file.path)
        part = bytes(data if taken is None else data[:taken])
        self._put(file, part, offset)
        return len(part)

    def write_pieces(self, fd: int, pieces: Sequence[bytes | memoryview], offset: int) -> int:
        return self.write(fd, b"".join(pieces), offset)

    def _put(self, file: File, data: bytes, offset: int) -> None:
        if not data:
            return
        self._look(file)
        end = offset + len(data)
        file.grow(end)
        # A sector that is written in part is looked at first, if that makes a difference.
        for sector in {offset // SECTOR, (end - 1) // SECTOR} & file.unsettled:
            if not file.alike_but_for(sector, offset, end):
                self._look(file, sector * SECTOR, sector * SECTOR + 1)
        file.put(data, offset)

    def sync_data(self, fd: int) -> None:
        file = self._open[fd]
        self._told("sync", file.path)
        file.sync()

    def start_write_back(self, fd: int) -> bool:
        return fd in self._open

    def sync_folder(self, path: str) -> None:
        if path and self._find(path)[1] != FOLDER:
            raise _error(errno.ENOENT, path)
        self._told("sync_folder", path)
        self._names.sync(path)

    def sync_all(self) -> bool:
        self._told("sync_all", "")
        for file in self._files.values():
            file.sync()
        self._names.sync_all()
        return True

    def truncate(self, fd: int, size: int) -> None:
        file = self._open[fd]
        self._told("truncate", file.path, size)
        self._look(file)
        end = len(file.data)
        if size < end:
            self._put(file, bytes(end - size), size)
            file.shrink(size)
        else:
            file.grow(size)

    def allocate(self, fd: int, size: int) -> None:
        file = self._open[fd]
        self._told("allocate", file.path, size)
        self._look(file)
        if size > len(file.data):
            self._need_room(file.path)
        file.grow(size)

    def punch(self, fd: int, offset: int, length: int) -> bool:
        file = self._open[fd]
        self._told("punch", file.path, offset, length)
        if self.can_punch:
            self._look(file)
            self._put(file, bytes(max(0, min(length, len(file.data) - offset))), offset)
        return self.can_punch

    def rename(self, old: str, new: str) -> None:
        source, entry = self._find(old)
        target, replaced = self._find(new)
        if entry == ABSENT:
            raise _error(errno.ENOENT, old)
        assert FOLDER not in (entry, replaced), "the store renames files only"
        self._told("rename", new)
        self._files[entry].path = new
        self._names.change((source, ABSENT), (target, entry))

    def unlink(self, path: str) -> None:
        name, entry = self._find(path)
        if entry in (ABSENT, FOLDER):
            raise _error(errno.ENOENT if entry == ABSENT else errno.EISDIR, path)
        self._told("unlink", path)
        self._names.change((name, ABSENT))

    def make_folder(self, path: str) -> None:
        name, entry = self._find(path)
        if entry == FOLDER:
            return
        if entry != ABSENT:
            raise _error(errno.ENOTDIR, path)
        self._told("mkdir", path)
        self._names.change((name, FOLDER))

    def names(self, path: str) -> Sequence[str]:
        if path and not self._is_folder(path):
            return []
        for name in self._names.open_names(path):
            self._entry(name)
        return sorted(
            name for (folder, name), entry in self._names.seen.items() if folder == path and entry != ABSENT
        )

    def put_in_place(self, fd: int, of: int) -> None:
        self._open[of] = self._open[fd]

    def is_gone(self, path: str, fd: int) -> bool:
        return self._files.get(self._find(path)[1]) is not self._open[fd]

    def free_bytes(self) -> tuple[int, int]:
        return self.free, self.total


class Crash:
    """Every legal state of a disk whose power went off."""

    def __init__(self, disk: FakeDisk) -> None:
        self._names = disk._names.power_cut()
        self._files = {n: disk._files[n].power_cut() for n in self._names.entries() if n in disk._files}
        self._disk = disk._machine(Names())

    def boot(self, choose: Choose = newest) -> FakeDisk:
        """Start the machine in the state that `choose` says, piece by piece as it is looked at."""
        disk = self._disk._machine(self._names.copy())
        disk._files = {number: file.copy() for number, file in self._files.items()}
        disk._crash, disk._choose = self, choose
        return disk

    def states(self, picked: Mapping[What, int] | None = None) -> int:
        """How many states there are, or how many in which `picked` is the case."""
        sizes: dict[int, int] = {}
        groups: dict[int, int] = {}
        sectors: dict[int, set[int]] = {}
        for (kind, number, sector), pick in (picked or {}).items():
            if kind == "sector":
                sectors.setdefault(number, set()).add(sector)
            else:
                (sizes if kind == "size" else groups)[number] = pick

        def file_states(number: int) -> int:
            return self._files[number].states(sizes.get(number), sectors.get(number, set()))

        return self._names.states(groups, file_states)
