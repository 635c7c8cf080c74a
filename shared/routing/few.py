"""A set that mostly has one member: the member itself while it is alone, a dict from the second on.

A dict takes 232 bytes for one entry, and of a million subscriptions most patterns have one subscriber. Things
have a hash, so none of them is a dict, and none is None, which stands for the empty set. The order is that of
adding.
"""

from collections.abc import Hashable, Iterable
from typing import TypeAlias, TypeVar

T = TypeVar("T", bound=Hashable)

Few: TypeAlias = T | dict[T, None]

SPARSE_BYTES = 128  # a dict filled by adding takes at most some 80 bytes an entry
SPARSE_BYTES_MIN = 1024


def each(few: Few[T] | None) -> Iterable[T]:
    """Iterate over the members."""
    if few is None:
        return ()
    return few if isinstance(few, dict) else (few,)


def has(few: Few[T] | None, thing: T) -> bool:
    return thing in few if isinstance(few, dict) else few == thing


def with_one(few: Few[T] | None, thing: T) -> Few[T]:
    """`few` with `thing`, which must not be in it. A dict is changed in place."""
    if few is None:
        return thing
    if isinstance(few, dict):
        few[thing] = None
        return few
    return {few: None, thing: None}


def without(few: Few[T] | None, thing: T) -> Few[T] | None:
    """`few` without `thing`, which must be in it; None if empty. A dict is changed in place or replaced."""
    if not isinstance(few, dict):
        return None
    del few[thing]
    if len(few) == 1:
        return next(iter(few))
    # A dict never shrinks by deleting, and reading it takes as long as at its largest. Without this, one that
    # had 100,000 subscribers and lost all but two would cost every later match the time of 100,000.
    if few.__sizeof__() > SPARSE_BYTES * len(few) + SPARSE_BYTES_MIN:
        return dict.fromkeys(few)
    return few
