"""Methods of classes exchange and queue."""

from pamqp import base, commands

from dmp.amqp.channel import Channel
from dmp.amqp.wire import declare_ok
from dmp.data_types import read_table
from dmp.declarations import ExchangeKind, QueueArguments, QueueKind
from dmp.queues import Queue
from dmp.refusals import Code, Refusal, not_found
from dmp.topology import REPLY_TO
from shared.errors import StoreError
from shared.storage.store import Ticket

ARGUMENTS_BYTES_MAX = 4 * 1024
"""Of a declaration or a binding: a durable binding's arguments are part of a row's key."""


def exchange_declare(channel: Channel, method: commands.Exchange.Declare, table: bytes) -> None:
    topology = channel.session.broker.topology
    name = method.exchange.encode()
    if method.passive:
        topology.exchange(name)
        ticket = None
    else:
        alternate = read_arguments(table).get("alternate-exchange")
        kind = ExchangeKind(
            type=method.exchange_type,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            alternate=str(alternate).encode()[:255] if alternate is not None else None,
        )
        with _stored():
            ticket = topology.declare_exchange(name, kind)
    _answer(channel, method.nowait, commands.Exchange.DeclareOk(), ticket)


def exchange_delete(channel: Channel, method: commands.Exchange.Delete, table: bytes) -> None:
    with _stored():
        ticket = channel.session.broker.topology.delete_exchange(
            method.exchange.encode(), if_unused=method.if_unused
        )
    _answer(channel, method.nowait, commands.Exchange.DeleteOk(), ticket)


def exchange_bind(channel: Channel, method: commands.Exchange.Bind, table: bytes) -> None:
    topology = channel.session.broker.topology
    destination = topology.exchange(method.destination.encode())
    if not destination.name:
        raise Refusal(Code.ACCESS_REFUSED, "operation not permitted on the default exchange")
    key = method.routing_key.encode()
    with _stored():
        ticket = topology.bind(method.source.encode(), destination, key, table, read_arguments(table))
    _answer(channel, method.nowait, commands.Exchange.BindOk(), ticket)


def exchange_unbind(channel: Channel, method: commands.Exchange.Unbind, table: bytes) -> None:
    broker = channel.session.broker
    destination = broker.exchanges.get(method.destination.encode())
    with _stored():
        ticket = broker.topology.unbind(
            method.source.encode(), destination, method.routing_key.encode(), table
        )
    _answer(channel, method.nowait, commands.Exchange.UnbindOk(), ticket)


def queue_declare(channel: Channel, method: commands.Queue.Declare, table: bytes) -> None:
    session = channel.session
    topology = session.broker.topology
    name = method.queue.encode()
    ticket: Ticket | None = None
    if name.startswith(REPLY_TO):
        if name != REPLY_TO and name not in session.broker.reply_queues:
            raise not_found("queue", name)
        _answer_declared(channel, method.nowait, name, 0, 1, None)
        return
    if method.passive:
        queue = topology.queue(name, session.owner)
        queue.redeclared()
    else:
        kind = QueueKind(
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            table=table,
            arguments=QueueArguments.read(read_arguments(table)),
        )
        with _stored():
            queue, ticket = topology.declare_queue(name, kind, session.owner)
    takers = len(queue.consumers) + (queue.feed is not None)
    _answer_declared(channel, method.nowait, queue.name, queue.depth, takers, ticket)


def queue_bind(channel: Channel, method: commands.Queue.Bind, table: bytes) -> None:
    queue = named(channel, method.queue)
    key = method.routing_key.encode()
    if not method.queue and not key:
        key = queue.name
    topology = channel.session.broker.topology
    with _stored():
        ticket = topology.bind(method.exchange.encode(), queue, key, table, read_arguments(table))
    _answer(channel, method.nowait, commands.Queue.BindOk(), ticket)


def queue_unbind(channel: Channel, method: commands.Queue.Unbind, table: bytes) -> None:
    topology = channel.session.broker.topology
    queue = topology.find_queue(name_meant(channel, method.queue), channel.session.owner)
    with _stored():
        ticket = topology.unbind(method.exchange.encode(), queue, method.routing_key.encode(), table)
    channel.reply(commands.Queue.UnbindOk(), ticket)


def queue_purge(channel: Channel, method: commands.Queue.Purge, table: bytes) -> None:
    queue = named(channel, method.queue)
    with _stored():
        count, ticket = channel.session.broker.topology.purge_queue(queue)
    _answer(channel, method.nowait, commands.Queue.PurgeOk(count), ticket)


def queue_delete(channel: Channel, method: commands.Queue.Delete, table: bytes) -> None:
    """One that is not there is deleted already, as RabbitMQ has it: clients tear down more than once."""
    topology = channel.session.broker.topology
    queue = topology.find_queue(name_meant(channel, method.queue), channel.session.owner)
    count, ticket = 0, None
    if queue is not None:
        with _stored():
            count, ticket = topology.delete_queue(queue, if_unused=method.if_unused, if_empty=method.if_empty)
    _answer(channel, method.nowait, commands.Queue.DeleteOk(count), ticket)


def named(channel: Channel, name: str) -> Queue:
    """The queue that a method means. Raises Refusal."""
    return channel.session.broker.topology.queue(name_meant(channel, name), channel.session.owner)


def name_meant(channel: Channel, name: str) -> bytes:
    """The queue's name; an empty one is the channel's last declared. Raises Refusal, as RabbitMQ has it."""
    found = name.encode() or channel.last_queue
    if found is None:
        raise Refusal(Code.NOT_FOUND, "no queue name, and none declared on this channel")
    return found


def read_arguments(table: bytes) -> dict[str, object]:
    """Of a method. Raises Refusal."""
    if len(table) > ARGUMENTS_BYTES_MAX:
        text = f"arguments of {len(table)} bytes, at most {ARGUMENTS_BYTES_MAX}"
        raise Refusal(Code.PRECONDITION_FAILED, text)
    return read_table(table)


def _answer_declared(
    channel: Channel, nowait: bool, queue: bytes, ready: int, takers: int, ticket: Ticket | None
) -> None:
    channel.last_queue = queue
    if not nowait:
        channel.session.reply(declare_ok(channel.number, queue, ready, takers), ticket)


def _answer(channel: Channel, nowait: bool, method: base.Frame, ticket: Ticket | None) -> None:
    if not nowait:
        channel.reply(method, ticket)


class _stored:  # noqa: N801 - it reads as a clause
    """What the store refuses is the connection's end: the specification has nothing softer."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            raise Refusal(Code.RESOURCE_ERROR, str(error) or "the store takes no writes") from error
