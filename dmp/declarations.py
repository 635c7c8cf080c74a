"""What clients declare: the kinds of queues and exchanges, and bindings."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
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


def _header(table: Mapping[str, Any], name: str) -> bytes | None:
    return text_argument(table, name) or None


def _word(table: Mapping[str, Any], name: str) -> Any:
    return table[name]  # one of `_ONLY`


def _rejects(table: Mapping[str, Any], name: str) -> bool:
    return bool(table[name] == "reject-publish")


def _keeps(table: Mapping[str, Any], name: str) -> bool:
    return bool(table[name] == "at-least-once")


def _bound(least: int, most: int) -> Callable[[Mapping[str, Any], str], int | None]:
    return partial(_number, least=least, most=most)


_COUNT, _TIME = _bound(0, _COUNT_MAX), _bound(1, MS_MAX)


def _argument(
    name: str,
    read: Callable[[Mapping[str, Any], str], Any],
    default: Any = None,
    *,
    older: bool = False,
    changeable: bool = False,
) -> Any:
    """A field of `QueueArguments`. `name`: of its argument, in the table that `read` takes.

    `older`: versions before knew it. `changeable`: a queue may be given it later; the others say how its
    messages are kept, or in which order.
    """
    return attrs.field(default=default, metadata=locals())


_older = partial(_argument, older=True)


@attrs.frozen
class QueueArguments:
    """None: not asked for. `ttl_ms`: of each message. `expires_ms`: of the queue while nobody uses it.

    `rejects`: where it is full the newest go, not the oldest, and publishers hear of it. `single_active`: one
    consumer at a time gets messages. `type`: classic or quorum, which are the same here but for the limit of
    failed tries (`tries`); -1: there is none. `per_key`: so many messages of a key are unacknowledged at a
    time; `fair`: keys take turns. `rate`: deliveries at most. `once`: what is
    there is not taken again; `once_ms`: nor what came so lately. `keeps_letters`: its
    dead letters wait where no queue takes them. `eta_header`: the header that says when a
    message is due.
    """

    type: str = _older("x-queue-type", _word, "classic")
    ttl_ms: int | None = _argument("x-message-ttl", _bound(0, TTL_MS_MAX), older=True, changeable=True)
    messages_max: int | None = _older("x-max-length", _COUNT, changeable=True)
    bytes_max: int | None = _older("x-max-length-bytes", _COUNT, changeable=True)
    dead_letter_exchange: bytes | None = _argument(
        "x-dead-letter-exchange", text_argument, older=True, changeable=True
    )
    dead_letter_key: bytes | None = _argument(
        "x-dead-letter-routing-key", text_argument, older=True, changeable=True
    )
    keeps_letters: bool = _older("x-dead-letter-strategy", _keeps, False)
    expires_ms: int | None = _argument("x-expires", _bound(1, TTL_MS_MAX), older=True, changeable=True)
    priority_max: int = _older("x-max-priority", _bound(0, 255), 0)
    rejects: bool = _older("x-overflow", _rejects, False, changeable=True)
    single_active: bool = _older("x-single-active-consumer", _flag, False)
    eta_header: bytes | None = _argument("x-eta-header", _header)
    delivery_limit: int | None = _argument("x-delivery-limit", _bound(-1, _COUNT_MAX), changeable=True)
    retry_ms: int | None = _argument("x-retry-ms", _TIME, changeable=True)
    retry_max_ms: int | None = _argument("x-retry-max-ms", _TIME, changeable=True)
    loss_counts: str | None = _argument("x-loss-counts", _word, changeable=True)
    consumer_timeout_ms: int | None = _argument(
        "x-consumer-timeout", _bound(CONSUMER_TIMEOUT_LEAST_MS, MS_MAX), changeable=True
    )
    per_key: int | None = _argument("x-per-key", _bound(1, PER_KEY_MAX))
    fair: bool = _argument("x-fair", _flag, False)
    key_header: bytes | None = _argument("x-key-header", _header)
    rate: Rate | None = _argument("x-rate", _rate, changeable=True)  # noqa: RUF009
    once: bool = _argument("x-message-deduplication", _flag, False)
    once_ms: int | None = _argument("x-cache-ttl", _TIME)

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
        said = {name: _READ[name](table, name) for name in FIELDS if name in table}
        found = cls(**{FIELDS[name]: value for name, value in said.items() if value is not None})
        if found.dead_letter_key is not None and found.dead_letter_exchange is None:
            raise _invalid("x-dead-letter-routing-key", "it needs x-dead-letter-exchange beside it")
        if found.once_ms is not None and not found.once:
            raise _invalid("x-cache-ttl", "it needs x-message-deduplication beside it")
        longest = found.retry_max_ms
        if longest is not None and (found.retry_ms is None or longest < found.retry_ms):
            raise _invalid("x-retry-max-ms", "it needs x-retry-ms beside it, which is not longer")
        return found


_DECLARED = [field.metadata for field in attrs.fields(QueueArguments)]
FIELDS: Mapping[str, str] = {field.metadata["name"]: field.name for field in attrs.fields(QueueArguments)}
"""The arguments that a queue is told apart by, and their fields in `QueueArguments`."""
_READ = {each["name"]: each["read"] for each in _DECLARED}
OLDER = frozenset(each["name"] for each in _DECLARED if each["older"])
"""Those that versions before knew: what these took with another one is what it was."""
CHANGEABLE = frozenset(each["name"] for each in _DECLARED if each["changeable"])
"""Those that a queue may be given later."""


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
