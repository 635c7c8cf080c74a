"""In a checkout `brokers.dms` is the folder `dms` beside `brokers`: the same modules under both names.

A wheel has these folders inside `brokers` (brokers/packaging/wheel.py), and has not this file. So a program
that imports `brokers.dms.client` runs with both.
"""

import importlib
import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

FOLDERS = ("dmp", "dms", "kqmsgq", "logmq", "pubsub", "shared")


def join() -> None:
    """Have the import system find `brokers.dms` and the others; it asks these finders first."""
    sys.meta_path.insert(0, _Finder())


class _Finder:
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        above, _, inner = name.partition(".")
        if above != __package__ or inner.partition(".")[0] not in FOLDERS:
            return None
        return ModuleSpec(name, _Loader(importlib.import_module(inner)))


class _Loader(importlib.abc.Loader):
    """Gives the import system a module that is there already, and leaves it as it is."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put its own there
