"""The names of an archive's folders and files. The package says what they mean.

    topic=orders/date=2026-11-21/0000000000000000000-0000000000000052000-3f9a0c51d2e4.parquet
    _archive/fresh/topic=orders/date=2026-11-21/<the same>.<token>.parquet
    _archive/manifest/000000000042.json

A partition's value is escaped as Spark and Hive do it, so that they read it back. Control characters, and
ASCII that means something in a path or a glob, become %XX.
"""

import hashlib
import re
from typing import NamedTuple

from brokers.errors import ExitCode, Failure

HIDDEN = "_archive"
"""Readers of Parquet folders (Spark, pyarrow, globs of DuckDB and the shell) ignore names that begin so."""
FRESH = f"{HIDDEN}/fresh"
MANIFESTS = f"{HIDDEN}/manifest"
LOCK = f"{HIDDEN}/LOCK"

_NAME_BYTES_MAX = 255
_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^\x7f") | {chr(code) for code in range(0x20)}
_FILE = re.compile(r"(\d{19})-(\d{19})-([0-9a-f]{12})(?:\.([0-9a-z-]+))?\.parquet")
_MANIFEST = re.compile(r"(\d{12})\.json")


class FileName(NamedTuple):
    """What a file's name says: it has the records [start, end) of that log. Only a fresh file has a token."""

    start: int
    end: int
    key: str
    token: str = ""

    def __str__(self) -> str:
        token = f".{self.token}" if self.token else ""
        return f"{self.start:019d}-{self.end:019d}-{self.key}{token}.parquet"


def log_key(identity: str) -> str:
    """Return twelve hexadecimal digits for a log's identity, which may have any length and letters."""
    return hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()


def folder(topic: str, date: str) -> str:
    """Return the folder of a topic's records of a day. Raises Failure if the name is too long for one."""
    name = f"topic={escape(topic)}"
    if len(name.encode()) > _NAME_BYTES_MAX:
        raise Failure(f"{topic[:60]}...: too long a name for a folder", ExitCode.CONFIGURATION)
    return f"{name}/date={date}"


def parse_file(name: str) -> FileName | None:
    found = _FILE.fullmatch(name)
    return FileName(int(found[1]), int(found[2]), found[3], found[4] or "") if found else None


def manifest(version: int) -> str:
    return f"{MANIFESTS}/{version:012d}.json"


def damaged(version: int) -> str:
    """Return the folder for a damaged manifest and the fresh files that it may have named."""
    return f"{HIDDEN}/damaged-{version:012d}"


def parse_manifest(name: str) -> int | None:
    found = _MANIFEST.fullmatch(name)
    return int(found[1]) if found else None


def escape(value: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in value)
