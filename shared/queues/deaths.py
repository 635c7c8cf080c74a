"""How messages died, and which of the dead somebody means."""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

import attrs

from shared.objects import BadValue, a_text
from shared.units import parse_span_ms

Q = TypeVar("Q")


@attrs.define
class Death(Generic[Q]):
    """How a message died last: in which queue, of what, with which key ("": none), and when (Unix ms; 0: not
    known)."""

    queue: Q
    reason: str
    key: str
    time_ms: int


@attrs.frozen
class DeathFilter:
    """Which dead letters are meant; None: any. `until_ms`: those that died until then, in Unix ms."""

    key: str | None
    reason: str | None
    until_ms: int | None

    @classmethod
    def of(cls, arguments: Mapping[str, Any], reasons: Sequence[str], now_ms: int) -> Self:
        """Raises BadValue."""
        key = a_text(arguments, "key") if "key" in arguments else None
        reason = a_text(arguments, "reason") if "reason" in arguments else None
        if reason is not None and reason not in reasons:
            raise BadValue(f"reason: {reason[:64]!r} is none; there are {', '.join(reasons)}")
        until_ms = None
        if "age" in arguments:
            try:
                until_ms = now_ms - parse_span_ms(a_text(arguments, "age"))
            except ValueError as error:
                raise BadValue(f"age: {error}") from None
        return cls(key, reason, until_ms)

    def fits(self, death: Death[Any]) -> bool:
        return (
            self.key in (None, death.key)
            and self.reason in (None, death.reason)
            and (self.until_ms is None or 0 < death.time_ms <= self.until_ms)
        )
