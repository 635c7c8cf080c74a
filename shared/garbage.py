"""Pauses of Python's garbage collector, for work on very many objects.

The collector walks each new object up to three times as it ages. A list or dict of 50,000 logs, or 30,000
small objects, hold the loop 10 to 36 ms each time. Nearly all are gone, or are there to stay, once the work
is done. So the collector pauses meanwhile, and then sets apart what is there (`brokers.host.collector`).
That is still freed by its count of references. Only garbage in cycles stays until everything is walked
again. Such work makes none, but who else is served meanwhile may. So a part of what is set apart is walked,
seldom.

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
UNWALKED_MAX = 1_000_000
"""Once so many new objects were set apart, those of one pause are walked. If more than a tenth of them is
garbage, those of each later pause are walked, too."""
WALKED_MOST = 20_000
"""A pause whose objects are walked has no more of them, unless four times as many objects were set apart.
That takes some milliseconds: 150,000 took 70."""


@attrs.define(eq=False)
class Pauses:
    """`allowed`: a `Collector` is installed, and is not about to walk everything. `count`: how many are under
    way: they may overlap. `unwalked`: about how many objects were set apart unseen.
    """

    _gc: ModuleType | Any = gc
    allowed: bool = False
    count: int = 0
    unwalked: int = 0
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
                self._set_apart()
            self._gc.enable()

    def _set_apart(self) -> None:
        new = self._gc.get_count()[0]
        self.unwalked += new
        most = UNWALKED_MAX if new <= WALKED_MOST else 4 * UNWALKED_MAX
        if self.unwalked > most and self._gc.collect(0) * 10 <= new:
            self.unwalked = 0
        self._gc.freeze()


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
