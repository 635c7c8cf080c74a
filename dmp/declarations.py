"""What clients declare: the kinds of queues and exchanges, and bindings."""

from collections.abc import Collection, Mapping
from typing import Any

import attrs

from dmp.data_types import EMPTY_TABLE, field_table, read_table
from dmp.properties import TTL_MS_MAX
from dmp.refusals import Code, Refusal
from dmp.timing import MS_MAX
from shared.rates import Rate

ARGUMENTS_BYTES_MAX = 4 * 1024
"""The bound of a declaration's or a binding's arguments: a durable binding's are part of a row's key."""
CONSUMER_TIMEOUT_LEAST_MS = 100
TYPES = ("direct", "topic", "fanout", "headers")
DELAYED = "x-delayed-message"
"""The type that RabbitMQ's plugin for delays brings."""
_DELAYED_TYPE = "x-delayed-type"
PER_KEY_MAX = 1_000_000
_COUNT_MAX = (1 << 63) - 1


@attrs.frozen
class QueueArguments:
    """None: not asked for. `ttl_ms`: of each message. `expires_ms`: of the queue while nobody uses it.

    `rejects`: where it is full the newest go, not the oldest, and publishers hear of it. `single_active`: one
    consumer at a time gets messages. `type`: classic or quorum, which are the same here but for the limit of
    failed tries (`tries`); -1: there is none. `per_key`: so many messages of a key are unacknowledged at a
    time; `fair`: keys take turns. `rate`: deliveries at most. `once`: what is
    there is not taken again; `once_ms`: nor what came so lately. `eta_header`: the header that says when a
    message is due.
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
    type: str = "classic"
    eta_header: bytes | None = None
    delivery_limit: int | None = None
    retry_ms: int | None = None
    retry_max_ms: int | None = None
    loss_counts: str | None = None
    consumer_timeout_ms: int | None = None
    per_key: int | None = None
    fair: bool = False
    key_header: bytes | None = None
    rate: Rate | None = None
    once: bool = False
    once_ms: int | None = None

    @property
    def keyed(self) -> bool:
        """Whether messages' keys count."""
        return self.per_key is not None or self.fair

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> "QueueArguments":
        """Raises Refusal (PRECONDITION_FAILED). What is not known is ignored: earlier versions took it."""
        for name, accepted in _ONLY.items():
            if name in table and table[name] not in accepted:
                raise _invalid(name, f"this broker has only {' and '.join(map(str, accepted))}")
        single, fair = _flag(table, "x-single-active-consumer"), _flag(table, "x-fair")
        dead_letter = text_argument(table, "x-dead-letter-exchange")
        dead_letter_key = text_argument(table, "x-dead-letter-routing-key")
        if dead_letter_key is not None and dead_letter is None:
            raise _invalid("x-dead-letter-routing-key", "it needs x-dead-letter-exchange beside it")
        once_ms = _number(table, "x-cache-ttl", 1, MS_MAX)
        if once_ms is not None and not _flag(table, "x-message-deduplication"):
            raise _invalid("x-cache-ttl", "it needs x-message-deduplication beside it")
        retry_ms = _number(table, "x-retry-ms", 1, MS_MAX)
        retry_max_ms = _number(table, "x-retry-max-ms", 1, MS_MAX)
        if retry_max_ms is not None and (retry_ms is None or retry_max_ms < retry_ms):
            raise _invalid("x-retry-max-ms", "it needs x-retry-ms beside it, which is not longer")
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
            type=table.get("x-queue-type", "classic"),
            eta_header=text_argument(table, "x-eta-header") or None,
            delivery_limit=_number(table, "x-delivery-limit", -1, _COUNT_MAX),
            retry_ms=retry_ms,
            retry_max_ms=retry_max_ms,
            loss_counts=table.get("x-loss-counts"),
            consumer_timeout_ms=consumer_timeout_in(table, "queue"),
            per_key=_number(table, "x-per-key", 1, PER_KEY_MAX),
            fair=fair,
            key_header=text_argument(table, "x-key-header") or None,
            rate=_rate(table, "x-rate"),
            once=_flag(table, "x-message-deduplication"),
            once_ms=once_ms,
        )


@attrs.frozen
class QueueKind:
    """What a queue was declared as. `table`: its arguments as they came; `changes`: those that it was given
    since, as a table; `arguments`: those that hold."""

    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    table: bytes = EMPTY_TABLE
    arguments: QueueArguments = QueueArguments()
    changes: bytes = EMPTY_TABLE

    @classmethod
    def asked_for(cls, table: bytes, *, durable: bool, exclusive: bool, auto_delete: bool) -> "QueueKind":
        """What somebody declares now, with these arguments. Raises Refusal."""
        arguments = read_table(table)
        check_known(arguments, _QUEUE_ARGUMENTS, "queue")
        for name in _PLACING:
            _number(arguments, name, 0, _COUNT_MAX)
        kind = cls(durable, exclusive, auto_delete, table, QueueArguments.read(arguments))
        if kind.arguments.type == "quorum" and (exclusive or not durable):
            raise _invalid("x-queue-type", "a quorum queue is durable, and not exclusive")
        return kind

    @property
    def declared(self) -> QueueArguments:
        """The arguments of its declaration, which may be repeated."""
        return self.arguments if self.changes == EMPTY_TABLE else read_leniently(read_table(self.table))

    def changed(self, changes: Mapping[str, Any]) -> "QueueKind":
        """The same with these arguments, too; None: as it was declared. Raises Refusal."""
        if not changes:
            return self
        declared = read_table(self.table)
        check_known(changes, CHANGEABLE, "a queue that is there")
        merged = {**read_table(self.changes), **changes}
        kept = {
            name: value for name, value in merged.items() if value is not None and value != declared.get(name)
        }
        arguments = QueueArguments.read({**declared, **kept})
        return attrs.evolve(self, arguments=arguments, changes=field_table(kept) if kept else EMPTY_TABLE)


@attrs.frozen(cache_hash=True)
class Binding:
    """`arguments`: a table as on the wire, its fields in order; two bindings that differ in it alone are two.
    Some clients write the fields in another order each time."""

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
    "x-queue-type": ("classic", "quorum"),
    "x-queue-mode": ("default", "lazy"),
    "x-queue-version": (1, 2),
    "x-queue-leader-locator": ("client-local", "balanced"),
    "x-queue-master-locator": ("client-local", "min-masters", "random", "balanced"),
    "x-overflow": ("drop-head", "reject-publish"),
    "x-loss-counts": ("oldest", "all", "none"),
    "x-dead-letter-strategy": ("at-least-once", "at-most-once"),
}
"""Arguments that are taken with these values. What else RabbitMQ has for them would change which messages
there are, or who gets them. Where and how a queue is kept is the broker's to say."""

FIELDS: Mapping[str, str] = {
    "x-queue-type": "type",
    "x-message-ttl": "ttl_ms",
    "x-max-length": "messages_max",
    "x-max-length-bytes": "bytes_max",
    "x-dead-letter-exchange": "dead_letter_exchange",
    "x-dead-letter-routing-key": "dead_letter_key",
    "x-expires": "expires_ms",
    "x-max-priority": "priority_max",
    "x-overflow": "rejects",
    "x-single-active-consumer": "single_active",
    "x-eta-header": "eta_header",
    "x-delivery-limit": "delivery_limit",
    "x-retry-ms": "retry_ms",
    "x-retry-max-ms": "retry_max_ms",
    "x-loss-counts": "loss_counts",
    "x-consumer-timeout": "consumer_timeout_ms",
    "x-per-key": "per_key",
    "x-fair": "fair",
    "x-key-header": "key_header",
    "x-rate": "rate",
    "x-message-deduplication": "once",
    "x-cache-ttl": "once_ms",
}
"""The arguments that a queue is told apart by, and their fields in `QueueArguments`."""
OLDER = frozenset(
    (
        *("x-message-ttl", "x-max-length", "x-max-length-bytes", "x-expires", "x-overflow", "x-queue-type"),
        *("x-dead-letter-exchange", "x-dead-letter-routing-key"),
        *("x-max-priority", "x-single-active-consumer"),
    )
)
"""Those that versions before knew: what these took with another one is what it was."""
CHANGEABLE = frozenset(
    (
        *("x-message-ttl", "x-max-length", "x-max-length-bytes", "x-overflow", "x-expires", "x-rate"),
        *("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-delivery-limit", "x-loss-counts"),
        *("x-retry-ms", "x-retry-max-ms", "x-consumer-timeout"),
    )
)
"""Those that a queue may be given later: the others say how its messages are kept, or in which order."""
_PLACING = (
    *("x-quorum-initial-group-size", "x-quorum-target-group-size"),
    *("x-max-in-memory-length", "x-max-in-memory-bytes"),
)
"""Numbers that say how and where a queue is kept, and change nothing here."""
_QUEUE_ARGUMENTS = frozenset((*FIELDS, *_ONLY, *_PLACING))


def read_leniently(table: Mapping[str, Any]) -> QueueArguments:
    """Versions before ignored arguments that this one acts upon, whatever their values were."""
    try:
        return QueueArguments.read(table)
    except Refusal:
        return QueueArguments.read({name: value for name, value in table.items() if name in OLDER})


def check_known(table: Mapping[str, Any], known: Collection[str], of: str) -> None:
    """Raises Refusal for an argument that nobody would act upon: to ignore it would lose messages, double
    them, or give them to somebody else. One without `x-` in front is the user's own."""
    for name in table:
        if name.startswith("x-") and name not in known:
            raise _invalid(name, "this broker does not have it", of)


def exchange_type_in(table: Mapping[str, Any], type_: str) -> str:
    """The type of an exchange that is declared with these arguments. Every exchange delays (`x-delay`), so
    one of the delayed type is of the type that its messages are routed by. Raises Refusal."""
    check_known(table, (_DELAYED_TYPE,) if type_ == DELAYED else (), "exchange")
    if type_ != DELAYED:
        return type_
    routed_as = text_argument(table, _DELAYED_TYPE, "exchange")
    if routed_as is None or routed_as.decode(errors="replace") not in TYPES:
        raise _invalid(_DELAYED_TYPE, f"it is one of {', '.join(TYPES)}", "exchange")
    return routed_as.decode()


def consumer_timeout_in(table: Mapping[str, Any], of: str) -> int | None:
    """Milliseconds that a consumer has to acknowledge a delivery. Raises Refusal."""
    return _number(table, "x-consumer-timeout", CONSUMER_TIMEOUT_LEAST_MS, MS_MAX, of)


def _number(table: Mapping[str, Any], name: str, least: int, most: int, of: str = "queue") -> int | None:
    value = table.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _invalid(name, f"it is a number from {least} to {most}", of)
    return value


def _rate(table: Mapping[str, Any], name: str) -> Rate | None:
    text = text_argument(table, name)
    try:
        return None if text is None else Rate.parse(text.decode())
    except ValueError:
        raise _invalid(name, 'it is so many messages a second, as "100/s"') from None


def _flag(table: Mapping[str, Any], name: str) -> bool:
    value = table.get(name, False)
    if not isinstance(value, bool):
        raise _invalid(name, "it is true or false")
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
