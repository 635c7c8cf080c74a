"""`brokers bench recording`: what it costs a protocol that all that passes through it is written down.

Two servers for each protocol, one that records and one that does not, which is the baseline; load goes to the
one and the other in turns. It is as much as one publisher can bring, with one consumer of everything, and
both take next to no time of their own. KqueueMsgQ and DMP's sinks are written to as fast as they read, and
pub/sub gets a flood of datagrams. A round ends when the recorder has nothing left to write, and the
processor's time until then counts.

At the end the log is read, every byte of it checked, and its messages are counted. Each that passed is there,
or in a gap that says how many are missing.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Annotated, Literal

import attrs
from cyclopts import Parameter

from brokers.bench import dmp, kqmsgq, pubsub
from brokers.bench.load import Case, Row
from brokers.bench.options import SEVERAL, DataDir, Rounds, Seconds, Size, each, some
from brokers.bench.processes import processor_seconds, server_process
from brokers.bench.pubsub import counter
from brokers.bench.servers import serving
from brokers.errors import ExitCode, Failure
from shared.cli.options import Json
from shared.recording import blocks
from shared.recording.blocks import NAMESPACE
from shared.storage.os_disk import OsDisk
from shared.storage.settings import INTERVAL_SECONDS_DEFAULT
from shared.storage.tools.logs import RecordRow, log_dump

Protocol = Literal["kqmsgq", "pubsub", "dmp"]
PROTOCOLS: tuple[Protocol, ...] = ("kqmsgq", "pubsub", "dmp")
BASELINE = "the same, not recorded"
SETTLE_SECONDS = 30.0
DISK_SECONDS = 0.5
PIECE_BYTES = 4 << 20
_KEPT_BYTES = 1 << 50
"""Retention would take away what is to be counted."""


@attrs.frozen
class _Measured:
    rate: float
    cpu_us: float | None


@attrs.frozen
class Counted:
    """What a recorded log holds."""

    messages: int
    missing: int
    wrong: int


def bench(
    *,
    protocols: Annotated[
        tuple[Protocol, ...], SEVERAL, Parameter(help="Whose recording to measure; repeatable.")
    ] = PROTOCOLS,
    size: Size = 100,
    rate: Annotated[int, some("Datagrams a second that pub/sub is offered.")] = 400_000,
    durability: Annotated[str, Parameter(help="The recorder's mode.")] = "interval",
    seconds: Seconds = 2.0,
    rounds: Rounds = 5,
    data_dir: DataDir = None,
    json: Json = False,
) -> list[Row]:
    """Measure what recording costs on this machine.

    Each protocol at full speed, recorded and not, in turns; and whether all that
    passed is in the log.
    """
    if not 1 <= size <= pubsub.SIZE_MAX:
        raise Failure(f"--size: 1 to {pubsub.SIZE_MAX} bytes", ExitCode.USAGE)
    cases = {
        "kqmsgq": kqmsgq.recorded(size),
        "pubsub": pubsub.recorded(size, rate),
        "dmp": dmp.recorded(size),
    }

    def measure(protocol: Protocol) -> Iterator[Row]:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=data_dir) as folder:
            yield _beside(protocol, cases[protocol], Path(folder), size, durability, seconds, rounds)

    return list(each(protocols, measure))


def _beside(
    protocol: str, case: Case, folder: Path, size: int, durability: str, seconds: float, rounds: int
) -> Row:
    """One protocol, recorded, beside itself. `ratio`: its rate over the baseline's; `cpu_ratio`: the server's
    processor time for a message over the baseline's (None where the system does not say).

    Of all messages that passed, by what the log holds: `recorded_percent` stand in it, `gap_percent` are
    marked as missing. `unaccounted`: neither; 0, unless something is broken. `disk_megabytes_per_second`:
    what a bare loop that appends and syncs as recording does writes in the same folder, between the rounds.
    """
    settings = {
        "BROKERS_RECORD_PROTOCOLS": protocol,
        "BROKERS_RECORD_DURABILITY": durability,
        "BROKERS_RECORD_RETENTION_BYTES": str(_KEPT_BYTES),
    }
    plain, recorded = folder / "plain", folder / "recorded"
    found: dict[Path, list[_Measured]] = {plain: [], recorded: []}
    disk: list[float] = []
    with ExitStack() as stack:
        addresses = {}
        for place, environ in ((plain, {}), (recorded, settings)):
            place.mkdir()
            addresses[place] = stack.enter_context(serving(place, protocol, environ))[protocol]
        for number in range(rounds):
            disk.append(appended(folder))
            for place in (plain, recorded) if number % 2 else (recorded, plain):
                found[place].append(_round(case, addresses[place], place / "data", seconds))
        passed = counter(recorded / "data", case.passed)
    counted = count(recorded / "data", protocol, case.frame_bytes)
    ours, theirs = found[recorded], found[plain]
    rate, base = (median(each.rate for each in rounds) for rounds in (ours, theirs))
    cpu, base_cpu = _cpu(ours), _cpu(theirs)
    written = counted.messages / max(passed, 1)
    return {
        "protocol": protocol,
        "message_bytes": size,
        "durability": durability,
        "messages_per_second": round(rate),
        "recorded_megabytes_per_second": round(rate * case.frame_bytes * written / 1e6, 1),
        "cpu_us": cpu,
        "baseline": BASELINE,
        "baseline_per_second": round(base),
        "baseline_cpu_us": base_cpu,
        "ratio": round(median(one.rate / other.rate for one, other in zip(ours, theirs, strict=True)), 2),
        "cpu_ratio": None if cpu is None or not base_cpu else round(cpu / base_cpu, 2),
        "recorded_percent": round(100 * written, 2),
        "gap_percent": round(100 * counted.missing / max(passed, 1), 2),
        "unaccounted": abs(passed - counted.messages - counted.missing) + counted.wrong,
        "disk_megabytes_per_second": round(median(disk) / 1e6, 1),
    }


def _round(case: Case, address: tuple[str, int], data: Path, seconds: float) -> _Measured:
    process = server_process(data)
    before, spent = counter(data, case.passed), processor_seconds(process)
    rate = case.run(address, data, seconds)
    _wait_settled(case, data)
    messages = counter(data, case.passed) - before
    after = processor_seconds(process)
    if spent is None or after is None or not messages:
        return _Measured(rate, None)
    return _Measured(rate, (after - spent) / messages * 1e6)


def _wait_settled(case: Case, data: Path) -> None:
    """Wait until no more messages come, and what is recorded is written."""
    give_up = monotonic() + SETTLE_SECONDS
    last: tuple[int, ...] = ()
    while monotonic() < give_up:
        now = tuple(
            counter(data, name)
            for name in (case.passed, "recorded_messages_total", "recorded_left_out_messages_total")
        )
        if now == last and now[0] and sum(now[1:]) in (0, now[0]):
            return
        last = now
        sleep(0.1)


def appended(folder: Path) -> float:
    """Bytes a second, for half a second, in pieces as large as a busy recorder's, synced every 50 ms."""
    piece = bytes(PIECE_BYTES)
    with OsDisk(folder) as disk:
        fd = disk.open("appended", create=True)
        begun = synced = now = monotonic()
        done = 0
        while now - begun < DISK_SECONDS:
            done += disk.write(fd, piece, done, passing=True)
            now = monotonic()
            if now - synced >= INTERVAL_SECONDS_DEFAULT:
                disk.sync_data(fd)
                synced = now = monotonic()
        disk.sync_data(fd)
        took = monotonic() - begun
        disk.close(fd)
        disk.unlink("appended")
    return done / took


def _cpu(rounds: list[_Measured]) -> float | None:
    known = [each.cpu_us for each in rounds if each.cpu_us is not None]
    return round(median(known), 3) if known else None


def count(data: Path, protocol: str, frame_bytes: int) -> Counted:
    """Messages in the recorded log of a folder that no server uses, and those that its gaps stand for.
    `wrong`: messages of blocks whose frames are not so many, and damaged ranges."""
    messages = missing = wrong = 0
    for row in log_dump(data, NAMESPACE, protocol):
        if not isinstance(row, RecordRow):
            wrong += 1
            continue
        head = blocks.unpack(row.payload)
        if head.codec == blocks.GAP:
            missing += head.messages
            continue
        messages += head.messages
        if len(row.payload) - head.frames_at != head.messages * frame_bytes:
            wrong += head.messages
    return Counted(messages, missing, wrong)
