"""The methods of a channel: a table from each to the function that answers it.

A handler gets the channel and the method. It raises `Refusal` where the method is refused, and `NotYet` where
it has to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pamqp import base, commands

from dmp.amqp.channel import PY_AMQP, Channel, Confirms, Consumer, Got, consumer_bytes
from dmp.amqp.transactions import Outcome, Transaction
from dmp.amqp.wire import LINE_ENDS, Direct, FieldTable, declare_ok, get_ok
from dmp.declarations import (
    ARGUMENTS_BYTES_MAX,
    ExchangeKind,
    QueueKind,
    check_known,
    consumer_timeout_in,
    exchange_type_in,
    text_argument,
)
from dmp.exchanges import DEFAULT_IN_RULES, GENERATED, REPLY_TO, Destination, check_not_default
from dmp.memory import check
from dmp.queues import Queue
from dmp.refusals import Code, Refusal, not_found, shown
from shared.access import MANAGE, READ, WRITE

if TYPE_CHECKING:
    from shared.storage.store import Ticket

Handler = Callable[[Channel, Any], None]
_CONSUMER_ARGUMENTS = (
    "x-priority",
    "x-consumer-timeout",
    "x-cancel-on-ha-failover",
)  # nothing here fails over
HANDLERS: dict[type[base.Frame], Handler] = {}


class NotYet(Exception):
    """The method is handled again once `when` calls back."""

    def __init__(self, when: Callable[[Callable[[], None]], None]) -> None:
        super().__init__()
        self.when = when


def handles(*methods: type[base.Frame]) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(methods, handler))
        return handler

    return add


@handles(commands.Channel.Open, commands.Channel.FlowOk, commands.Channel.CloseOk)
def out_of_place(channel: Channel, method: base.Frame) -> None:
    """We ask for none of these, nor for a channel twice."""
    if isinstance(method, commands.Channel.Open):
        raise Refusal(Code.CHANNEL_ERROR, f"channel {channel.number} is open already")
    asked = "channel.flow" if isinstance(method, commands.Channel.FlowOk) else "channel.close"
    raise Refusal(Code.COMMAND_INVALID, f"{asked}-ok without a {asked}")


@handles(commands.Channel.Flow)
def flow(channel: Channel, method: commands.Channel.Flow) -> None:
    """The client wants no deliveries for a while, or wants them again."""
    channel.flowing = bool(method.active)
    channel.reply(commands.Channel.FlowOk(method.active))
    if method.active:
        channel.dispatch()


@handles(commands.Channel.Close)
def close(channel: Channel, method: commands.Channel.Close) -> None:
    channel.mux.close(channel)


@handles(commands.Confirm.Select)
def confirm_select(channel: Channel, method: commands.Confirm.Select) -> None:
    if channel.transaction is not None:
        raise Refusal(Code.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms(channel)
    _answer(channel, method, commands.Confirm.SelectOk())


@handles(commands.Tx.Select)
def tx_select(channel: Channel, method: commands.Tx.Select) -> None:
    if channel.confirms is not None:
        raise Refusal(Code.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction(channel)
    channel.reply(commands.Tx.SelectOk())


@handles(commands.Tx.Commit, commands.Tx.Rollback)
def tx_end(channel: Channel, method: commands.Tx.Commit | commands.Tx.Rollback) -> None:
    if channel.transaction is None:
        raise Refusal(Code.PRECONDITION_FAILED, "channel is not transactional")
    if isinstance(method, commands.Tx.Commit):
        channel.transaction.commit()
    else:
        channel.transaction.rollback()
        channel.reply(commands.Tx.RollbackOk())


@handles(Direct.Put)
def direct_put(channel: Channel, method: Any) -> None:
    """A lease of a sink: any exchange that one may publish to."""
    mux = channel.mux
    name = _name(method.sink)
    mux.require(WRITE, name or DEFAULT_IN_RULES)
    exchange = mux.broker.topology.open_exchange(name)
    send_return = mux.connection.guarded(channel.return_from_sink)
    lease = mux.broker.leases.grant(mux.owner, exchange, send_return)
    channel.reply(Direct.PutOk(lease))


@handles(Direct.Get)
def direct_get(channel: Channel, method: Any) -> None:
    """A lease of a feed: a queue that is this application's own, and leased to nobody."""
    mux = channel.mux
    name = _name(method.feed)
    mux.require(READ, name)
    queue = mux.broker.topology.queue(name, mux.owner)
    if queue.owner is None:
        raise Refusal(Code.ACCESS_REFUSED, f"queue {shown(queue.name)} is not exclusive to this connection")
    if queue.takers.feed is not None or queue.feed_lease is not None:
        raise Refusal(Code.RESOURCE_LOCKED, f"queue {shown(queue.name)} is leased already")
    channel.reply(Direct.GetOk(mux.broker.leases.grant(mux.owner, queue)))


@handles(commands.Exchange.Declare)
def exchange_declare(channel: Channel, method: commands.Exchange.Declare) -> None:
    topology = channel.mux.broker.topology
    name = _name(method.exchange)
    if method.passive:
        channel.mux.require_some(name or DEFAULT_IN_RULES)
        check_not_default(name)
        topology.exchange(name)
        ticket = None
    else:
        channel.mux.require(MANAGE, name or DEFAULT_IN_RULES)
        arguments = _arguments(method)
        kind = ExchangeKind(
            type=exchange_type_in(arguments, method.exchange_type),
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            alternate=text_argument(arguments, "alternate-exchange", "exchange"),
        )
        if kind.alternate is not None:
            channel.mux.require(WRITE, kind.alternate or DEFAULT_IN_RULES)
        ticket = topology.declare_exchange(name, kind, channel.mux.session.user)
    _answer(channel, method, commands.Exchange.DeclareOk(), ticket)


@handles(commands.Exchange.Delete)
def exchange_delete(channel: Channel, method: commands.Exchange.Delete) -> None:
    name = _name(method.exchange)
    channel.mux.require(MANAGE, name or DEFAULT_IN_RULES)
    found = name in channel.mux.broker.exchanges
    ticket = channel.mux.broker.topology.delete_exchange(name, if_unused=method.if_unused)
    if found:
        channel.mux.session.identity.audit("delete-exchange", name)
    _answer(channel, method, commands.Exchange.DeleteOk(), ticket)


@handles(commands.Exchange.Bind, commands.Queue.Bind)
def bind(channel: Channel, method: Any) -> None:
    topology = channel.mux.broker.topology
    source, name = _ends(channel, method)
    key = method.routing_key.encode()
    destination: Destination
    answer: base.Frame
    if isinstance(method, commands.Queue.Bind):
        destination, answer = topology.queue(name, channel.mux.owner), commands.Queue.BindOk()
        if not method.queue and not key:
            key = name
    else:
        destination, answer = topology.exchange(name), commands.Exchange.BindOk()
        check_not_default(name)
    user = channel.mux.session.user
    ticket = topology.bind(source, destination, key, _arguments(method).raw, user)
    _answer(channel, method, answer, ticket)


@handles(commands.Exchange.Unbind, commands.Queue.Unbind)
def unbind(channel: Channel, method: Any) -> None:
    broker = channel.mux.broker
    source, name = _ends(channel, method)
    of_queue = isinstance(method, commands.Queue.Unbind)
    there = broker.topology.find_queue(name, channel.mux.owner) if of_queue else broker.exchanges.get(name)
    ticket = broker.topology.unbind(source, there, method.routing_key.encode(), method.arguments.raw)
    _answer(channel, method, (commands.Queue if of_queue else commands.Exchange).UnbindOk(), ticket)


def _ends(channel: Channel, method: Any) -> tuple[bytes, bytes]:
    """From where a binding leads, and to what. Raises Refusal where the user may not read the one and write
    to the other."""
    if isinstance(method, commands.Queue.Bind | commands.Queue.Unbind):
        source, name = _name(method.exchange), _name_meant(channel, method.queue)
    else:
        source, name = _name(method.source), _name(method.destination)
    channel.mux.require(READ, source or DEFAULT_IN_RULES)
    channel.mux.require(WRITE, name or DEFAULT_IN_RULES)
    return source, name


@handles(commands.Queue.Declare)
def queue_declare(channel: Channel, method: commands.Queue.Declare) -> None:
    mux = channel.mux
    topology = mux.broker.topology
    name = _name(method.queue)
    ticket: Ticket | None = None
    if method.passive or name.startswith(REPLY_TO):
        mux.require_some(name)
    else:
        mux.require(MANAGE, name or GENERATED)
    queue: Queue | None = None
    if name.startswith(REPLY_TO):
        if name != REPLY_TO and name not in mux.broker.reply_queues:
            raise not_found("queue", name)
    elif method.passive:
        queue = topology.queue(name, mux.owner)
        _await_disk(channel, queue)
        queue.used_now()
    else:
        kind = QueueKind.asked_for(
            _arguments(method).raw,
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
        )
        letters = kind.arguments.dead_letter_exchange
        if letters is not None:
            mux.require(WRITE, letters or DEFAULT_IN_RULES)
        queue, ticket = topology.declare_queue(name, kind, mux.owner, mux.session.user)
    said = name, 0, 1
    if queue is not None:
        said = queue.name, queue.depth, queue.takers.number
    channel.last_queue = said[0]
    if not method.nowait:
        mux.reply(declare_ok(channel.number, *said), ticket)


@handles(commands.Queue.Purge)
def queue_purge(channel: Channel, method: commands.Queue.Purge) -> None:
    channel.mux.require(MANAGE, _name_meant(channel, method.queue))
    queue = _named(channel, method.queue)
    _await_disk(channel, queue)
    count, ticket = channel.mux.broker.topology.purge_queue(queue)
    channel.mux.session.identity.audit("purge", queue.name)
    _answer(channel, method, commands.Queue.PurgeOk(count), ticket)


def _await_disk(channel: Channel, queue: Queue) -> None:
    """Raises NotYet while it waits for the disk to have what came before: some of it may be what was
    published on this connection. What comes meanwhile is not waited for."""
    if queue.arrivals.waiting and not channel.disk_awaited:
        channel.disk_awaited = True
        raise NotYet(queue.arrivals.when_synced)
    channel.disk_awaited = False


@handles(commands.Queue.Delete)
def queue_delete(channel: Channel, method: commands.Queue.Delete) -> None:
    """One that is not there is deleted already, as RabbitMQ has it: clients tear down more than once."""
    topology = channel.mux.broker.topology
    name = _name_meant(channel, method.queue)
    channel.mux.require(MANAGE, name)
    queue = topology.find_queue(name, channel.mux.owner)
    count, ticket = 0, None
    with channel.mux.answer_first():
        if queue is not None:
            count, ticket = topology.delete_queue(queue, if_unused=method.if_unused, if_empty=method.if_empty)
            channel.mux.session.identity.audit("delete", name)
        _answer(channel, method, commands.Queue.DeleteOk(count), ticket)


def _named(channel: Channel, name: str) -> Queue:
    """The queue that a method means. Raises Refusal."""
    return channel.mux.broker.topology.queue(_name_meant(channel, name), channel.mux.owner)


def _name_meant(channel: Channel, name: str) -> bytes:
    """The queue's name; an empty one is the channel's last declared. Raises Refusal, as RabbitMQ has it."""
    found = _name(name) or channel.last_queue
    if found is None:
        raise Refusal(Code.NOT_FOUND, "no queue name, and none declared on this channel")
    return found


def _name(text: str) -> bytes:
    """A name as a client says it: line ends are taken out, as RabbitMQ does (a name read from a file)."""
    return text.encode().translate(None, LINE_ENDS)


def _arguments(method: Any) -> FieldTable:
    """Raises Refusal."""
    found: FieldTable = method.arguments
    if len(found.raw) > ARGUMENTS_BYTES_MAX:
        text = f"arguments of {len(found.raw)} bytes, at most {ARGUMENTS_BYTES_MAX}"
        raise Refusal(Code.PRECONDITION_FAILED, text)
    return found


def _answer(channel: Channel, method: Any, answer: base.Frame, ticket: Ticket | None = None) -> None:
    if not getattr(method, "nowait", False):  # Queue.Unbind has none
        channel.reply(answer, ticket)


@handles(commands.Basic.Qos)
def qos(channel: Channel, method: commands.Basic.Qos) -> None:
    """Set the prefetch, as RabbitMQ: without `global_` for each consumer to come, with it for the channel.

    From py-amqp it counts for the channel, at once. kombu raises the prefetch of consumers that are there by
    each task that must wait for its time, never says `global_`, and stalls otherwise.
    """
    if method.prefetch_size:
        raise Refusal(Code.NOT_IMPLEMENTED, "prefetch_size is not 0")
    if method.global_ or channel.mux.product == PY_AMQP:
        channel.prefetch_all = method.prefetch_count
        channel.dispatch()
    else:
        channel.prefetch = method.prefetch_count
    channel.reply(commands.Basic.QosOk())


@handles(commands.Basic.Consume)
def consume(channel: Channel, method: commands.Basic.Consume) -> None:
    mux = channel.mux
    tag = (method.consumer_tag or "").encode() or b"amq.ctag-" + mux.broker.new_name()
    if tag in channel.consumers:
        raise Refusal(Code.NOT_ALLOWED, f"attempt to reuse consumer tag {shown(tag)}")
    consumers = sum(len(other.consumers) for other in mux.by_number.values())
    most = mux.broker.settings.consumers_max
    if consumers >= most:
        raise Refusal(Code.NOT_ALLOWED, f"there are consumers_max = {most} on this connection already")
    arguments = _arguments(method)
    check_known(arguments, _CONSUMER_ARGUMENTS, "consumer")
    priority = arguments.get("x-priority", 0)
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise Refusal(Code.PRECONDITION_FAILED, "invalid arg 'x-priority' for consumer: it is a whole number")
    if consumers:  # the first always fits, as a connection's first channel does
        check(mux.broker.accounts.connections, consumer_bytes(tag), user=mux.session.user)
    name = _name_meant(channel, method.queue)
    mux.require(READ, name)
    queue = (_reply_queue if name == REPLY_TO else _queue_to_consume)(channel, method, name)
    timeout_ms = consumer_timeout_in(arguments, "consumer") or queue.kind.arguments.consumer_timeout_ms
    consumer = Consumer(channel, queue, tag, method.no_ack, channel.prefetch, priority, timeout_ms or 0)
    channel.consumers[tag] = consumer
    if name == REPLY_TO:
        channel.reply_consumer = consumer
    queue.takers.exclusive = method.exclusive
    queue.add_consumer(consumer)
    _answer(channel, method, commands.Basic.ConsumeOk(tag.decode()))
    queue.dispatch()


def _queue_to_consume(channel: Channel, method: commands.Basic.Consume, name: bytes) -> Queue:
    """Raises Refusal."""
    queue = channel.mux.broker.topology.queue(name, channel.mux.owner)
    single = queue.kind.arguments.single_active
    if queue.takers.exclusive or (method.exclusive and (queue.takers.count or single)):
        raise Refusal(Code.ACCESS_REFUSED, f"queue {shown(queue.name)} in vhost '/' in exclusive use")
    return queue


def _reply_queue(channel: Channel, method: commands.Basic.Consume, name: bytes) -> Queue:
    """Make the queue of the channel's one consumer of `REPLY_TO`. Raises Refusal, as RabbitMQ has it."""
    if not method.no_ack:
        raise Refusal(Code.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.reply_consumer is not None:
        raise Refusal(Code.PRECONDITION_FAILED, "reply consumer already set")
    return channel.mux.broker.topology.make_reply_queue(channel.mux.session.user)


@handles(commands.Basic.Cancel)
def cancel(channel: Channel, method: commands.Basic.Cancel) -> None:
    """A tag that nobody has is answered the same: it may have crossed our own cancel."""
    consumer = channel.consumers.get((method.consumer_tag or "").encode())
    if consumer is not None:
        channel.remove_consumer(consumer)
    _answer(channel, method, commands.Basic.CancelOk(method.consumer_tag))


@handles(commands.Basic.CancelOk)
def cancel_ok(channel: Channel, method: commands.Basic.CancelOk) -> None:
    """Ignore the answer that some clients give to our cancel, although it asks for none."""


@handles(commands.Basic.Publish)
def publish(channel: Channel, method: commands.Basic.Publish) -> None:
    raise AssertionError("publishes are taken before methods are decoded")


@handles(commands.Basic.Get)
def get(channel: Channel, method: commands.Basic.Get) -> None:
    mux = channel.mux
    mux.require(READ, _name_meant(channel, method.queue))
    queue = _named(channel, method.queue)
    message = queue.get(method.no_ack)
    if message is None:
        if queue.cannot_give_yet:
            raise NotYet(queue.row.when_loaded)
        _await_disk(channel, queue)
        if queue.damaged:
            why = "has lost messages to damage; purge it to go on without them"
            if not queue.lost:
                why = f"cannot be read now: {queue.later.error}"
            raise Refusal(Code.INTERNAL_ERROR, f"queue {shown(queue.name)} {why}")
        channel.reply(commands.Basic.GetEmpty())
        return
    channel.disk_awaited = False
    mux.broker.counts.got += 1
    redelivered = message.tries > 0
    if redelivered:
        queue.count_again(message, mux.broker.counts.redelivered)
    channel.delivered += 1
    tag = channel.delivered
    if not method.no_ack:
        channel.unacked.add(range(tag, tag + 1), Got(channel, queue), message)
        channel.got += 1
        if (timeout_ms := queue.kind.arguments.consumer_timeout_ms) is not None:
            channel.must_acknowledge(queue, timeout_ms)
    head = message.head
    found = get_ok(channel.number, tag, redelivered, head, queue.depth)
    channel.reply_content(found, head, message.bodies[0])


@handles(commands.Basic.Ack)
def ack(channel: Channel, method: commands.Basic.Ack) -> None:
    if channel.transaction is not None:
        channel.transaction.settle(Outcome.ACKNOWLEDGED, _tag(method), method.multiple)
        return
    channel.mux.settle(channel, channel.take_unacked(_tag(method), method.multiple))


@handles(commands.Basic.Nack, commands.Basic.Reject)
def nack(channel: Channel, method: commands.Basic.Nack | commands.Basic.Reject) -> None:
    tag, multiple = _tag(method), isinstance(method, commands.Basic.Nack) and method.multiple
    if channel.transaction is not None:
        outcome = Outcome.REQUEUED if method.requeue else Outcome.REJECTED
        channel.transaction.settle(outcome, tag, multiple)
    else:
        channel.mux.give_back(channel, channel.take_unacked(tag, multiple), requeue=method.requeue)


def _tag(method: commands.Basic.Ack | commands.Basic.Nack | commands.Basic.Reject) -> int:
    """The delivery tag; pamqp takes it for a signed number, and a refusal names it as it was sent."""
    return (method.delivery_tag or 0) & 0xFFFF_FFFF_FFFF_FFFF


@handles(commands.Basic.Recover, commands.Basic.RecoverAsync)
def recover(channel: Channel, method: commands.Basic.Recover | commands.Basic.RecoverAsync) -> None:
    """All that is unacknowledged goes back to its queue, which delivers it again; also where the client asks
    for the same consumer, which RabbitMQ refuses."""
    if isinstance(method, commands.Basic.Recover):
        channel.reply(commands.Basic.RecoverOk())
    channel.mux.give_back(channel, channel.take_unacked(0, True), requeue=True)
