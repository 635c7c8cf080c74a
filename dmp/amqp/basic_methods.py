"""Methods of class basic, but for publishing and acknowledging at speed."""

from collections.abc import Mapping
from typing import Any

from pamqp import commands

from dmp.amqp.channel import Channel
from dmp.amqp.consumers import Consumer
from dmp.amqp.transactions import Outcome
from dmp.amqp.wire import get_ok
from dmp.amqp.wiring_methods import name_meant, named, read_arguments
from dmp.message import Message
from dmp.queues import Queue
from dmp.refusals import Code, Refusal, shown
from dmp.topology import REPLY_TO

CHANNELS_COUNTED = 16
"""So many are gone through in the time that it takes to put a message into a queue."""


def qos(channel: Channel, method: commands.Basic.Qos, table: bytes) -> None:
    """As RabbitMQ has it: without `global` for each consumer to come, with it for the channel."""
    if method.prefetch_size:
        raise Refusal(Code.NOT_IMPLEMENTED, "prefetch_size is not 0")
    if method.global_:
        channel.prefetch_all = method.prefetch_count
        channel.deal()
    else:
        channel.prefetch = method.prefetch_count
    channel.reply(commands.Basic.QosOk())


def consume(channel: Channel, method: commands.Basic.Consume, table: bytes) -> None:
    session = channel.session
    tag = (method.consumer_tag or "").encode() or b"amq.ctag-" + session.broker.new_name().encode()
    if tag in channel.consumers:
        raise Refusal(Code.NOT_ALLOWED, f"attempt to reuse consumer tag {shown(tag)}")
    consumers = sum(len(other.consumers) for other in session.channels.values())
    session.worked(len(session.channels) // CHANNELS_COUNTED)
    if consumers >= session.broker.settings.consumers_max:
        most = session.broker.settings.consumers_max
        raise Refusal(Code.NOT_ALLOWED, f"there are consumers_max = {most} on this connection already")
    priority = _priority(read_arguments(table))
    name = name_meant(channel, method.queue)
    replies = name == REPLY_TO
    queue = _reply_queue(channel, method) if replies else _queue_to_consume(channel, method, name)
    consumer = Consumer(
        channel,
        queue,
        tag,
        no_ack=method.no_ack,
        prefetch=channel.prefetch,
        priority=priority,
    )
    channel.consumers[tag] = consumer
    if replies:
        channel.reply_consumer = consumer
    session.broker.counts.consumers += 1
    queue.exclusive_consumer = method.exclusive
    queue.add_consumer(consumer)
    if not method.nowait:
        channel.reply(commands.Basic.ConsumeOk(tag.decode()))
    queue.deal()


def _queue_to_consume(channel: Channel, method: commands.Basic.Consume, name: bytes) -> Queue:
    """Raises Refusal."""
    queue = channel.session.broker.topology.queue(name, channel.session.owner)
    single = queue.kind.arguments.single_active
    if queue.exclusive_consumer or (method.exclusive and (queue.in_use or single)):
        raise Refusal(Code.ACCESS_REFUSED, f"queue {shown(queue.name)} in vhost '/' in exclusive use")
    return queue


def _priority(arguments: Mapping[str, Any]) -> int:
    """What a consumer asks for. Raises Refusal."""
    found = arguments.get("x-priority", 0)
    if not isinstance(found, int) or isinstance(found, bool):
        raise Refusal(Code.PRECONDITION_FAILED, "invalid arg 'x-priority' for consumer: it is a whole number")
    return found


def _reply_queue(channel: Channel, method: commands.Basic.Consume) -> Queue:
    """For the channel's one consumer of `REPLY_TO`. Raises Refusal, as RabbitMQ has it."""
    if not method.no_ack:
        raise Refusal(Code.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.reply_consumer is not None:
        raise Refusal(Code.PRECONDITION_FAILED, "reply consumer already set")
    return channel.session.broker.topology.make_reply_queue()


def cancel(channel: Channel, method: commands.Basic.Cancel, table: bytes) -> None:
    """A tag that nobody has is answered the same: it may have crossed our own cancel."""
    consumer = channel.consumers.get((method.consumer_tag or "").encode())
    if consumer is not None:
        channel.session.broker.counts.consumers -= 1
        channel.remove_consumer(consumer)
    if not method.nowait:
        channel.reply(commands.Basic.CancelOk(method.consumer_tag))


def cancel_ok(channel: Channel, method: commands.Basic.CancelOk, table: bytes) -> None:
    """Some clients answer our cancel, although it asks for none."""


def publish(channel: Channel, method: commands.Basic.Publish, table: bytes) -> None:
    raise AssertionError("publishes are taken before methods are decoded")


def get(channel: Channel, method: commands.Basic.Get, table: bytes) -> None:
    session = channel.session
    queue = named(channel, method.queue)
    message = queue.get(method.no_ack)
    if message is None and queue.warming:
        session.ask_again(queue.when_warm)
        return
    if message is None and queue.damaged:
        text = f"queue {shown(queue.name)} has lost messages to damage; purge it to go on without them"
        raise Refusal(Code.INTERNAL_ERROR, text)
    if message is None:
        channel.reply(commands.Basic.GetEmpty())
        return
    session.broker.counts.got += 1
    session.broker.counts.redelivered += message.redelivered
    channel.delivered += 1
    tag = channel.delivered
    if not method.no_ack:
        channel.unacked[tag] = None, queue, message
    head = message.head
    found = get_ok(channel.number, tag, message.redelivered, head, queue.depth)
    channel.reply_content(found, head, message.body)


def ack(channel: Channel, method: commands.Basic.Ack, table: bytes) -> None:
    if channel.transaction is not None:
        channel.transaction.settle(Outcome.ACKNOWLEDGED, method.delivery_tag, method.multiple)
        return
    settling = channel.session.settling
    settling.settle(channel, settling.take(channel, method.delivery_tag, method.multiple))


def nack(channel: Channel, method: commands.Basic.Nack, table: bytes) -> None:
    _settle_otherwise(channel, method.delivery_tag, method.multiple, method.requeue)


def reject(channel: Channel, method: commands.Basic.Reject, table: bytes) -> None:
    _settle_otherwise(channel, method.delivery_tag or 0, False, method.requeue)


def _settle_otherwise(channel: Channel, tag: int, multiple: bool, requeue: bool) -> None:
    if channel.transaction is not None:
        outcome = Outcome.REQUEUED if requeue else Outcome.REJECTED
        channel.transaction.settle(outcome, tag, multiple)
        return
    _give_back(channel, channel.session.settling.take(channel, tag, multiple), requeue)


def recover(channel: Channel, method: commands.Basic.Recover, table: bytes) -> None:
    channel.reply(commands.Basic.RecoverOk())
    _recover(channel, method.requeue)


def recover_async(channel: Channel, method: commands.Basic.RecoverAsync, table: bytes) -> None:
    _recover(channel, method.requeue)


def _recover(channel: Channel, requeue: bool) -> None:
    """All that is unacknowledged is delivered again: by its queue, or to the consumer that had it."""
    unacked = list(channel.unacked.values())
    again: dict[Consumer, list[Message]] = {}
    back: list[tuple[Queue, Message]] = []
    channel.unacked.clear()
    for consumer, queue, message in unacked:
        if consumer is not None:
            consumer.unacked -= 1
        if requeue or consumer is None or channel.consumers.get(consumer.tag) is not consumer:
            back.append((queue, message))
        else:
            message.redelivered = True
            again.setdefault(consumer, []).append(message)
    _give_back(channel, back, requeue=True)
    for consumer, messages in again.items():
        consumer.deliver(messages)
    channel.deal()


def _give_back(channel: Channel, deliveries: list[tuple[Queue, Message]], requeue: bool) -> None:
    counts = channel.session.broker.counts
    queues: dict[Queue, list[Message]] = {}
    for queue, message in deliveries:
        queues.setdefault(queue, []).append(message)
    for queue, messages in queues.items():
        if requeue:
            counts.requeued += len(messages)
            queue.requeue(messages)
        else:
            counts.rejected += len(messages)
            queue.reject(messages)
    for queue in queues:
        if not queue.deleted:
            queue.deal()
    channel.deal()  # others of its consumers may have room now, too
