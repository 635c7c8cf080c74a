"""Which message somebody means, and which time he gives it: as the API's actions on one message say it."""

from collections.abc import Mapping
from typing import Any, Self

import attrs

from shared.objects import BadValue, a_count, a_text
from shared.units import moment_ms, parse_span_ms

SPAN_MS_MAX = 10 * 366 * 86_400_000
"""Ten years."""


@attrs.frozen
class MessageName:
    """A message by its dedup key; or, where that is "", by its number."""

    dedup: str = ""
    number: int = -1

    def __str__(self) -> str:
        return repr(self.dedup) if self.dedup else str(self.number)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Raises BadValue."""
        if ("dedup" in arguments) == ("position" in arguments):
            raise BadValue("either dedup or position says which message")
        if "position" in arguments:
            return cls(number=a_count(arguments, "position", -1, 0, 1 << 63))
        dedup = a_text(arguments, "dedup")
        if not dedup:
            raise BadValue("dedup is a text that is not empty")
        return cls(dedup)


@attrs.frozen
class NewTime:
    """When a message is to come: so long from now (`delay_ms`), or else at a time, in Unix milliseconds."""

    delay_ms: int | None
    at_ms: int = 0

    def due_ms(self, now_ms: int) -> int:
        return self.at_ms if self.delay_ms is None else now_ms + self.delay_ms

    @classmethod
    def of(cls, arguments: Mapping[str, Any], now_ms: int) -> Self:
        """Raises BadValue."""
        if ("delay" in arguments) == ("at" in arguments):
            raise BadValue("either delay or at says when")
        name = "delay" if "delay" in arguments else "at"
        text = a_text(arguments, name)
        try:
            time = cls(parse_span_ms(text)) if name == "delay" else cls(None, moment_ms(text, now_ms))
        except ValueError as error:
            raise BadValue(f"{name}: {error}") from None
        if time.due_ms(now_ms) > now_ms + SPAN_MS_MAX:
            raise BadValue(f"{name} is at most ten years from now")
        return time
