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
from attrs import validators

from brokers.errors import Problem
from brokers.settings.structure import GivenValue, Key, build, flatten_table, written
from shared.addresses import split
from shared.bridging import BridgeEnds
from shared.globs import matcher
from shared.plugin import Plugin
from shared.rates import Rate

Form = Literal["raw", "text", "json"]
SECTION = "bridge"
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
BRIDGES_MAX = 256

Ends = Callable[[str], BridgeEnds | None]
"""The ends of a protocol; None if it has none or is not installed."""


def ends_of(plugins: Sequence[Plugin]) -> Ends:
    """The ends that plugins name, each imported when a bridge first needs it."""
    named = {plugin.name: plugin.bridges for plugin in plugins}

    def ends(protocol: str) -> BridgeEnds | None:
        where = named.get(protocol)
        return None if where is None else cast(BridgeEnds, resolve_name(where))

    return ends


def start_of(text: str) -> str:
    """Parse a start position: first, end, an offset or an RFC 3339 time, which becomes Unix milliseconds as
    `@<ms>`. Raises ValueError.
    """
    if text in ("first", "end") or (text.isdecimal() and text.isascii() and len(text) < 20):
        return text
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is none of first, end, an offset and a time (RFC 3339)") from None
    return f"@{round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)}"


@attrs.frozen
class BridgeFilter:
    """`key`: a glob over the message's name; its `*` crosses dots and slashes."""

    key: str = ""
    """A glob that the message's name matches; its `*` crosses dots and slashes."""
    min_bytes: int = attrs.field(default=0, validator=validators.ge(0))
    """The least bytes of a body."""
    max_bytes: int | None = attrs.field(default=None, validator=validators.optional(validators.ge(0)))
    """The most bytes of a body."""

    def __attrs_post_init__(self) -> None:
        if self.max_bytes is not None and self.max_bytes < self.min_bytes:
            raise ValueError("max_bytes is less than min_bytes: nothing would pass")

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


def _a_name(_: Any, field: "attrs.Attribute[str]", value: str) -> None:
    if value and not NAME.fullmatch(value):
        raise ValueError("a name is 1 to 64 of A-Z, a-z, 0-9 and ._-")


def _a_policy(_: Any, field: "attrs.Attribute[str]", value: str) -> None:
    if value not in ("", "wait", "drop") and not value.startswith("dead:"):
        raise ValueError(f"{value!r} is none of wait, drop and dead:<address>")


@attrs.frozen
class BridgeSettings:
    """A bridge carries messages of one address to another."""

    name: str = attrs.field(default="", validator=_a_name)
    """1 to 64 of A-Z, a-z, 0-9 and ._-; offsets and metrics of the bridge have this name."""
    source: str = attrs.field(default="", metadata={"key": "from"})
    """The address that messages come from, as `pubsub:home/+/temperature`."""
    target: str = attrs.field(default="", metadata={"key": "to"})
    """The address that they go to, as `logmq:readings`; it may have fields, as `logmq:{name.1}`."""
    form: Form = attrs.field(default="raw", metadata={"key": "as"})
    """What is carried: `raw` bytes, `text`, or `json` with name, time, sender and type beside the value."""
    start: str = "end"
    """Where a new bridge begins in its source: `first`, `end`, an offset, or a time (RFC 3339)."""
    rate: Rate | None = None
    """The most messages a second, as `1000/s`."""
    on_refused: str = attrs.field(default="", validator=_a_policy)
    """What happens to a message that the target refuses: `wait`, `drop` or `dead:<address>`. Empty: wait for
    what can pass later, and `dead:logmq:dead.<name>` for what never can."""
    may_circle: bool = False
    """Allow bridges that feed each other, where something else ends the circle."""
    filter: BridgeFilter = BridgeFilter()
    """The messages that are carried; others are not."""

    @property
    def dead(self) -> str:
        """The address for messages that the target never takes."""
        if self.on_refused.startswith("dead:"):
            return self.on_refused.removeprefix("dead:")
        return f"logmq:dead.{self.name}"


def parse_bridges(
    tables: object, ends: Ends, source: str = ""
) -> tuple[tuple[BridgeSettings, ...], list[Problem]]:
    """The valid bridges, and the problems of the others. `source`: the settings' name."""
    problems: list[Problem] = []
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        return (), [Problem(SECTION, "write [[bridge]] and its keys below it", source)]
    bridges: dict[str, BridgeSettings] = {}
    for number, table in enumerate(tables, 1):
        name = table.get("name")
        key: Key = (SECTION, name if isinstance(name, str) else str(number))
        before = len(problems)
        bridge = _bridge(table, key, source, problems)
        if len(problems) == before:
            wrong = (Problem(written((*key, at)), why, source) for at, why in _faults(bridge, table, ends))
            problems += wrong
        if bridge.name in bridges:
            problems.append(Problem(written((*key, "name")), "two bridges have it", source))
        if len(problems) == before:
            bridges[bridge.name] = bridge
    found = tuple(bridges.values())
    return found, problems or list(faults_together(found, ends, source))


def faults_together(bridges: Sequence[BridgeSettings], ends: Ends, source: str) -> Iterator[Problem]:
    """Yield what is wrong with bridges only because of the others."""
    if len(bridges) > BRIDGES_MAX:
        yield Problem(SECTION, f"there are {len(bridges)} bridges; at most {BRIDGES_MAX}", source)
        return
    for circle in circles(bridges, ends):
        way = " -> ".join((*circle, circle[0]))
        why = (
            f"messages would go round for ever ({way}): change an address, or say may_circle = true "
            "where something else ends it"
        )
        yield Problem(written((SECTION, circle[0], "to")), why, source)


def _bridge(table: Mapping[str, Any], key: Key, source: str, problems: list[Problem]) -> BridgeSettings:
    """What a table says; what is wrong with its values goes to `problems`."""
    given: dict[Key, GivenValue] = {}
    for leaf in flatten_table(table, BridgeSettings, key, {}, source):
        if isinstance(leaf, Problem):
            problems.append(leaf)
        else:
            given[leaf[0]] = leaf[1]
    if (start := given.get((*key, "start"))) is not None:
        try:  # TOML has numbers and times, too
            given[*key, "start"] = attrs.evolve(start, value=start_of(str(start.value)))
        except ValueError as error:
            problems.append(Problem(written((*key, "start")), str(error), source))
    problems += [
        Problem(written((*key, each)), "is missing", source)
        for each in ("name", "from", "to")
        if each not in table
    ]
    bridge: BridgeSettings = build(BridgeSettings, key, given, problems)
    return bridge


def _faults(bridge: BridgeSettings, table: Mapping[str, Any], ends: Ends) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with addresses, by key: what no value shows by itself."""
    addresses = {"from": bridge.source, "to": bridge.target}
    if bridge.on_refused.startswith("dead:"):
        addresses["on_refused"] = bridge.dead
    for key, address in addresses.items():
        try:
            protocol, place = split(address)
            end = _ends_of(protocol, ends)
            if key == "from":
                end.check_source(place)
            else:
                end.target_name(place)
        except ValueError as error:
            yield key, str(error)
            return
    protocol, place = split(bridge.source)
    end = _ends_of(protocol, ends)
    if "start" in table and not end.keeps_position:
        yield (
            "start",
            f"{bridge.source} has no places to begin at: what is there and what comes is carried once",
        )
    if "on_refused" in addresses and end.gives_back(place) and _leads_to(bridge.dead, bridge.source, ends):
        # It has passed this bridge, which would take it out of the queue and carry it nowhere.
        why = "what is set apart would come back to this bridge, and be lost: name another place"
        yield "on_refused", why


def _ends_of(protocol: str, ends: Ends) -> BridgeEnds:
    protocol_ends = ends(protocol)
    if protocol_ends is None:
        raise ValueError(f"no protocol {protocol!r} that has ends for bridges is installed")
    return protocol_ends


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
