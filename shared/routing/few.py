"""A set, and a dict, that mostly have one entry: it stands alone while there is no second, then a dict does.

A dict takes 232 bytes for one entry, and of a million subscriptions most patterns have one subscriber. Things
have a hash, so none of them is a dict, and none is None, which stands for the empty set. The order is that of
adding.
"""

from collections.abc import Hashable, Iterable
from typing import TypeAlias, TypeVar

T = TypeVar("T", bound=Hashable)
V = TypeVar("V")

Few: TypeAlias = T | dict[T, None]
"""A set."""
Keys: TypeAlias = dict[bytes, V] | bytes | None
"""A dict: None if empty, its one key, or all of it. Its owner keeps it in two fields, this and the one key's
value (else None). The functions take and return both."""

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


def lookup(keys: Keys[V], only: V | None, key: bytes) -> V | None:
    if isinstance(keys, dict):
        return keys.get(key)
    return only if keys == key else None


def stored(keys: Keys[V], only: V | None, key: bytes, value: V) -> tuple[Keys[V], V | None]:
    """The fields with `value` under `key`, replacing an old value."""
    if isinstance(keys, dict):
        keys[key] = value
        return keys, None
    if keys is None or only is None or keys == key:
        return key, value
    return {keys: only, key: value}, None


def removed(keys: Keys[V], key: bytes) -> tuple[Keys[V], V | None]:
    """The fields without `key`, which must be there."""
    if not isinstance(keys, dict):
        return None, None
    del keys[key]
    if len(keys) == 1:
        return next(iter(keys.items()))
    return keys, None
