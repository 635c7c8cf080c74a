"""`brokers bench pubsub`: messages from a publisher to subscribers, and datagrams that come in.

The servers are processes of their own, the load comes from this one. Measured in turns:

- `fan-out`: one publisher, many subscribers with wildcards that match, among more whose do not; beside
  mosquitto (QoS 0, in memory, nothing dropped), where it is installed. No more than a window is on its way,
  so that datagrams are not lost for want of a buffer;
- `intake`: a flood of datagrams at a steady rate, with one matching subscriber, beside a bare loop of
  recvfrom that does nothing with them. What the system dropped because nobody took it is shown beside.
"""

import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Annotated, Any, Literal

import attrs

from brokers import control
from brokers.bench import bare, options
from brokers.bench.datagrams import bare_receiver, flood
from brokers.bench.load import STAMP_BYTES, Case, FanOut, Row, beside, discarding, stamped_body
from brokers.bench.login import login
from brokers.bench.options import Rounds, Seconds, Size, each, some
from brokers.bench.servers import brokers_server, mosquitto, serving
from brokers.bench.sweep import (
    NO_SWEEP,
    Load,
    Peer,
    Point,
    Sweep,
    Swept,
    fan_out_load,
    measured_at,
    started,
    swept,
)
from brokers.errors import ExitCode, Failure
from pubsub import wire
from pubsub.recording import BEFORE_BYTES
from pubsub.wire import Command, Kind
from shared.cli.options import Json

Mode = Literal["fan-out", "intake"]
MODES: tuple[Mode, ...] = ("fan-out", "intake")
TOPICS = tuple(b"hall/%03d/temperature" % number for number in range(16))
MATCHING = (b"hall/+/temperature", b"*/temperature", b"hall/*", b"hall/+/+")
"""Subscriber n has the nth of these, and around again. mosquitto has them in its own signs."""
IN_MQTT = (b"hall/+/temperature", b"+/+/temperature", b"hall/#", b"hall/+/+")
QUIET_SECONDS = 0.1
PATIENCE_SECONDS = 30.0
SIZE_MAX = wire.PAYLOAD_BYTES_MAX


def bench(
    *,
    modes: Annotated[tuple[Mode, ...], options.MODES] = MODES,
    size: Size = 100,
    window: Annotated[int, some("Messages on their way.")] = 1000,
    matching: Annotated[int, some("Subscribers that everything is for.")] = 100,
    subscribers: Annotated[int, some("All of them; nothing is for the others.")] = 1000,
    rate: Annotated[int, some("Datagrams a second of the flood.")] = 200_000,
    seconds: Seconds = 2.0,
    rounds: Rounds = 3,
    sweep: Sweep = NO_SWEEP,
    json: Json = False,
) -> Iterable[Any]:
    """Measure pub/sub on this machine.

    One publisher to many subscribers beside mosquitto, where it is installed, and
    a flood of datagrams beside a bare loop that takes it in.
    """
    if sweep.sweep:
        return swept([SWEPT], sweep, window, seconds, rounds, json=json)
    if not STAMP_BYTES + 8 <= size <= wire.PAYLOAD_BYTES_MAX:
        raise Failure(f"--size: {STAMP_BYTES + 8} to {wire.PAYLOAD_BYTES_MAX} bytes", ExitCode.USAGE)
    if not 1 <= matching <= subscribers:
        raise Failure("--matching: one at least, and --subscribers at most", ExitCode.USAGE)
    others = subscribers - matching
    servers: dict[str, Peer] = {
        "pubsub": (brokers_server("pubsub"), fan_out_load(lambda _: pubsub_fan_out(size, matching), others)),
        "mosquitto": (mosquitto, fan_out_load(lambda _: mqtt_fan_out(size, matching), others)),
    }

    def measure(mode: Mode) -> Iterator[Row]:
        if mode == "intake":
            yield _intake(size, rate, seconds, rounds)
            return
        with started(servers) as ways:
            ours, other = beside(measured_at(ways, Point(size, 1, matching, window), seconds, rounds))
            yield {
                "mode": "fan-out",
                "subscribers": subscribers,
                "matching": matching,
                "per_second": round(ours.rate),
                "median_us": round(ours.median_us, 1),
                "p99_us": round(ours.p99_us, 1),
                "dropped_percent": None,
                **other,
                "baseline_dropped_percent": None,
            }

    return list(each(modes, measure))


def pubsub_fan_out(
    size: int,
    matching: int,
    topics: Sequence[bytes] = TOPICS,
    patterns: Sequence[bytes] = MATCHING,
    groups: int = 1,
) -> FanOut:
    """Subscribers from `matching` on are subscribed to what nothing is for."""
    body, stamped = stamped_body(size)

    def hello(number: int) -> bytes:
        pattern = patterns[number % len(patterns)] if number < matching else b"other/+/%d/*" % number
        return _identified(b"b%d" % number) + wire.encode_command(Command.SUBSCRIBE, pattern)

    return FanOut(
        hello_consumer=hello,
        message=lambda queue, stamp: wire.datagram(topics[queue], Kind.STRING, body(stamp)),
        delivered_bytes=wire.FRAME_BYTES,
        stamp_at=wire.FRAME_BYTES - wire.DATA_AT if stamped else 0,
        queues=len(topics) // groups,
        groups=groups,
        datagrams=True,
    )


def published_elsewhere(size: int, hello_consumer: Callable[[int], bytes]) -> FanOut:
    """What is published here and comes as lines from another protocol."""
    body, _ = stamped_body(size)
    return FanOut(
        hello_consumer=hello_consumer,
        message=lambda queue, stamp: wire.datagram(TOPICS[queue], Kind.STRING, body(stamp)),
        delivered_bytes=0,
        stamp_at=size + 1,
        datagrams=True,
    )


def _identified(client_id: bytes) -> bytes:
    who = login()
    return wire.encode_id(client_id) + (wire.encode_login(who.user, who.secret) if who else b"")


def mqtt_fan_out(
    size: int,
    matching: int,
    topics: Sequence[bytes] = TOPICS,
    patterns: Sequence[bytes] = IN_MQTT,
    groups: int = 1,
) -> FanOut:
    """MQTT 3.1.1, QoS 0."""
    body, stamped = stamped_body(size)

    def hello(number: int) -> bytes:
        pattern = patterns[number % len(patterns)] if number < matching else b"other/+/%d/#" % number
        return _mqtt(0x10, b"\0\4MQTT\4\2\0\0" + _text(b"b%d" % number)) + _mqtt(
            0x82, b"\0\1" + _text(pattern) + b"\0"
        )

    return FanOut(
        hello_producer=lambda producer: _mqtt(0x10, b"\0\4MQTT\4\2\0\0" + _text(b"publisher%d" % producer)),
        hello_consumer=hello,
        message=lambda queue, stamp: _mqtt(0x30, _text(topics[queue]) + body(stamp)),
        delivered_bytes=len(_mqtt(0x30, _text(topics[0]) + bytes(size))),
        stamp_at=size if stamped else 0,
        queues=len(topics) // groups,
        groups=groups,
    )


def _at(fan: Callable[..., FanOut], any_levels: bytes) -> Load:
    """A wildcard for each group takes all topics of its publisher."""

    def made(point: Point) -> FanOut:
        groups = point.producers
        topics = [b"%03d/%b" % (number % groups, name) for number, name in enumerate(point.name_list())]
        patterns = [b"%03d/%b" % (group, any_levels) for group in range(groups)]
        return fan(point.size, point.clients, topics, patterns, groups)

    return fan_out_load(made)


SWEPT = Swept(
    "pubsub",
    "fan-out",
    _at(pubsub_fan_out, b"*"),
    {"mosquitto": (mosquitto, _at(mqtt_fan_out, b"#"))},
    bare.relays(datagrams=True),
    SIZE_MAX,
    under_way_bytes=128 << 10,  # or datagrams are lost for want of a buffer
)


def _mqtt(kind: int, body: bytes) -> bytes:
    """A packet; its length is in base 128, low digits first."""
    digits, rest = bytearray(), len(body)
    while rest > 127:
        digits.append(rest % 128 | 128)
        rest //= 128
    return bytes([kind, *digits, rest]) + body


def _text(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


@attrs.frozen
class Intake:
    """`rate`: datagrams that came in, a second. `dropped`: of those that were sent, in percent."""

    rate: float
    dropped: float


def _intake(size: int, rate: int, seconds: float, rounds: int) -> Row:
    datagram = wire.datagram(TOPICS[0], Kind.STRING, b"x" * size)
    ours, bare = [], []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, serving(Path(folder), "pubsub") as bound:
        taken_in = partial(counter, Path(folder) / "data", "net_datagrams_in_total")
        for _ in range(rounds):
            with subscribed(bound["pubsub"]):
                ours.append(flooded(bound["pubsub"], datagram, rate, seconds, taken_in))
            with bare_receiver() as (where, received):
                bare.append(flooded(where, datagram, rate, seconds, received))
    here, there = (sorted(found, key=lambda each: each.rate)[rounds // 2] for found in (ours, bare))
    return {
        "mode": "intake",
        "subscribers": 1,
        "matching": 1,
        "per_second": round(here.rate),  # taken in
        "median_us": None,
        "p99_us": None,
        "dropped_percent": round(here.dropped, 3),  # by the system, of those that were sent
        "baseline": "recvfrom",
        "ratio": round(here.rate / there.rate, 2),
        "p99_ratio": None,
        "baseline_dropped_percent": round(there.dropped, 3),
    }


def flooded(
    address: tuple[str, int], datagram: bytes, rate: float, seconds: float, received: Callable[[], int]
) -> Intake:
    """What is not received in the end was dropped by the system."""
    before = received()
    with flood(address, datagram, rate=rate, seconds=seconds) as ended:
        sent = ended()
        there = received()
        give_up = monotonic() + PATIENCE_SECONDS
        while monotonic() < give_up and (now := received()) != there:
            there = now
            sleep(QUIET_SECONDS)
    came = there - before
    return Intake(came / sent.seconds, 100 * (sent.datagrams - came) / max(sent.datagrams, 1))


@contextmanager
def subscribed(address: tuple[str, int]) -> Iterator[None]:
    """A subscriber of everything, that reads and looks no further."""
    with socket.create_connection(address) as sock, discarding(sock):
        sock.sendall(_identified(b"intake") + wire.encode_command(Command.SUBSCRIBE, b"*"))
        yield


def recorded(size: int, rate: int) -> Case:
    """The flood as `brokers bench recording` wants it."""
    datagram = wire.datagram(TOPICS[0], Kind.STRING, b"x" * size)

    def run(address: tuple[str, int], data: Path, seconds: float) -> float:
        with subscribed(address):
            taken_in = partial(counter, data, "net_datagrams_in_total")
            return flooded(address, datagram, rate, seconds, taken_in).rate

    return Case(run, "pubsub_messages_published_total", 2 + BEFORE_BYTES + len(datagram))


def counter(data: Path, name: str) -> int:
    """A counter of the server on this data folder, all its labels together."""
    said = str(control.request(data, "GET", "/metrics"))
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in said.splitlines()
        if line.startswith(f"brokers_{name}")
    )
