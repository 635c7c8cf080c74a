"""DMP's part of a document of definitions: durable exchanges and queues, and the bindings between them.

Arguments of a queue and of a binding are tables on the wire. `arguments` shows them; `table` is the same in
base64, byte for byte: bindings whose tables have other types are two. Where only `arguments` is given, as a
person writes it, a table is made of it. `changes`: arguments that a queue was given since it was declared.
"""

import base64
from collections.abc import Iterator, Sequence

from dmp.broker import Broker
from dmp.data_types import EMPTY_TABLE, SHORT_BYTES_MAX, check_table, field_table, read_table
from dmp.declarations import ARGUMENTS_BYTES_MAX, TYPES, ExchangeKind, QueueArguments, QueueKind
from dmp.exchanges import DEFAULT, DEFAULT_IN_RULES, PREDECLARED, RESERVED, HeaderMatch
from dmp.refusals import shown
from dmp.shown_properties import UNPACKABLE, show_value
from shared.definitions import Conflict, DefinitionSection, Made, Promised, Row, Written, name_of
from shared.objects import BadArgument, BadValue, ObjectMissing, a_flag, a_table, a_text


def definitions_of(broker: Broker) -> Sequence[DefinitionSection]:
    """Exchanges, queues and bindings of one broker: those that outlive it, and are nobody's own."""

    def exchanges(_: Written) -> Iterator[Row]:
        for exchange in list(broker.exchanges.values()):
            kind = exchange.kind
            if kind.durable and _has_a_name(exchange.name):
                yield {
                    "name": exchange.name.decode(),
                    "type": kind.type,
                    "auto_delete": kind.auto_delete,
                    "internal": kind.internal,
                    "alternate": None if kind.alternate is None else kind.alternate.decode(errors="replace"),
                }

    async def make_exchange(row: Row, dry_run: bool, _: Promised) -> Made:
        name = _name_in(row, "name")
        kind = ExchangeKind(
            a_text(row, "type", "direct"),
            a_flag(row, "durable", default=True),
            a_flag(row, "auto_delete"),
            a_flag(row, "internal"),
            _name_in(row, "alternate") if row.get("alternate") else None,
        )
        if kind.type not in TYPES:
            raise BadValue(f"type is one of {', '.join(TYPES)}")
        new = broker.topology.check_exchange(name, kind)
        return Made(new, None if dry_run else broker.topology.declare_exchange(name, kind))

    def queues(_: Written) -> Iterator[Row]:
        for queue in list(broker.queues.values()):
            if queue.durable and _has_a_name(queue.name):
                kind = queue.kind
                yield {
                    "name": queue.name.decode(),
                    "auto_delete": kind.auto_delete,
                    **_shown(kind.table),
                    **_changes_shown(kind),
                }

    async def make_queue(row: Row, dry_run: bool, _: Promised) -> Made:
        name, table = _name_in(row, "name"), table_in(row)
        auto_delete = a_flag(row, "auto_delete")
        kind = QueueKind.asked_for(table, durable=True, exclusive=False, auto_delete=auto_delete)
        kind = kind.changed(a_table(row, "changes"))
        existing = broker.queues.get(name)
        if existing is not None:
            now = existing.kind
            if _declared(kind, kind.arguments) not in (
                _declared(now, now.arguments),
                _declared(now, now.declared),
            ):
                raise Conflict("it is another here")
            return Made(new=False)
        if dry_run:
            broker.topology.check_new_queue(name, kind)
            return Made(new=True)
        made = broker.topology.declare_queue(name, kind, broker.new_application(""))
        return Made(new=True, ticket=made[1])

    def bindings(written: Written) -> Iterator[Row]:
        for exchange in list(broker.exchanges.values()):
            if not is_there(written, exchange.name, True):
                continue
            for binding in list(exchange.bindings):
                if _is_text(binding.key) and is_there(written, binding.destination, binding.to_exchange):
                    yield {
                        "exchange": binding.source.decode(),
                        "to_exchange" if binding.to_exchange else "queue": binding.destination.decode(),
                        "key": binding.key.decode(errors="replace"),
                        **_shown(binding.arguments),
                    }

    def is_there(written: Written, name: bytes, is_exchange: bool) -> bool:
        if is_exchange and name in PREDECLARED:
            return True
        return _is_text(name) and written("exchanges" if is_exchange else "queues", name.decode())

    async def make_binding(row: Row, dry_run: bool, promised: Promised) -> Made:
        to_exchange = "to_exchange" in row
        if to_exchange and "queue" in row:
            raise BadArgument("a binding leads to a queue or to_exchange, not to both")
        is_default = row.get("exchange") == DEFAULT_IN_RULES.decode()
        source = DEFAULT if is_default else _name_in(row, "exchange")
        destination = _name_in(row, "to_exchange" if to_exchange else "queue")
        key, table = a_text(row, "key", "").encode(), table_in(row)
        if len(key) > SHORT_BYTES_MAX:
            raise BadValue(f"key has at most {SHORT_BYTES_MAX} bytes")
        exchange = broker.exchanges.get(source)
        end = broker.topology.destinations_of(to_exchange).get(destination)
        for thing, section, name in (
            (exchange, "exchanges", source),
            (end, "exchanges" if to_exchange else "queues", destination),
        ):
            if thing is None and (not dry_run or promised(section, name.decode()) is None):
                raise ObjectMissing(f"there is no {section[:-1]} {shown(name)}")
        if exchange is None or end is None:
            type_ = (promised("exchanges", source.decode()) or {}).get("type")
            if (type_ if exchange is None else exchange.kind.type) == "headers":
                HeaderMatch(read_table(table))
            return Made(new=True)
        new = broker.topology.check_binding(source, end, key, table) is not None
        return Made(new, None if dry_run else broker.topology.bind(source, end, key, table))

    def binding_named(row: Row) -> str:
        return (
            f"{row.get('exchange', '')}->{row.get('queue', row.get('to_exchange', ''))}:{row.get('key', '')}"
        )

    return (
        DefinitionSection(
            "exchanges",
            ("name", "type", "auto_delete", "internal", "alternate"),
            exchanges,
            name_of,
            make_exchange,
            lambda: ("exchanges_max", len(broker.exchanges), broker.settings.exchanges_max),
        ),
        DefinitionSection(
            "queues",
            ("name", "auto_delete", *_TABLE, "changes"),
            queues,
            name_of,
            make_queue,
            lambda: ("queues_max", len(broker.queues), broker.settings.queues_max),
        ),
        DefinitionSection(
            "bindings",
            ("exchange", "queue", "to_exchange", "key", *_TABLE),
            bindings,
            binding_named,
            make_binding,
            lambda: ("bindings_max", broker.bindings, broker.settings.bindings_max),
        ),
    )


def _declared(kind: QueueKind, arguments: QueueArguments) -> tuple[object, ...]:
    """What must be equal in a queue that is there."""
    return kind.durable, kind.exclusive, kind.auto_delete, arguments


def _has_a_name(name: bytes) -> bool:
    """Whether it is not the broker's own, and JSON can have it."""
    return not name.startswith(RESERVED) and name != DEFAULT and _is_text(name)


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _name_in(row: Row, what: str) -> bytes:
    """Raises BadArgument."""
    name = a_text(row, what).encode()
    if not 1 <= len(name) <= SHORT_BYTES_MAX:
        raise BadValue(f"{what} has 1 to {SHORT_BYTES_MAX} bytes")
    return name


_TABLE = ("arguments", "table")


def _shown(table: bytes) -> Row:
    """A table's columns; none where it is empty."""
    if table == EMPTY_TABLE:
        return {}
    return {"arguments": show_value(read_table(table)), "table": base64.b64encode(table).decode()}


def _changes_shown(kind: QueueKind) -> Row:
    return {} if kind.changes == EMPTY_TABLE else {"changes": show_value(read_table(kind.changes))}


def table_in(row: Row) -> bytes:
    """The table that a row asks for, in one column or the other; none is an empty one. Raises BadArgument."""
    arguments = row.get("arguments", {})
    if not isinstance(arguments, dict):
        raise BadArgument("arguments is an object")
    what = "table" if "table" in row else "arguments"
    try:
        if "table" in row:
            table = base64.b64decode(a_text(row, "table"), validate=True)
        else:
            table = field_table(arguments)
        check_table(table, 0, len(table))
    except UNPACKABLE as error:
        raise BadArgument(f"{what}: {error}") from None
    if len(table) > ARGUMENTS_BYTES_MAX:
        raise BadArgument(f"{what}: {len(table)} bytes, at most {ARGUMENTS_BYTES_MAX}")
    return table
