"""Store and forward: messages kept for absent clients, within bounds, the oldest dropped first.

A client at its own bound loses its oldest messages. When all clients together are above their bound, or the
budget has no room, a client with the most bytes loses some. Else a few clients that never return would take
the room of all others.

Messages are in memory, without the padding of their frames, and in a log. Two kinds of records say what is
kept: KEEP has a message and the clients that it is kept for, GONE says that a client has, or has lost, all
up to a message. So each is written once for all clients, and costs a few bytes to end. A message that the
store does not take is kept in memory alone, and counted. Messages are numbered: a client's are in the order
of their numbers, wherever the records stand. While less than half of the log is live, each change copies the
oldest live messages to its end, and all below the oldest one left is dropped.

A client that returns is handed its messages as one piece of its outbox (`ShortFrames`), which pads them as
they are sent. They are kept until the system has them: a message may come again after a crash only if it was
sent in the same moment.
"""

import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pubsub.metrics import Counts
from pubsub.settings import PubsubSettings
from pubsub.wire import FRAME_BYTES, ID_CHARACTERS_MAX, frame_topic
from shared.budget import Account, unbounded
from shared.by_size import BySizeAndUser
from shared.errors import StoreError
from shared.file_range import FileRange
from shared.routing.index import RoutingIndex

if TYPE_CHECKING:
    from shared.storage.log import Log

FRAME_OVERHEAD_BYTES = 400
"""Measured memory of a message that is kept for one client, beside its bytes."""
RESTRICT_VISITS_MAX = 6_000
"""Visits of a trie at which the lookup of one client's kept messages ends: 9 ms, some 3,000 topics."""
PENDING_BYTES_MAX = 16 << 20
"""Bytes that may wait for the disk: of a flood that it does not keep up with the rest is in memory alone."""
SLACK_BYTES = 64 << 10
"""Dead bytes of the log that are tolerated; also how much is dropped, and copied, at once."""
CLIENTS_MAX = 10_000
"""Clients in one record. A message for more has several records, of one number."""

_KEEP, _GONE = 1, 2
_HEAD = struct.Struct(">BQ")
_COUNT = struct.Struct(">H")


class Message:
    """A kept message. `number`: later ones have higher numbers. `clients`: the ids of those that it was kept
    for; `left`: how many of them still have it. `offset`, `size`: of its record; a size of 0: it has none.
    """

    __slots__ = ("clients", "frame", "left", "number", "offset", "size")

    def __init__(self, number: int, frame: bytes) -> None:
        self.number = number
        self.frame = frame
        self.clients: list[bytes] = []
        self.left = self.offset = self.size = 0


class ShortFrames(FileRange):
    """Frames without their padding, in an outbox: they are padded as they are sent.

    `sent(count)`: called when the transport has taken the first `count` of them.
    """

    __slots__ = ("_at", "_frames", "_sent")

    def __init__(self, frames: Sequence[bytes], sent: Callable[[int], None]) -> None:
        self._frames = frames
        self._at = 0
        self._sent = sent
        super().__init__(-1, 0, len(frames) * FRAME_BYTES, lambda: None)

    @property
    def done(self) -> int:
        """How many whole frames the transport has taken."""
        return self._at // FRAME_BYTES

    @property
    def offset(self) -> int:
        return self._at

    @offset.setter
    def offset(self, offset: int) -> None:
        before, self._at = self.done, offset
        if self.done > before:
            self._sent(self.done)

    def read(self, bytes_max: int) -> bytes:
        skipped = self._at % FRAME_BYTES
        some = self._frames[self.done : self.done + (skipped + bytes_max) // FRAME_BYTES + 1]
        frames = b"".join([frame.ljust(FRAME_BYTES, b"\0") for frame in some])
        return frames[skipped : skipped + min(bytes_max, self.length)]


class Kept:
    """Messages by client. Clients without any have no entry. `user_of`: whose the session of a client is.

    Each user has his share, too: above it his clients lose messages, and not those of others.
    """

    def __init__(
        self,
        settings: PubsubSettings,
        counts: Counts,
        memory: Account | None = None,
        user_of: Callable[[bytes], str] = lambda client_id: "",
    ) -> None:
        self._memory = memory or unbounded()
        self._of_users = self._memory.new_shares()
        self.settings = settings
        self._counts = counts
        self._of_clients: dict[bytes, deque[Message]] = {}
        self._bytes = BySizeAndUser[bytes](lambda client_id: self._of_users.bounded(user_of(client_id)))
        self._number = 0
        self._handed: dict[bytes, int] = {}  # up to which message a connection has been given them
        self._log: Log | None = None
        self._on_failure: Callable[[StoreError], None] = lambda error: None
        self._recorded: OrderedDict[int, Message] = OrderedDict()  # by number, in the order of their records
        self._recorded_bytes = 0
        self._gone: dict[bytes, int] = {}  # by client: up to which message, to be written
        self._found: dict[int, Message] = {}  # what `read` has found
        self._older: list[int] = []  # those of them that an older version has written

    @property
    def total_bytes(self) -> int:
        return self._bytes.all.total

    # Keeping.

    def add(self, client_ids: Iterable[bytes], frame: bytes) -> None:
        """Keep a frame for each client. Above a bound the oldest are dropped, even this one."""
        message = self.message(frame)
        self.share(message, client_ids)
        self.write(message)

    def message(self, frame: bytes) -> Message:
        """A message that is newer than all others. `share` keeps it for clients, then `write` writes it."""
        self._number += 1
        return Message(self._number, frame.rstrip(b"\0"))

    def share(self, message: Message, client_ids: Iterable[bytes]) -> None:
        """Keep a message for each client, in memory."""
        for client_id in client_ids:
            self._bound(client_id, self._keep(client_id, message))

    def _keep(self, client_id: bytes, message: Message) -> str:
        """Keep a message for a client, as its newest. Returns whom that counts for."""
        self._of_clients.setdefault(client_id, deque()).append(message)
        message.clients.append(client_id)
        message.left += 1
        self._counts.messages_kept += 1
        return self._weigh(client_id, len(message.frame), 1)

    def _bound(self, client_id: bytes, user: str) -> None:
        """Drop what is too much, now that a client of a user has more."""
        settings = self.settings
        while client_id in self._of_clients and (
            len(self._of_clients[client_id]) > settings.kept_messages_max
            or self._bytes.all[client_id] > settings.kept_bytes_max
        ):
            self._drop_oldest(client_id)
        while self.total_bytes and (self.total_bytes > settings.kept_bytes_total_max or self._memory.over):
            self._drop_oldest(self._bytes.all.large())
        while user and not (
            self._of_users.fits(user, settings.kept_bytes_total_max, 0)
            and self._memory.shares.fits(user, self._memory.limit_bytes, 0)
        ):
            self._drop_oldest(self._bytes.large_of(user))

    def append(self, client_id: bytes, frames: Sequence[bytes]) -> None:
        """Keep frames for a client."""
        for frame in frames:
            self.add([client_id], frame)

    def reserve(self, count: int) -> int:
        """A number for `put_back`, with room for so many messages before what is kept from now on."""
        self._number += count
        return self._number - count

    def put_back(self, client_id: bytes, frames: Sequence[bytes], number: int) -> None:
        """Keep frames that are older than what was kept for the client since `reserve`. The newest of them
        are kept."""
        newest = frames[-self.settings.kept_messages_max :]
        self._counts.kept_dropped += len(frames) - len(newest)
        later: list[Message] = []
        messages = self._of_clients.get(client_id)
        while messages and messages[-1].number > number:
            later.append(messages.pop())
        for at, frame in enumerate(newest, start=1):
            message = Message(number + at, frame.rstrip(b"\0"))
            self._keep(client_id, message)
            self.write(message)
        if frames or later:
            self._of_clients[client_id].extend(reversed(later))
            self._bound(client_id, self._weigh(client_id, 0, 0))

    def _drop_oldest(self, client_id: bytes) -> None:
        self._counts.kept_dropped += 1
        self._end(client_id, 1)

    def _end(self, client_id: bytes, count: int) -> None:
        """A client's oldest messages end."""
        messages = self._of_clients[client_id]
        size = 0
        for _ in range(count):
            message = messages.popleft()
            size += len(message.frame)
            message.left -= 1
            if message.size:
                self._gone[client_id] = message.number
                if not message.left:
                    self._unrecord(message)
        if not messages:
            del self._of_clients[client_id]
            self._handed.pop(client_id, None)
        self._weigh(client_id, -size, -count)

    def _weigh(self, client_id: bytes, more: int, frames: int) -> str:
        """Add `more` bytes of so many frames to a client's count; negative: subtract. Returns whom it counts
        for."""
        user = self._bytes.put(client_id, self._bytes.all[client_id] + more)
        self._memory.charge(more + frames * FRAME_OVERHEAD_BYTES, user)
        if user:
            self._of_users.add(user, more)
        return user

    # Handing over.

    def hand_over(self, client_id: bytes) -> list[Message]:
        """A client's messages, but for those that another connection of it has been handed."""
        handed = self._handed.get(client_id, 0)
        messages = [each for each in self._of_clients.get(client_id, ()) if each.number > handed]
        if messages:
            self._handed[client_id] = messages[-1].number
        return messages

    def sent(self, client_id: bytes, message: Message) -> None:
        """A client has been sent its messages up to this one."""
        messages = self._of_clients.get(client_id, ())
        count = next((at for at, each in enumerate(messages) if each.number > message.number), len(messages))
        if count:
            self._end(client_id, count)
        self.flush()

    def unsent(self, client_id: bytes, messages: Sequence[Message], handed: Message) -> None:
        """What is left of what a connection was handed, up to `handed`, is kept on."""
        oldest = self._oldest(client_id)
        if self._handed.get(client_id) == handed.number:
            del self._handed[client_id]
        self.append(client_id, [each.frame for each in messages if each.number < oldest])

    def _oldest(self, client_id: bytes) -> float:
        """The number of a client's oldest message."""
        messages = self._of_clients.get(client_id)
        return messages[0].number if messages else float("inf")

    def forget(self, client_id: bytes) -> None:
        """Drop a client's messages."""
        if client_id in self._of_clients:
            self._end(client_id, len(self._of_clients[client_id]))
            self.flush()

    def restrict(self, client_id: bytes, patterns: RoutingIndex[bytes]) -> None:
        """Drop a client's messages that no pattern matches; `matching` says how many are looked up."""
        frames = [each.frame for each in self._of_clients.get(client_id, ())]
        left = self.matching(frames, patterns)
        if len(left) < len(frames):
            self.forget(client_id)
            self.append(client_id, left)
            self._counts.messages_kept -= len(left)

    def matching(self, frames: Sequence[bytes], patterns: RoutingIndex[bytes]) -> Sequence[bytes]:
        """The frames that a pattern matches.

        The newest are looked up first. What `RESTRICT_VISITS_MAX` does not reach is dropped and counted.
        """
        left: deque[bytes] = deque()
        for looked_up, each in enumerate(reversed(frames)):
            if patterns.visits > RESTRICT_VISITS_MAX:
                self._counts.kept_dropped += len(frames) - looked_up
                break
            if patterns.match(frame_topic(each)):
                left.appendleft(each)
        return tuple(left)

    def held(self, client_id: bytes) -> tuple[int, int]:
        """A client's kept messages and bytes."""
        return len(self._of_clients.get(client_id, ())), self._bytes.all[client_id]

    def full_percent(self, messages: int, size: int) -> int:
        """How much of one client's room so many messages and bytes take, in percent."""
        settings = self.settings
        of_messages = 100 * messages // max(settings.kept_messages_max, 1)
        return max(of_messages, 100 * size // max(settings.kept_bytes_max, 1))

    def clients(self) -> Iterable[bytes]:
        """The ids of clients with kept messages."""
        return list(self._of_clients)

    # The log.

    def write(self, message: Message) -> None:
        """Write a message that was shared."""
        log = self._log
        if log is None or not message.left:
            return
        if log.end - log.visible > PENDING_BYTES_MAX:
            self._counts.kept_unwritten += 1
            return
        try:
            self._record(log, message)
        except StoreError as error:
            self._counts.kept_unwritten += 1
            self._on_failure(error)

    def flush(self) -> None:
        """Write what has ended, and keep the log short."""
        log = self._log
        if log is None:
            return
        try:
            while self._gone:
                client_id, number = self._gone.popitem()
                log.append(_framed(_HEAD.pack(_GONE, number) + client_id), 1, reserved=True)
            self._tidy(log)
        except StoreError as error:
            self._on_failure(error)

    def _record(self, log: "Log", message: Message) -> None:
        """Append a message to the log, for the clients that still have it. Raises StoreError."""
        number = message.number
        ids = [each for each in message.clients if self._oldest(each) <= number]
        offset, size = log.end, 0
        for start in range(0, len(ids), CLIENTS_MAX):
            some = ids[start : start + CLIENTS_MAX]
            named = b"".join([bytes((len(each),)) + each for each in some])
            record = _framed(_HEAD.pack(_KEEP, number) + _COUNT.pack(len(some)) + named + message.frame)
            log.append(record, 1)
            size += len(record)
        self._unrecord(message)
        message.clients, message.offset, message.size = ids, offset, size
        self._recorded[number] = message
        self._recorded_bytes += size

    def _unrecord(self, message: Message) -> None:
        if self._recorded.pop(message.number, None) is not None:
            self._recorded_bytes -= message.size
            message.size = 0

    def _tidy(self, log: "Log") -> None:
        """If much of the log is dead, copy the oldest live messages to its end. Drop what is below. Raises
        StoreError."""
        copied = 0
        while copied < SLACK_BYTES and log.end - log.first > 2 * self._recorded_bytes + SLACK_BYTES:
            oldest = next(iter(self._recorded.values()), None)
            if oldest is None or oldest.offset >= log.visible:  # it is new: all older ones were copied
                break
            self._record(log, oldest)
            copied += oldest.size
        first = self._first(log)
        if first - log.first >= SLACK_BYTES:
            log.drop_below(first)

    def _first(self, log: "Log") -> int:
        """Where the oldest live record stands."""
        return next((each.offset for each in self._recorded.values()), log.end)

    def _rolled_back(self, log: "Log") -> None:
        """The store did not take the newest records: their messages are in memory alone."""
        for message in [each for each in self._recorded.values() if each.offset >= log.visible]:
            self._unrecord(message)
            self._counts.kept_unwritten += 1

    def read(self, offset: int, records: bytes) -> None:
        """Take whole records that stand at an offset of the log. Malformed ones are left out."""
        at = 0
        while at < len(records):
            end = at + 4 + int.from_bytes(records[at : at + 4], "big")
            kept = unpacked(records[at + 4 : end])
            if kept is not None:
                self._take_in(kept, offset + at, end - at)
            at = end

    def _take_in(self, kept: "KeptRecord", offset: int, size: int) -> None:
        number, client_ids, frame = kept
        if frame is None:
            self._gone[client_ids[0]] = max(number, self._gone.get(client_ids[0], 0))
            return
        if not number:  # a clean stop of an older version has written it
            self._number += 1
            number = self._number
            self._older.append(number)
        message = self._found.setdefault(number, Message(number, frame))
        message.offset = message.offset if message.size else offset
        message.size += size
        message.clients += client_ids

    def open(self, log: "Log", on_failure: Callable[[StoreError], None]) -> None:
        """All of the log has been read: keep what fits, and write to it from now on. `on_failure`: called
        with what the store does not take."""
        found, self._found = self._found, {}
        gone, self._gone = self._gone, {}
        counted = self._counts.messages_kept
        self._number = max(self._number, *found, *gone.values(), 0)
        for message in sorted(found.values(), key=lambda each: each.number):
            ids = [each for each in dict.fromkeys(message.clients) if gone.get(each, 0) < message.number]
            message.clients = []
            if ids:
                self._recorded[message.number] = message
                self._recorded_bytes += message.size
                self.share(message, ids)
        self._counts.messages_kept = counted  # they were counted when they came
        for message in sorted(self._recorded.values(), key=lambda each: each.offset):
            self._recorded.move_to_end(message.number)
        self._log, self._on_failure = log, on_failure
        log.rolled_back = self._rolled_back
        try:
            for number in self._older:
                if number in self._recorded:
                    self._record(log, self._recorded[number])
            if self._older:
                log.drop_below(self._first(log))
        except StoreError as error:
            on_failure(error)
        self.flush()


KeptRecord = tuple[int, Sequence[bytes], bytes | None]
"""Number, clients, and the frame without its padding: None where all up to that number have ended. A record
that a clean stop of an older version has written has the number 0."""


def unpacked(payload: bytes) -> KeptRecord | None:
    """A record of the log: `[1][number u64][count u16][count times: length u8, id][frame]`,
    `[2][number u64][id]`, or an older version's `[id][NUL][frame]`. None: it is malformed."""
    kind = payload[:1]
    if kind == b"\1" and len(payload) >= _HEAD.size + _COUNT.size:
        (_, number), (count,) = _HEAD.unpack_from(payload), _COUNT.unpack_from(payload, _HEAD.size)
        at = _HEAD.size + _COUNT.size
        ids: list[bytes] = []
        for _ in range(count):
            end = at + 1 + (payload[at] if at < len(payload) else 0)
            ids.append(payload[at + 1 : end])
            at = end
        return (number, ids, payload[at:]) if _are_good(number, ids, payload[at:]) else None
    if kind == b"\2" and len(payload) > _HEAD.size:
        number, ids = _HEAD.unpack_from(payload)[1], [payload[_HEAD.size :]]
        return (number, ids, None) if _are_good(number, ids, b"") else None
    client_id, nul, frame = payload.partition(b"\0")
    return (0, [client_id], frame) if nul and _are_good(1, [client_id], frame) else None


def _are_good(number: int, client_ids: Sequence[bytes], frame: bytes) -> bool:
    are_ids = all(1 <= len(each) <= ID_CHARACTERS_MAX for each in client_ids)
    return number > 0 and are_ids and len(frame) <= FRAME_BYTES


def _framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload
