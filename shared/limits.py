"""Limits as settings: a number with its default, and the least and the most that it may be."""

from typing import Any

import attrs
from attrs import validators

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def limit(default: int, least: int, most: int) -> Any:
    """A field of a settings class. What is outside of [least, most] is a ValueError."""
    return attrs.field(default=default, validator=[validators.ge(least), validators.le(most)])
