"""The names of the fake disk: what programs see, and what the medium may hold instead (see fake_disk.py)."""

import functools
from collections.abc import Callable, Mapping
from typing import Self

Name = tuple[str, str]
"""A folder's path ("" is the data folder), and a name in it."""

FOLDER = -1  # what a name may stand for, beside a file's number
ABSENT = 0

Change = tuple[tuple[Name, int], ...]
"""What one operation does to names, all or nothing: (name, what it then stands for)."""


class Names:
    """`seen` is what programs see. `synced`, with any legal choice of `changes`, is what the medium holds.

    After a power cut the names that unsynced changes tie together are a group, and `options[group]` are all
    its legal looks, until somebody looks.
    """

    def __init__(self) -> None:
        self.seen: dict[Name, int] = {}
        self.synced: dict[Name, int] = {}
        self.changes: list[Change] = []
        self.group: dict[Name, int] = {}
        self.options: dict[int, list[dict[Name, int]]] = {}

    def copy(self) -> Self:
        new = type(self)()
        new.seen = dict(self.seen)
        new.synced = dict(self.synced)
        new.changes = list(self.changes)
        new.group = dict(self.group)
        new.options = dict(self.options)
        return new

    def look(self, name: Name, pick: Callable[[int, int], int]) -> int:
        """What `name` stands for. `pick(n, group)` chooses if that is open."""
        group = self.group.get(name)
        if group is not None:
            looks = self.options.pop(group)
            for settled, entry in looks[pick(len(looks), group)].items():
                del self.group[settled]
                self.synced[settled] = self.seen[settled] = entry
                if entry == ABSENT:
                    self._forget_below(joined(settled))
        return self.seen.get(name, ABSENT)

    def _forget_below(self, folder: str) -> None:
        """It was never there, if it was a folder: one made by that name is empty."""
        for name in self.open_names(folder):
            self.options.pop(self.group.pop(name), None)
        for name in [name for name in self.seen if name[0] == folder]:
            del self.seen[name]
            self.synced.pop(name, None)

    def open_names(self, folder: str) -> list[Name]:
        """The names of a folder at which nobody has looked."""
        return [name for name in self.group if name[0] == folder]

    def change(self, *change: tuple[Name, int]) -> None:
        """The names have been looked at before."""
        self.seen.update(change)
        self.changes.append(change)

    def sync(self, folder: str) -> None:
        """What touched this folder is durable, with the earlier changes of the same names elsewhere."""
        wanted: set[Name] = set()
        durable: list[Change] = []
        kept: list[Change] = []
        for change in reversed(self.changes):
            if any(name[0] == folder or name in wanted for name, _ in change):
                wanted.update(name for name, _ in change)
                durable.append(change)
            else:
                kept.append(change)
        for change in reversed(durable):
            self.synced.update(change)
        self.changes = kept[::-1]

    def sync_all(self) -> None:
        for change in self.changes:
            self.synced.update(change)
        self.changes.clear()

    def entries(self) -> set[int]:
        """Everything that a name stands for, or may."""
        found = {*self.seen.values(), *self.synced.values()}
        for change in self.changes:
            found.update(entry for _, entry in change)
        for looks in self.options.values():
            for look in looks:
                found.update(look.values())
        return found

    def power_cut(self) -> Self:
        new = type(self)()
        new.group = dict(self.group)  # nobody has looked at these, so nobody has changed them either
        new.options = dict(self.options)
        changes: dict[int, list[Change]] = {}
        for number, change in enumerate(self.changes, max(new.options, default=0) + 1):
            tied = sorted({new.group[name] for name, _ in change if name in new.group})
            changes[number] = [*(earlier for other in tied for earlier in changes.pop(other)), change]
            new.group.update({name: number for name, other in new.group.items() if other in tied})
            new.group.update({name: number for name, _ in change})
        for number, members in changes.items():
            names = [name for name, other in new.group.items() if other == number]
            new.options[number] = _looks({name: self.synced.get(name, ABSENT) for name in names}, members)
        new.synced = {name: entry for name, entry in self.synced.items() if name not in new.group}
        new.seen = dict(new.synced)
        return new

    def states(self, picked: Mapping[int, int], file_states: Callable[[int], int], folder: str = "") -> int:
        """In how many ways a folder and all below it may be, if `picked` are the looks of their groups."""

        def ways(name: Name, entry: int) -> int:
            if entry == FOLDER:
                return self.states(picked, file_states, joined(name))
            return file_states(entry) if entry != ABSENT else 1

        total = 1
        for name, entry in self.seen.items():
            if name[0] == folder:
                total *= ways(name, entry)
        for group, looks in self.options.items():
            if next(iter(looks[0]))[0] != folder:
                continue
            in_group = 0
            for look in looks if group not in picked else [looks[picked[group]]]:
                of_look = 1
                for name, entry in look.items():
                    of_look *= ways(name, entry)
                in_group += of_look
            total *= in_group
        return total


def _looks(synced: dict[Name, int], changes: list[Change]) -> list[dict[Name, int]]:
    """What any set of the changes leaves; a change needs the earlier ones of its names. Newest first."""
    found: list[tuple[dict[Name, int], frozenset[Name]]] = [(synced, frozenset())]
    for change in changes:
        names = frozenset(name for name, _ in change)
        # The second of a pair: names with a change left out; what comes after it on them is left out too.
        taken = [({**look, **dict(change)}, stopped) for look, stopped in found if not names & stopped]
        left = [(look, stopped | names) for look, stopped in found]
        found = list(
            {(tuple(look.items()), stopped): (look, stopped) for look, stopped in taken + left}.values()
        )
    return list({tuple(look.items()): look for look, _ in found}.values())


@functools.cache
def split(path: str) -> Name:
    folder, _, name = path.rpartition("/")
    return folder, name


def joined(name: Name) -> str:
    return f"{name[0]}/{name[1]}" if name[0] else name[1]
