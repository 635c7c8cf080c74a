"""`.dmsq` files: a queue in the format of the specification's own server: `[count]`, then
`[id][length][bytes]`s.

Integers are 4 bytes, big-endian. Files in the data folder are imported at the start, each once. All messages
of an imported file are one entry of the journal, with its name and its CRC: all or nothing.
"""

import json
import os
import secrets
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

import attrs

from dms import records
from dms.engine import ENGINE_KEY, Engine, Queue
from dms.errors import QueueFull
from dms.options import Options
from dms.records import RecordKind
from dms.wire import NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, Refusal, Status, name_untrusted, refusal_for
from shared.errors import BrokerError, StoreError
from shared.local_path import check_replaceable
from shared.storage.store import Ticket

SUFFIX = ".dmsq"
FILE_BYTES_MAX = 1 << 30
"""The largest file: it is imported in one piece, and so through memory."""
RECORD_MESSAGES = 1024
"""Messages in one record of an import."""

_COUNT = struct.Struct(">I")
_ENTRY = struct.Struct(">II")


class NotDmsq(BrokerError):
    """The file is not a whole .dmsq file."""


@attrs.frozen
class Dmsq:
    """A file's messages."""

    name: str
    crc32: int
    bodies: list[bytes] = attrs.field(repr=False)


def parse(data: bytes) -> list[bytes]:
    """The messages of a file; its ids are ignored. Raises NotDmsq."""
    if len(data) < _COUNT.size:
        raise NotDmsq("shorter than its count")
    (count,) = _COUNT.unpack_from(data)
    bodies: list[bytes] = []
    at = _COUNT.size
    for number in range(count):
        if at + _ENTRY.size > len(data):
            raise NotDmsq(f"{count} messages are announced, and {number} are there")
        _, size = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        if size > PAYLOAD_BYTES_MAX:
            raise NotDmsq(f"message {number} has {size} bytes; at most {PAYLOAD_BYTES_MAX}")
        if at + size > len(data):
            raise NotDmsq(f"message {number} is cut short")
        bodies.append(data[at : at + size])
        at += size
    if at != len(data):
        raise NotDmsq(f"{len(data) - at} bytes are left over behind {count} messages")
    return bodies


def read(path: Path) -> Dmsq:
    """Read a file; blocks. Raises NotDmsq, which names it, and OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > FILE_BYTES_MAX:
            raise NotDmsq(f"{path}: {size} bytes; at most {FILE_BYTES_MAX}")
        data = file.read(FILE_BYTES_MAX + 1)
    try:
        return Dmsq(path.name, crc32(data), parse(data))
    except NotDmsq as error:
        raise NotDmsq(f"{path} is no .dmsq file: {error}") from None


class DmsqWriter:
    """A file being written: under a temporary name, and renamed when complete. Blocks."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        check_replaceable(path)
        self._path = path
        # By chance, not by our process: after a crash in a container the next one has the same number.
        self._beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        self._file: BinaryIO = self._beside.open("xb")
        self._file.write(_COUNT.pack(0))
        self.count = 0

    def add(self, bodies: Iterable[bytes]) -> None:
        for body in bodies:
            self._file.write(_ENTRY.pack(0, len(body)) + body)
            self.count += 1

    def finish(self) -> None:
        self._file.seek(0)
        self._file.write(_COUNT.pack(self.count))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._beside.replace(self._path)

    def abandon(self) -> None:
        self._file.close()
        self._beside.unlink(missing_ok=True)


# -- into a queue


async def import_files(engine: Engine) -> None:
    """Import files of the data folder that have not been imported."""
    folder = engine.store.folder
    if folder is None or engine.disk_failed is not None:
        return
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            file: Dmsq = await engine.store.in_thread(read, path)
            row = engine.table.get(_key(file.name))
            if row is not None and json.loads(row)["crc32"] == file.crc32:
                continue
            queue, ticket = import_into(engine, path.name.removesuffix(SUFFIX), file, once=True)
            await engine.store.wait(ticket)
        except (BrokerError, OSError) as error:
            engine.log.error(
                "a .dmsq file was not imported: no queue has its messages; put right what the reason "
                "says, then restart",
                file=path.name,
                reason=str(error),
            )
        else:
            engine.log.info(
                ".dmsq file imported", file=path.name, queue=queue.text, messages=len(file.bodies)
            )


def import_into(engine: Engine, name: str, file: Dmsq, *, once: bool = False) -> tuple[Queue, Ticket | None]:
    """Put a file's messages at the end of a queue, created if needed; all or none. Raises Refusal.

    QueueFull means that there may be room later. `once`: remember the import in the same journal entry, and
    take what the server before held, however deep.
    """
    if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        raise Refusal(Status.PROTOCOL_ERROR, f"{name} is too long for a queue's name")
    name_untrusted(name.encode("utf-8", "surrogatepass"))
    queue = engine.find(name)
    ticket: Ticket | None = None
    options = Options.of({}, engine.settings.for_queue(name), name) if queue is None else queue.options
    room = options.depth if queue is None else queue.room
    if not once and room < len(file.bodies):
        text = f"{name} has room for {room} messages, and the file has {len(file.bodies)}"
        if len(file.bodies) > options.depth:  # it never fits: retrying is useless
            raise Refusal(Status.QUEUE_FULL, text)
        raise QueueFull(text)
    if queue is None:
        queue, ticket = engine.create(name, {})
    size = sum(map(len, file.bodies))
    engine.counts.imported += len(file.bodies)
    log = queue.log
    if log is None:
        if file.bodies:
            queue.produce(file.bodies, size)
        return queue, None
    times = engine.times
    about = {"file": file.name, "crc32": file.crc32}
    imported = json.dumps(about).encode()
    parts = [records.pack(RecordKind.IMPORTED, 1, 0, times.now_ms(), times.unix_ms(), imported)]
    first = queue.tail
    for bodies in _batches(file.bodies):
        parts.append(log.arriving(bodies, first))
        first += len(bodies)
    changes = [(log.log, b"".join(parts), len(parts))]
    if once:
        changes.append(engine.table.put_record(_key(file.name), imported))
    try:
        (offset, *_), ticket = engine.store.append_all(changes, reserved=True)
    except StoreError as error:
        raise refusal_for(error) from None
    if file.bodies:
        log.appended(file.bodies, size, offset, queue.tail, ticket)
        engine.counts.produced += len(file.bodies)
        queue.on_produced(len(file.bodies))
    return queue, ticket


def _key(name: str) -> bytes:
    return ENGINE_KEY + name.encode("utf-8", "surrogateescape")


def _batches(bodies: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(bodies), RECORD_MESSAGES):
        yield bodies[start : start + RECORD_MESSAGES]
