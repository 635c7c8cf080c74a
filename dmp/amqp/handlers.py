"""Which function answers which method of a channel."""

from collections.abc import Callable, Mapping
from typing import Any

from pamqp import base, commands

from dmp.amqp import basic_methods as basic
from dmp.amqp import channel_methods as channels
from dmp.amqp import wiring_methods as topology
from dmp.amqp.channel import Channel
from dmp.amqp.wire import Direct

Handler = Callable[[Channel, Any, bytes], None]
"""Called with the channel, the method, and the table among its arguments as it came. Raises Refusal."""

HANDLERS: Mapping[type[base.Frame], Handler] = {
    commands.Channel.Open: channels.open_again,
    commands.Channel.Flow: channels.flow,
    commands.Channel.FlowOk: channels.flow_ok,
    commands.Channel.Close: channels.close,
    commands.Channel.CloseOk: channels.close_ok,
    commands.Confirm.Select: channels.confirm_select,
    commands.Tx.Select: channels.tx_select,
    commands.Tx.Commit: channels.tx_commit,
    commands.Tx.Rollback: channels.tx_rollback,
    Direct.Put: channels.direct_put,
    Direct.Get: channels.direct_get,
    commands.Exchange.Declare: topology.exchange_declare,
    commands.Exchange.Delete: topology.exchange_delete,
    commands.Exchange.Bind: topology.exchange_bind,
    commands.Exchange.Unbind: topology.exchange_unbind,
    commands.Queue.Declare: topology.queue_declare,
    commands.Queue.Bind: topology.queue_bind,
    commands.Queue.Unbind: topology.queue_unbind,
    commands.Queue.Purge: topology.queue_purge,
    commands.Queue.Delete: topology.queue_delete,
    commands.Basic.Qos: basic.qos,
    commands.Basic.Consume: basic.consume,
    commands.Basic.Cancel: basic.cancel,
    commands.Basic.CancelOk: basic.cancel_ok,
    commands.Basic.Publish: basic.publish,
    commands.Basic.Get: basic.get,
    commands.Basic.Ack: basic.ack,
    commands.Basic.Nack: basic.nack,
    commands.Basic.Reject: basic.reject,
    commands.Basic.Recover: basic.recover,
    commands.Basic.RecoverAsync: basic.recover_async,
}
