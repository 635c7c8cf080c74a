"""`brokers bench kqmsgq`: messages from producers to consumers, beside NATS in the same run.

The servers are processes of their own, the load comes from this one. Measured in turns with nats-server
(core: in memory, at most once), where it is installed, with the same connections, windows, names and sizes:

- `one`: one producer, one consumer; with many messages on their way for the rate, with 1000 for the latency;
- `queues`: producers that go round many queues, each consumer subscribed to its share of them;
- `fan-out`: one producer, many consumers, each of which gets everything.
"""

import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import attrs

from brokers.bench import fan_out, options
from brokers.bench.fan_out import STAMP_BYTES, FanOut
from brokers.bench.load import Measured, middle
from brokers.bench.options import Rounds, Seconds, Size, each, some
from brokers.bench.pouring import Case, poured
from brokers.bench.servers import nats_server, serving
from brokers.errors import ExitCode, Refusal
from kqmsgq import wire
from shared.cli.options import Json

Mode = Literal["one", "queues", "fan-out"]
MODES: tuple[Mode, ...] = ("one", "queues", "fan-out")
LATENCY_WINDOW = 1000


@attrs.frozen
class Row:
    """One case beside one baseline. The ratios are of its rate, and of its p99, over the baseline's."""

    mode: str
    producers: int
    consumers: int
    window: int
    deliveries_per_second: int
    megabytes_per_second: float
    median_us: float
    p99_us: float
    baseline: str
    ratio: float | None
    p99_ratio: float | None


def bench(
    *,
    modes: Annotated[tuple[Mode, ...], options.MODES] = MODES,
    size: Size = 100,
    window: Annotated[int, some("Messages of each producer on their way.")] = 10_000,
    queues: Annotated[int, some("Queues that producers go round.")] = 16,
    many: Annotated[int, some("Producers and consumers on these queues.")] = 4,
    consumers: Annotated[int, some("Consumers that all get everything.")] = 50,
    seconds: Seconds = 2.0,
    rounds: Rounds = 3,
    json: Json = False,
) -> list[Row]:
    """Measure KqueueMsgQ on this machine.

    One producer to one consumer, several over many queues, one to many; beside
    nats-server where it is installed.
    """
    if size < STAMP_BYTES + 8:
        raise Refusal(f"--size: {STAMP_BYTES + 8} bytes at least, for a message's time", ExitCode.USAGE)
    if queues % many or queues > 1000:
        raise Refusal("--queues: a multiple of --many, 1000 at most", ExitCode.USAGE)
    case = _Case(
        size=size,
        window=window,
        queues=queues,
        many=many,
        consumers=consumers,
        seconds=seconds,
        rounds=rounds,
    )
    cases = {"one": case.one, "queues": case.over_queues, "fan-out": case.fan_out}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        servers: Servers = {"kqmsgq": (stack.enter_context(serving(folder, "kqmsgq"))["kqmsgq"], _kqmsgq)}
        if (address := stack.enter_context(nats_server())) is not None:
            servers["nats-server"] = _tcp(address), _nats
        return each(modes, lambda mode: cases[mode](servers))


Servers = dict[str, tuple[tuple[str, int], Callable[[int, int, int], FanOut]]]
"""By name, where it is, and how it is spoken to: of a size, a number of queues, and one of consumers."""


@attrs.frozen
class _Case:
    size: int
    window: int
    queues: int
    many: int
    consumers: int
    seconds: float
    rounds: int

    def one(self, servers: Servers) -> Iterator[Row]:
        yield self._beside("one", servers, 1, 1, self.window)
        yield self._beside("one", servers, 1, 1, LATENCY_WINDOW)

    def over_queues(self, servers: Servers) -> Iterator[Row]:
        yield self._beside("queues", servers, self.many, self.many, self.window, queues=self.queues)

    def fan_out(self, servers: Servers) -> Iterator[Row]:
        yield self._beside("fan-out", servers, 1, self.consumers, self.window // 10)

    def _beside(
        self, mode: str, servers: Servers, producers: int, consumers: int, window: int, *, queues: int = 1
    ) -> Row:
        measured: dict[str, list[Measured]] = {name: [] for name in servers}
        for _ in range(self.rounds):
            for name, (address, speak) in servers.items():
                fan = speak(self.size, queues, consumers if queues > 1 else 1)
                measured[name].append(
                    fan_out.run(
                        address,
                        fan,
                        producers=producers,
                        consumers=consumers,
                        window=window,
                        seconds=self.seconds,
                    )
                )
        ours = middle(measured.pop("kqmsgq"))
        name, theirs = next(((name, middle(rounds)) for name, rounds in measured.items()), ("-", None))
        return Row(
            mode=mode,
            producers=producers,
            consumers=consumers,
            window=window,
            deliveries_per_second=round(ours.rate),
            megabytes_per_second=round(ours.rate * self.size / 1e6, 1),
            median_us=round(ours.median_us, 1),
            p99_us=round(ours.p99_us, 1),
            baseline=name,
            ratio=None if theirs is None else round(ours.rate / theirs.rate, 2),
            p99_ratio=None if theirs is None else round(ours.p99_us / theirs.p99_us, 2),
        )


def _kqmsgq(size: int, queues: int, share: int) -> FanOut:
    filler = b"x" * (size - STAMP_BYTES)
    names = _names(queues)
    return FanOut(
        hello_producer=wire.PRODUCE,
        hello_consumer=lambda consumer: (
            wire.CONSUME + b"".join(map(wire.subscribe, names[consumer % share :: share]))
        ),
        message=lambda queue, stamp: wire.message(names[queue], stamp + filler),
        delivered_bytes=len(wire.message(names[0], bytes(size))),
        stamp_at=size,
        queues=queues,
        share=share,
    )


def recorded(size: int) -> Case:
    """One producer to one consumer, as `brokers bench recording` wants it."""
    message = wire.message(b"bench", b"x" * size)

    def run(address: tuple[str, int], data: Path, seconds: float) -> float:
        with socket.create_connection(address) as consumer, socket.create_connection(address) as producer:
            consumer.sendall(wire.CONSUME + wire.subscribe(b"bench"))
            producer.sendall(wire.PRODUCE)
            return poured(producer, consumer, message, seconds)

    return Case(run, "kqmsgq_messages_produced_total", len(message))


def _nats(size: int, queues: int, share: int) -> FanOut:
    filler = b"x" * (size - STAMP_BYTES)
    names = _names(queues)
    hello = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
    return FanOut(
        hello_producer=hello,
        hello_consumer=lambda consumer: (
            hello
            + b"".join(b"SUB %b %b\r\n" % (name, name[-3:]) for name in names[consumer % share :: share])
        ),
        message=lambda queue, stamp: b"PUB %b %d\r\n%b%b\r\n" % (names[queue], size, stamp, filler),
        delivered_bytes=len(b"MSG %b %b %d\r\n" % (names[0], names[0][-3:], size)) + size + 2,
        stamp_at=size + 2,
        queues=queues,
        share=share,
        aside=b"PING\r\n",
    )


def _names(queues: int) -> list[bytes]:
    return [b"bench-%03d" % number for number in range(queues)]


def _tcp(address: object) -> tuple[str, int]:
    assert isinstance(address, tuple)
    return address
