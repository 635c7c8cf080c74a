"""`[[bridge]]`: the settings of bridges, checked.

A circle of bridges is refused, because a message would go round for ever. JSON carries the bridges that a
message has passed, so only certain circles count. `raw` and `text` over durable names do not carry them, so
a merely possible circle counts, too.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pkgutil import resolve_name
from typing import Any, Literal, cast

import attrs

from brokers.errors import Problem, did_you_mean
from shared.addresses import NameTemplate, split
from shared.bridging import BridgeEnds
from shared.globs import matcher
from shared.plugin import Plugin

Form = Literal["raw", "text", "json"]
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
BRIDGES_MAX = 256
RATE_MAX = 10_000_000
_RATE = re.compile(r"(\d+(?:\.\d+)?)/s")
_KEYS = ("name", "from", "to", "as", "start", "filter", "rate", "on_refused", "may_circle")
_FILTER_KEYS = ("key", "min_bytes", "max_bytes")
_HEADER = re.compile(r"\s*\[\[\s*bridge\s*\]\]")

Ends = Callable[[str], BridgeEnds | None]
"""The ends of a protocol; None if it has none or is not installed."""


def ends_of(plugins: Sequence[Plugin]) -> Ends:
    """The ends that plugins name, each imported when a bridge first needs it."""
    named = {plugin.name: plugin.bridges for plugin in plugins}

    def ends(protocol: str) -> BridgeEnds | None:
        where = named.get(protocol)
        return None if where is None else cast(BridgeEnds, resolve_name(where))

    return ends


@attrs.frozen
class BridgeFilter:
    """`key`: a glob over the message's name; its `*` crosses dots and slashes."""

    key: str = ""
    min_bytes: int = 0
    max_bytes: int | None = None

    def by_name(self) -> Callable[[bytes], bool]:
        if not self.key:
            return lambda name: True
        match = matcher([self.key])
        return lambda name: bool(match(name.decode("utf-8", "surrogateescape")))

    @property
    def by_size(self) -> bool:
        return bool(self.min_bytes) or self.max_bytes is not None

    def fits(self, body: bytes) -> bool:
        return len(body) >= self.min_bytes and (self.max_bytes is None or len(body) <= self.max_bytes)


@attrs.frozen
class BridgeSettings:
    """A bridge carries messages of one address to another. `source`, `target` and `form` are `from`, `to` and
    `as` in TOML."""

    name: str
    """1 to 64 of A-Z, a-z, 0-9 and ._-; offsets and metrics of the bridge have this name."""
    source: str
    """The address that messages come from, as `pubsub:home/+/temperature`."""
    target: str
    """The address that they go to, as `logmq:readings`; it may have fields, as `logmq:{name.1}`."""
    form: Form = "raw"
    """What is carried: `raw` bytes, `text`, or `json` with name, time, sender and type beside the value."""
    start: str = "end"
    """Where a new bridge begins in its source: `first`, `end`, an offset, or a time (RFC 3339)."""
    filter: BridgeFilter = BridgeFilter()
    """The messages that are carried, others are not: `key` (a glob), `min_bytes`, `max_bytes`."""
    rate: float | None = None
    """The most messages a second, as `1000/s`."""
    on_refused: str = ""
    """What happens to a message that the target refuses: `wait`, `drop` or `dead:<address>`. Empty: wait for
    what can pass later, and `dead:logmq:dead.<name>` for what never can."""
    may_circle: bool = False
    """Allow bridges that feed each other, where something else ends the circle."""

    @property
    def dead(self) -> str:
        """The address for messages that the target never takes."""
        if self.on_refused.startswith("dead:"):
            return self.on_refused.removeprefix("dead:")
        return f"logmq:dead.{self.name}"


WORDS = {"source": "from", "target": "to", "form": "as"}
"""The keys in TOML of fields that are called otherwise."""


def bridge_values(bridge: BridgeSettings) -> Mapping[str, Any]:
    """A bridge's values by their keys, as settings show them."""
    values = {
        **attrs.asdict(bridge),
        "rate": None if bridge.rate is None else f"{bridge.rate:g}/s",
        "filter": {
            name: value for name, value in attrs.asdict(bridge.filter).items() if value not in ("", 0, None)
        },
    }
    return {WORDS.get(name, name): value for name, value in values.items()}


class _WrongError(ValueError):
    """A key's value is wrong; the text says how."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


def parse_bridges(
    tables: object, ends: Ends, source: str = "", text: str = ""
) -> tuple[tuple[BridgeSettings, ...], list[Problem]]:
    """The valid bridges, and the problems of the others. `source`: the settings' name; `text`: their
    file's."""
    problems: list[Problem] = []
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        return (), [Problem("bridge", "write [[bridge]] and its keys below it", source)]
    bridges: dict[str, BridgeSettings] = {}
    lines = _LineNumbers(text)

    def wrong(number: int, key: str, why: str) -> None:
        line = lines.of(number, key)
        name = tables[number].get("name")
        shown = f'bridge "{name}"' if isinstance(name, str) else f"bridge {number + 1}"
        problems.append(
            Problem(f"{shown}.{key}" if key else shown, why, f"{source}:{line}" if line else source)
        )

    for number, table in enumerate(tables):
        for key in table:
            if key not in _KEYS:
                wrong(number, key, f"unknown key{did_you_mean(key, _KEYS)}")
        try:
            bridge = _bridge(table, ends)
        except _WrongError as error:
            wrong(number, error.key, str(error))
            continue
        if bridge.name in bridges:
            wrong(number, "name", f"there are two bridges {bridge.name!r}")
        bridges[bridge.name] = bridge
    if len(bridges) > BRIDGES_MAX:
        problems.append(Problem("bridge", f"there are {len(bridges)} bridges; at most {BRIDGES_MAX}", source))
    if not problems:
        numbers = {name: number for number, name in enumerate(bridges)}
        for circle in circles(tuple(bridges.values()), ends):
            way = " -> ".join((*circle, circle[0]))
            why = (
                f"messages would go round for ever ({way}): change an address, or say may_circle = true "
                "where something else ends it"
            )
            wrong(numbers[circle[0]], "to", why)
    return tuple(bridges.values()), problems


def _bridge(table: Mapping[str, Any], ends: Ends) -> BridgeSettings:
    """Raises _WrongError."""
    name = _text(table, "name")
    if not NAME.fullmatch(name):
        raise _WrongError("name", "a name is 1 to 64 of A-Z, a-z, 0-9 and ._-")
    form = _text(table, "as", "raw")
    if form not in ("raw", "text", "json"):
        raise _WrongError("as", f"{form!r} is none of raw, text and json")
    bridge = BridgeSettings(
        name,
        _text(table, "from"),
        _text(table, "to"),
        cast("Form", form),
        _start(table),
        _filter(table),
        _rate(table),
        _text(table, "on_refused", ""),
        _flag(table, "may_circle"),
    )
    check_source(bridge.source, ends, "from")
    check_target(bridge.target, ends, "to")
    if "start" in table and not _ends_of(split(bridge.source)[0], ends).keeps_position:
        raise _WrongError(
            "start",
            f"{bridge.source} has no places to begin at: what is there and what comes is carried once",
        )
    if bridge.on_refused not in ("", "wait", "drop"):
        if not bridge.on_refused.startswith("dead:"):
            raise _WrongError("on_refused", f"{bridge.on_refused!r} is none of wait, drop and dead:<address>")
        check_target(bridge.dead, ends, "on_refused")
        of, source = split(bridge.source)
        if _ends_of(of, ends).gives_back(source) and _leads_to(bridge.dead, bridge.source, ends):
            # It has passed this bridge, which would take it out of the queue and carry it nowhere.
            why = "what is set apart would come back to this bridge, and be lost: name another place"
            raise _WrongError("on_refused", why)
    return bridge


def check_source(address: str, ends: Ends, key: str) -> None:
    """Raises _WrongError."""
    try:
        protocol, place = split(address)
        _ends_of(protocol, ends).check_source(place)
    except ValueError as error:
        raise _WrongError(key, str(error)) from None


def check_target(address: str, ends: Ends, key: str) -> NameTemplate:
    """The names in the target that the bridge writes to. Raises _WrongError."""
    try:
        protocol, place = split(address)
        return _ends_of(protocol, ends).target_name(place)
    except ValueError as error:
        raise _WrongError(key, str(error)) from None


def _ends_of(protocol: str, ends: Ends) -> BridgeEnds:
    protocol_ends = ends(protocol)
    if protocol_ends is None:
        raise ValueError(f"no protocol {protocol!r} that has ends for bridges is installed")
    return protocol_ends


def _text(table: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = table.get(key, default)
    if value is None:
        raise _WrongError(key, "is missing")
    if not isinstance(value, str):
        raise _WrongError(key, "is a text")
    return value


def _flag(table: Mapping[str, Any], key: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise _WrongError(key, "is true or false")
    return value


def _rate(table: Mapping[str, Any]) -> float | None:
    if "rate" not in table:
        return None
    match = _RATE.fullmatch(_text(table, "rate"))
    rate = float(match[1]) if match else 0.0
    if not 0 < rate <= RATE_MAX:
        raise _WrongError("rate", 'is so many messages a second, as "1000/s"')
    return rate


def _start(table: Mapping[str, Any]) -> str:
    value = table.get("start", "end")
    if isinstance(value, datetime):
        return f"@{round((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)}"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return str(value)
    if not isinstance(value, str):
        raise _WrongError("start", "is first, end, an offset or a time")
    try:
        return start_of(value)
    except ValueError as error:
        raise _WrongError("start", str(error)) from None


def start_of(text: str) -> str:
    """Parse a start position: first, end, an offset or an RFC 3339 time. Raises ValueError."""
    if text in ("first", "end") or (text.isdecimal() and text.isascii() and len(text) < 20):
        return text
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is none of first, end, an offset and a time (RFC 3339)") from None
    return f"@{round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)}"


def _filter(table: Mapping[str, Any]) -> BridgeFilter:
    given = table.get("filter", {})
    if not isinstance(given, dict):
        raise _WrongError("filter", 'is a table, as { key = "orders.*", min_bytes = 1 }')
    for key in given:
        if key not in _FILTER_KEYS:
            raise _WrongError("filter", f"{key}: unknown key; there are {', '.join(_FILTER_KEYS)}")
    key = given.get("key", "")
    sizes = [given.get("min_bytes", 0), given.get("max_bytes")]
    if not isinstance(key, str) or any(
        each is not None and (not isinstance(each, int) or isinstance(each, bool) or each < 0)
        for each in sizes
    ):
        raise _WrongError("filter", "key is a glob; min_bytes and max_bytes are numbers")
    if sizes[1] is not None and sizes[1] < sizes[0]:
        raise _WrongError("filter", "max_bytes is less than min_bytes: nothing would pass")
    return BridgeFilter(key, *sizes)


def circles(bridges: Sequence[BridgeSettings], ends: Ends) -> Iterator[tuple[str, ...]]:
    """The circles of bridges that feed each other, as names; the shortest for each bridge that begins one.

    Bridges with `json` form no circle if only some names fit: their messages carry the bridges they passed.
    """
    feeds = {
        bridge.name: [other.name for other in bridges if _feeds(bridge, other, ends)] for bridge in bridges
    }
    may = {bridge.name for bridge in bridges if bridge.may_circle}
    named: set[str] = set()
    for first in feeds:
        ways: list[tuple[str, ...]] = [(first,)]
        seen: set[str] = set()
        while ways:
            way = ways.pop(0)
            following = feeds[way[-1]]
            if first in following:
                if not named & set(way) and not may & set(way):
                    named |= set(way)
                    yield way
                break
            ways += [(*way, name) for name in following if name not in seen]
            seen |= set(following)


def _feeds(one: BridgeSettings, other: BridgeSettings, ends: Ends) -> bool:
    if not _leads_to(one.target, other.source, ends):
        return False
    protocol, target = split(one.target)
    return not (one.form == "json" and _ends_of(protocol, ends).target_name(target).fields)


def _leads_to(target_address: str, source_address: str, ends: Ends) -> bool:
    """Whether messages written to the one may come out of the other."""
    (to, target), (of, source) = split(target_address), split(source_address)
    target_ends = ends(to)
    return to == of and target_ends is not None and target_ends.may_feed(target, source)


class _LineNumbers:
    """The line numbers of each `[[bridge]]` and its keys; TOML's parser does not give them."""

    def __init__(self, text: str) -> None:
        self._blocks: list[tuple[int, list[str]]] = []
        for number, line in enumerate(text.splitlines(), 1):
            if _HEADER.match(line):
                self._blocks.append((number, []))
            elif self._blocks:
                self._blocks[-1][1].append(line)

    def of(self, number: int, key: str) -> int | None:
        if number >= len(self._blocks):
            return None
        first, lines = self._blocks[number]
        for at, line in enumerate(lines, first + 1):
            if re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
                return at
            if line.lstrip().startswith("["):
                break
        return first
