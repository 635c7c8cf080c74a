"""Durable exchanges, queues and bindings, as rows of a table: what a restart brings back.

Keys begin with their kind: `e` and an exchange's name, `q` and a queue's; `b`, whether it is to an exchange,
a binding's source, destination and key, each a short string, and its arguments. Values hold what else must be
known. Arguments are tables as they came on the wire.

*What is deleted* is so because a record says it, never because something is missing. A queue's row goes in
one batch with its log. Bindings may be many and go in turns. Until they have all gone a *going* row says
whose they are: it looks like a binding from the default exchange, which has none.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence

import attrs

from dmp.data_types import EMPTY_TABLE, check_table, read_table, short
from dmp.declarations import Binding, ExchangeKind, QueueKind, read_leniently
from dmp.exchanges import DEFAULT
from dmp.refusals import Refusal
from shared.storage.store import Log, Ticket
from shared.storage.table import Table

TABLES = "dmp-tables"  # where its log stands
_AUTO_DELETE, _INTERNAL, _ALTERNATE = 1, 2, 4
_ADOPTED, _LOST, _PAUSED = 8, 16, 32
_NUMBERED = 64  # a number follows, in rows of versions before
_CHANGED = 128  # a second table is behind the first
_NUMBER_BYTES, _SIZE = 8, struct.Struct(">I")

Row = tuple[Log, bytes, int]  # what `Store.append_all`, `Namespace.create` and `Namespace.delete` take


@attrs.frozen
class SavedQueue:
    """A queue's row. `adopted`: its definition was lost, and nobody has declared it since. `lost`: its
    messages were, and nobody has purged it since."""

    name: bytes
    kind: QueueKind
    adopted: bool = False
    lost: bool = False
    paused: bool = False


@attrs.frozen
class Saved:
    """Everything that was there. `going`: exchanges (True) and queues that are deleted, and whose bindings
    may not all be gone. `unreadable`: keys of rows that say nothing that this version knows."""

    exchanges: list[tuple[bytes, ExchangeKind]]
    queues: list[SavedQueue]
    bindings: list[Binding]
    going: list[tuple[bytes, bool]]
    unreadable: list[bytes]


@attrs.define(eq=False)
class TopologyTable:
    """The table. Its changes are durable with their tickets; all may raise StoreError."""

    table: Table

    def load(self) -> Saved:
        saved = Saved([], [], [], [], [])
        for key, value in self.table.items():
            try:
                self._load(saved, key[:1], key[1:], value)
            except (IndexError, ValueError, Refusal):
                saved.unreadable.append(key)
        return saved

    def _load(self, saved: Saved, kind: bytes, rest: bytes, value: bytes) -> None:
        if kind == b"e":
            saved.exchanges.append((rest, _exchange_kind(value)))
        elif kind == b"q":
            rest.decode()  # or it names no log
            adopted, lost, paused = (bool(value[0] & flag) for flag in (_ADOPTED, _LOST, _PAUSED))
            saved.queues.append(SavedQueue(rest, _queue_kind(value), adopted, lost, paused))
        else:
            binding = _binding(rest)
            if binding.source == DEFAULT:
                saved.going.append((binding.destination, binding.to_exchange))
            else:
                saved.bindings.append(binding)

    def put_exchange(self, name: bytes, kind: ExchangeKind) -> Ticket:
        flags = _AUTO_DELETE * kind.auto_delete + _INTERNAL * kind.internal
        value = short(kind.type.encode())
        if kind.alternate is not None:
            flags += _ALTERNATE
            value += short(kind.alternate)
        return self.table.put(b"e" + name, bytes((flags,)) + value)

    def queue_row(self, queue: SavedQueue) -> Row:
        """For `Namespace.create`: a queue's row comes with its log."""
        kind = queue.kind
        flags = _AUTO_DELETE * kind.auto_delete + _ADOPTED * queue.adopted
        flags += _LOST * queue.lost + _PAUSED * queue.paused
        changes = b""
        if kind.changes != EMPTY_TABLE:
            flags, changes = flags + _CHANGED, kind.changes
        return self.table.put_record(b"q" + queue.name, bytes((flags,)) + kind.table + changes)

    def put_queue(self, queue: SavedQueue) -> Ticket:
        return self._append([self.queue_row(queue)])

    def put_binding(self, binding: Binding) -> Ticket:
        return self.table.put(_binding_key(binding), b"")

    def drop_exchange(self, name: bytes, *, bound: bool) -> Ticket:
        """`bound`: it has bindings, which go later (`bindings_gone`)."""
        return self._append([self.table.delete_record(b"e" + name), *self._going(name, True, bound)])

    def queue_dropped(self, name: bytes, *, bound: bool) -> list[Row]:
        """For `Namespace.delete`: a queue's row goes with its log. `bound`: as for an exchange."""
        return [self.table.delete_record(b"q" + name), *self._going(name, False, bound)]

    def bindings_gone(self, name: bytes, to_exchange: bool) -> Ticket:
        """Note that a deleted exchange or queue has no bindings left."""
        return self.table.delete(_going_key(name, to_exchange))

    def drop_bindings(self, bindings: Iterable[Binding]) -> Ticket:
        return self.table.delete_all([_binding_key(binding) for binding in bindings])

    def _going(self, name: bytes, to_exchange: bool, bound: bool) -> list[Row]:
        return [self.table.put_record(_going_key(name, to_exchange), b"")] if bound else []

    def _append(self, rows: Sequence[Row]) -> Ticket:
        """Append all rows, or none."""
        _, ticket = self.table.log.append(b"".join(record for _, record, _ in rows), len(rows), reserved=True)
        return ticket


def _going_key(name: bytes, to_exchange: bool) -> bytes:
    return _binding_key(Binding(DEFAULT, name, to_exchange, b"", b""))


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
    table, changes = value[1 + _NUMBER_BYTES * bool(value[0] & _NUMBERED) :], EMPTY_TABLE
    if value[0] & _CHANGED:
        size = _SIZE.size + _SIZE.unpack_from(table)[0]
        table, changes = table[:size], table[size:]
    for each in (table, changes):
        check_table(each, 0, len(each))
    return QueueKind(
        durable=True,
        auto_delete=bool(value[0] & _AUTO_DELETE),
        table=table,
        arguments=read_leniently({**read_table(table), **read_table(changes)}),
        changes=changes,
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
