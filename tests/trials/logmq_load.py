"""A LogMQ load over several connections, and a record of all that was sent and answered.

Connections differ in mix: one request at a time, or up to 128 in flight; several write to the same topics;
each has a topic of its own that it deletes and makes again now and then.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Sequence

import attrs

from tests.support.promises import BrokenPromiseError
from tests.trials.logmq_model import (
    LENGTH_BYTES,
    Commitment,
    Deletion,
    Message,
    Model,
    Topic,
    joined,
    split,
)
from tests.trials.payloads import Payloads
from tests.trials.peers import PeersLoad, RawPeer, burst, sampled

_BATCH_RECORDS_MAX = 20
RETENTION_BYTES = 500_000
RETENTION_UNIT_BYTES = 420_000
"""What goes at once: the longest record here, where one fills an index entry by itself."""
KEPT = "retention"
"""In the names of topics of which no more than that is kept."""


class Ticks:
    """The time of a trial. `tick()` orders all that clients do and see."""

    def __init__(self) -> None:
        self._times = [time.monotonic()]
        self.on_answer: Callable[[], None] = lambda: None
        self.on_sight: Callable[[], None] = lambda: None

    def tick(self) -> int:
        self._times.append(self.now())
        return len(self._times) - 1

    def time_of(self, tick: int) -> float:
        return self._times[tick]

    def now(self) -> float:
        return time.monotonic()


@attrs.define(eq=False)
class Batch:
    """A BATCH of a writer. `data`: its records as they are to stand in the file."""

    topic: str
    writer: str
    seq: int
    data: bytes
    messages: Sequence[Message]

    @property
    def request(self) -> bytes:
        """As it goes over the wire, the first time and any other."""
        names = self.topic.encode(), self.writer.encode()
        return b"BATCH %s %s %d %d\n%s" % (*names, self.seq, len(self.data), self.data)


@attrs.define(eq=False)
class Book:
    """What is known of all topics of one data folder, kept in the trial's memory: no cut reaches it."""

    ticks: Ticks = attrs.field(factory=Ticks)
    model: Model = attrs.field(init=False)
    page: int = 0
    """The tick at which all was verified last."""
    there: set[str] = attrs.field(factory=set)
    """The topics that were there then."""
    groups: set[tuple[str, str]] = attrs.field(factory=set)
    """All that ever committed, by topic."""
    batches: dict[tuple[str, str], list[Batch]] = attrs.field(factory=dict)
    """By topic and writer, of the topic's present life and of this page."""
    _seqs: dict[tuple[str, str], int] = attrs.field(factory=dict)
    _wires: int = 0

    def __attrs_post_init__(self) -> None:
        self.model = Model(self.ticks)

    def open(self, name: str, kept_bytes: int | None = None) -> Topic:
        topic = self.model.topic(name)
        topic.kept_bytes = kept_bytes
        return topic

    def new_wire(self) -> int:
        """Of a connection: requests on one have an order."""
        self._wires += 1
        return self._wires

    def next_seq(self, topic: str, writer: str) -> int:
        self._seqs[topic, writer] = self._seqs.get((topic, writer), 0) + 1
        return self._seqs[topic, writer]


@attrs.frozen
class RequestMix:
    """How a connection behaves. `window`: requests in flight at most; the weights say what it sends."""

    window: int
    produce: float = 10.0
    append: float = 2.0
    batch: float = 0.5
    repeat: float = 0.2
    commit: float = 0.5
    delete: float = 0.05


REQUEST_MIXES = (
    RequestMix(window=1),
    RequestMix(window=1, produce=0, append=0, batch=5, repeat=1),
    RequestMix(window=128),
    RequestMix(window=64, delete=1, commit=1),
    RequestMix(window=16, batch=5, repeat=1, produce=2),
    RequestMix(window=8, produce=1, append=1, delete=4, batch=1),
)


Request = Sequence[Message] | Deletion | Commitment


@attrs.define(eq=False)
class Peer(RawPeer):
    """A connection of the load. `name` is the writer's name."""

    _mix: RequestMix
    _book: Book
    _own: Sequence[Topic]
    _shared: Sequence[Topic]
    _payloads: Payloads
    _source: random.Random
    _wire: int = attrs.field(init=False)
    _standing: dict[str, bool] = attrs.field(factory=dict, init=False)
    """Whether an own topic will be there once all that is queued has been done."""
    _waiting: deque[tuple[Topic, Request, int]] = attrs.field(factory=deque, init=False)
    _known: dict[str, list[int]] = attrs.field(factory=dict, init=False)
    """Offsets that may be committed, of each topic's present life."""
    _lives: dict[str, int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._wire = self._book.new_wire()
        self._standing = {topic.name: topic.name in self._book.there for topic in self._own}

    def fill(self, now: float) -> None:
        """Think of requests until the window is full."""
        mix = self._mix
        kinds = (self._produce, self._append, self._batch, self._repeat, self._commit, self._delete)
        weights = (mix.produce, mix.append, mix.batch, mix.repeat, mix.commit, mix.delete)
        for kind in self._source.choices(kinds, weights, k=burst(mix.window, len(self._waiting))):
            kind()

    def account(self, now: float) -> None:
        *lines, rest = self._in.split(b"\n")
        self._in = rest
        for line in lines:
            if not self._waiting:
                self.faults.append(f"{self.name}: an answer to nothing: {bytes(line[:80])!r}")
                continue
            topic, request, life = self._waiting.popleft()
            word, _, value = bytes(line).partition(b" ")
            if word == b"ERR":
                self.refusals.append((now, f"{topic.name}: {bytes(line)!r}"))
                for each in request if isinstance(request, Sequence) else [request]:
                    self._book.model.doubted(each)
                continue
            try:
                self._answered(topic, request, int(value or -1), life)
            except (BrokenPromiseError, ValueError) as error:
                self.faults.append(f"{topic.name}: {bytes(line[:80])!r}: {error}")

    def _answered(self, topic: Topic, request: Request, value: int, life: int) -> None:
        model = self._book.model
        match request:
            case Commitment(offset=committed):
                if committed != value:
                    raise ValueError(f"COMMIT {committed}")
                model.committed(request)
            case Deletion():
                model.deleted(request)
            case _:
                if life == self._lives.get(topic.name, 0):
                    self._known.setdefault(topic.name, []).append(value)
                for message in request:
                    model.acked(message, value)
                    value += LENGTH_BYTES + len(message.payload)

    def closed(self) -> None:
        for _, request, _ in self._waiting:
            self._book.model.forgotten(request if isinstance(request, Sequence) else [request])

    # What may be sent.

    def _ask(self, topic: Topic, request: Request, data: bytes) -> None:
        self._standing[topic.name] = not isinstance(request, Deletion)
        self._waiting.append((topic, request, self._lives.get(topic.name, 0)))
        self._out += data

    def _any(self) -> Topic:
        return self._source.choice(self._own if self._source.random() < 0.5 else self._shared)

    def _produce(self) -> None:
        topic, payload = self._any(), self._payloads.line(self.name)
        message = self._book.model.send(topic.name, payload, self._wire)
        self._ask(topic, [message], b"PRODUCE %s %s\n" % (topic.name.encode(), payload))

    def _append(self) -> None:
        topic, payload = self._any(), self._payloads.raw(self.name)
        message = self._book.model.send(topic.name, payload, self._wire)
        self._ask(topic, [message], b"APPEND %s %d\n%s" % (topic.name.encode(), len(payload), payload))

    def _batch(self) -> None:
        topic = self._any()
        payloads = [self._payloads.raw(self.name) for _ in range(self._source.randint(1, _BATCH_RECORDS_MAX))]
        messages = self._book.model.send_batch(topic.name, payloads, self._wire)
        seq = self._book.next_seq(topic.name, self.name)
        batch = Batch(topic.name, self.name, seq, joined(payloads), messages)
        self._book.batches.setdefault((topic.name, self.name), []).append(batch)
        self._ask(topic, messages, batch.request)

    def _repeat(self) -> None:
        topic = self._any()
        if batches := self._book.batches.get((topic.name, self.name)):
            for message in batches[-1].messages:
                self._book.model.send_again(message, self._wire)
            self._ask(topic, batches[-1].messages, batches[-1].request)

    def _commit(self) -> None:
        topic = self._any()
        known = self._known.get(topic.name)
        if known and topic.kept_bytes is None:  # what is dropped meanwhile cannot be committed
            value, group = self._source.choice(known), f"group-{self.name}"
            self._book.groups.add((topic.name, group))
            commitment = self._book.model.commit(group, topic.name, value)
            self._ask(topic, commitment, b"COMMIT %s %s %d\n" % (group.encode(), topic.name.encode(), value))

    def _delete(self) -> None:
        topic = self._source.choice(self._own)
        if self._standing[topic.name]:
            self._known.pop(topic.name, None)
            self._book.batches.pop((topic.name, self.name), None)
            self._lives[topic.name] = self._lives.get(topic.name, 0) + 1
            self._ask(topic, self._book.model.delete(topic.name), b"DELETE %s\n" % topic.name.encode())


@attrs.define(eq=False)
class Watcher(RawPeer):
    """A connection that reads a topic as it grows."""

    _model: Model
    _topic: str
    _next: int
    _asked: int | None = attrs.field(default=None, init=False)
    """The tick at which it did."""

    def fill(self, now: float) -> None:
        if self._asked is None:
            self._asked = self._model.read()
            self._out += b"FETCH %s %d 100000 200\n" % (self._topic.encode(), self._next)

    def account(self, now: float) -> None:
        end = self._in.find(b"\n")
        if end < 0 or self._asked is None:
            return
        word, *fields = bytes(self._in[:end]).split(b" ")
        if word == b"CHUNK":
            offset, length, after = map(int, fields)
            if len(self._in) < end + 1 + length:
                return
            records = split(bytes(self._in[end + 1 : end + 1 + length]), offset)
            if (offset, after) != (self._next, self._next + length) or not records:
                self.faults.append(f"{self._topic}: asked for {self._next}, got {offset} to {after}")
            try:
                for record in records or ():
                    self._model.saw(self._topic, record, self._asked)
            except BrokenPromiseError as error:
                self.faults.append(str(error))
            self._next = after
            end += length
        elif word != b"EOF":
            self.refusals.append((now, f"{self._topic}: FETCH {self._next}: {bytes(self._in[:80])!r}"))
        del self._in[: end + 1]
        self._asked = None


class LogmqLoad(PeersLoad):
    """Several peers and a watcher, on one server."""

    def __init__(
        self, address: tuple[str, int], book: Book, modes: Sequence[str], source: random.Random
    ) -> None:
        payloads = Payloads(source)
        lasting = [book.open(f"{mode}-shared-{number}") for mode in modes for number in range(2)]
        kept = [book.open(f"{mode}-{KEPT}", RETENTION_BYTES - RETENTION_UNIT_BYTES) for mode in modes]
        peers: list[RawPeer] = []
        for number, mix in sampled(source, REQUEST_MIXES, 2):
            own = [book.open(f"{mode}-own-{number}") for mode in modes]
            writer = f"writer-{number}"
            peers.append(Peer(address, writer, mix, book, own, lasting + kept, payloads, source))
        watched = source.choice(lasting)
        peers.append(Watcher(address, "watcher", book.model, watched.name, watched.end))
        super().__init__(peers)
