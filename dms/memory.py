"""How much memory DMS's messages take, by the budget: those that wait, and those that consumers hold."""

import attrs

from shared.budget import Account
from shared.queues.core import QueueMemory


@attrs.define(eq=False)
class MessageMemory(QueueMemory):
    """An account for the messages that wait, and one for those that are held: CONSUMEs are refused where the
    second is full, and PRODUCEs where the first is."""

    loaded: Account
    held: Account
    held_full: bool = attrs.field(default=False, init=False)
    """No more may be delivered until some are acknowledged."""
    jobs_bytes: int = attrs.field(default=0, init=False)
    """Of `loaded_bytes`: what jobs and their names take however cold they are."""

    @property
    def jobs_full(self) -> bool:
        """Cold jobs have their half of what waits in memory."""
        return self.jobs_bytes * 2 > self.loaded.limit_bytes

    def sync(self) -> None:
        self.loaded.charge(self.loaded_bytes - self.loaded_charged)
        self.held.charge(self.held_bytes - self.held_charged)
        self.loaded_charged, self.held_charged = self.loaded_bytes, self.held_bytes
        self.full = not self.loaded.fits(1)
        self.held_full = self.held_bytes >= self.held.limit_bytes
