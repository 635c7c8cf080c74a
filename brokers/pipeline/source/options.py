"""The source's options, parsed and checked: no file, socket or Spark here.

They are those of Spark's own Kafka source where it has one for the purpose, with the same meaning. What is
wrong is a ConfigError that names the option. Keys are compared without regard to case, as Spark has it.
"""

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar

import attrs

from brokers.pipeline.source.address import Reach, once_each, parse_servers
from logmq.connector import Refusal, name_untrusted, topic_untrusted
from shared.errors import ConfigError
from shared.local_path import local_path

_T = TypeVar("_T")
_D = TypeVar("_D")

NAMESPACE = "logmq"
"""Unless the option says another."""
_OFFSET_MAX = (1 << 63) - 1
_TIMEOUT_MS_MAX = (1 << 31) - 1
"""What poll(2) takes: 24 days."""
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _UNITS |= {_letter: 1 << 10 * _power, f"{_letter}b": 1 << 10 * _power, f"{_letter}ib": 1 << 10 * _power}


_SECONDS = {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Kind(Enum):
    """What a position in a log says."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"


@attrs.frozen
class At:
    """A position in a log. `value`: the offset, or Unix milliseconds."""

    kind: Kind
    value: int = 0


EARLIEST = At(Kind.EARLIEST)
LATEST = At(Kind.LATEST)


@attrs.frozen
class Bound:
    """Where reading begins or ends: `default`, but for the topics named in `topics`.

    `option`: which one says so; empty where none does.
    `past_end_is_latest`: a time after a log's newest record means its end; otherwise it is an error.
    """

    default: At
    topics: Mapping[str, At] = {}
    past_end_is_latest: bool = True
    option: str = ""

    def of(self, topic: str) -> At:
        return self.topics.get(topic, self.default)


@attrs.frozen
class Topics:
    """Which topics: those named, or those whose whole name matches `pattern`. `option`: which one says so."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    option: str = "subscribe"

    def matching(self, found: Mapping[str, Any]) -> list[str]:
        """Those of `found`, sorted, and every one that is named whether it is there or not."""
        if self.pattern is None:
            return list(self.names)
        return sorted(name for name in found if re.fullmatch(self.pattern, name))


class Unverified(Enum):
    """What becomes of ranges whose CRC was made after the fact, when a lost index was rebuilt."""

    READ = "read"
    SKIP = "skip"
    FAIL = "fail"


@attrs.frozen
class Options:
    """What to read, from where to where, and how. `None`: no limit."""

    paths: tuple[str, ...]
    servers: tuple[str, ...]
    reach: Reach
    topics: Topics
    namespace: str
    starting: Bound
    ending: Bound
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    max_delay_seconds: float
    max_value_bytes: int | None
    max_records: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    verify_crc: bool
    unverified: Unverified
    prune_by_filters: bool
    group: str | None

    @property
    def sources(self) -> tuple[str, ...]:
        return self.paths or self.servers


REACH_NAMES = (
    "tls",
    "tlsCa",
    "tlsCertificate",
    "tlsKey",
    "connectTimeoutMs",
    "replyTimeoutMs",
    "retryTimeoutMs",
)
NAMES = (
    "path",
    "paths",
    "servers",
    *REACH_NAMES,
    "namespace",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxValueBytes",
    "maxRecordsPerPartition",
    "minPartitions",
    "failOnDataLoss",
    "verifyCrc",
    "unverified",
    "pruneByFilters",
    "group",
)
_ENDING = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
_ONLY_FOLDERS = {
    "namespace": "only a data folder (path) has namespaces; a broker serves its topics",
    "unverified": "only a data folder (path) says which ranges are unverified",
}
_ONLY_SERVERS = {
    **dict.fromkeys(REACH_NAMES, "says how brokers (servers) are reached; there are none to read"),
    "group": "a data folder is only read; a broker (servers) is told how far a group is",
}
_PER_TRIGGER = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_DELAY_SECONDS = 15 * 60.0
"""As Spark's source for Kafka has it."""


def parse(given: Mapping[str, str], *, streaming: bool | None = None) -> Options:
    """Check everything. `streaming`: None where that is not known yet. Raises ConfigError.

    A stream without `startingOffsets` begins at the end of what is there, anything else at the beginning.
    """
    options = Given(given, NAMES, "the source")
    paths = options.take("paths", _paths, ())
    one = options.take("path", _path, "")
    if one and paths:
        raise ConfigError("path", "load() has paths of its own")
    # Executors may be elsewhere, and know nothing of what a path is relative to.
    paths = tuple(os.path.join(os.getcwd(), path) for path in ((one,) if one else paths))
    servers = options.take("servers", _servers, ())
    if bool(paths) == bool(servers):
        raise ConfigError("path", "give either a data folder (path) or brokers (servers)")
    namespace = options.take("namespace", _namespace, NAMESPACE)
    for name, why in _ONLY_FOLDERS.items() if servers else _ONLY_SERVERS.items():
        if options.has(name):
            raise ConfigError(name, why)
    if streaming:
        for name in _ENDING:
            if options.has(name):
                raise ConfigError(name, "a stream has no end; only a batch takes this")
        if options.has("pruneByFilters"):
            raise ConfigError("pruneByFilters", "Spark tells a stream no filters; only a batch takes this")
    if streaming is False:
        for name in _PER_TRIGGER:
            if options.has(name):
                raise ConfigError(name, "a batch has no triggers; only a stream takes this")
        if options.has("group"):
            raise ConfigError("group", "a batch has no place to come back to; only a stream takes this")
    least, most = (
        options.take("minOffsetsPerTrigger", count, None),
        options.take("maxOffsetsPerTrigger", count, None),
    )
    if least is not None and most is not None and least > most:
        raise ConfigError("minOffsetsPerTrigger", f"is above maxOffsetsPerTrigger: {least} > {most}")
    if least is None and options.has("maxTriggerDelay"):
        raise ConfigError("maxTriggerDelay", "how long minOffsetsPerTrigger is waited for; that is missing")
    topics = _topics(options, name_check=served_name if servers else str)
    return Options(
        paths,
        servers,
        reach(options),
        topics,
        namespace,
        _bound(options, "starting", LATEST if streaming else EARLIEST, topics),
        _bound(options, "ending", LATEST, topics),
        most,
        options.take("maxBytesPerTrigger", size, None),
        least,
        options.take("maxTriggerDelay", _duration, _DELAY_SECONDS),
        options.take("maxValueBytes", size, None),
        options.take("maxRecordsPerPartition", count, None),
        options.take("minPartitions", count, None),
        options.take("failOnDataLoss", _flag, True),
        options.take("verifyCrc", _flag, True),
        options.take("unverified", _unverified, Unverified.READ),
        options.take("pruneByFilters", _flag, False),
        options.take("group", _group, None),
    )


class Given:
    """The options as given, each under its own spelling. `names`: those that `what` has."""

    def __init__(self, given: Mapping[str, str], names: Sequence[str], what: str) -> None:
        self._values: dict[str, str] = {}
        known = {name.lower(): name for name in names}
        for key, value in given.items():
            name = known.get(key.lower())
            if name is None:
                near = difflib.get_close_matches(key.lower(), known, n=1)
                hint = f"; did you mean {known[near[0]]}?" if near else f"; there are {', '.join(names)}"
                raise ConfigError(key, f"{what} has no such option{hint}")
            self._values[name] = value

    def has(self, name: str) -> bool:
        return name in self._values

    def take(self, name: str, parse: Callable[[str], _T], default: _D) -> _T | _D:
        if name not in self._values:
            return default
        try:
            return parse(self._values[name])
        except ValueError as error:
            raise ConfigError(name, str(error)) from None


# -- how servers are reached


def reach(options: Given) -> Reach:
    """The options of `REACH_NAMES`."""
    key = options.take("tlsKey", _path, None)
    certificate = options.take("tlsCertificate", _path, None)
    if key is not None and certificate is None:
        raise ConfigError("tlsKey", "is the key of a certificate: tlsCertificate")
    usual = Reach()
    return Reach(
        options.take("tls", _flag, False),
        options.take("tlsCa", _path, None),
        certificate,
        key,
        options.take("connectTimeoutMs", _seconds, usual.connect_seconds),
        options.take("replyTimeoutMs", _seconds, usual.reply_seconds),
        options.take("retryTimeoutMs", _seconds, usual.retry_seconds),
    )


def _servers(text: str) -> tuple[str, ...]:
    return tuple(map(str, parse_servers(text)))


def _seconds(text: str) -> float:
    number = count(text)
    if number > _TIMEOUT_MS_MAX:
        raise ValueError(f"above {_TIMEOUT_MS_MAX}: {text!r}")
    return number / 1000


# -- which topics


def _topics(options: Given, name_check: Callable[[str], str]) -> Topics:
    """`name_check`: raises ValueError for what no topic there can be called."""
    given = [name for name in ("subscribe", "subscribePattern", "assign") if options.has(name)]
    if not given:
        raise ConfigError("subscribe", "say which topics: subscribe, subscribePattern or assign")
    if len(given) > 1:
        raise ConfigError(given[1], f"there is {given[0]} already, and one of them is enough")
    if given[0] == "subscribePattern":
        return Topics(pattern=options.take("subscribePattern", _pattern, None), option=given[0])
    parse = _names if given[0] == "subscribe" else _assigned
    names = options.take(given[0], lambda text: tuple(map(name_check, parse(text))), ())
    return Topics(names, option=given[0])


def served_name(name: str) -> str:
    """The same. Raises ValueError for what no topic of a server can be called."""
    try:
        return topic_untrusted(name.encode())
    except Refusal as error:
        raise ValueError(error.text) from None


def _group(text: str) -> str:
    try:
        return name_untrusted(text.encode(), "group")
    except Refusal as error:
        raise ValueError(error.text) from None


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise ValueError(f"not names with commas between: {text!r}")
    return names


def _paths(text: str) -> tuple[str, ...]:
    """As Spark hands over the arguments of `load` when there are several."""
    paths = _json(text)
    if not (isinstance(paths, list) and paths and all(isinstance(path, str) and path for path in paths)):
        raise ValueError(f"not a JSON list of folders: {text!r}")
    return once_each(map(_path, paths))


def _path(text: str) -> str:
    return str(local_path(text))


def _namespace(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9_-][a-z0-9._-]*", text):
        raise ValueError(f"not the name of a namespace (a-z 0-9 . _ -): {text!r}")
    return text


def _pattern(text: str) -> str:
    if not text:
        raise ValueError("is empty, which no topic's name is")
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


def _assigned(text: str) -> tuple[str, ...]:
    """`["orders"]`, or as for Kafka `{"orders": [0]}`: a log is one partition, number 0."""
    found = _json(text)
    names = list(found) if isinstance(found, dict | list) else []
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"not a JSON list of topics: {text!r}")
    if isinstance(found, dict) and any(partitions != [0] for partitions in found.values()):
        raise ValueError("a topic has one partition, 0")
    return tuple(dict.fromkeys(names))


# -- from where to where


def _bound(options: Given, side: str, default: At, topics: Topics) -> Bound:
    """What is given counts in this order: a time for all, else times by topic, else offsets."""
    strict = False
    if side == "starting":
        strict = options.take("startingOffsetsByTimestampStrategy", _strategy, "error") == "error"
    if options.has(f"{side}Timestamp"):
        name = f"{side}Timestamp"
        return Bound(options.take(name, _time, default), {}, not strict, name)
    others = EARLIEST if side == "starting" else LATEST
    if options.has(name := f"{side}OffsetsByTimestamp"):
        times = options.take(name, lambda text: _of(topics, _times(text)), {})
        return Bound(others, times, not strict, name)
    if not options.has(name := f"{side}Offsets"):
        return Bound(default)
    words = {"latest": LATEST} | ({"earliest": EARLIEST} if side == "starting" else {})

    def parse(text: str) -> Bound:
        if (word := words.get(text.strip().lower())) is not None:
            return Bound(word, option=name)
        if not text.lstrip().startswith("{"):
            raise ValueError(f"not {' or '.join(sorted(words))}, nor JSON by topic: {text!r}")
        places = {topic: _at(topic, number, words) for topic, number in _by_topic(text)}
        return Bound(others, _of(topics, places), option=name)

    return options.take(name, parse, Bound(default))


def _of(topics: Topics, places: Mapping[str, At]) -> Mapping[str, At]:
    """The same. Raises ValueError where one is of a topic that is not read."""
    for topic in places:
        if topics.pattern is None and topic not in topics.names:
            raise ValueError(f"{topic} is not among the topics of {topics.option}")
    return places


def _at(topic: str, number: int, words: Mapping[str, At]) -> At:
    if number == -1:
        return LATEST
    if number == -2 and "earliest" in words:
        return EARLIEST
    if not 0 <= number <= _OFFSET_MAX:
        raise ValueError(f"not an offset of {topic}: {number}")
    return At(Kind.OFFSET, number)


def _times(text: str) -> dict[str, At]:
    found = {}
    for topic, number in _by_topic(text):
        if not 0 <= number <= _OFFSET_MAX:
            raise ValueError(f"not Unix milliseconds for {topic}: {number}")
        found[topic] = At(Kind.TIME, number)
    return found


def _by_topic(text: str) -> list[tuple[str, int]]:
    """`{"orders": 7}`, or as for Kafka `{"orders": {"0": 7}}`."""
    found = _json(text)
    if not isinstance(found, dict):
        raise ValueError(f"not a JSON object by topic: {text!r}")
    numbers = []
    for topic, value in found.items():
        if isinstance(value, dict):
            if list(value) != ["0"]:
                raise ValueError(f"{topic}: a topic has one partition, 0")
            value = value["0"]
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{topic}: not a number: {value!r}")
        numbers.append((topic, value))
    return numbers


def _time(text: str) -> At:
    """Unix milliseconds as for Kafka, or ISO 8601 with its zone."""
    if text.strip().isdecimal():
        number = int(text)
        if number > _OFFSET_MAX:
            raise ValueError(f"not Unix milliseconds: {text}")
        return At(Kind.TIME, number)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"neither Unix milliseconds nor ISO 8601: {text!r}") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} does not say its time zone (Z, +01:00)")
    return At(Kind.TIME, max(int(moment.timestamp() * 1000), 0))


def _strategy(text: str) -> str:
    if text.lower() not in ("error", "latest"):
        raise ValueError(f"not error or latest: {text!r}")
    return text.lower()


# -- single values


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands there twice")
    return found


def count(text: str) -> int:
    if not text.strip().isdecimal() or not 0 < int(text) <= _OFFSET_MAX:
        raise ValueError(f"not a whole number above 0: {text!r}")
    return int(text)


def size(text: str) -> int:
    """Bytes: `1048576`, `1m`, `1MiB`; all units are powers of 1024, as Spark has it."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None or not 0 < int(found[1]) * unit <= _OFFSET_MAX:
        raise ValueError(f"not a size: {text!r}")
    return int(found[1]) * unit


def _duration(text: str) -> float:
    """Seconds: `90s`, `15m`, `500ms`; a number alone is milliseconds, as Spark has it."""
    found = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|min|h|d|)\s*", text.lower())
    if found is None or int(found[1]) > _OFFSET_MAX:
        raise ValueError(f"not a length of time (90s, 15m): {text!r}")
    return int(found[1]) * _SECONDS[found[2]]


def _flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"not true or false: {text!r}")
    return text.strip().lower() == "true"


def _unverified(text: str) -> Unverified:
    try:
        return Unverified(text.strip().lower())
    except ValueError:
        raise ValueError(f"not {', '.join(each.value for each in Unverified)}: {text!r}") from None
