"""Keys by which a message is taken once: of messages that are in the queue, and of those that came lately."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shared.queues.waiting import Waiting


class SeenKeys:
    """The keys that a queue knows, each with the number of its message.

    A key is known while its message is in the queue, and until its window ends. Times are whole numbers of
    the protocol's clock. What a restart needs: the messages that are in the queue, in their own records; and
    those that have left it, as `left_keys` tells them. `charge`: memory of waiting messages, so much more, or
    less: `key_bytes` for each key.
    """

    __slots__ = ("_charge", "_inside", "_key_bytes", "_numbers", "_windows")

    def __init__(self, key_bytes: int, charge: Callable[[int], None]) -> None:
        self._key_bytes = key_bytes
        self._charge = charge
        self._numbers: dict[str, int] = {}
        self._inside: set[int] = set()
        self._windows: Waiting[str] = Waiting()
        """The keys by their numbers, until their windows end."""

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def next(self) -> float:
        """When the first window ends; inf: none is open."""
        return self._windows.next

    def number_of(self, key: str, now: float) -> int | None:
        """The number of the message that has come with this key. None: the key is not known any more."""
        self.forget(now)
        return self._numbers.get(key)

    def waiting(self, key: str) -> int | None:
        """The number of the message in the queue that has this key; None: there is none."""
        number = self._numbers.get(key)
        return number if number in self._inside else None

    def add(self, key: str, number: int, until: int) -> None:
        """A message comes with a key that no message in the queue has; `until`: when its window ends, 0: it
        has none. The window of a message that had the key before ends here."""
        before = self._numbers.get(key)
        if before is not None and before != number:
            self._windows.take(before)
        self.back(key, number)
        if until:
            self._windows.add(number, until, key)

    def leave(self, key: str) -> None:
        """The message has left the queue; its key stays until its window ends."""
        number = self._numbers.get(key)
        if number is not None:
            self._inside.discard(number)
            if number not in self._windows:
                self._forget(key)

    def undo(self, key: str) -> None:
        """The disk has refused the message: its key was never seen."""
        number = self._numbers.get(key)
        if number is not None:
            self._forget(key)
            self._inside.discard(number)
            self._windows.take(number)

    def back(self, key: str, number: int) -> None:
        """The message has not left after all."""
        if key not in self._numbers:
            self._charge(self._key_bytes)
        self._numbers[key] = number
        self._inside.add(number)

    def forget(self, now: float) -> list[str]:
        """Forget the keys whose windows have ended, and whose messages have left. Returns those whose windows
        have ended."""
        keys: list[str] = []
        while (ended := self._windows.pop(now)) is not None:
            number, key = ended
            keys.append(key)
            if number not in self._inside:
                self._forget(key)
        return keys

    def _forget(self, key: str) -> None:
        del self._numbers[key]
        self._charge(-self._key_bytes)

    def left_keys(self) -> Iterator[tuple[str, int, int]]:
        """Key, number and end of the window of each message that has left."""
        for number, until, key in self._windows:
            if number not in self._inside:
                yield key, number, until

    def clear(self) -> None:
        self._charge(-self._key_bytes * len(self._numbers))
        self._numbers, self._inside, self._windows = {}, set(), Waiting()
