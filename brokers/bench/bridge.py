"""`brokers bench bridge`: bridges between protocols, each beside the slower of its two ends alone.

All protocols are served by one process; the load comes from this one. From logs and queues a backlog is
carried: it is written while the bridge is paused, and the time runs from its resumption. From a sink and from
pub/sub, which keep nothing, the bridge is measured under the load with which the source is measured alone.
What counts is what the source does beside it, as far as the bridge carried it. All bridges but that one are
paused. An end alone is what `brokers bench` of its protocol has. That is LogMQ's PRODUCE, DMS produced,
delivered and acknowledged, one consumer of KqueueMsgQ, one feed of a sink, or one subscriber of pub/sub.

`latency` has one message under way: from a PRODUCE to a TAIL of the topic that the bridge writes, beside the
topic itself.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Annotated, Any, Literal

import attrs

from brokers import control
from brokers.bench import options
from brokers.bench.dmp import EXCHANGE, direct
from brokers.bench.dms import QUEUE, dms_talk, fill_queue, make_queues
from brokers.bench.kqmsgq import fan_out_of
from brokers.bench.load import STAMP_BYTES, Address, FanOut, Measured, Talk, connect, fan_out, middle, run
from brokers.bench.logmq import fill_topic
from brokers.bench.options import Rounds, Seconds, Size, each
from brokers.bench.pubsub import published_elsewhere, pubsub_fan_out
from brokers.bench.servers import serving
from brokers.bench.sweep import Point
from brokers.errors import ExitCode, Failure
from shared.cli.options import DataDir, Json

Mode = Literal["logmq-dms", "dms-logmq", "sink-logmq", "pubsub-logmq", "logmq-kqmsgq", "latency"]
MODES: tuple[Mode, ...] = ("logmq-dms", "dms-logmq", "sink-logmq", "pubsub-logmq", "logmq-kqmsgq", "latency")
BACKLOG = 100_000
WAIT_SECONDS = 120.0
BRIDGES = {
    "logmq-dms": ("logmq:to-dms", f"dms:{QUEUE}"),
    "dms-logmq": ("dms:to-logmq", "logmq:from-dms"),
    "sink-logmq": (f"dmp:{EXCHANGE}/#", "logmq:from-sink"),
    "pubsub-logmq": ("pubsub:*", "logmq:from-pubsub"),
    "logmq-kqmsgq": ("logmq:to-kqmsgq", "kqmsgq:bench"),
    "latency": ("logmq:near", "logmq:far"),
}
_PROTOCOLS = "logmq,dms,kqmsgq,pubsub,dmp"


@attrs.frozen
class Row:
    """One bridge. `slower_end`: which of its ends does less alone, and `end_per_second`, how much; `ratio`:
    the bridge's rate over that, and of latencies the end's median over the bridge's."""

    mode: str
    messages_per_second: int
    slower_end: str
    end_per_second: int
    median_us: float | None
    end_median_us: float | None
    ratio: float


def bench(
    *,
    modes: Annotated[tuple[Mode, ...], options.MODES] = MODES,
    size: Size = 100,
    seconds: Seconds = 1.0,
    rounds: Rounds = 3,
    data_dir: DataDir = None,
    json: Json = False,
) -> list[Any]:
    """Measure bridges on this machine, each beside the slower of its two ends alone."""
    if not STAMP_BYTES + 8 <= size <= 1500:
        raise Failure(f"--size: {STAMP_BYTES + 8} to 1500 bytes", ExitCode.USAGE)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=data_dir) as name:
        folder = Path(name)
        (folder / "brokers.toml").write_text("".join(map(_table, BRIDGES)))
        environ = {
            "BROKERS_CONFIG": str(folder / "brokers.toml"),
            "BROKERS_DMS_PERSIST": "true",
            "BROKERS_DMS_DEPTH_MAX": "10000000",
        }
        with serving(folder, _PROTOCOLS, environ) as places:
            make_queues(places["dms"], [QUEUE, "to-logmq"])
            measured = _Bridged(folder / "data", places, size, seconds, rounds)
            return list(each(modes, measured.rows))


def _table(mode: str) -> str:
    source, target = BRIDGES[mode]
    return f'[[bridge]]\nname = "{mode}"\nfrom = "{source}"\nto = "{target}"\n'


@attrs.frozen
class _Bridged:
    """The measurements of one server."""

    _data: Path
    _places: Mapping[str, Address]
    _size: int
    _seconds: float
    _rounds: int
    _alone: dict[str, Measured] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        for mode in BRIDGES:
            self._ask("POST", f"{mode}/pause")

    def rows(self, mode: Mode) -> Iterator[Row]:
        if mode == "latency":
            yield self._latency()
            return
        source, target = mode.split("-")
        ends = {name: self._end(name) for name in (source, target)}
        slower = min(ends, key=lambda name: ends[name].rate)
        kept = source in ("logmq", "dms")
        once: Callable[[], float] = partial(self._backlog, mode) if kept else partial(self._beside, mode)
        if source == "pubsub":
            once = self._through
        rates = sorted(once() for _ in range(self._rounds))
        rate = rates[len(rates) // 2]
        end = ends[slower].rate
        yield Row(mode, round(rate), slower, round(end), None, None, round(rate / end, 2))

    def _end(self, name: str) -> Measured:
        """One protocol alone."""
        if name not in self._alone:
            self._alone[name] = middle([self._load(name)() for _ in range(self._rounds)])
        return self._alone[name]

    def _load(self, name: str) -> Callable[[], Measured]:
        size, seconds = self._size, self._seconds
        if name == "logmq":
            talks = partial(Talk.repeating, [b"PRODUCE alone %b\n" % (b"x" * size)], 1, 64)
            return lambda: run(self._places["logmq"], [talks() for _ in range(8)], seconds)
        if name == "dms":
            return lambda: run(self._places["dms"], [dms_talk(size, 64) for _ in range(8)], seconds)
        if name == "sink":
            return lambda: direct(self._places["dmp"], Point(size, 1, 1, 1000), seconds)
        fan: FanOut = fan_out_of([b"alone"], size) if name == "kqmsgq" else pubsub_fan_out(size, 1)
        return lambda: fan_out(
            self._places[name], fan, producers=1, consumers=1, window=1000, seconds=seconds
        )

    def _backlog(self, mode: Mode) -> float:
        """Messages a second that a bridge carries of what waited for it."""
        before = self._carried(mode)
        source, _, name = BRIDGES[mode][0].partition(":")
        written = fill_topic if source == "logmq" else fill_queue
        written(self._places[source], name, self._size, BACKLOG)
        began = perf_counter()
        self._ask("POST", f"{mode}/resume")
        while self._carried(mode) < before + BACKLOG:
            if perf_counter() - began > WAIT_SECONDS:
                raise Failure(f"the bridge {mode} stands still: see brokers bridge list")
            sleep(0.01)
        took = perf_counter() - began
        self._ask("POST", f"{mode}/pause")
        return BACKLOG / took

    def _through(self) -> float:
        """Messages a second that come in at pub/sub and out at LogMQ."""
        self._ask("POST", "pubsub-logmq/resume")
        self._until_open("pubsub-logmq")
        fan = published_elsewhere(
            self._size, lambda _: b"TAIL from-pubsub %d\n" % self._end_of(b"from-pubsub")
        )
        logmq, pubsub = self._places["logmq"], self._places["pubsub"]
        try:
            return fan_out(
                logmq, fan, producers=1, consumers=1, window=1000, seconds=self._seconds, into=pubsub
            ).rate
        finally:
            self._ask("POST", "pubsub-logmq/pause")

    def _beside(self, mode: Mode) -> float:
        """Messages a second that a bridge carries while its source is under load."""
        self._ask("POST", f"{mode}/resume")
        before = self._until_open(mode)
        rate = self._load(mode.split("-")[0])().rate
        give_up = perf_counter() + WAIT_SECONDS
        while (after := self._ask("GET", mode))["bytes"] and perf_counter() < give_up:
            sleep(0.01)
        self._ask("POST", f"{mode}/pause")
        carried, lost = (after[name] - before[name] for name in ("carried", "dropped"))
        if not carried:
            raise Failure(f"the bridge {mode} stands still: see brokers bridge list")
        return rate * float(carried / (carried + lost))

    def _latency(self) -> Row:
        def way(topic: bytes) -> Measured:
            filler = b"x" * (self._size - STAMP_BYTES)
            fan = FanOut(
                hello_consumer=lambda consumer: b"TAIL %b %d\n" % (topic, self._end_of(topic)),
                message=lambda queue, stamp: b"PRODUCE near %b%b\n" % (stamp, filler),
                delivered_bytes=0,
                stamp_at=self._size + 1,
            )
            place = self._places["logmq"]
            return fan_out(place, fan, producers=1, consumers=1, window=1, seconds=self._seconds)

        near = middle([way(b"near") for _ in range(self._rounds)])
        self._ask("POST", "latency/resume")
        far = middle([way(b"far") for _ in range(self._rounds)])
        medians = round(far.median_us, 1), round(near.median_us, 1)
        ratio = round(near.median_us / far.median_us, 2)
        return Row("latency", round(far.rate), "logmq", round(near.rate), *medians, ratio)

    def _end_of(self, topic: bytes) -> int:
        with connect(self._places["logmq"]) as sock:
            sock.sendall(b"PRODUCE %b x\n" % topic)
            return int(sock.recv(100).split()[1]) + 5

    def _until_open(self, mode: Mode) -> Any:
        give_up = perf_counter() + WAIT_SECONDS
        while (found := self._ask("GET", mode))["state"] != "running" and perf_counter() < give_up:
            sleep(0.01)
        return found

    def _carried(self, mode: Mode) -> int:
        return int(self._ask("GET", mode)["carried"])

    def _ask(self, method: str, path: str) -> Any:
        body: dict[str, Any] | None = {} if method == "POST" else None
        return control.request(self._data, method, f"/api/v1/bridges/{path}", body)
