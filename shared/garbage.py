"""Pauses of Python's garbage collector, for work on very many objects.

The collector walks each new object up to three times as it ages. A list or dict of 50,000 logs, or 30,000
small objects, hold the loop 10 to 36 ms each time. Nearly all are gone, or are there to stay, once the work
is done. So the collector pauses meanwhile, and then sets apart what is there (`brokers.collector`). That is
still freed by its count of references. Only garbage in cycles stays until everything is walked again. Such
work makes none.

Only where a `Collector` is installed: another program that uses these packages keeps its own way.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import attrs

MANY = 4096
"""Work on fewer objects needs no pause: their containers are walked in two milliseconds."""


@attrs.define(eq=False)
class Pauses:
    """`allowed`: a `Collector` is installed, and is not about to walk everything. `count`: how many are under
    way: they may overlap.
    """

    _gc: ModuleType | Any = gc
    allowed: bool = False
    count: int = 0
    _paused: bool = False

    def begin(self) -> None:
        """Let the collector pause until `end` was called as often."""
        self.count += 1
        if self.allowed and not self._paused:
            self._paused = True
            self._gc.disable()

    def end(self) -> None:
        self.count -= 1
        if self._paused and not self.count:
            self._paused = False
            if self.allowed:
                self._gc.freeze()
            self._gc.enable()


PAUSES = Pauses()
"""The process has one collector."""


@contextmanager
def paused(objects: int) -> Iterator[None]:
    """While work on so many objects is done, if they are many."""
    if objects < MANY:
        yield
        return
    PAUSES.begin()
    try:
        yield
    finally:
        PAUSES.end()
