"""Finds a holder with at least half of the largest holding, of all or of a user's, without a look at all
holders."""

from collections.abc import Callable
from typing import Generic, TypeVar

Holder = TypeVar("Holder")


class BySize(Generic[Holder]):
    """The sizes of holders, and their sum `total`. Holders of nothing have no entry.

    Holders are in classes by the bit length of their size, so all of the highest class have at least half of
    the largest.
    """

    __slots__ = ("_classes", "_sizes", "total")

    def __init__(self) -> None:
        self.total = 0
        self._sizes: dict[Holder, int] = {}
        self._classes: dict[int, dict[Holder, None]] = {}

    def __getitem__(self, holder: Holder) -> int:
        return self._sizes.get(holder, 0)

    def __setitem__(self, holder: Holder, size: int) -> None:
        before = self._sizes.get(holder, 0)
        self.total += size - before
        if size:
            self._sizes[holder] = size
        elif before:
            del self._sizes[holder]
        if before.bit_length() != size.bit_length():
            if before:
                those = self._classes[before.bit_length()]
                del those[holder]
                if not those:
                    del self._classes[before.bit_length()]
            if size:
                self._classes.setdefault(size.bit_length(), {})[holder] = None

    def large(self) -> Holder:
        """A holder with at least half of the largest size. There must be one."""
        those = self._classes[max(self._classes)]
        holder, _ = those.popitem()  # finding a dict's first key would pass over all deleted ones
        those[holder] = None
        return holder


class BySizeAndUser(Generic[Holder]):
    """The sizes of `all` holders, and of each user's. Until it holds nothing a holder counts for the user
    whom `user_of` named when it began; "" is nobody.
    """

    __slots__ = ("_of_users", "_user_of", "_users", "all")

    def __init__(self, user_of: Callable[[Holder], str]) -> None:
        self.all: BySize[Holder] = BySize()
        self._user_of = user_of
        self._users: dict[Holder, str] = {}
        self._of_users: dict[str, BySize[Holder]] = {}

    def put(self, holder: Holder, size: int) -> str:
        """Set a holder's size. Returns whom it counted for until now, and does unless the size is 0."""
        self.all[holder] = size
        user = self._users.get(holder)
        if user is None:
            user = self._user_of(holder)
            if size:
                self._users[holder] = user
        elif not size:
            del self._users[holder]
        if user:
            theirs = self._of_users.setdefault(user, BySize())
            theirs[holder] = size
            if not theirs.total:
                del self._of_users[user]
        return user

    def large_of(self, user: str) -> Holder:
        """A user's holder with at least half of the largest size. There must be one."""
        return self._of_users[user].large()
