"""What clients declare: the kinds of queues and exchanges, and bindings."""

from collections.abc import Mapping
from typing import Any

import attrs

from dmp.data_types import EMPTY_TABLE, read_table
from dmp.properties import TTL_MS_MAX
from dmp.refusals import Code, Refusal

ARGUMENTS_BYTES_MAX = 4 * 1024
"""The bound of a declaration's or a binding's arguments: a durable binding's are part of a row's key."""
_COUNT_MAX = (1 << 63) - 1


@attrs.frozen
class QueueArguments:
    """None: not asked for. `ttl_ms`: of each message. `expires_ms`: of the queue while nobody uses it.

    `rejects`: where it is full the newest go, not the oldest, and publishers hear of it. `single_active`: one
    consumer at a time gets messages.
    """

    ttl_ms: int | None = None
    messages_max: int | None = None
    bytes_max: int | None = None
    dead_letter_exchange: bytes | None = None
    dead_letter_key: bytes | None = None
    expires_ms: int | None = None
    priority_max: int = 0
    rejects: bool = False
    single_active: bool = False

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> "QueueArguments":
        """Raises Refusal (PRECONDITION_FAILED).

        As with RabbitMQ, what is not known is the user's own and is ignored. Clients rely on some of what
        RabbitMQ knows and this broker would not do. That is refused: a queue that silently loses or doubles
        messages is worse than none.
        """
        for name, accepted in _ONLY.items():
            if name in table and table[name] not in accepted:
                raise _invalid(name, f"this broker has only {' and '.join(map(str, accepted))}")
        single = table.get("x-single-active-consumer", False)
        if not isinstance(single, bool):
            raise _invalid("x-single-active-consumer", "it is true or false")
        dead_letter = text_argument(table, "x-dead-letter-exchange")
        dead_letter_key = text_argument(table, "x-dead-letter-routing-key")
        if dead_letter_key is not None and dead_letter is None:
            raise _invalid("x-dead-letter-routing-key", "it needs x-dead-letter-exchange beside it")
        return cls(
            ttl_ms=_number(table, "x-message-ttl", 0, TTL_MS_MAX),
            messages_max=_number(table, "x-max-length", 0, _COUNT_MAX),
            bytes_max=_number(table, "x-max-length-bytes", 0, _COUNT_MAX),
            dead_letter_exchange=dead_letter,
            dead_letter_key=dead_letter_key,
            expires_ms=_number(table, "x-expires", 1, TTL_MS_MAX),
            priority_max=_number(table, "x-max-priority", 0, 255) or 0,
            rejects=table.get("x-overflow") == "reject-publish",
            single_active=single,
        )


@attrs.frozen
class QueueKind:
    """What must be equal where a queue is declared again. `table`: its arguments as they came."""

    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    table: bytes = EMPTY_TABLE
    arguments: QueueArguments = QueueArguments()


@attrs.frozen(cache_hash=True)
class Binding:
    """`arguments`: the table as it came, on the wire; two bindings that differ in it alone are two."""

    source: bytes
    destination: bytes
    to_exchange: bool
    key: bytes
    arguments: bytes

    def read_arguments(self) -> dict[str, Any]:
        return read_table(self.arguments)


@attrs.frozen
class ExchangeKind:
    """What must be equal where an exchange is declared again."""

    type: str
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    alternate: bytes | None = None


_ONLY: Mapping[str, tuple[object, ...]] = {
    "x-queue-type": ("classic",),
    "x-queue-mode": ("default", "lazy"),
    "x-overflow": ("drop-head", "reject-publish"),
}
"""What else RabbitMQ has for these would change which messages there are, or who gets them."""


def _number(table: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    value = table.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _invalid(name, f"it is a number from {least} to {most}")
    return value


def text_argument(table: Mapping[str, Any], name: str, of: str = "queue") -> bytes | None:
    """Raises Refusal (PRECONDITION_FAILED) where it is no string, or too long for a name."""
    value = table.get(name)
    if value is None:
        return None
    data = value.encode() if isinstance(value, str) else value
    if not isinstance(data, bytes) or len(data) > 255:
        raise _invalid(name, "it is a string of at most 255 bytes", of)
    return data


def _invalid(name: str, why: str, of: str = "queue") -> Refusal:
    return Refusal(Code.PRECONDITION_FAILED, f"invalid arg '{name}' for {of}: {why}")
