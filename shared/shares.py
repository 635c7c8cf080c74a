"""How much of each bound one user has: no more than his share, so that others have room.

Where users are known, every bound of the server is one by user, too. The accounts of memory (`shared.budget`)
and all that counts objects of clients ask the same `Shares`.
"""

from collections.abc import Callable, Hashable

PercentOf = Callable[[str], int]
"""The share of a user, in percent of every bound (`shared.access.Access.user_share`)."""


def everything(user: str) -> int:
    """The share of everybody where no users are known."""
    return 100


class Shares:
    """What each user has of one bound. The user "" is the server itself, which has no bound here."""

    __slots__ = ("_of_objects", "_percent_of", "_taken")

    def __init__(self, percent_of: PercentOf = everything) -> None:
        self._percent_of = percent_of
        self._taken: dict[str, int] = {}
        self._of_objects: dict[Hashable, tuple[str, int]] = {}

    def fits(self, user: str, most: float, more: int = 1) -> bool:
        """Whether a user may have `more`, of a bound of `most` for all users together."""
        percent = self._percent_of(user) if user else 100
        return percent >= 100 or self._taken.get(user, 0) + more <= max(1, most * percent / 100)

    def bounded(self, user: str) -> str:
        """The user, if he has a share; "" if he may have everything, so that nobody counts what he has."""
        return user if user and self._percent_of(user) < 100 else ""

    def add(self, user: str, count: int = 1) -> None:
        """A user has so many more; negative: fewer."""
        left = self._taken.get(user, 0) + count
        if left:
            self._taken[user] = left
        else:
            self._taken.pop(user, None)

    def take(self, thing: Hashable, user: str, count: int = 1) -> None:
        """A user has made an object, which counts as `count` until `drop`."""
        if user and count:
            self._of_objects[thing] = user, count
            self.add(user, count)

    def drop(self, thing: Hashable) -> None:
        """An object is gone; it may be nobody's."""
        if (found := self._of_objects.pop(thing, None)) is not None:
            self.add(found[0], -found[1])

    def of(self, user: str) -> int:
        """How many a user has."""
        return self._taken.get(user, 0)
