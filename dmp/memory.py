"""How much memory all waiting messages may take together, and who waits when it is too much."""

from collections.abc import Callable

import attrs

_LOW = 0.9
"""Of the bound: publishers go on below it, and not at every message that leaves."""


@attrs.define(eq=False)
class Memory:
    """`held_bytes`: bodies and their books, in all queues and unacknowledged. Above `hot_bytes` memory is
    `scarce`: what durable queues have on disk is not kept here, too.

    When full, publishers' connections are not read until a tenth is free (or are refused, where they hold
    unacknowledged messages themselves: `amqp.publishing` says why).
    """

    bytes_max: int
    hot_bytes: int
    held_bytes: int = 0
    full: bool = False
    _waiting: list[Callable[[], None]] = attrs.Factory(list)

    @property
    def scarce(self) -> bool:
        return self.held_bytes > self.hot_bytes

    def take(self, size: int) -> None:
        """So many bytes more are held."""
        self.held_bytes += size
        if self.held_bytes > self.bytes_max:
            self.full = True

    def give(self, size: int) -> None:
        """So many bytes less are; those who wait go on where that is enough."""
        self.held_bytes -= size
        if self.full and self.held_bytes <= self.bytes_max * _LOW:
            self.full = False
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    def when_free(self, callback: Callable[[], None]) -> None:
        """Call it once, when it is not full any more; at once if it is not so."""
        if self.full:
            self._waiting.append(callback)
        else:
            callback()
