"""Methods of classes channel, confirm, tx and direct."""

from pamqp import commands

from dmp.amqp.channel import Channel
from dmp.amqp.confirms import Confirms
from dmp.amqp.transactions import Transaction
from dmp.amqp.wire import Direct
from dmp.refusals import Code, Refusal, shown


def open_again(channel: Channel, method: commands.Channel.Open, table: bytes) -> None:
    raise Refusal(Code.CHANNEL_ERROR, f"channel {channel.number} is open already")


def flow(channel: Channel, method: commands.Channel.Flow, table: bytes) -> None:
    """The client wants no deliveries for a while, or wants them again."""
    channel.flowing = bool(method.active)
    channel.reply(commands.Channel.FlowOk(method.active))
    if method.active:
        channel.deal()


def flow_ok(channel: Channel, method: commands.Channel.FlowOk, table: bytes) -> None:
    """We never ask."""
    raise Refusal(Code.COMMAND_INVALID, "channel.flow-ok without a channel.flow")


def close(channel: Channel, method: commands.Channel.Close, table: bytes) -> None:
    channel.session.channel_closed(channel)


def close_ok(channel: Channel, method: commands.Channel.CloseOk, table: bytes) -> None:
    raise Refusal(Code.COMMAND_INVALID, "channel.close-ok without a channel.close")


def confirm_select(channel: Channel, method: commands.Confirm.Select, table: bytes) -> None:
    if channel.transaction is not None:
        raise Refusal(Code.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms(channel)
    if not method.nowait:
        channel.reply(commands.Confirm.SelectOk())


def tx_select(channel: Channel, method: commands.Tx.Select, table: bytes) -> None:
    if channel.confirms is not None:
        raise Refusal(Code.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction(channel)
    channel.reply(commands.Tx.SelectOk())


def tx_commit(channel: Channel, method: commands.Tx.Commit, table: bytes) -> None:
    _transaction(channel).commit()


def tx_rollback(channel: Channel, method: commands.Tx.Rollback, table: bytes) -> None:
    _transaction(channel).rollback()
    channel.reply(commands.Tx.RollbackOk())


def _transaction(channel: Channel) -> Transaction:
    """Raises Refusal."""
    if channel.transaction is None:
        raise Refusal(Code.PRECONDITION_FAILED, "channel is not transactional")
    return channel.transaction


def direct_put(channel: Channel, method: Direct.Put, table: bytes) -> None:
    """A lease of a sink: any exchange that one may publish to."""
    session = channel.session
    exchange = session.broker.topology.exchange(method.sink.encode())
    if exchange.kind.internal:
        raise Refusal(Code.ACCESS_REFUSED, f"exchange {shown(exchange.name)} is internal")
    lease = session.broker.leases.put(session.owner, exchange, channel.return_from_sink)
    channel.reply(Direct.PutOk(lease))


def direct_get(channel: Channel, method: Direct.Get, table: bytes) -> None:
    """A lease of a feed: a queue that is this application's own, and leased to nobody."""
    session = channel.session
    queue = session.broker.topology.queue(method.feed.encode(), session.owner)
    if queue.owner is None:
        raise Refusal(Code.ACCESS_REFUSED, f"queue {shown(queue.name)} is not exclusive to this connection")
    if queue.feed is not None or queue.feed_lease is not None:
        raise Refusal(Code.RESOURCE_LOCKED, f"queue {shown(queue.name)} is leased already")
    channel.reply(Direct.GetOk(session.broker.leases.get(session.owner, queue)))
