"""The life of an AMQP connection: how it begins and ends, who lives by it, what it says when something is
refused.

What comes in between, frame by frame, is in `session`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pamqp import commands

from dmp.amqp.channel import Channel, release
from dmp.amqp.consumers import Consumer
from dmp.amqp.handshake import Handshake
from dmp.amqp.publishing import Publishing
from dmp.amqp.settling import Settling
from dmp.amqp.states import TRANSITIONS, ChannelEvent, ChannelState, Event, State
from dmp.amqp.wire import HEARTBEAT_FRAME, METHOD, decode_untrusted, encode
from dmp.pacing import Due, Pacing, Stop
from dmp.refusals import Code, Refusal
from shared.errors import LocalProtocolError, StoreError
from shared.net.connection import Connection
from shared.replies import Replies
from shared.storage.store import Ticket

if TYPE_CHECKING:
    from dmp.broker import Broker

LOGIN_FRAME_BYTES_MAX = 8192
"""A frame before tune-ok, when nobody knows yet who sends it. RabbitMQ's; the specification wants 4096."""
CONNECTION_FIELDS_MAX = 256
"""In the table of what a client says of itself: they say some twenty."""
CLOSE_SECONDS = 5.0
"""For the peer's close-ok."""


class Lifetime(Pacing):
    """A session without its frames. `current`: the channel whose frame is being handled, if there is one."""

    __slots__ = (
        "_channel_max",
        "_heard",
        "_heartbeat_seconds",
        "_index",
        "_waits_to_deal",
        "broker",
        "channels",
        "current",
        "frame_bytes_max",
        "handshake",
        "owner",
        "publishing",
        "replies",
        "settling",
        "state",
        "user",
    )

    handshake: Handshake
    publishing: Publishing

    def __init__(self, connection: Connection, broker: "Broker") -> None:
        super().__init__(connection)
        self.broker = broker
        self.user = ""
        self.owner = broker.new_owner("")
        self.state = State.STARTING
        self.channels: dict[int, Channel] = {}
        self.frame_bytes_max = min(broker.settings.frame_bytes_max, LOGIN_FRAME_BYTES_MAX)
        self.replies = Replies(self)
        self.settling = Settling(broker.counts)
        self.current: Channel | None = None
        self._channel_max = broker.settings.channels_max
        self._heartbeat_seconds = 0
        self._heard = connection.now
        self._index = 0  # of the method that is being handled
        self._waits_to_deal = False
        broker.sessions.add(self)
        self.due(Due.LOGIN, connection.now + broker.settings.login_seconds)

    def drain(self) -> None:
        if self.state in (State.OPEN, State.OPENING, State.TUNING):
            self._close(Refusal(Code.CONNECTION_FORCED, "the broker stops"))

    def _on_connection(self, kind: int, payload: bytes) -> None:
        if kind != METHOD:
            raise Refusal(Code.UNEXPECTED_FRAME, "content on channel 0")
        self._index = int.from_bytes(payload[:4], "big")
        if self.state is State.CLOSING and self._index not in (
            commands.Connection.Close.index,
            commands.Connection.CloseOk.index,
        ):
            return
        method, _ = decode_untrusted(payload, CONNECTION_FIELDS_MAX)
        match method:
            case commands.Connection.StartOk() if self.state is State.STARTING:
                self.handshake.start_ok(method)
            case commands.Connection.TuneOk() if self.state is State.TUNING:
                self.handshake.tune_ok(method)
            case commands.Connection.Open() if self.state is State.OPENING:
                self.handshake.open(method)
            case commands.Connection.Close() if self.state is not State.STARTING:
                self.step(Event.CLOSE)
                self._silence()
                self._release()
                self.replies.reply(encode(commands.Connection.CloseOk(), 0))
                self.quiet()
            case commands.Connection.CloseOk() if self.state is State.CLOSING:
                self.step(Event.CLOSE_OK)
                self.quiet()
            case _:
                raise Refusal(Code.COMMAND_INVALID, f"{method.name} on channel 0 while {self.state.value}")

    def reply(self, data: bytes, ticket: Ticket | None = None) -> None:
        if ticket is None:
            self.replies.reply(data)
        else:
            self.replies.reply_after(ticket, data)
        if self.replies.full:
            self.stop(Stop.OWED)

    def consumer_cancelled(self, channel: Channel, consumer: Consumer) -> None:
        """By the broker: its queue is gone."""
        self.broker.counts.consumers -= 1
        if self.handshake.capabilities.get("consumer_cancel_notify"):
            channel.send(encode(commands.Basic.Cancel(consumer.tag.decode(), True), channel.number))

    def channel_closed(self, channel: Channel) -> None:
        """Its client has closed it."""
        channel.step(ChannelEvent.CLOSE)
        channel.fall_silent()
        self._release_channels((channel,))
        del self.channels[channel.number]
        channel.reply(commands.Channel.CloseOk())

    def step(self, event: Event) -> None:
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise LocalProtocolError(f"{event.name} while {self.state.name}")
        self.state = after

    def refused_login(self, *, tell: bool) -> None:
        """`tell`: the client wants to hear why; the specification has the socket closed without a word."""
        refusal = Refusal(Code.ACCESS_REFUSED, "login was refused using authentication mechanism PLAIN")
        self.broker.log.info("amqp login refused", peer=self.connection.peer)
        if tell:
            self._close(refusal)
        else:
            self.step(Event.WRONG_LOGIN)
            self.quiet()

    def tuned(self, channel_max: int, frame_bytes_max: int, heartbeat_seconds: int) -> None:
        self._channel_max = channel_max
        self.frame_bytes_max = frame_bytes_max
        self._heartbeat_seconds = heartbeat_seconds
        if heartbeat_seconds:
            self.due(Due.BEAT, self.connection.now + heartbeat_seconds / 2)
            self.due(Due.SILENCE, self.connection.now + heartbeat_seconds * 2)

    def opened(self) -> None:
        self.due(Due.LOGIN, float("inf"))
        self.owner.user = self.user
        self.broker.counts.connections += 1

    def quiet(self) -> None:
        """Close where that is all there is left to do, and nothing is owed any more."""
        if self.state is State.ENDED and not self.lost:
            if self.replies.owed:
                self.replies.when_empty(self.quiet)
            elif not any(channel.owes_confirms for channel in self.channels.values()):
                self.connection.finish()

    def _refused(self, refusal: Refusal) -> None:
        self.broker.counts.refused(refusal.code.name)
        self.broker.log.info("amqp refused", peer=self.connection.peer, error=str(refusal))
        if self.state is State.CLOSING:
            self.step(Event.END)  # it cannot even close
            self.quiet()
            return
        channel = self.current
        if refusal.closes_connection or channel is None:
            self._close(refusal)
            return
        close = commands.Channel.Close(
            int(refusal.code), refusal.reply_text.decode(), self._index >> 16, self._index & 0xFFFF
        )
        channel.fall_silent()
        channel.reply(close)
        channel.step(ChannelEvent.REFUSED)
        self._release_channels((channel,))

    def _close(self, refusal: Refusal) -> None:
        """Say why, and wait for the peer to agree."""
        close = commands.Connection.Close(
            int(refusal.code), refusal.reply_text.decode(), self._index >> 16, self._index & 0xFFFF
        )
        self._silence()
        self.replies.reply(encode(close, 0))
        self.step(Event.REFUSED)
        self._release()
        self.due(Due.CLOSE, self.connection.now + CLOSE_SECONDS)

    def _silence(self) -> None:
        """Deliveries and confirms are not sent any more."""
        for channel in self.channels.values():
            channel.fall_silent()

    def _release_channels(self, channels: Sequence[Channel]) -> None:
        self.settling.settle_now()
        self.publishing.forget()
        self.broker.counts.channels -= len(channels)
        release(self.broker, channels)

    def _release(self) -> None:
        """Everything that depends on this connection goes; once."""
        if self not in self.broker.sessions:
            return
        self.broker.sessions.discard(self)
        if self.user and self.owner.user:
            self.broker.counts.connections -= 1
        self._release_channels(
            [channel for channel in self.channels.values() if channel.state is not ChannelState.CLOSING]
        )
        self.owner.release()
        self.forget_deadlines()
        if self._stops & Stop.OTHERS:  # the dialog of its end may be in what was read and not applied
            self.due(Due.SOON, self.connection.now)

    def _end(self) -> None:
        if self.state is not State.ENDED:
            self.step(Event.END)
            self._release()
        self.quiet()

    def store_failed(self, error: StoreError, reply: bytes, count: int) -> bytes:
        """A declaration or deletion did not reach the disk: nothing behind it can be trusted."""
        refusal = Refusal(Code.INTERNAL_ERROR, str(error) or "the store takes no writes")
        if self.state is State.OPEN:
            self._index = 0
            self._close(refusal)
        return b""

    def _deal_again(self) -> None:
        self._waits_to_deal = False
        for channel in tuple(self.channels.values()):
            channel.deal()

    def _due_now(self, what: Due, now: float) -> None:
        if what is Due.BEAT:
            self.connection.write(HEARTBEAT_FRAME)
            self.due(Due.BEAT, now + self._heartbeat_seconds / 2)
        elif what is Due.SILENCE:
            silence = self._heartbeat_seconds * 2
            outbox = self.connection.outbox
            if self.stopped or outbox.size * 2 > outbox.bound:  # we may not have listened
                self._heard = now
            if now - self._heard >= silence:
                self.broker.counts.heartbeats_missed += 1
                self.connection.abort("missed heartbeats")
            else:
                self.due(Due.SILENCE, self._heard + silence)
        else:
            self.broker.counts.too_late += what is not Due.CLOSE
            self._end()

    def replies_full(self, full: bool) -> None:
        if not full:
            self.go(Stop.OWED)
