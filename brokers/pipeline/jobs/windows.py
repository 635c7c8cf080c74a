"""Lengths of time as the jobs take them: what Spark understands, checked before it is asked."""

import re

from shared.errors import UsageError

_LENGTH = re.compile(r"([1-9]\d{0,5}) ?(second|minute|hour|day)s?")


def length(text: str, option: str) -> str:
    """`1 minute`, `30 seconds`, as Spark has it. Raises UsageError, which names the option."""
    found = _LENGTH.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(option, f"not a length of time, such as '1 minute' or '30 seconds': {text!r}")
    return f"{found[1]} {found[2]}"


def in_words(window: str) -> str:
    """For readers: `1 minute`, `30 seconds`."""
    count, _, unit = length(window, "window").partition(" ")
    return f"{count} {unit}{'' if count == '1' else 's'}"


_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}


def microseconds(window: str) -> int:
    """How long it is."""
    count, _, unit = length(window, "window").partition(" ")
    return int(count) * _SECONDS[unit] * 1_000_000
