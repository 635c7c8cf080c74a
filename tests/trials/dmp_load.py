"""An AMQP 0-9-1 load on durable queues, and a record of all that was published, confirmed and delivered.

Publishers with one or many publishes in flight, each confirmed; consumers that acknowledge (one, or all so
far), give back, or keep what they get, and now and then publish a mark, whose confirm says that what they had
acknowledged before was taken. What can be judged while the server lives is judged at once: nothing is
delivered while somebody holds it, or after an acknowledgement was sent for it.
"""

import random
import socket
import time
from collections import deque
from collections.abc import Sequence

import attrs
from pamqp import base, body, commands
from pamqp.header import ContentHeader

from dmp.amqp.wire import encode
from dmp.wire import AMQP_HEADER
from tests.dmp.amqp_peer import decoded, publish, start_ok
from tests.dmp.world import PERSISTENT
from tests.trials.dmp_ledger import ARGUMENTS, EXCHANGE, FANOUT, KEYED, LATER, ONCE, DmpBook
from tests.trials.payloads import Payloads
from tests.trials.peers import Asked, PeersLoad, RawPeer, burst, sampled
from tests.trials.queue_ledger import Message, QueueBook, Step

_HELD_MAX = 200
_PART_BYTES = 60_000
_FRAME_END = 8
_MARKS = "marks"
_CONSUMED = ("orders", "mails", "audit", LATER, ONCE)
_WITH_ARGUMENTS = tuple([(name,) for name in ARGUMENTS])
_KEYS = ("", *[f"k{number}" for number in range(12)])
DELAYS_MS = (0, 10, 50, 250)
LATE_SECONDS = 0.1
"""So late a message with a delay may be on a busy machine."""

LOGIN = AMQP_HEADER + b"".join(
    encode(method, channel)
    for method, channel in (
        (start_ok(), 0),
        (commands.Connection.TuneOk(0, 0, 0), 0),
        (commands.Connection.Open("/"), 0),
        (commands.Channel.Open(), 1),
        (commands.Confirm.Select(), 1),
    )
)
_CLOCKS_SECONDS = 0.002
"""A delay is one of the wall clock, in whole milliseconds, and we look at another."""
_EXPECTED = (
    commands.Connection.Start,
    commands.Connection.Tune,
    commands.Connection.OpenOk,
    commands.Channel.OpenOk,
    commands.Confirm.SelectOk,
    commands.Basic.QosOk,
    commands.Basic.ConsumeOk,
)


def _with_header(name: str, value: int | str) -> bytes:
    """The properties of a persistent message with this header."""
    if isinstance(value, str):
        field = b"S" + len(value).to_bytes(4, "big") + value.encode()
    else:
        field = b"I" + value.to_bytes(4, "big")
    table = bytes([len(name)]) + name.encode() + field
    return b"\x30\0" + len(table).to_bytes(4, "big") + table + b"\x02"


@attrs.define(eq=False)
class AmqpPeer(RawPeer):
    """A connection with one channel, in confirm mode."""

    _book: DmpBook
    _payloads: Payloads
    _source: random.Random
    _tag: int = attrs.field(default=0, init=False)
    _unconfirmed: deque[tuple[int, list[Message], Sequence[Message]]] = attrs.field(factory=deque, init=False)
    """Delivery tag, the messages that were published, what had been acknowledged before."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._out += LOGIN

    def publish(self, queues: Sequence[str], now: float, acked: Sequence[Message] = ()) -> None:
        content, properties = self._payloads.raw(self.name), PERSISTENT
        if queues == (LATER,):
            delay_ms = self._source.choice(DELAYS_MS)
            self._book.earliest[content] = now + delay_ms / 1000
            properties = _with_header("x-delay", delay_ms)
        if queues[0] in KEYED:
            key = self._source.choice(_KEYS)
            properties = _with_header("x-key", key) if key else PERSISTENT
            messages = self._book.send_keyed(content, queues[0], key, self.name, now)
        elif queues == (ONCE,):
            name, messages = self._named(content, now)
            properties = _with_header("x-deduplication-header", name)
        else:
            messages = self._book.send(content, queues, self.name, now)
        self._tag += 1
        self._unconfirmed.append((self._tag, messages, acked))
        exchange, key = ("", queues[0]) if len(queues) == 1 else (EXCHANGE, "")
        self._out += publish(exchange, key, content, properties=properties, part=_PART_BYTES)

    def _named(self, content: bytes, now: float) -> tuple[str, list[Message]]:
        """A name, and the message that is to come of it: none where one of the name was confirmed."""
        named = self._book.named
        if named and self._source.random() < 0.5:
            name, first = self._source.choice(named)
            if first.acknowledged:
                return name, []
        name, messages = f"n{self._book.places}", self._book.send(content, (ONCE,), self.name, now)
        named.append((name, messages[0]))
        return name, messages

    def account(self, now: float) -> None:
        end = whole_frames(self._in)
        data = bytes(self._in[:end])
        del self._in[:end]
        for _, value in decoded(data):
            self.take(value, now)

    def take(self, value: base.Frame | ContentHeader | body.ContentBody, now: float) -> None:
        match value:
            case commands.Basic.Ack():
                self._confirmed(value.delivery_tag, value.multiple, now)
            case commands.Basic.Nack() | commands.Connection.Close() | commands.Channel.Close():
                self.refusals.append((now, f"{self.name}: {value.name} {dict(value)}"))
                if isinstance(value, commands.Basic.Nack):
                    self._refused(value.delivery_tag, value.multiple, now)
            case _ if not isinstance(value, _EXPECTED):
                self.faults.append(f"{self.name}: a {value.name} that was not asked for")

    def _confirmed(self, tag: int, multiple: bool, now: float) -> None:
        waiting = self._unconfirmed
        if (
            not waiting
            or tag < waiting[0][0]
            or tag > waiting[-1][0]
            or not (multiple or tag == waiting[0][0])
        ):
            self.faults.append(f"{self.name}: a confirm of {tag}, with {len(waiting)} publishes unconfirmed")
            return
        while waiting and waiting[0][0] <= tag:
            _, messages, acked = waiting.popleft()
            for message in messages:
                message.answered = now
            for message in acked:
                assert message.ack is not None
                message.ack.answered = now

    def _refused(self, tag: int, multiple: bool, now: float) -> None:
        """Nobody promises anything of these publishes; the confirms of the others go on without them."""
        others = deque[tuple[int, list[Message], Sequence[Message]]]()
        for each in self._unconfirmed:
            first, messages, _ = each
            if first == tag or (multiple and first < tag):
                for message in messages:
                    message.answered, message.refused = now, f"Basic.Nack {tag}"
            else:
                others.append(each)
        self._unconfirmed = others


@attrs.define(eq=False)
class Publisher(AmqpPeer):
    """`window`: publishes in flight at most."""

    _window: int

    def fill(self, now: float) -> None:
        for _ in range(burst(self._window, len(self._unconfirmed))):
            queues = self._source.choice((("orders",), ("mails",), (LATER,), FANOUT, *_WITH_ARGUMENTS))
            self.publish(queues, now)


@attrs.frozen
class RequestMix:
    """The weights say what is done with a message; `prefetch`: how many it may have."""

    prefetch: int
    ack: float = 10.0
    ack_all: float = 0.5
    nack: float = 1.0
    hold: float = 1.0


REQUEST_MIXES = (RequestMix(1), RequestMix(16, nack=5), RequestMix(100, ack_all=5), RequestMix(64, hold=10))


@attrs.define(eq=False)
class Consumer(AmqpPeer):
    """Takes from one queue."""

    _queue: QueueBook
    _mix: RequestMix
    _held: dict[int, Message] = attrs.field(factory=dict, init=False)
    _acked: list[Message] = attrs.field(factory=list, init=False)
    _coming: tuple[int, int, list[bytes]] = attrs.field(factory=lambda: (0, 0, []), init=False)
    """Delivery tag, bytes that are missing, and parts, of the message whose frames come."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._out += encode(commands.Basic.Qos(0, self._mix.prefetch, False), 1)
        self._out += encode(commands.Basic.Consume(queue=self._queue.name), 1)

    def fill(self, now: float) -> None:
        full = len(self._held) >= min(self._mix.prefetch, _HELD_MAX)
        if full or (self._held and self._queue.name in KEYED and self._source.random() < 0.1):
            self._ack(next(iter(self._held)), multiple=False)
        if len(self._acked) >= 20 and len(self._unconfirmed) < 4:
            acked, self._acked = self._acked, []
            self.publish((_MARKS,), now, acked)

    def take(self, value: base.Frame | ContentHeader | body.ContentBody, now: float) -> None:
        tag, missing, parts = self._coming
        match value:
            case commands.Basic.Deliver():
                self._coming = value.delivery_tag or 0, 0, []
            case ContentHeader():
                self._coming = tag, value.body_size, []
                if not value.body_size:
                    self._delivered(tag, b"", now)
            case body.ContentBody():
                parts.append(value.value)
                missing -= len(value.value)
                self._coming = tag, missing, parts
                if not missing:
                    self._delivered(tag, b"".join(parts), now)
            case _:
                super().take(value, now)

    def _delivered(self, tag: int, content: bytes, now: float) -> None:
        name = self._queue.name
        message = self._queue.messages.get(content)
        if message is None:
            self.faults.append(f"{name}: delivered, not as anybody sent it: {content[:48]!r}")
            return
        early = self._book.earliest.get(content, now) - now
        if early > _CLOCKS_SECONDS:
            self.faults.append(f"{name}: delivered {early:.3f} s before its time: {content[:48]!r}")
        # A server that ends gives to others what it takes back from who has not heard of it yet, and may not
        # have read what he had acknowledged: no fault after the cut.
        if message.held:
            self.refusals.append((now, f"{name}: delivered while it is held: {message.key[:48]!r}"))
        elif message.ack is not None:
            text = f"{name}: delivered after an acknowledgement was sent: {message.key[:48]!r}"
            self.refusals.append((now, text))
        if name in KEYED:
            self.refusals += [(now, text) for text in self._book.deliver_keyed(name, message)]
        message.shown = now if message.shown is None else message.shown
        message.held = True
        self._held[tag] = message
        mix = self._mix
        weights = mix.ack, mix.ack_all, mix.nack, mix.hold
        (way,) = self._source.choices(("ack", "all", "nack", "hold"), weights)
        if way == "nack":
            del self._held[tag]
            message.held = False
            if name in KEYED:
                self._book.settle_keyed(name, message, acked=False)
            self._out += encode(commands.Basic.Nack(tag, False, True), 1)
        elif way != "hold":
            self._ack(tag, multiple=way == "all")

    def _ack(self, tag: int, *, multiple: bool) -> None:
        for each in [held for held in self._held if held == tag or (multiple and held < tag)]:
            message = self._held.pop(each)
            message.held, message.ack = False, Asked(time.monotonic())
            self._acked.append(message)
            if self._queue.name in KEYED:
                self._book.settle_keyed(self._queue.name, message, acked=True)
        self._out += encode(commands.Basic.Ack(tag, multiple), 1)


class DmpLoad(PeersLoad):
    """Publishers and consumers, on one server."""

    def __init__(self, address: tuple[str, int], book: DmpBook, source: random.Random) -> None:
        payloads = Payloads(source)
        if book.mode != "always" or any(not queue.asked_position for queue in book.queues.values()):
            _declare(address, book)
        peers: list[RawPeer] = []
        for number, window in sampled(source, (1, 16, 64, 128)):
            peers.append(Publisher(address, f"writer-{number}", book, payloads, source, window))
        for number, mix in sampled(source, REQUEST_MIXES):
            queue = book.queues[source.choice(_CONSUMED)]
            peers.append(Consumer(address, f"reader-{number}", book, payloads, source, queue, mix))
        queue = book.queues[source.choice([*KEYED])]
        for number, mix in sampled(source, REQUEST_MIXES, 2):
            peers.append(Consumer(address, f"taker-{number}", book, payloads, source, queue, mix))
        super().__init__(peers)


def _declare(address: tuple[str, int], book: DmpBook) -> None:
    with Asking(address) as asking:
        for name, queue in book.queues.items():
            declare = commands.Queue.Declare(queue=name, durable=True, arguments={**ARGUMENTS.get(name, {})})
            asking.ask(declare, commands.Queue.DeclareOk)
            if not queue.asked_position:
                queue.steps.append(Step(time.monotonic(), time.monotonic(), position=1))
        asking.ask(
            commands.Exchange.Declare(0, EXCHANGE, "fanout", durable=True), commands.Exchange.DeclareOk
        )
        for name in FANOUT:
            asking.ask(commands.Queue.Bind(0, name, EXCHANGE, ""), commands.Queue.BindOk)


class Asking:
    """A connection on which one thing after the other is asked, as far as an open channel 1."""

    def __init__(self, address: tuple[str, int], seconds: float = 30.0) -> None:
        self._socket = socket.create_connection(address, timeout=seconds)
        self._in = bytearray()
        self._values: deque[base.Frame | ContentHeader | body.ContentBody] = deque()
        self.send(LOGIN)
        while not isinstance(self.next(), commands.Confirm.SelectOk):
            pass

    def __enter__(self) -> "Asking":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def next(self) -> base.Frame | ContentHeader | body.ContentBody:
        while not self._values:
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionResetError("the server has closed the connection")
            self._in += data
            end = whole_frames(self._in)
            self._values.extend(value for _, value in decoded(bytes(self._in[:end])))
            del self._in[:end]
        return self._values.popleft()

    def ask(self, method: base.Frame, answer: type[base.Frame], channel: int = 1) -> None:
        """Raises ValueError for another answer."""
        self.send(encode(method, channel))
        found = self.next()
        if not isinstance(found, answer):
            said = dict(found) if isinstance(found, base.Frame) else ""
            raise ValueError(f"{method.name}: {found.name} {said}")


def whole_frames(data: bytearray) -> int:
    """Where the last whole frame ends."""
    at = 0
    while at + 7 <= len(data):
        end = at + int.from_bytes(data[at + 3 : at + 7], "big") + _FRAME_END
        if end > len(data):
            break
        at = end
    return at
