"""What the API shows of the broker, and what can be done with it: queues, exchanges, bindings."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from dmp.broker import Broker
from dmp.declarations import Binding, ExchangeKind
from dmp.exchanges import DEFAULT, Exchange
from dmp.queues import Queue
from dmp.refusals import shown
from shared.objects import (
    BINDINGS,
    EXCHANGES,
    QUEUES,
    Action,
    BadArgument,
    ObjectMissing,
    Objects,
    a_text,
    key_of,
)
from shared.queues import pausing
from shared.storage.store import Ticket

DEFAULT_NAME = "amq.default"
"""Of the default exchange, whose name is empty: as rules of users have it."""
NAME_BYTES_MAX = 255
NO_ARGUMENTS = b"\0\0\0\0"
"""An empty table on the wire."""


class Admin:
    """The objects of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        purge = Action("purge", "Drop what is ready; what is held stays.", self._purge, dry_runs=True)
        delete = Action(
            "delete", "Delete it, with its messages and bindings.", self._delete_queue, dry_runs=True
        )
        drop = Action("delete", "Delete it, with its bindings.", self._delete_exchange, dry_runs=True)
        unbind = Action("delete", "Unbind.", self._unbind, dry_runs=True)
        declare = Action(
            "declare",
            "Declare an exchange; one just like it may be there.",
            self._declare,
            {
                "name": "up to 255 bytes",
                "type": "direct, fanout, topic or headers",
                "durable": "true or false",
                "auto_delete": "true or false",
                "internal": "true or false",
                "alternate": "the exchange that gets what it cannot route",
            },
            dry_runs=True,
        )
        bind = Action(
            "bind",
            "Bind a queue to an exchange.",
            self._bind,
            {
                "exchange": "its source",
                "queue": "where it leads",
                "key": "the routing key; empty unless said",
            },
            dry_runs=True,
        )
        self.objects: Sequence[Objects] = (
            Objects(
                QUEUES,
                lambda: list(broker.queues.values()),
                lambda queue: key_of(_text(queue.name)),
                self._find_queue,
                self._queue,
                (
                    purge,
                    delete,
                    *pausing.actions(self._set_paused, lambda queue: shown(queue.name), broker.log),
                ),
            ),
            Objects(
                EXCHANGES,
                lambda: list(broker.exchanges.values()),
                lambda exchange: key_of(_text(exchange.name) or DEFAULT_NAME),
                self._find_exchange,
                self._exchange,
                (drop,),
                declare,
            ),
            Objects(
                BINDINGS,
                lambda: [binding for each in broker.exchanges.values() for binding in each.bindings],
                lambda binding: key_of(_binding_id(binding)),
                self._find_binding,
                self._binding,
                (unbind,),
                bind,
            ),
        )

    # Queues.

    def _find_queue(self, parts: Sequence[str]) -> Queue | None:
        return self._broker.queues.get(parts[0].encode())

    def _queue(self, queue: Queue) -> dict[str, Any] | None:
        if queue.deleted:
            return None
        kind = queue.kind
        asked = {name: _shown(value) for name, value in attrs.asdict(kind.arguments).items() if value}
        return {
            "name": _text(queue.name),
            "ready": queue.depth,
            "held": queue.unacked,
            "delayed": 0,
            "dead": 0,
            "consumers": len(queue.consumers) + (queue.feed is not None),
            "paused": queue.paused,
            "bytes": queue.depth_bytes,
            "durable": queue.log is not None,
            "settings": {"exclusive": kind.exclusive, "auto_delete": kind.auto_delete, **asked},
        }

    async def _purge(self, queue: Queue, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        if dry_run:
            return {"purged": queue.depth, "held": queue.unacked}
        count, ticket = self._broker.topology.purge_queue(queue)
        await self._settled(ticket)
        return {"purged": count, "held": queue.unacked}

    async def _delete_queue(self, queue: Queue, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        messages, bindings = queue.depth, len(queue.bound)
        if not dry_run:
            messages, ticket = self._broker.topology.delete_queue(queue)
            await self._settled(ticket)
        return {"deleted": 1, "messages": messages, "bindings": bindings}

    async def _set_paused(self, queue: Queue, paused: bool) -> None:
        await self._settled(self._broker.topology.set_paused(queue, paused))

    # Exchanges.

    def _find_exchange(self, parts: Sequence[str]) -> Exchange | None:
        return self._broker.exchanges.get(_exchange_name(parts[0]))

    def _exchange(self, exchange: Exchange) -> dict[str, Any] | None:
        if exchange.deleted:
            return None
        kind = exchange.kind
        return {
            "name": _text(exchange.name) or DEFAULT_NAME,
            "type": kind.type,
            "durable": kind.durable,
            "auto_delete": kind.auto_delete,
            "internal": kind.internal,
            "alternate": None if kind.alternate is None else _text(kind.alternate),
            "bindings": len(exchange.bindings),
        }

    async def _declare(self, _: Any, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        name = a_text(arguments, "name").encode()
        if not 1 <= len(name) <= NAME_BYTES_MAX:
            raise BadArgument(f"name has 1 to {NAME_BYTES_MAX} bytes")
        alternate = a_text(arguments, "alternate").encode() if arguments.get("alternate") else None
        kind = ExchangeKind(
            a_text(arguments, "type", "direct"),
            **{flag: _flag(arguments, flag) for flag in ("durable", "auto_delete", "internal")},
            alternate=alternate,
        )
        new = name not in self._broker.exchanges
        if not dry_run:
            await self._settled(self._broker.topology.declare_exchange(name, kind))
        return {"declared": int(new)}

    async def _delete_exchange(
        self, exchange: Exchange, _: Mapping[str, Any], dry_run: bool
    ) -> dict[str, Any]:
        bindings = len(exchange.bindings) + len(exchange.bound_to)
        if not dry_run:
            await self._settled(self._broker.topology.delete_exchange(exchange.name))
        return {"deleted": 1, "bindings": bindings}

    # Bindings.

    def _find_binding(self, parts: Sequence[str]) -> Binding | None:
        source = parts[0].partition("~")[0].replace("%7E", "~").encode()
        exchange = self._broker.exchanges.get(source)
        those = () if exchange is None else exchange.bindings
        return next((binding for binding in those if _binding_id(binding) == parts[0]), None)

    def _binding(self, binding: Binding) -> dict[str, Any] | None:
        exchange = self._broker.exchanges.get(binding.source)
        if exchange is None or binding not in exchange.bindings:
            return None
        destination = _text(binding.destination)
        return {
            "id": _binding_id(binding),
            "exchange": _text(binding.source),
            "queue": None if binding.to_exchange else destination,
            "to_exchange": destination if binding.to_exchange else None,
            "key": _text(binding.key),
            "arguments": {name: _shown(value) for name, value in binding.read_arguments().items()},
        }

    async def _bind(self, _: Any, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        source = _exchange_name(a_text(arguments, "exchange"))
        name = a_text(arguments, "queue")
        key = a_text(arguments, "key", "").encode()
        if len(key) > NAME_BYTES_MAX:
            raise BadArgument(f"key has at most {NAME_BYTES_MAX} bytes")
        queue = self._find_queue([name])
        if queue is None:
            raise ObjectMissing(f"there is no queue {name}")
        exchange = self._broker.topology.exchange(source)
        new = Binding(source, queue.name, False, key, NO_ARGUMENTS) not in exchange.bindings
        if not dry_run:
            await self._settled(self._broker.topology.bind(source, queue, key, NO_ARGUMENTS, {}))
        return {"bound": int(new)}

    async def _unbind(self, binding: Binding, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        broker = self._broker
        there = broker.exchanges if binding.to_exchange else broker.queues
        destination = there.get(binding.destination)
        if not dry_run:
            await self._settled(
                broker.topology.unbind(binding.source, destination, binding.key, binding.arguments)
            )
        return {"unbound": 1}

    async def _settled(self, ticket: Ticket | None) -> None:
        """What was changed goes to the disk, and what waits for it goes on."""
        self._broker.flush()
        self._broker.store.commit_pending()
        if ticket is not None:
            await self._broker.store.wait(ticket)


def _exchange_name(text: str) -> bytes:
    return DEFAULT if text == DEFAULT_NAME else text.encode()


def _binding_id(binding: Binding) -> str:
    kind = "exchange" if binding.to_exchange else "queue"
    more = "" if binding.arguments == NO_ARGUMENTS else binding.arguments.hex()
    names = (_text(name).replace("~", "%7E") for name in (binding.source, binding.destination, binding.key))
    source, destination, key = names
    return "~".join((source, kind, destination, key, more))


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def _shown(value: Any) -> Any:
    return _text(bytes(value)) if isinstance(value, bytes | bytearray | memoryview) else value


def _flag(arguments: Mapping[str, Any], name: str) -> bool:
    value = arguments.get(name, False)
    if not isinstance(value, bool):
        raise BadArgument(f"{name} is true or false")
    return value
