"""Recording: a protocol's messages go to a log, as whole socket reads (RECORDING.md).

Each source of messages, such as a connection, has a `Track`, which makes the head of its blocks once. Nobody
waits for blocks, so they are held for a moment and committed together. A recorder must never slow its
protocol: messages that cannot be written are left out, counted, and logged at a limited rate. When the log
takes records again, a gap in it marks them.
"""

import time
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import NamedTuple

import attrs
import structlog
import trio

from shared.errors import StoreError
from shared.metrics import Sample
from shared.recording import blocks
from shared.recording.blocks import GAP, NAMESPACE
from shared.recording.settings import RecordSettings
from shared.storage.inventory import Namespace
from shared.storage.log import Log
from shared.storage.store import Store, Ticket

WARN_SECONDS = 10.0
"""Pause between two log lines about messages left out; the first line is immediate."""
HELD_BYTES = 1024 * 1024
HELD_SECONDS = 0.05
"""Held blocks are appended at this size in all, or when the first has waited this long."""
SMALL_BYTES = 32 * 1024
"""Smaller blocks are copied and joined before they are appended; larger ones are written without a copy."""
RETAIN_SECONDS = 1.0
"""How often retention runs on a log above its bound; the store's own interval may be longer."""

Buffer = bytes | memoryview


def now_us() -> int:
    """The wall clock in Unix microseconds."""
    return time.time_ns() // 1000


class _WaitingBlock(NamedTuple):
    """A block that waits for others. `head`: its record, but for `frames` where these are large. `size`: of
    its frames, wherever they are."""

    head: bytes
    frames: Buffer
    messages: int
    size: int


class Recording:
    """The recorders of this process: one for each protocol that the settings name.

    The constructor makes its folder and may raise OSError.
    """

    def __init__(
        self,
        store: Store,
        settings: RecordSettings,
        log: structlog.stdlib.BoundLogger,
        *,
        wall_us: Callable[[], int] = now_us,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.wall_us = wall_us
        self.monotonic = monotonic
        self._grown = trio.Event()
        self._holding = trio.Event()
        self._recorders: dict[str, Recorder] = {}
        self._namespaces: list[Namespace] = []
        if settings.protocols or (store.folder is not None and (store.folder / NAMESPACE).is_dir()):
            # Retention also covers the logs of earlier runs.
            namespace = store.namespace(NAMESPACE, settings.durability, retention=settings.retention)
            self._namespaces = [namespace]
            for name in settings.protocols:
                report = log.bind(protocol=name)
                self._recorders[name] = Recorder(self, namespace, name, settings, report)

    def take_settings(self, settings: RecordSettings) -> None:
        """Apply new settings."""
        for recorder in self._recorders.values():
            recorder.settings = settings
        for namespace in self._namespaces:
            namespace.retention = settings.retention

    def of(self, protocol: str) -> "Recorder | None":
        """The recorder of a protocol; None if it is not recorded."""
        return self._recorders.get(protocol)

    async def run(self) -> None:
        """Write what is held in its time, and have retention look as soon as a log has grown too large; until
        cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            nursery.start_soon(self._retain)

    def flush(self) -> None:
        """Append held blocks; the caller commits them."""
        for recorder in self._recorders.values():
            recorder.flush()

    async def _write(self) -> None:
        while True:
            await self._holding.wait()
            await trio.sleep(HELD_SECONDS)
            self._holding = trio.Event()
            self.flush()
            self.store.commit_pending()

    async def _retain(self) -> None:
        while True:
            await self._grown.wait()
            await self.store.retain()
            for recorder in self._recorders.values():
                recorder.retained()
            await trio.sleep(RETAIN_SECONDS)
            self._grown = trio.Event()

    def samples(self) -> Iterable[Sample]:
        for recorder in self._recorders.values():
            yield from recorder.samples()

    def holds(self) -> None:
        self._holding.set()

    def grew(self) -> None:
        self._grown.set()


class Recorder:
    """One protocol's recording."""

    def __init__(
        self,
        recording: Recording,
        namespace: Namespace,
        protocol: str,
        settings: RecordSettings,
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self.protocol = protocol.encode()
        self._store = recording.store
        self._namespace = namespace
        self._name = protocol
        self._report = log
        self._recording = recording
        self._wall_us = recording.wall_us
        self._log: Log | None = None
        self.settings = settings
        self._part: _WaitingPart | None = None
        self._held: list[_WaitingBlock] = []
        self._held_bytes = 0
        self._retained_end = 0  # the log's end when retention last looked
        self._fields = blocks.pack_fields(self.protocol, b"", b"")
        # Counted since the start:
        self.messages = 0
        self.bytes = 0
        self.blocks = 0
        self.left_out: dict[str, int] = {}
        self.left_out_bytes = 0
        # Left out since the last gap:
        self._gap_messages = self._gap_bytes = 0
        self._warned_at: float | None = None  # monotonic
        self._unwarned = 0  # messages left out since that log line

    def track(self, codec: int, *, name: bytes = b"", source: bytes = b"") -> "Track":
        """The track of a new source. `codec`: the format of its frames, 1 to 255, listed in RECORDING.md."""
        return Track(self, codec, blocks.pack_fields(self.protocol, name, source))

    def samples(self) -> Iterable[Sample]:
        labels = (("protocol", self._name),)
        for name, value, help_ in (
            ("messages", self.messages, "Messages written to a recorded log."),
            ("bytes", self.bytes, "Their bytes, with the heads of their blocks."),
            ("blocks", self.blocks, "Records that they are in."),
        ):
            yield Sample(f"recorded_{name}_total", value, help_, labels=labels)
        for reason, messages in sorted(self.left_out.items()):
            yield Sample(
                "recorded_left_out_messages_total",
                messages,
                "Messages that passed through and were not recorded.",
                labels=(*labels, ("reason", reason)),
            )
        yield Sample("recorded_left_out_bytes_total", self.left_out_bytes, "Bytes of these.", labels=labels)

    def cut(self) -> "tuple[Log, int, Ticket | None] | None":
        """Where what has passed until now ends: the log, its end, and the ticket of its newest records, if
        some are not durable yet. None: there is no log."""
        self.flush()
        log = self._log
        if log is None or log.deleted:
            log = self._open(0, 0)
        return None if log is None else (log, log.end, None if self._part is None else self._part.ticket)

    # Called by tracks and tickets.

    def put(self, codec: int, fields: bytes, messages: int, frames: Buffer) -> None:
        """Take a block, or leave it out. Never raises for errors of the disk or the store."""
        if self._store.scarce:  # the room that is left is for published messages
            self._pass_over("space", messages, len(frames))
            return
        log = self._log
        if log is None or log.deleted:  # the log is missing, or could not be made
            log = self._open(messages, len(frames))
            if log is None:
                return
        pending = log.end - log.visible
        if pending and (pending + len(frames) > self.settings.pending_bytes_max or self._store.over_budget):
            self._pass_over("behind", messages, len(frames))
            return
        # Retention works at intervals and by whole index entries, which may be longer than the bound. It is
        # asked to run a little above the bound; at twice the bound messages are left out until it has run.
        kept, kept_max = log.end - log.first, self.settings.retention_bytes
        if kept > kept_max + kept_max // 8:
            self._recording.grew()
            if kept > 2 * kept_max and log.end - self._retained_end > kept_max:
                self._pass_over("retention", messages, len(frames))
                return
        size = len(frames)
        head = blocks.pack_head(codec, self._wall_us(), messages, fields, size)
        if size < SMALL_BYTES:
            head, frames = b"".join((head, frames)), b""
        self._held.append(_WaitingBlock(head, frames, messages, size))
        self._held_bytes += len(head) + len(frames)
        if self._held_bytes >= HELD_BYTES:
            self._append_held()
        elif len(self._held) == 1:
            self._recording.holds()

    def retained(self) -> None:
        """Retention has looked at the log."""
        if self._log is not None:
            self._retained_end = self._log.end

    def flush(self) -> None:
        """Append held blocks, then a gap for what was left out."""
        self._append_held()
        if self._gap_messages and self._log is not None:
            try:
                self._mark_gap(self._log)
            except StoreError:
                if self._store.read_only is None:  # else it never can be
                    self._recording.holds()

    def _append_held(self) -> None:
        held, log = self._held, self._log
        if not held or log is None:
            return
        self._held = []
        self._held_bytes = 0
        for alone, those in groupby(held, lambda block: len(block.frames) > 0):
            if alone:
                for each in those:
                    self._append(log, each.head, each.frames, 1, each.messages, each.size)
            else:
                heads, _, messages, sizes = zip(*those, strict=True)
                self._append(log, b"".join(heads), b"", len(heads), sum(messages), sum(sizes))

    def written(self, done: "_WaitingPart", error: StoreError | None) -> None:
        """A commit has ended: its bytes are no longer pending."""
        if self._part is done:
            self._part = None
        if error is None:
            self.messages += done.messages
            self.bytes += done.bytes
            self.blocks += done.blocks
        else:
            self._gap_messages += done.gap_messages
            self._gap_bytes += done.gap_bytes
            self.leave_out("store", done.messages, done.frames_bytes, str(error))

    def _pass_over(self, reason: str, messages: int, size: int) -> None:
        """Leave a block out. Blocks before it are written before its gap."""
        self._append_held()
        self.leave_out(reason, messages, size)

    def leave_out(self, reason: str, messages: int, size: int, why: str = "") -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + messages
        self.left_out_bytes += size
        self._gap_messages += messages
        self._gap_bytes += size
        self._recording.holds()  # writes the gap even if no further message comes
        self._unwarned += messages
        now = self._recording.monotonic()
        if self._warned_at is None or now - self._warned_at >= WARN_SECONDS:
            self._warned_at = now
            self._report.warning(
                "messages pass unrecorded: the recording has a gap there; the reason says what it lacks",
                reason=reason,
                messages=self._unwarned,
                **({"error": why} if why else {}),
            )
            self._unwarned = 0

    def _append(self, log: Log, head: bytes, frames: Buffer, count: int, messages: int, size: int) -> None:
        """Append `count` whole records in `head`, or one that begins in `head` and ends in `frames`."""
        try:
            if self._gap_messages:
                self._mark_gap(log)
            _, ticket = log.append_framed(head, frames) if frames else log.append(head, count)
        except StoreError as error:
            self.leave_out("store", messages, size, str(error))
            return
        part = self._part_of(ticket)
        part.blocks += count
        part.bytes += len(head) + len(frames)
        part.messages += messages
        part.frames_bytes += size

    def _mark_gap(self, log: Log) -> None:
        messages, size = min(self._gap_messages, blocks.MESSAGES_MAX), self._gap_bytes
        head = blocks.pack_head(GAP, self._wall_us(), messages, self._fields, blocks.GAP_BYTES.size)
        gap = head + blocks.GAP_BYTES.pack(size)
        _, ticket = log.append(gap, 1)
        part = self._part_of(ticket)
        part.blocks += 1
        part.bytes += len(gap)
        part.gap_messages += messages
        part.gap_bytes += size
        self._gap_messages -= messages  # bytes above a block's bound go into the next block
        self._gap_bytes = 0

    def _part_of(self, ticket: Ticket) -> "_WaitingPart":
        part = self._part
        if part is None or part.ticket is not ticket:
            part = self._part = _WaitingPart(self, ticket)
            ticket.when_done(part)
        return part

    def _open(self, messages: int, size: int) -> Log | None:
        """The log, made if missing; None if it cannot be made now."""
        namespace = self._namespace
        try:
            log = namespace.logs.get(self._name)
            if log is None:
                log, _ = namespace.create(self._name)
            else:
                namespace.change_mode(self._name, namespace.mode)
        except StoreError as error:
            self.leave_out("store", messages, size, str(error))
            return None
        log.unawaited = True
        self._log = log
        return log


class Track:
    """One source of messages: a connection, a socket."""

    __slots__ = ("_codec", "_fields", "_put")

    def __init__(self, recorder: Recorder, codec: int, fields: bytes) -> None:
        self._put = recorder.put
        self._codec = codec
        self._fields = fields

    def record(self, messages: int, frames: Buffer) -> None:
        """Record `frames`, which hold `messages` whole messages. The driver of the turn commits."""
        self._put(self._codec, self._fields, messages, frames)


@attrs.define(eq=False)
class _WaitingPart:
    """The part of a recording that waits for one ticket; it is the ticket's callback."""

    recorder: Recorder
    ticket: Ticket
    messages: int = 0
    bytes: int = 0
    blocks: int = 0
    frames_bytes: int = 0
    gap_messages: int = 0
    gap_bytes: int = 0

    def __call__(self, ticket: Ticket) -> None:
        self.recorder.written(self, ticket.error)
