"""A durable queue's log: what was put in and what was taken out, from which its messages come back.

A record is a PUT, `[op 1][number u64][exchange shortstr][key shortstr][properties length u32][properties]
[body]`, or a TAKEN, `[op 2]` and numbers, u64 each. A message is in the queue where no TAKEN is behind its
last PUT. The log keeps its own size down: all below the oldest live
record is dropped, and while less than half of the log is live, the oldest live messages are written again at
its end, a few at each change. So one message that nobody takes never pins the disk, and there is no pause.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import trio

from dmp.message import Head, Message
from dmp.refusals import Refusal
from shared.errors import CorruptRecord, StoreError
from shared.storage.format import LENGTH_BYTES, length_at
from shared.storage.store import Log, Ticket

_PUT, _TAKEN = 1, 2
_HEAD = struct.Struct(">IBQ")
_PLACE = struct.Struct(">BQ")
_LENGTH = struct.Struct(">I")
_SLACK_BYTES = 256 << 10
"""Dead bytes that nobody minds; also the least that is dropped at once."""
_COPIES = 64
_COPY_BYTES = 256 << 10
"""At most so many of the oldest messages are written again at one change."""
_READ_BYTES = 1 << 20


class QueueLog:
    """One queue's log, and where in it its live messages stand."""

    __slots__ = ("_live", "_live_bytes", "_taken", "log")

    def __init__(self, log: Log) -> None:
        self.log = log
        self._live: dict[int, Message] = {}  # by number, in the order of their records
        self._live_bytes = 0
        self._taken: list[int] = []

    def records(self, head: Head, messages: Sequence[Message]) -> bytes:
        """PUT records of a run."""
        common = head.record
        if common is None:
            common = head.record = _common(head)
        size = _HEAD.size - LENGTH_BYTES + len(common) + head.body_bytes
        pack = _HEAD.pack
        parts: list[bytes] = []
        for message in messages:
            parts += (pack(size, _PUT, message.number), common, message.body)
        return b"".join(parts)

    def appended(self, head: Head, messages: Sequence[Message], offset: int) -> None:
        """Their records went into the log, from `offset` on."""
        assert head.record is not None
        size = _HEAD.size + len(head.record) + head.body_bytes
        live = self._live
        for message in messages:
            message.offset = offset
            live[message.number] = message
            offset += size
        self._live_bytes += size * len(messages)

    def take(self, message: Message) -> None:
        """It leaves the queue; `flush` writes that down."""
        if self._live.pop(message.number, None) is not None:
            self._live_bytes -= _size(message)
            self._taken.append(message.number)

    def forget(self, message: Message) -> None:
        """Its record was taken back."""
        if self._live.pop(message.number, None) is not None:
            self._live_bytes -= _size(message)

    def taken_record(self) -> bytes:
        """What `flush` would write, for `Store.append_all`; b"" where there is nothing."""
        taken, self._taken = self._taken, []
        if not taken:
            return b""
        payload = struct.pack(f">B{len(taken)}Q", _TAKEN, *taken)
        return _LENGTH.pack(len(payload)) + payload

    def flush(self) -> Ticket | None:
        """Write down what was taken, and tidy. Raises StoreError; then it is tried again with the next."""
        if not self._taken or self.log.deleted:
            return None
        taken = self._taken
        record = self.taken_record()
        try:
            _, ticket = self.log.append(record, 1, reserved=True)
        except StoreError:
            self._taken = taken
            raise
        with suppress(StoreError):  # tidying can wait; what was taken is written
            self._tidy()
        return ticket

    def _tidy(self) -> None:
        log, live = self.log, self._live
        dead = log.end - log.first - self._live_bytes
        if dead < _SLACK_BYTES:
            return
        if dead > self._live_bytes:
            copied = 0
            for message in _first(live, _COPIES):
                if message.offset >= log.visible or copied > _COPY_BYTES:
                    break
                size = _size(message)
                record = self.records(message.head, (message,))
                message.offset = log.append(record, 1, reserved=True)[0]
                live[message.number] = live.pop(message.number)
                copied += size
        oldest = next(iter(live.values())).offset if live else log.end
        if oldest - log.first >= _SLACK_BYTES:
            log.drop_below(oldest)

    async def load(self) -> list[Message]:
        """Every message, in the queue's order. Raises StoreError."""
        found: dict[int, Message] = {}
        heads: dict[bytes, Head] = {}
        offset = self.log.first
        while offset < self.log.visible:
            data = await _read(self.log, offset)
            for at, payload in _payloads(data):
                try:
                    self._replay(payload, offset + at, found, heads)
                except (struct.error, IndexError, Refusal) as error:
                    raise CorruptRecord(self.log.file.path, offset + at) from error
            offset += len(data)
        for message in found.values():
            self._live[message.number] = message
            self._live_bytes += _size(message)
        return sorted(found.values(), key=lambda message: message.number)

    def _replay(
        self, payload: bytes, offset: int, found: dict[int, Message], heads: dict[bytes, Head]
    ) -> None:
        if payload[0] == _TAKEN:
            for number in struct.unpack_from(f">{(len(payload) - 1) // 8}Q", payload, 1):
                found.pop(number, None)
            return
        if payload[0] != _PUT:
            raise IndexError("not a record of a queue")
        _, number = _PLACE.unpack_from(payload)
        exchange_end = _PLACE.size + 1 + payload[_PLACE.size]
        key_end = exchange_end + 1 + payload[exchange_end]
        (length,) = _LENGTH.unpack_from(payload, key_end)
        body_at = key_end + 4 + length
        body = payload[body_at:]
        common = payload[_PLACE.size : body_at] + _LENGTH.pack(len(body))
        head = heads.get(common)
        if head is None:
            if len(heads) > 1024:
                heads.clear()
            head = heads[common] = Head(
                payload[_PLACE.size + 1 : exchange_end],
                payload[exchange_end + 1 : key_end],
                len(body),
                payload[key_end + 4 : body_at],
            )
            head.record = payload[_PLACE.size : body_at]
        message = Message(head, body, number)
        message.offset = offset
        message.redelivered = True  # nobody wrote down whether it had been given out
        found.pop(number, None)
        found[number] = message


def _common(head: Head) -> bytes:
    return b"".join(
        (
            bytes((len(head.exchange),)),
            head.exchange,
            bytes((len(head.key),)),
            head.key,
            _LENGTH.pack(len(head.properties)),
            head.properties,
        )
    )


def _size(message: Message) -> int:
    common = message.head.record
    assert common is not None
    return _HEAD.size + len(common) + message.head.body_bytes


def _first(live: dict[int, Message], count: int) -> Iterable[Message]:
    return [message for message, _ in zip(live.values(), range(count), strict=False)]


def _payloads(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        end = at + LENGTH_BYTES + length_at(data, at)[0]
        yield at, data[at + LENGTH_BYTES : end]
        at = end


async def _read(log: Log, offset: int) -> bytes:
    found: list[bytes | StoreError] = []
    ready = trio.Event()

    def done(result: bytes | StoreError) -> None:
        found.append(result)
        ready.set()

    reading: Callable[[int, int, Callable[[bytes | StoreError], None]], None] = log.read
    reading(offset, _READ_BYTES, done)
    await ready.wait()
    if isinstance(found[0], StoreError):
        raise found[0]
    return found[0]
