"""Fan-out in bundles: what one pass over the input holds for each set of members, joined once for all of it.

Messages for the same members go into one `Bundle`, as slices of the input. So long as no member is in two
sets, that keeps the order of messages at each member. As soon as one is, every member has a bundle of its
own and a message is put in several of them: the order stays.
"""

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

M = TypeVar("M", bound=Hashable)


class Bundle(list[bytes], Generic[M]):
    """Slices of the input, in order; all are for each of `members`."""

    __slots__ = ("members",)

    def __init__(self, members: tuple[M, ...]) -> None:
        super().__init__()
        self.members = members


class Bundles(Generic[M]):
    """The bundles of the sets that were met since the last `forget`."""

    __slots__ = ("_by_member", "_divided")

    def __init__(self) -> None:
        self._by_member: dict[M, Bundle[M]] = {}
        self._divided = False

    def clash(self, members: Collection[M]) -> bool:
        """Whether a member of this new set is in another one, so that one bundle for each set will not do.

        Then forget what was learnt from the bundles there are, and `divide`. What they hold is still to be
        delivered, before anything that is put in others from then on.
        """
        return not self._divided and not self._by_member.keys().isdisjoint(members)

    def divide(self) -> None:
        """From now on every member has a bundle of its own."""
        self.forget()
        self._divided = True

    def of(self, members: tuple[M, ...]) -> tuple[Bundle[M], ...]:
        """What to put a message for these members in."""
        if not members:
            return ()
        if not self._divided:
            bundle = Bundle(members)
            self._by_member.update(dict.fromkeys(members, bundle))
            return (bundle,)
        bundles = []
        for member in members:
            found = self._by_member.get(member)
            if found is None:
                found = self._by_member[member] = Bundle((member,))
            bundles.append(found)
        return tuple(bundles)

    def forget(self) -> None:
        """Who gets what has changed."""
        self._by_member.clear()
        self._divided = False
