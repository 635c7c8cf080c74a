"""The product's thread locks, exchanged for ones that hand on the turn (see threads.py)."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from shared.storage.files import OpenFiles
from shared.storage.journal import Journal
from tests.trials.sim.threads import Threads, TurnLock

LOCKS = ((Journal, "_ready"), (OpenFiles, "_names"))
"""Every lock that the store's threads share. One that is missing here shows as a run that hangs."""


@contextmanager
def turn_locks(threads: Threads) -> Iterator[None]:
    """Objects of these classes that are made within get `TurnLock`s."""
    with ExitStack() as stack:
        for owner, attribute in LOCKS:
            stack.enter_context(patch.object(owner, "__init__", _with_lock(owner, attribute, threads)))
        yield


def _with_lock(owner: Any, attribute: str, threads: Threads) -> Any:
    init = owner.__init__

    def init_with_lock(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        setattr(self, attribute, TurnLock(threads))

    return init_with_lock
