"""Which names of data folders are names of the same one: a link to it, `a/../a`."""

import os
from collections.abc import Hashable, Iterable


def folder_id(path: str) -> Hashable:
    """What all names of a folder have in common; where there is none, of the name alone."""
    try:
        found = os.stat(path)
    except OSError:  # whoever opens it says so
        return os.path.abspath(path)
    return found.st_dev, found.st_ino


def once_each(paths: Iterable[str]) -> tuple[str, ...]:
    """Each data folder once, by the first of the names that are given for it."""
    found: dict[Hashable, str] = {}
    for path in paths:
        found.setdefault(folder_id(path), path)
    return tuple(found.values())
