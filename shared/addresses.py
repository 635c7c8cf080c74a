"""Addresses of the sources and targets of messages, and names made from a message's fields.

    pubsub:home/+/temperature     dms:readings     dmp:amq.topic/orders.#     logmq:audit-{key.1}

The protocol parses the part after the colon. Percent signs escape the characters that mean something in an
address: `/` and `{` in a name are `%2F` and `%7B`. Source: BRIDGES.md, "Settings" and "Decided".
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Self
from urllib.parse import unquote_to_bytes

import attrs

FIELDS = ("name", "protocol", "key", "sender", "date")
_PROTOCOL = re.compile(r"([a-z][a-z0-9]*):(.*)", re.DOTALL)
_FIELD = re.compile(rf"\{{({'|'.join(FIELDS)})(?:\.([1-9]\d?))?\}}")
_LEVELS = re.compile(rb"[/.]")


@attrs.frozen
class MessageOrigin:
    """The fields of which names are made. `key`: a job's; of another AMQP message its routing key, also its
    `name`; else empty.

    `time`: Unix seconds.
    """

    protocol: str
    name: bytes
    key: bytes = b""
    sender: bytes = b""
    time: float = 0.0


def split(address: str) -> tuple[str, str]:
    """Split an address into the protocol and its part. Raises ValueError."""
    found = _PROTOCOL.fullmatch(address)
    if found is None:
        raise ValueError(f"{address!r} is no address: it begins with a protocol, as logmq:jobs does")
    return found[1], found[2]


def unescaped(name: str) -> bytes:
    """The bytes of a name in an address, unescaped."""
    return unquote_to_bytes(name)


def exchange_and_key(rest: str) -> tuple[bytes, str] | None:
    """Split `<exchange>/<key>` into the exchange's name and the escaped key. None: it names a queue."""
    exchange, slash, key = rest.partition("/")
    return (unescaped(exchange), key) if slash else None


@attrs.frozen
class NameTemplate:
    """A name with fields: `{name}`, `{name.2}` (its second level, split at `/` or `.`), `{date}` (UTC)...

    A missing level is empty. `fields`: the template's fields; without any the name is always the same.
    """

    text: str
    fields: frozenset[str]
    _parts: Sequence[bytes | Callable[[Mapping[str, bytes]], bytes]] = attrs.field(repr=False, eq=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a template. Raises ValueError for an unknown field, and for an empty name."""
        parts: list[bytes | Callable[[Mapping[str, bytes]], bytes]] = []
        fields = set()
        at = 0
        for found in _FIELD.finditer(text):
            parts += [_plain(text[at : found.start()]), _level(found[1], found[2])]
            fields.add(found[1])
            at = found.end()
        parts.append(_plain(text[at:]))
        if not text:
            raise ValueError("a name is missing")
        return cls(text, frozenset(fields), tuple(part for part in parts if part != b""))

    def name_for(self, origin: MessageOrigin) -> bytes:
        if not self.fields:
            return b"".join(part for part in self._parts if isinstance(part, bytes))
        values = {
            "protocol": origin.protocol.encode(),
            "name": origin.name,
            "key": origin.key,
            "sender": origin.sender,
        }
        if "date" in self.fields:
            values["date"] = datetime.fromtimestamp(origin.time, UTC).date().isoformat().encode()
        return b"".join(part if isinstance(part, bytes) else part(values) for part in self._parts)

    def as_glob(self) -> str:
        """A glob that matches all its names: `*` for each field, and the rest as Latin-1."""
        return "".join(part.decode("latin-1") if isinstance(part, bytes) else "*" for part in self._parts)


def _plain(text: str) -> bytes:
    if "{" in text:
        wrong = text[text.index("{") :].partition("}")[0]
        raise ValueError(f"{wrong}}} is no field; there are {', '.join(FIELDS)}, and %7B is a brace")
    return unescaped(text)


def _level(field: str, number: str | None) -> Callable[[Mapping[str, bytes]], bytes]:
    if number is None:
        return lambda values: values[field]
    which = int(number) - 1

    def level(values: Mapping[str, bytes]) -> bytes:
        levels = _LEVELS.split(values[field])
        return levels[which] if which < len(levels) else b""

    return level
