"""One AMQP connection: how it begins, its frames in order, and how it ends.

Theory of operation. A read often brings hundreds of frames, and `apply` goes through all that is whole in
one stretch. Two kinds have a fast path: publishes are taken as runs (`publishing`), and of acknowledgements
only the tag is unpacked (`AmqpChannels.take_acks`). Every other method is decoded, and answered by its
function in `methods`.

*Faults.* A `Refusal` closes its channel or the connection, as its code says, by the specification's dialog.
What cannot be framed at all gets no answer: the connection closes.

Source: PROTOCOL.md. The states are those of `states`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pamqp import commands

from dmp.amqp import wire
from dmp.amqp.channel import CHANNEL_BYTES, AmqpChannels, Channel
from dmp.amqp.content import LARGE, Content
from dmp.amqp.methods import HANDLERS, NotYet
from dmp.amqp.publishing import PUBLISH_INDEX
from dmp.amqp.states import TRANSITIONS, ChannelEvent, ChannelState, Event, State
from dmp.amqp.wire import ACK, FRAME_END, FRAME_HEAD, FRAME_OVERHEAD, METHOD, PUBLISH, encode
from dmp.data_types import check_table, read_field
from dmp.memory import check
from dmp.pacing import OWN_STOP_WORDS, STOP_MEMORY, STOP_READY, STOP_WORK, stop_until
from dmp.refusals import Code, Refusal, refused_by_store, said_of, shown
from dmp.settings import LOCAL
from shared.access import ANONYMOUS
from shared.errors import RemoteProtocolError, StoreError
from shared.net.connection import Connection
from shared.net.session import SessionBase
from shared.net.stops import Stop
from shared.objects import client_name
from shared.turns import ITEMS

if TYPE_CHECKING:
    from dmp.broker import Broker

# A frame before tune-ok, when nobody knows yet who sends it. RabbitMQ's; the specification wants 4096.
LOGIN_FRAME_BYTES_MAX = 8192
CONNECTION_FIELDS_MAX = 256  # in the table of what a client says of itself: clients send some twenty fields
# For the peer's close-ok.
CLOSE_SECONDS = 5.0
FRAME_BYTES_MIN = 4096
VHOST = "/"

_END = FRAME_END[0]
_LOOPBACK = ("127.", "[::1]", "memory")
_CAPABILITIES = dict.fromkeys(
    (
        *("publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify"),
        *("connection.blocked", "authentication_failure_close", "consumer_priorities", "per_consumer_qos"),
        "direct_reply_to",
    ),
    True,
)

# What a deadline is for, beside LARGE: a large body has not come nearer its end.
BEAT, SILENCE, LOGIN, CLOSE = range(4)


class AmqpSession(SessionBase):
    """The server's side of one connection."""

    __slots__ = (
        "__weakref__",
        "_channel_max",
        "_heard",
        "_heartbeat_seconds",
        "_name",
        "broker",
        "mux",
        "state",
    )
    stop_words = OWN_STOP_WORDS

    def __init__(self, connection: Connection, broker: Broker, open_until: float) -> None:
        """`open_until`: when it must be open."""
        settings = broker.settings
        super().__init__(connection, settings.frame_seconds)
        self.broker = broker
        self.state = State.STARTING
        self.mux = AmqpChannels(self, broker, self._refuse)
        self.mux.payload_max = min(settings.frame_bytes_max, LOGIN_FRAME_BYTES_MAX) - FRAME_OVERHEAD
        self._name = ""  # that the client logged in by; `user` says whose rules count
        self._channel_max = settings.channels_max
        self._heartbeat_seconds = 0
        self._heard = connection.now
        self.identity.admit(broker.access)
        connection.on_drained = self.drained
        self.deadline(LOGIN, open_until)
        mechanisms = "PLAIN AMQPLAIN EXTERNAL" if connection.certificate_user else "PLAIN AMQPLAIN"
        connection.write(_start(settings.prefer_direct, mechanisms))

    # -- the driver's calls, beside those of the base

    def receive(self, data: bytes) -> None:
        self._heard = self.connection.now
        super().receive(data)

    def apply(self, data: bytes, at: int) -> int:
        mux = self.mux
        while True:
            try:
                at = self._take(data, at)
                break
            except Refusal as refusal:
                at = mux.at
                self._refuse(refusal)
        mux.end_stretch()
        if self.state is State.OPEN:
            self.stop_if_congested(self.broker.store)
        if at < len(data):
            head_bytes = FRAME_HEAD.size
            whole = len(data) - at >= head_bytes
            self.need(FRAME_HEAD.unpack_from(data, at)[2] + FRAME_OVERHEAD if whole else head_bytes)
        elif mux.current is not None and mux.current.content is not None:
            self.connection.await_rest()  # of a publish whose frames are written one by one
        return at

    def hang_up(self) -> None:
        super().hang_up()
        self.mux.dispatching = False

    def input_ended(self) -> None:
        """Pending answers are still sent; deliveries are not."""
        self._end(Event.END)

    def on_wire_error(self, error: RemoteProtocolError) -> None:
        """The peer is told nothing: by the specification (4.2.3) such a connection closes without another
        word."""
        self.broker.counts.refusals[Code.FRAME_ERROR.name] += 1

    def too_late(self) -> None:
        self.broker.closed_late(self.connection.peer, "the rest of a frame")
        self._end(Event.END)

    def due(self, what: int, now: float) -> None:
        if what == BEAT:
            self.connection.write(wire.HEARTBEAT_FRAME)
            self.deadline(BEAT, now + self._heartbeat_seconds / 2)
        elif what == SILENCE:
            silence = self._heartbeat_seconds * 2
            outbox = self.connection.outbox
            if self.stopped or outbox.size * 2 > outbox.bound:  # we may not have listened
                self._heard = now
            if now - self._heard >= silence:
                self.broker.counts.heartbeats_missed += 1
                self.connection.abort("missed heartbeats")
            else:
                self.deadline(SILENCE, self._heard + silence)
        elif what == LARGE:
            incoming = self.mux.incoming
            if incoming.large and self.stopped:  # it is not the peer that is late
                incoming.large_progressed()
            elif incoming.large:
                self.broker.counts.too_late += 1
                self.mux.current, self.mux.index = None, PUBLISH_INDEX
                self._refuse(Refusal(Code.RESOURCE_ERROR, "a large body took too long to come"))
        else:
            if what == LOGIN:
                self.broker.closed_late(self.connection.peer, "connection.open")
            self._end(Event.END)

    def drained(self) -> None:
        super().drained()
        self.mux.dispatch()

    def drain(self) -> None:
        """The broker stops."""
        if self.state in (State.OPEN, State.OPENING, State.TUNING):
            self._close(Refusal(Code.CONNECTION_FORCED, "the broker stops"))

    # -- frames

    def _take(self, data: bytes, at: int) -> int:
        """Raises Refusal, with `mux.at` behind the frame that is refused."""
        mux, outbox = self.mux, self.connection.outbox
        end, head_bytes = len(data), FRAME_HEAD.size
        while not self.stopped and self.state is not State.ENDED:
            if self.state is State.OPEN:
                index = data[at + head_bytes : at + head_bytes + 4]
                if index == PUBLISH and not mux.memory.full:
                    at = mux.publishing.take_runs(data, at)
                elif index == ACK:
                    at = mux.take_acks(data, at)
                if self.stopped:
                    break
            if end - at < head_bytes:
                break
            kind, number, size = FRAME_HEAD.unpack_from(data, at)
            stop = at + head_bytes + size
            if kind not in wire.KINDS:
                raise RemoteProtocolError(f"a frame of type {kind}, which AMQP 0-9-1 does not have")
            if size > mux.payload_max:
                mux.at = end
                frame_max = mux.payload_max + FRAME_OVERHEAD
                text = f"a frame of {size + FRAME_OVERHEAD} bytes, frame_max is {frame_max}"
                raise Refusal(Code.FRAME_ERROR, text)
            if stop >= end:
                break
            if data[stop] != _END:
                text = f"a frame of {size} bytes ends with {data[stop]:#04x}, not with 0xce"
                raise RemoteProtocolError(text)
            payload = data[at + head_bytes : stop]
            if mux.memory.full and self.state is State.OPEN and mux.keeps_back(kind, number, payload):
                break
            mux.at = stop + 1
            mux.end_turn_in_time(1 if kind != METHOD else ITEMS)
            if kind == METHOD and not payload.startswith(PUBLISH):
                mux.settle_now()
                if self.stopped & STOP_WORK:
                    break
            try:
                self._frame(kind, number, payload)
            except NotYet as wait:
                stop_until(self, STOP_READY, wait.when)
                break
            at = stop + 1
            if outbox.size > outbox.bound:
                self.pause_input(Stop.OUTBOX)
        return end if self.state is State.ENDED else at

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        """Raises Refusal."""
        if kind == wire.HEARTBEAT:
            if number:
                raise Refusal(Code.UNEXPECTED_FRAME, "a heartbeat on a channel")
            if payload:
                raise Refusal(Code.FRAME_ERROR, "a heartbeat with a payload")
            return
        self.mux.current = None
        if number == 0:
            self._on_connection(kind, payload)
            return
        if self.state is State.CLOSING:
            return
        if self.state is not State.OPEN:
            raise Refusal(Code.COMMAND_INVALID, f"channel {number} before connection.open")
        channel = self.mux.current = self.mux.by_number.get(number)
        if channel is not None and channel.state is ChannelState.CLOSING:
            if kind == METHOD:
                self._while_closing(channel, payload)
        elif kind == METHOD:
            self.mux.index = int.from_bytes(payload[:4], "big")
            self._method(channel, number, payload)
        elif channel is None:
            raise Refusal(Code.CHANNEL_ERROR, f"content on channel {number}, which is not open")
        elif kind == wire.HEADER:
            if channel.take_header(*wire.header_untrusted(payload)):
                self._published(channel, b"")
        else:
            body = channel.take_body(payload)
            if body is not None:
                self._published(channel, body)

    def _method(self, channel: Channel | None, number: int, payload: bytes) -> None:
        """Raises Refusal, NotYet."""
        if payload[:4] == PUBLISH and channel is not None and channel.state is ChannelState.OPEN:
            channel.content = Content(*wire.publish_untrusted(payload))
            channel.step(ChannelEvent.PUBLISH)
            return
        method = wire.decode_untrusted(payload)
        handler = HANDLERS.get(type(method))
        if handler is None:
            raise Refusal(Code.COMMAND_INVALID, f"{method.name} is not for a server")
        if channel is None:
            if isinstance(method, commands.Channel.Open):
                self._open_channel(number)
            elif not isinstance(
                method, commands.Channel.CloseOk
            ):  # which answers a close that its own crossed
                raise Refusal(Code.CHANNEL_ERROR, f"{method.name} on channel {number}, which is not open")
            return
        if channel.state is not ChannelState.OPEN:
            raise Refusal(Code.UNEXPECTED_FRAME, f"{method.name} while {channel.state.value}")
        try:
            handler(channel, method)
        except StoreError as error:
            raise refused_by_store(error) from error

    def _open_channel(self, number: int) -> None:
        if len(self.mux.by_number) >= self._channel_max:  # clients number them as they like, as with RabbitMQ
            text = f"number of channels opened has reached the negotiated channel_max ({self._channel_max})"
            raise Refusal(Code.NOT_ALLOWED, text)
        if self.mux.by_number:  # the first always fits, so that somebody can take what fills memory
            check(self.broker.accounts.connections, CHANNEL_BYTES, Code.RESOURCE_ERROR, user=self.user)
        self.broker.accounts.connections.charge(CHANNEL_BYTES, self.user)
        channel = self.mux.by_number[number] = Channel(self.mux, number)
        self.broker.counts.channels += 1
        channel.reply(commands.Channel.OpenOk())

    def _while_closing(self, channel: Channel, payload: bytes) -> None:
        """Everything but the end of the dialog is thrown away."""
        index = int.from_bytes(payload[:4], "big")
        if index == commands.Channel.CloseOk.index:
            channel.step(ChannelEvent.CLOSE_OK)
            self.mux.delivered_before += channel.delivered
            del self.mux.by_number[channel.number]
        elif index == commands.Channel.Close.index:  # they cross
            channel.reply(commands.Channel.CloseOk())

    def _published(self, channel: Channel, body: bytes) -> None:
        """A publish that came frame by frame is whole."""
        content, channel.content = channel.content, None
        assert content is not None
        assert content.head is not None
        self.mux.index = PUBLISH_INDEX
        publishing = self.mux.publishing
        if content.failed:
            publishing.refuse(channel, 1, content.failed)
            return
        template = publishing.remember(channel, content, content.head)
        try:
            publishing.publish(template, (body,))
        finally:
            if content.head.large:
                self.broker.bodies.let_go(body)

    # -- the connection's own methods: it begins

    def _on_connection(self, kind: int, payload: bytes) -> None:
        """Raises Refusal."""
        if kind != METHOD:
            raise Refusal(Code.UNEXPECTED_FRAME, "content on channel 0")
        self.mux.index = int.from_bytes(payload[:4], "big")
        if self.state is State.CLOSING and self.mux.index not in (
            commands.Connection.Close.index,
            commands.Connection.CloseOk.index,
        ):
            return
        method = wire.decode_untrusted(payload, CONNECTION_FIELDS_MAX)
        match method:
            case commands.Connection.StartOk() if self.state is State.STARTING:
                self._start_ok(method)
            case commands.Connection.TuneOk() if self.state is State.TUNING:
                self._tune_ok(method)
            case commands.Connection.Open() if self.state is State.OPENING:
                self._open(method)
            case commands.Connection.UpdateSecret() if self.state is State.OPEN:
                self._update_secret(method)
            case commands.Connection.Close() if self.state is not State.STARTING:
                self.state = TRANSITIONS[self.state][Event.CLOSE]
                self.mux.fall_silent()
                self.let_go()
                self.reply(encode(commands.Connection.CloseOk(), 0))
                self._end(Event.CLOSE)
            case commands.Connection.CloseOk() if self.state is State.CLOSING:
                self._end(Event.CLOSE_OK)
            case _:
                raise Refusal(Code.COMMAND_INVALID, f"{method.name} on channel 0 while {self.state.value}")

    def _start_ok(self, method: commands.Connection.StartOk) -> None:
        mechanism = method.mechanism
        if mechanism not in _PASSWORDS and not (mechanism == "EXTERNAL" and self.connection.certificate_user):
            known = " or ".join(_PASSWORDS)
            raise Refusal(Code.COMMAND_INVALID, f"mechanism {shown(mechanism.encode())} is not {known}")
        found = method.client_properties.get("capabilities")
        able = found if isinstance(found, dict) else {}
        own = method.client_properties
        self.mux.product = own.get("product")
        self.mux.client = client_name(own.get("connection_name") or own.get("product"))
        self.mux.capabilities = {name: bool(able.get(name)) for name in _CAPABILITIES}
        by_certificate = self.user if self.user not in ("", ANONYMOUS) else ""
        if mechanism == "EXTERNAL":
            self._logged_in(by_certificate, mechanism, bool(by_certificate))
            return
        response: str | bytes = method.response  # bytes where it is not UTF-8
        said = _PASSWORDS[mechanism](response.encode() if isinstance(response, str) else response)
        if said is None:
            self._logged_in("", mechanism, False)
            return
        name, password = said[0].decode(errors="replace"), said[1]
        access, near = self.broker.access, self.connection.peer.startswith(_LOOPBACK)
        is_guest = (name, password) == (LOCAL, LOCAL.encode())  # what clients say that were told nothing
        if is_guest and by_certificate:
            self._logged_in(by_certificate, mechanism, True)
        elif access is None or not access.has_users:
            self._logged_in(name, mechanism, self.broker.settings.users.allow(name, password, near=near))
        elif is_guest and near and not access.asks_login:
            self._logged_in(name, mechanism, True)
        else:
            self.identity.log_in(
                name, password, functools.partial(self._logged_in, name, mechanism, counted=True)
            )

    def _logged_in(self, name: str, mechanism: str, fits: bool, *, counted: bool = False) -> None:
        """A login was looked at. `counted`: where it failed, the guard knows of it."""
        if not fits:
            access = self.broker.access
            if access is not None and not counted:
                access.login_failed(name, self.connection.peer)
            self.broker.counts.logins_refused += 1
            self.broker.log.info(
                "an AMQP login is refused: unknown user, wrong password, or guest from another machine; give "
                "the client a user of the users file",
                peer=self.connection.peer,
            )
            if self.mux.capabilities.get("authentication_failure_close"):
                text = f"login was refused using authentication mechanism {mechanism}"
                self._close(Refusal(Code.ACCESS_REFUSED, text))
            else:  # the specification has the socket closed without a word
                self._end(Event.WRONG_LOGIN)
            return
        self.state = TRANSITIONS[self.state][Event.START_OK]
        self._name = name
        settings = self.broker.settings
        tune = commands.Connection.Tune(
            settings.channels_max, settings.frame_bytes_max, settings.heartbeat_seconds
        )
        self.connection.write(encode(tune, 0))

    def _tune_ok(self, method: commands.Connection.TuneOk) -> None:
        settings = self.broker.settings
        channels, frame_bytes, heartbeat_seconds = method.channel_max, method.frame_max, method.heartbeat
        if channels > settings.channels_max:
            raise Refusal(Code.NOT_ALLOWED, f"channel_max {channels} is above {settings.channels_max}")
        if frame_bytes and not FRAME_BYTES_MIN <= frame_bytes <= settings.frame_bytes_max:
            limits = f"between {FRAME_BYTES_MIN} and {settings.frame_bytes_max}"
            raise Refusal(Code.NOT_ALLOWED, f"frame_max {frame_bytes} is not {limits}")
        self.state = TRANSITIONS[self.state][Event.TUNE_OK]
        self._channel_max = channels or settings.channels_max
        self.mux.payload_max = (frame_bytes or settings.frame_bytes_max) - FRAME_OVERHEAD
        self._heartbeat_seconds = heartbeat_seconds
        if heartbeat_seconds:
            self.deadline(BEAT, self.connection.now + heartbeat_seconds / 2)
            self.deadline(SILENCE, self.connection.now + heartbeat_seconds * 2)

    def _open(self, method: commands.Connection.Open) -> None:
        if method.virtual_host != VHOST:
            raise Refusal(Code.NOT_ALLOWED, f"vhost {shown(method.virtual_host.encode())} not found")
        self.state = TRANSITIONS[self.state][Event.OPEN]
        self.deadline(LOGIN, math.inf)
        self.mux.open(self._name)
        self.broker.counts.connections += 1
        self.connection.write(encode(commands.Connection.OpenOk(), 0))

    def _update_secret(self, method: commands.Connection.UpdateSecret) -> None:
        """A client has renewed its password: it is looked at as in a login, if one was."""
        secret: str | bytes = method.new_secret or ""  # bytes where it is not UTF-8
        if self.user in ("", ANONYMOUS, self.connection.certificate_user):
            self._secret_updated(True)
        else:
            password = secret.encode() if isinstance(secret, str) else secret
            self.identity.log_in(self.user, password, self._secret_updated)

    def _secret_updated(self, fits: bool) -> None:
        if self.state is not State.OPEN:
            return
        if fits:
            self.reply(encode(commands.Connection.UpdateSecretOk(), 0))
        else:
            self._close(Refusal(Code.NOT_ALLOWED, "the new secret is not the password of this user"))

    # -- what its user may do

    @property
    def traffic(self) -> Mapping[str, Any]:
        mux, channels = self.mux, self.mux.by_number.values()
        return {
            "messages_in": mux.published,
            "messages_out": mux.delivered_before + sum(channel.delivered for channel in channels),
            "held": sum(len(channel.unacked) for channel in channels),
            "client": mux.client or None,
            "state": "finishing" if self.state is State.CLOSING else None,  # the peer is yet to agree
        }

    def access_changed(self) -> None:
        super().access_changed()
        if self.state is State.OPEN:
            self.mux.access_changed()

    def close_for(self, reason: str) -> None:
        self.mux.owner.revoked = True
        super().close_for(reason)

    def kick(self, reason: str) -> None:
        if self.state is State.OPEN and not self.connection.outbox.size:  # it can still be told
            self.mux.owner.revoked = True
            self.mux.index = 0
            self._close(Refusal(Code.CONNECTION_FORCED, reason))
        else:
            self.close_for(reason)

    # -- it ends

    def _refuse(self, refusal: Refusal) -> None:
        """Close the channel of the frame that is being handled, or the connection, and say why."""
        self.broker.counts.refusals[refusal.code.name] += 1
        self.broker.log.info(
            "an AMQP request is refused: its channel or connection is closed; mend the client",
            peer=self.connection.peer,
            error=str(refusal),
        )
        channel = self.mux.current
        if self.state is State.CLOSING:
            self._end(Event.END)  # it cannot even close
        elif refusal.closes_connection or channel is None:
            self._close(refusal)
        else:
            channel.fall_silent()
            channel.reply(commands.Channel.Close(*self._reasons(refusal)))
            channel.step(ChannelEvent.REFUSED)
            self.mux.release((channel,))

    def _close(self, refusal: Refusal) -> None:
        """Say why, and wait for the peer to agree."""
        self.mux.fall_silent()
        self.reply(encode(commands.Connection.Close(*self._reasons(refusal)), 0))
        self.state = TRANSITIONS[self.state][Event.REFUSED]
        self.let_go()
        self.resume_next_turn(STOP_MEMORY)  # so that the peer's answer is read
        for what in (BEAT, SILENCE, LOGIN, LARGE):
            self.deadline(what, math.inf)
        self.deadline(CLOSE, self.connection.now + CLOSE_SECONDS)

    def _reasons(self, refusal: Refusal) -> tuple[int, str, int, int]:
        """What a close says: code, text, and the class and method that are refused."""
        index = self.mux.index
        return int(refusal.code), refusal.reply_text.decode(), index >> 16, index & 0xFFFF

    def _end(self, event: Event) -> None:
        """Nothing more is read; the connection closes once everything is answered."""
        if self.state is not State.ENDED:
            self.state = TRANSITIONS[self.state][event]
        self.end()
        self.mux.finish()

    def release(self) -> None:
        if self.mux.owner.user:
            self.broker.counts.connections -= 1
        self.mux.end()
        self.broker.flush()

    def store_failed(self, error: StoreError, reply: bytes, count: int) -> bytes:
        """A declaration or deletion did not reach the disk: nothing behind it can be trusted."""
        if self.state is State.OPEN:
            self.mux.index = 0
            self._close(Refusal(Code.INTERNAL_ERROR, said_of(error)))
        return b""


def _plain(response: bytes) -> tuple[bytes, bytes] | None:
    """Name and password; None where it is malformed."""
    fields = response.split(b"\0")
    return (fields[1], fields[2]) if len(fields) == 3 else None


def _amqplain(response: bytes) -> tuple[bytes, bytes] | None:
    """The same, from a table without its length: that of the response stands for it."""
    table = len(response).to_bytes(4, "big") + response
    try:
        check_table(table, 0, len(table), CONNECTION_FIELDS_MAX)
        said = [read_field(table, name) for name in (b"LOGIN", b"PASSWORD")]
    except Refusal:
        return None
    name, password = [text.encode() if isinstance(text, str) else text for text in said]
    return (name, password) if isinstance(name, bytes) and isinstance(password, bytes) else None


_PASSWORDS = {"PLAIN": _plain, "AMQPLAIN": _amqplain}


def _start(prefer_direct: bool, mechanisms: str) -> bytes:
    """Connection.Start, whole."""
    properties: dict[str, Any] = {
        "product": "Brokers",
        "version": _version(),
        "platform": "Python",
        "capabilities": _CAPABILITIES,
    }
    if prefer_direct:
        properties["direct"] = 1
    return encode(commands.Connection.Start(0, 9, properties, mechanisms, "en_US"), 0)


@functools.cache
def _version() -> str:
    """The package's; clients that compare versions need one where it runs from its source, too."""
    try:
        return importlib.metadata.version("brokers")
    except importlib.metadata.PackageNotFoundError:
        return "0"
