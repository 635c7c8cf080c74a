"""The catalog: which logs exist and where replay starts. Source: STORAGE.md, Catalog."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, NamedTuple
from urllib.parse import unquote

import attrs

from shared.storage import format
from shared.storage.disk import Disk, opened

PATH = "CATALOG"
NEW_PATH = "CATALOG.new"

_PLAIN = b"abcdefghijklmnopqrstuvwxyz0123456789_-."
_FILE_NAME_MAX = 200  # with `.log.stray-<id>` within the 255 bytes that file systems allow


class LogLine(NamedTuple):
    """A log as the catalog has it. `end` is its end as of the replay LSN. `local`: the bytes below are in the
    bucket only; 0: all that is kept is on this disk.
    """

    id: int
    namespace: str
    name: str
    file: str
    mode: str
    created_ms: int
    first: int
    end: int
    local: int = 0

    @property
    def log_path(self) -> str:
        return f"{self.namespace}/{self.file}.log"

    @property
    def index_path(self) -> str:
        return f"{self.namespace}/{self.file}.idx"


@attrs.frozen
class Catalog:
    """A snapshot. `clean`: the store was closed in order, and nothing was written since.

    `all_journaled`: logs of every mode go through the journal. In older folders those of mode `none` did not.
    """

    journal_id: int
    replay_lsn: int
    next_log_id: int
    written_ms: int
    clean: bool
    logs: Sequence[LogLine]
    all_journaled: bool = True

    def pack(self) -> bytes:
        return pack(self, map(pack_line, self.logs))


def pack_line(line: LogLine) -> bytes:
    """What `format.pack_line` makes of it. A checkpoint packs a line for each log that changed, and this is
    six times as fast.
    """
    number, namespace, name, file, mode, created_ms, first, end, local = line
    besides = f',"local":{local}' if local else ""  # most logs are here as a whole
    return (
        f'{{"id":{number},"namespace":{_quoted(namespace)},"name":{_quoted(name)},"file":{_quoted(file)}'
        f',"mode":{_quoted(mode)},"created_ms":{created_ms},"first":{first},"end":{end}{besides}}}\n'
    ).encode()


def pack(catalog: Catalog, lines: Iterable[bytes]) -> bytes:
    """The catalog's bytes. Logs' lines are given packed, because most stay the same from one catalog to the
    next.
    """
    head: dict[str, Any] = {
        "format": format.FORMAT_NUMBER,
        "journal_id": f"{catalog.journal_id:016x}",
        "replay_lsn": catalog.replay_lsn,
        "next_log_id": catalog.next_log_id,
        "written_ms": catalog.written_ms,
        "clean": catalog.clean,
        "all_journaled": catalog.all_journaled,
    }
    return format.seal_lines([format.pack_line(head), *lines])


def pack_create(line: LogLine) -> bytes:
    """The body of a CREATE entry."""
    of_now = ("id", "first", "end", "local")
    fields = {name: value for name, value in line._asdict().items() if name not in of_now}
    return format.pack_line(fields).rstrip()


def unpack_create(log_id: int, body: bytes) -> LogLine:
    """Raises ValueError and TypeError for a malformed body, which no version writes."""
    return LogLine(id=log_id, first=0, end=0, **json.loads(body))


def unpack(data: bytes) -> Catalog | None:
    """The catalog; None if it is damaged."""
    lines = format.unpack_lines(data)
    try:
        if not lines or lines[0]["format"] != format.FORMAT_NUMBER:
            return None
        head = lines[0]
        return Catalog(
            int(head["journal_id"], 16),
            head["replay_lsn"],
            head["next_log_id"],
            head["written_ms"],
            head["clean"],
            [LogLine(**line) for line in lines[1:]],
            head.get("all_journaled", False),
        )
    except (KeyError, TypeError, ValueError):
        return None


def read(disk: Disk) -> Catalog | None:
    """Read CATALOG; None if it is missing. Raises ValueError if it is damaged, and OSError."""
    try:
        with opened(disk, PATH) as fd:
            found = unpack(disk.read(fd, disk.size(fd), 0))
    except FileNotFoundError:
        return None
    if found is None:
        raise ValueError(f"{PATH} is damaged")
    return found


def file_name(name: str) -> str:
    """A log's name as a file name: each byte outside `[a-z0-9._-]`, and a leading dot, as %XX.

    One too long for a file system is cut, and made unique by its SHA-256.
    """
    raw = name.encode()
    text = "".join(
        chr(byte) if byte in _PLAIN and not (byte == 0x2E and at == 0) else f"%{byte:02X}"
        for at, byte in enumerate(raw)
    )
    if len(text) <= _FILE_NAME_MAX:
        return text
    return f"{text[:120]}%-{hashlib.sha256(raw).hexdigest()}"


def name_of(file: str) -> str:
    """A log's name from its file name; if that was cut, what is left of it."""
    return unquote(file)
