"""A set that mostly has one member: it stands alone while there is no second, then a dict does.

A dict takes 232 bytes for one entry, and of a million subscriptions most patterns have one subscriber. Things
have a hash, so none of them is a dict, and none is None, which stands for the empty set. The order is that of
adding.
"""

from collections.abc import Hashable, Iterable
from typing import TypeAlias, TypeVar

T = TypeVar("T", bound=Hashable)

CompactSet: TypeAlias = T | dict[T, None]
"""A set. `insert` and `remove` return the set as it is then."""

SPARSE_BYTES = 128  # a dict filled by adding takes at most some 80 bytes an entry
SPARSE_BYTES_MIN = 1024


def iterate(members: CompactSet[T] | None) -> Iterable[T]:
    """Iterate over the members."""
    if members is None:
        return ()
    return members if isinstance(members, dict) else (members,)


def contains(members: CompactSet[T] | None, thing: T) -> bool:
    return thing in members if isinstance(members, dict) else members == thing


def insert(members: CompactSet[T] | None, thing: T) -> CompactSet[T]:
    """`members` with `thing`, which must not be in it. A dict is changed in place."""
    if members is None:
        return thing
    if isinstance(members, dict):
        members[thing] = None
        return members
    return {members: None, thing: None}


def remove(members: CompactSet[T] | None, thing: T) -> CompactSet[T] | None:
    """`members` without `thing`, which must be in it; None if empty. A dict is changed or replaced."""
    if not isinstance(members, dict):
        return None
    del members[thing]
    if len(members) == 1:
        return next(iter(members))
    # A dict never shrinks by deleting, and reading it takes as long as at its largest. Without this, one that
    # had 100,000 subscribers and lost all but two would cost every later match the time of 100,000.
    if members.__sizeof__() > SPARSE_BYTES * len(members) + SPARSE_BYTES_MIN:
        return dict.fromkeys(members)
    return members
