"""`brokers bench kqmsgq`: messages from producers to consumers, beside NATS in the same run.

The servers are processes of their own, the load comes from this one. Measured in turns with nats-server
(core: in memory, at most once), where it is installed, with the same connections, windows, names and sizes:

- `one`: one producer, one consumer; with many messages on their way for the rate, with 1000 for the latency;
- `queues`: producers that go round many queues, each consumer subscribed to its share of them;
- `fan-out`: one producer, many consumers, each of which gets everything.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from brokers.bench import bare, options
from brokers.bench.load import STAMP_BYTES, Case, FanOut, Row, beside, opened, pour_rate, stamped_body
from brokers.bench.login import SAY_FIRST
from brokers.bench.options import Rounds, Seconds, Size, each, some
from brokers.bench.servers import nats_fan_out, nats_server
from brokers.bench.sweep import NO_SWEEP, Load, Point, Sweep, Swept, fan_out_load, measured_at, started, swept
from brokers.errors import ExitCode, Failure
from kqmsgq import wire
from shared.cli.options import Json

Mode = Literal["one", "queues", "fan-out"]
MODES: tuple[Mode, ...] = ("one", "queues", "fan-out")
LATENCY_WINDOW = 1000


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
    sweep: Sweep = NO_SWEEP,
    json: Json = False,
) -> Iterable[Any]:
    """Measure KqueueMsgQ on this machine.

    One producer to one consumer, several over many queues, one to many; beside
    nats-server where it is installed.
    """
    if sweep.sweep:
        return swept([SWEPT], sweep, window, seconds, rounds, json=json)
    if size < STAMP_BYTES + 8:
        raise Failure(f"--size: {STAMP_BYTES + 8} bytes at least, for a message's time", ExitCode.USAGE)
    if queues % many or queues > 1000:
        raise Failure("--queues: a multiple of --many, 1000 at most", ExitCode.USAGE)
    cases = {
        "one": [Point(size, 1, 1, window), Point(size, 1, 1, LATENCY_WINDOW)],
        "queues": [Point(size, queues, many, window)],
        "fan-out": [Point(size, 1, consumers, window // 10)],
    }

    def measure(mode: Mode) -> Iterator[Row]:
        with started((_beside_nats(_shared) if mode == "queues" else SWEPT).servers) as ways:
            for point in cases[mode]:
                best, other = beside(measured_at(ways, point, seconds, rounds))
                yield {
                    "mode": mode,
                    "producers": point.producers,
                    "consumers": point.clients,
                    "window": point.window,
                    **best.figures("deliveries_per_second", size),
                    **other,
                }

    return list(each(modes, measure))


SAY_FIRST["kqmsgq"] = lambda who: (wire.account(who.user, who.secret), b"")

Speak = Callable[..., FanOut]
"""How a server is spoken to: the names, a size, and how many share these names."""


def fan_out_of(names: Sequence[bytes], size: int, *, share: int = 1, groups: int = 1) -> FanOut:
    """Names of one length."""
    body, stamped = stamped_body(size)
    step = share * groups
    return FanOut(
        hello_producer=lambda producer: wire.PRODUCE,
        hello_consumer=lambda consumer: (
            wire.CONSUME + b"".join(map(wire.subscribe, names[consumer % step :: step]))
        ),
        message=lambda queue, stamp: wire.message(names[queue], body(stamp)),
        delivered_bytes=len(wire.message(names[0], bytes(size))),
        stamp_at=size if stamped else 0,
        queues=len(names) // groups,
        share=share,
        groups=groups,
    )


def _at(speak: Speak) -> Load:
    return fan_out_load(lambda point: speak(point.name_list(), point.size, groups=point.producers))


def _shared(speak: Speak) -> Load:
    """All producers go round all names, which the consumers share."""
    return fan_out_load(lambda point: speak(point.name_list(), point.size, share=point.clients))


def _beside_nats(load: Callable[[Speak], Load]) -> Swept:
    peers = {"nats-server": (nats_server, load(nats_fan_out))}
    return Swept("kqmsgq", "fan-out", load(fan_out_of), peers, bare.relays())


SWEPT = _beside_nats(_at)


def recorded(size: int) -> Case:
    """One producer to one consumer, as `brokers bench recording` wants it."""
    message = wire.message(b"bench", b"x" * size)

    def run(address: tuple[str, int], data: Path, seconds: float) -> float:
        with opened(address, fan_out_of([b"bench"], size), 1, 1) as ((producer,), (consumer,)):
            return pour_rate(producer, consumer, message, seconds)

    return Case(run, "kqmsgq_messages_produced_total", len(message))
