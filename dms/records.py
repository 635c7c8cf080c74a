"""The records of a queue's log, byte for byte as STORAGE.md has them. No I/O, no state."""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from typing import Any, NamedTuple

from dms.job_head import JobHead, form_bytes
from shared.errors import BrokerError
from shared.queues.runs import Run

VERSION = 1
HEAD = struct.Struct(">IBBHIQQQ")
"""Record length; kind, version, reason, count, age (ms), time (Unix ms), sequence."""
_LENGTH_BYTES = 4
_RUN = struct.Struct(">QI")
RUN_BYTES = _RUN.size
_ONE_RUN = struct.Struct(">IBBHIQQQQI")
"""`HEAD` and `_RUN`: a record of one run, as most are."""
_ONE_BODY = struct.Struct(">IBBHIQQQI")
"""`HEAD` and a body's length: a record of one message."""
_RETURNED = struct.Struct(">QIQ")
_KEPT = struct.Struct(">QIQII")
_SEQ_BYTES = 8
_TEXT = struct.Struct(">QI")
_RESCHEDULED = struct.Struct(">QQQ")
_LENGTH = struct.Struct(">I")
_PLACE = struct.Struct(">QH")
JOB_RECORD_BYTES = HEAD.size + _SEQ_BYTES
"""Bytes of a record of one job beside its form."""


class RecordKind(IntEnum):
    """What a record says."""

    ENQUEUED = 1
    LETTERS = 2
    DELIVERED = 3
    ACKED = 4
    RETURNED = 5
    GONE = 6
    MOVED = 7
    KEPT = 8
    SNAPSHOT = 9
    IMPORTED = 10
    JOBS = 11
    TEXTS = 12
    RESCHEDULED = 13
    SEEN = 14
    SCHEDULED = 15
    PLACES = 16


class Reason(IntEnum):
    """Why messages were returned, or left without an acknowledgement."""

    NONE = 0
    NACKED = 1
    LOST = 2
    TTL = 3
    MAX_DELIVERIES = 4
    PURGED = 5
    REDRIVEN = 6
    CANCELLED = 7


TTL = "ttl"
"""The reason of a dead letter that was too old."""


class DeadLetter(bytes):
    """A body that was dead-lettered: bytes that also know where they come from.

    `origin`: the queue; `reason`: why it died there; `deliveries`: how many it had; `time_ms`: when, in Unix
    milliseconds, 0: not known; `text`: what its last NACK said. `before`: the queues that it left before that
    one, since it was last delivered. `job`: what it was as a job, as `JobHead.about` has it.
    """

    origin: str
    reason: str
    deliveries: int
    time_ms: int
    text: str
    job: Mapping[str, Any]
    before: tuple[str, ...]

    @classmethod
    def of(
        cls,
        body: bytes,
        origin: str,
        reason: str,
        deliveries: int,
        *,
        time_ms: int = 0,
        head: JobHead | None = None,
    ) -> "DeadLetter":
        letter = cls(body)
        letter.origin, letter.reason, letter.deliveries = origin, reason, deliveries
        letter.time_ms, letter.text, letter.job = time_ms, "", {}
        if head is not None:
            letter.text = head.text
        if head is not None and head.produced_ms:
            letter.job = head.about
        elif isinstance(body, DeadLetter):
            letter.job = body.job
        by_time = reason == TTL and not deliveries
        letter.before = body.passed if by_time and isinstance(body, DeadLetter) else ()
        return letter

    @property
    def passed(self) -> tuple[str, ...]:
        """The queues that it left, one behind the other, because of time alone."""
        return (*self.before, self.origin) if self.reason == TTL and not self.deliveries else ()

    @property
    def told(self) -> dict[str, Any]:
        """What a consumer is told of its death."""
        told = {"reason": self.reason, "queue": self.origin, "count": self.deliveries}
        return {**told, "time": self.time_ms, "text": self.text}

    @property
    def about(self) -> dict[str, Any]:
        about: dict[str, Any] = {
            "origin": self.origin,
            "reason": self.reason,
            "deliveries": self.deliveries,
        }
        more = {"time": self.time_ms, "text": self.text, "job": self.job, "before": list(self.before)}
        return about | {name: value for name, value in more.items() if value}


class SeqRange(NamedTuple):
    """Sequences `first` to `first + length`."""

    first: int
    length: int


class KeptMessage(NamedTuple):
    """A message that has left the row and is held, or waits in `back`, copied into a snapshot.

    `due`: the age at which it may be delivered; 0: now. `head`: what is known of it beside the body.
    """

    seq: int
    deliveries: int
    due: int
    body: bytes
    head: JobHead | None = None


class Record(NamedTuple):
    """One record's head; `body` and `end`: where the rest begins and ends in the bytes that were read."""

    kind: int
    reason: int
    entries: int
    age_ms: int
    time_ms: int
    seq: int
    body: int
    end: int


_ENQUEUED, _JOBS = int(RecordKind.ENQUEUED), int(RecordKind.JOBS)
_ONE_BODY_BYTES = _ONE_BODY.size - _LENGTH_BYTES
_ONE_RUN_BYTES = _ONE_RUN.size - _LENGTH_BYTES


class NotOurs(BrokerError):
    """A record that this version does not know."""


def pack(
    kind: RecordKind, count: int, seq: int, age_ms: int, time_ms: int, body: bytes = b"", reason: int = 0
) -> bytes:
    return pack_head(kind, count, seq, age_ms, time_ms, len(body), reason) + body


def pack_head(
    kind: RecordKind, count: int, seq: int, age_ms: int, time_ms: int, size: int, reason: int = 0
) -> bytes:
    """The head of a record whose body has `size` bytes."""
    length = HEAD.size - _LENGTH_BYTES + size
    return HEAD.pack(length, kind, VERSION, reason, count, age_ms, time_ms, seq)


def pack_enqueued(bodies: Sequence[bytes], first: int, age_ms: int, time_ms: int) -> bytes:
    """An ENQUEUED record."""
    if len(bodies) == 1:
        size = len(bodies[0])
        head = _ONE_BODY.pack(_ONE_BODY_BYTES + size, _ENQUEUED, VERSION, 0, 1, age_ms, time_ms, first, size)
        return head + bodies[0]
    return pack(RecordKind.ENQUEUED, len(bodies), first, age_ms, time_ms, pack_bodies(bodies))


def pack_run_record(
    kind: RecordKind, runs: Sequence[Sequence[int]], age_ms: int, time_ms: int, reason: int = 0
) -> bytes:
    """A record of runs: (first sequence, length)."""
    if len(runs) == 1:
        first, length = runs[0]
        return _ONE_RUN.pack(_ONE_RUN_BYTES, kind, VERSION, reason, 1, age_ms, time_ms, 0, first, length)
    return pack(kind, len(runs), 0, age_ms, time_ms, pack_runs(runs), reason)


def unpack(data: bytes) -> Iterator[Record]:
    """The heads of whole records. Raises NotOurs."""
    at, end = 0, len(data)
    while at < end:
        size = int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
        if size < HEAD.size - _LENGTH_BYTES:
            raise NotOurs(f"a record of {size} bytes")
        _, kind, version, reason, count, age_ms, time_ms, seq = HEAD.unpack_from(data, at)
        if version != VERSION:
            raise NotOurs(f"a record of version {version}")
        after = at + _LENGTH_BYTES + size
        yield Record(kind, reason, count, age_ms, time_ms, seq, at + HEAD.size, after)
        at = after


# -- bodies


def pack_bodies(bodies: Sequence[bytes]) -> bytes:
    """Each body behind its length in 4 bytes."""
    size = len(bodies[0])
    if set(map(len, bodies)) == {size}:
        length = size.to_bytes(4, "big")
        return length + length.join(bodies)
    lengths = map(_LENGTH.pack, map(len, bodies))
    return b"".join(chain.from_iterable(zip(lengths, bodies, strict=True)))


def split_bodies(data: bytes, at: int, count: int) -> list[bytes]:
    """What `pack_bodies` joined: `count` bodies, the first one's length at `at`."""
    end = len(data)
    step = 4 + int.from_bytes(data[at : at + 4], "big")
    if at + count * step == end:
        if count == 1:
            return [data[at + 4 :]]
        prefix = data[at : at + 4]
        if all(data[at + byte : end : step] == prefix[byte : byte + 1] * count for byte in range(4)):
            return [data[start + 4 : start + step] for start in range(at, end, step)]
    bodies: list[bytes] = []
    for _ in range(count):
        start = at + 4
        at = start + int.from_bytes(data[at:start], "big")
        bodies.append(data[start:at])
    return bodies


def pack_letters(letters: Iterable[DeadLetter]) -> bytes:
    """The body of a LETTERS record: each letter's JSON, then its body, both behind their lengths."""
    parts: list[bytes] = []
    for letter in letters:
        parts += (json.dumps(letter.about).encode(), letter)
    return pack_bodies(parts)


def messages_in(data: bytes, record: Record) -> list[bytes]:
    """The bodies of an ENQUEUED or LETTERS record."""
    body = data[record.body : record.end]
    if record.kind == RecordKind.ENQUEUED:
        return split_bodies(body, 0, record.entries)
    parts = split_bodies(body, 0, 2 * record.entries)
    return [letter_of(about, text) for about, text in zip(parts[::2], parts[1::2], strict=True)]


def letter_of(about: bytes, body: bytes) -> DeadLetter:
    return _letter_of(json.loads(about), body)


def _letter_of(known: Mapping[str, Any], body: bytes) -> DeadLetter:
    letter = DeadLetter.of(
        body, known["origin"], known["reason"], known["deliveries"], time_ms=known.get("time", 0)
    )
    letter.text, letter.job = known.get("text", ""), known.get("job", {})
    letter.before = tuple(known.get("before", ()))
    return letter


def pack_runs(those: Iterable[Iterable[int]]) -> bytes:
    return b"".join(_RUN.pack(first, count) for first, count in those)


def runs_in(data: bytes, record: Record) -> list[SeqRange]:
    """The runs in a DELIVERED, ACKED, GONE or MOVED record."""
    end = record.body + _RUN.size * record.entries
    return [SeqRange(*span) for span in _RUN.iter_unpack(data[record.body : end])]


def pack_returned(those: Iterable[tuple[int, int, int]]) -> bytes:
    """The body of a RETURNED record, of (sequence, deliveries, due)."""
    return b"".join(_RETURNED.pack(*entry) for entry in those)


def returned_in(data: bytes, record: Record) -> Iterator[tuple[int, ...]]:
    return _RETURNED.iter_unpack(data[record.body : record.end])


def pack_kept(runs: Iterable[tuple[Run, int]], bytes_max: int) -> Iterator[tuple[int, bytes]]:
    """The bodies of KEPT records, each with how many messages it has. One that passes `bytes_max` ends it.

    `runs`: each with the age at which it may be delivered; 0: now. There may be ten thousands, of one message
    each: 0.6 us a message, most of it to copy 1 KB.
    """
    pack = _KEPT.pack
    parts: list[bytes] = []
    size = 0
    for run, due in runs:
        seq, tries, bodies, head = run.first, run.tries, run.bodies, run.head
        for body in bodies:
            about = b""
            if head is not None:
                due = max(due, head.due)
                about = _about(body, head)
            elif isinstance(body, DeadLetter):
                about = json.dumps(body.about).encode()
            parts += (pack(seq, tries, due, len(about), len(body)), about, body)
            size += _KEPT.size + len(body)
            seq += 1
            if size >= bytes_max:
                yield len(parts) // 3, b"".join(parts)
                parts, size = [], 0
    if parts:
        yield len(parts) // 3, b"".join(parts)


def _about(body: bytes, head: JobHead) -> bytes:
    """The JSON of a message that has a head."""
    about = {"head": head.about}
    return json.dumps({**body.about, **about} if isinstance(body, DeadLetter) else about).encode()


def unpack_kept(data: bytes, at: int = 0) -> KeptMessage:
    """The entry at `at`."""
    seq, deliveries, due, about, size = _KEPT.unpack_from(data, at)
    at += _KEPT.size + about
    body = data[at : at + size]
    if not about:
        return KeptMessage(seq, deliveries, due, body)
    known = json.loads(data[at - about : at])
    head = JobHead.of(known["head"]) if "head" in known else None
    return KeptMessage(seq, deliveries, due, _letter_of(known, body) if "origin" in known else body, head)


def forms_in(data: bytes, record: Record) -> Iterator[tuple[int, bytes]]:
    """The messages in a JOBS or KEPT record: sequence, and the rest of the entry as it is."""
    at = record.body
    for _ in range(record.entries):
        seq = int.from_bytes(data[at : at + _SEQ_BYTES], "big")
        at += _SEQ_BYTES
        size = form_bytes(data, at)
        yield seq, data[at : at + size]
        at += size


def pack_jobs(forms: Sequence[bytes], first: int, age_ms: int, time_ms: int) -> bytes:
    """A JOBS record for each job: it is found by where its record begins."""
    beside = JOB_RECORD_BYTES - _LENGTH_BYTES
    parts: list[bytes] = []
    for seq, form in enumerate(forms, first):
        parts += (
            HEAD.pack(beside + len(form), _JOBS, VERSION, 0, 1, age_ms, time_ms, seq),
            seq.to_bytes(_SEQ_BYTES),
            form,
        )
    return b"".join(parts)


def form_at(data: bytes, at: int, seq: int) -> bytes | None:
    """That message in the JOBS or KEPT record that begins at `at`; None: it is not there."""
    whole = data[at : at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES])]
    record = next(unpack(whole))
    if record.kind in (RecordKind.JOBS, RecordKind.KEPT):
        for number, form in forms_in(whole, record):
            if number == seq:
                return form
    return None


def pack_places(jobs: Iterable[tuple[int, bytes]]) -> bytes:
    """The body of a PLACES record, of (sequence, the rest of the entry)."""
    return b"".join([_PLACE.pack(seq, len(rest)) + rest for seq, rest in jobs])


def places_in(data: bytes, record: Record) -> Iterator[tuple[int, bytes]]:
    at = record.body
    for _ in range(record.entries):
        seq, size = _PLACE.unpack_from(data, at)
        at += _PLACE.size
        yield seq, data[at : at + size]
        at += size


def pack_texts(those: Iterable[tuple[int, str]]) -> bytes:
    """The body of a TEXTS record, of (sequence, text)."""
    parts: list[bytes] = []
    for seq, text in those:
        encoded = text.encode()
        parts += (_TEXT.pack(seq, len(encoded)), encoded)
    return b"".join(parts)


def texts_in(data: bytes, record: Record) -> Iterator[tuple[int, str]]:
    at = record.body
    for _ in range(record.entries):
        seq, size = _TEXT.unpack_from(data, at)
        at += _TEXT.size
        yield seq, data[at : at + size].decode()
        at += size


def pack_scheduled(done: Mapping[str, int]) -> bytes:
    """The body of a SCHEDULED record; `done`: up to when each schedule is done, by what it says."""
    return json.dumps({"done": done}).encode()


def pack_rescheduled(seq: int, due: int, at_ms: int) -> bytes:
    """The body of a RESCHEDULED record."""
    return _RESCHEDULED.pack(seq, due, at_ms)


def rescheduled_in(data: bytes, record: Record) -> Iterator[tuple[int, ...]]:
    """Sequence, due age and Unix time (0: none) of each entry."""
    return _RESCHEDULED.iter_unpack(data[record.body : record.end])


def kept_in(data: bytes, record: Record, below: int = 1 << 64) -> Iterator[KeptMessage]:
    """The messages in a KEPT record whose sequences are below that."""
    at = record.body
    for _ in range(record.entries):
        if int.from_bytes(data[at : at + _SEQ_BYTES], "big") < below:
            yield unpack_kept(data, at)
        *_, about, size = _KEPT.unpack_from(data, at)
        at += _KEPT.size + about + size


def object_in(data: bytes, record: Record) -> Mapping[str, Any]:
    """The JSON object in a SNAPSHOT or IMPORTED record."""
    found: Mapping[str, Any] = json.loads(data[record.body : record.end])
    return found
