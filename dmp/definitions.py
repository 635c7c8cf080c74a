"""Durable exchanges, queues and bindings, as rows of a table: what a restart brings back.

Keys begin with their kind: `e` and an exchange's name, `q` and a queue's; `b`, whether it is to an exchange,
a binding's source, destination and key, each a short string, and its arguments. Values hold what else must be
known. Arguments are tables as they came on the wire.
"""

from collections.abc import Iterable, Iterator

import attrs

from dmp.arguments import QueueArguments, QueueKind
from dmp.exchanges import Binding, ExchangeKind
from dmp.field_tables import check_table, read_table
from dmp.refusals import Refusal
from dmp.short_strings import short
from shared.errors import CorruptRecord
from shared.storage.store import Ticket
from shared.storage.table import Table

_AUTO_DELETE, _INTERNAL, _ALTERNATE = 1, 2, 4


@attrs.frozen
class Saved:
    """Everything that was there."""

    exchanges: list[tuple[bytes, ExchangeKind]]
    queues: list[tuple[bytes, QueueKind]]
    bindings: list[Binding]


class Definitions:
    """The table. Its changes are durable with their tickets; all may raise StoreError."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def load(self) -> Saved:
        """Raises CorruptRecord."""
        saved = Saved([], [], [])
        for key, value in self._table.items():
            try:
                kind, rest = key[:1], key[1:]
                if kind == b"e":
                    saved.exchanges.append((rest, _exchange_kind(value)))
                elif kind == b"q":
                    saved.queues.append((rest, _queue_kind(value)))
                else:
                    saved.bindings.append(_binding(rest))
            except (IndexError, ValueError, Refusal) as error:
                raise CorruptRecord(self._table.log.file.path, 0) from error
        return saved

    def put_exchange(self, name: bytes, kind: ExchangeKind) -> Ticket:
        flags = _AUTO_DELETE * kind.auto_delete + _INTERNAL * kind.internal
        value = short(kind.type.encode())
        if kind.alternate is not None:
            flags += _ALTERNATE
            value += short(kind.alternate)
        return self._table.put(b"e" + name, bytes((flags,)) + value)

    def put_queue(self, name: bytes, kind: QueueKind) -> Ticket:
        return self._table.put(b"q" + name, bytes((_AUTO_DELETE * kind.auto_delete,)) + kind.table)

    def put_binding(self, binding: Binding) -> Ticket:
        return self._table.put(_binding_key(binding), b"")

    def drop_exchange(self, name: bytes) -> Ticket:
        return self._table.delete(b"e" + name)

    def drop_queue(self, name: bytes) -> Ticket:
        return self._table.delete(b"q" + name)

    def drop_bindings(self, bindings: Iterable[Binding]) -> Ticket:
        return self._table.delete_all([_binding_key(binding) for binding in bindings])


def _exchange_kind(value: bytes) -> ExchangeKind:
    fields = _shorts(value, 1)
    flags = value[0]
    return ExchangeKind(
        type=next(fields).decode(),
        durable=True,
        auto_delete=bool(flags & _AUTO_DELETE),
        internal=bool(flags & _INTERNAL),
        alternate=next(fields) if flags & _ALTERNATE else None,
    )


def _queue_kind(value: bytes) -> QueueKind:
    table = value[1:]
    check_table(table, 0, len(table))
    return QueueKind(
        durable=True,
        auto_delete=bool(value[0] & _AUTO_DELETE),
        table=table,
        arguments=QueueArguments.read(read_table(table)),
    )


def _binding_key(binding: Binding) -> bytes:
    fields = (binding.source, binding.destination, binding.key)
    return b"b" + bytes((binding.to_exchange,)) + b"".join(map(short, fields)) + binding.arguments


def _binding(key: bytes) -> Binding:
    fields = _shorts(key, 1)
    source, destination, routing_key = next(fields), next(fields), next(fields)
    at = 1 + 3 + len(source) + len(destination) + len(routing_key)
    return Binding(source, destination, bool(key[0]), routing_key, key[at:])


def _shorts(data: bytes, at: int) -> Iterator[bytes]:
    while True:
        end = at + 1 + data[at]
        if end > len(data):
            raise ValueError("a short string reaches past its end")
        yield data[at + 1 : end]
        at = end
