"""A dict that mostly has one entry: the key and its value stand alone until there is a second.

Its owner keeps it in two fields, `keys` and `only`: None and None if empty; one key and its value; or a dict
and None. The functions take and return both.
"""

from typing import TypeAlias, TypeVar

V = TypeVar("V")

Keys: TypeAlias = dict[bytes, V] | bytes | None


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
