"""A headers exchange's binding: which headers a message must have."""

from collections.abc import Mapping
from typing import Any

from dmp.refusals import Code, Refusal

_MATCHES = ("all", "any", "all-with-x", "any-with-x")


class HeaderMatch:
    """`x-match` says whether all of the binding's arguments must be there, with their values, or one.

    Arguments whose names begin with `x-` count only in the two forms that say so. An argument without a value
    (void) asks for the header, whatever it holds.
    """

    __slots__ = ("_all", "_wanted")

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Raises Refusal (PRECONDITION_FAILED)."""
        match = arguments.get("x-match", "all")
        if match not in _MATCHES:
            raise Refusal(Code.PRECONDITION_FAILED, f"x-match is one of {', '.join(_MATCHES)}")
        with_x = match.endswith("-with-x")
        self._all = match.startswith("all")
        self._wanted = {
            name: value
            for name, value in arguments.items()
            if name != "x-match" and (with_x or not name.startswith("x-"))
        }

    def fits(self, headers: Mapping[str, Any]) -> bool:
        """The shorter of both is gone through, so a message with few headers is soon held against any."""
        wanted = self._wanted
        if self._all:
            return len(wanted) <= len(headers) and all(self._has(headers, name) for name in wanted)
        names = wanted if len(wanted) <= len(headers) else headers
        return any(name in wanted and self._has(headers, name) for name in names)

    def _has(self, headers: Mapping[str, Any], name: str) -> bool:
        value = self._wanted[name]
        return name in headers and (value is None or _equal(headers[name], value))


def _equal(one: Any, other: Any) -> bool:
    """By value; a truth value is no number."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
