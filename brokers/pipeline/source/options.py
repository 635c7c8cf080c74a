"""The options of the source and of the sink, parsed and checked: no file, socket or Spark here.

They are those of Spark's own Kafka source where it has one for the purpose, with the same meaning.
"""

import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any

import attrs

from brokers.pipeline.source.address import Reach, Server, once_each, parse_servers
from brokers.pipeline.source.option import (
    NUMBER_MAX,
    GivenOptions,
    Option,
    count,
    declared,
    duration,
    flag,
    json_of,
    option,
    path,
    size,
)
from logmq.connector import NAME_BYTES_MAX, SKIPPED_BODY_BYTES_MAX, Refusal, name_untrusted, topic_untrusted
from shared.errors import ConfigError

NAMESPACE = "logmq"
"""Unless the option says another."""
BATCH_BYTES = 1024 * 1024
"""What a server with the usual settings takes at once."""
_WRITER_BYTES_MAX = NAME_BYTES_MAX - 40
"""Room for the numbers of a partition and a group that are put behind it."""
_EPOCH_MAX = (1 << 55) - 1
"""So that its batches' seqs, 128 for each epoch, are numbers for the wire."""

_OF_SPARK = ("checkpointlocation", "queryname")
"""Options of any stream, which Spark hands on."""


class PositionKind(Enum):
    """What a position in a log says."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"


@attrs.frozen
class At:
    """A position in a log. `value`: the offset, or Unix milliseconds."""

    kind: PositionKind
    value: int = 0


EARLIEST = At(PositionKind.EARLIEST)
LATEST = At(PositionKind.LATEST)


@attrs.frozen
class ReadBound:
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
class TopicChoice:
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


# -- single values


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


def _unverified(text: str) -> Unverified:
    try:
        return Unverified(text.strip().lower())
    except ValueError:
        raise ValueError(f"not {', '.join(each.value for each in Unverified)}: {text!r}") from None


def _servers(text: str) -> tuple[str, ...]:
    return tuple(map(str, parse_servers(text)))


def _group(text: str) -> str:
    return _name(text, "group")


def _name(text: str, what: str) -> str:
    try:
        return name_untrusted(text.encode(), what)
    except Refusal as error:
        raise ValueError(error.text) from None


def served_name(name: str) -> str:
    """The same. Raises ValueError for what no topic of a server can be called."""
    try:
        return topic_untrusted(name.encode())
    except Refusal as error:
        raise ValueError(error.text) from None


def _writer(text: str) -> str:
    name = _name(text, "writer")
    if len(name) > _WRITER_BYTES_MAX:
        raise ValueError(f"longer than {_WRITER_BYTES_MAX} letters")
    return name


def _epoch(text: str) -> int:
    number = 0 if text.strip() == "0" else count(text)
    if number > _EPOCH_MAX:
        raise ValueError(f"above {_EPOCH_MAX}")
    return number


def _batch_bytes(text: str) -> int:
    number = size(text)
    if number > SKIPPED_BODY_BYTES_MAX:
        raise ValueError(f"above {SKIPPED_BODY_BYTES_MAX}, the most that the wire carries at once")
    return number


# -- all of them

_NO_TRIGGERS = "a batch has no triggers; only a stream takes this"
_NO_END = "a stream has no end; only a batch takes this"


@attrs.frozen(kw_only=True)
class Options:
    """What to read, from where to where, and how. `None`: no limit."""

    paths: tuple[str, ...] = ()
    servers: tuple[str, ...] = option("servers", _servers, ())
    reach: Reach
    topics: TopicChoice
    namespace: str = option(
        *("namespace", _namespace, NAMESPACE),
        servers="only a data folder (path) has namespaces; a broker serves its topics",
    )
    starting: ReadBound
    ending: ReadBound
    max_offsets: int | None = option("maxOffsetsPerTrigger", count, batch=_NO_TRIGGERS)
    max_bytes: int | None = option("maxBytesPerTrigger", size, batch=_NO_TRIGGERS)
    min_offsets: int | None = option("minOffsetsPerTrigger", count, batch=_NO_TRIGGERS)
    max_delay_seconds: float = option("maxTriggerDelay", duration, 15 * 60.0, batch=_NO_TRIGGERS)
    """As Spark's source for Kafka has it."""
    max_value_bytes: int | None = option("maxValueBytes", size)
    max_records: int | None = option("maxRecordsPerPartition", count)
    min_partitions: int | None = option("minPartitions", count)
    fail_on_data_loss: bool = option("failOnDataLoss", flag, True)
    verify_crc: bool = option("verifyCrc", flag, True)
    unverified: Unverified = option(  # noqa: RUF009 - it makes a field
        *("unverified", _unverified, Unverified.READ),
        servers="only a data folder (path) says which ranges are unverified",
    )
    prune_by_filters: bool = option(
        *("pruneByFilters", flag, False),
        stream="Spark tells a stream no filters; only a batch takes this",
    )
    group: str | None = option(
        *("group", _group),
        folders="a data folder is only read; a broker (servers) is told how far a group is",
        batch="a batch has no place to come back to; only a stream takes this",
    )

    @property
    def sources(self) -> tuple[str, ...]:
        return self.paths or self.servers


@attrs.frozen(kw_only=True)
class SinkOptions:
    """Where rows go, and under which name they are written once (`writer`; None: the query's own)."""

    server: Server
    reach: Reach
    topic: str | None = option("topic", served_name)
    writer: str | None = option("writer", _writer)
    epoch: int = option(
        "epoch", _epoch, 0, stream="a stream counts its epochs itself; only a batch takes this"
    )
    batch_bytes: int = option("batchBytes", _batch_bytes, BATCH_BYTES)


_NO_SERVERS = "says how brokers (servers) are reached; there are none to read"
_REACH = tuple(attrs.evolve(each, not_of={"folders": _NO_SERVERS}) for each in declared(Reach).values())
_SOURCE = (
    *(Option(name, str) for name in ("path", "paths", "subscribe", "subscribePattern", "assign")),
    *(Option(f"starting{what}", str) for what in ("Offsets", "OffsetsByTimestamp", "Timestamp")),
    *(
        Option(f"ending{what}", str, {"stream": _NO_END})
        for what in ("Offsets", "OffsetsByTimestamp", "Timestamp")
    ),
    Option("startingOffsetsByTimestampStrategy", str),
    *_REACH,
    *declared(Options).values(),
)
_SINK = (Option("servers", str), *_REACH, *declared(SinkOptions).values())
NAMES = tuple(each.name for each in _SOURCE)


def parse(given: Mapping[str, str], *, streaming: bool | None = None) -> Options:
    """Check everything. `streaming`: None where that is not known yet. Raises ConfigError.

    A stream without `startingOffsets` begins at the end of what is there, anything else at the beginning.
    """
    options = GivenOptions(given, _SOURCE, "the source")
    paths = options.take("paths", _paths, ())
    one = options.take("path", path, "")
    if one and paths:
        raise ConfigError("path", "load() has paths of its own")
    # Executors may be elsewhere, and know nothing of what a path is relative to.
    paths = tuple(os.path.join(os.getcwd(), each) for each in ((one,) if one else paths))
    found = options.fields(Options)
    served = bool(found.get("servers"))
    if bool(paths) == served:
        raise ConfigError("path", "give either a data folder (path) or brokers (servers)")
    options.refuse("servers" if served else "folders")
    if streaming is not None:
        options.refuse("stream" if streaming else "batch")
    least, most = found.get("min_offsets"), found.get("max_offsets")
    if least is not None and most is not None and least > most:
        raise ConfigError("minOffsetsPerTrigger", f"is above maxOffsetsPerTrigger: {least} > {most}")
    if least is None and options.has("maxTriggerDelay"):
        raise ConfigError("maxTriggerDelay", "how long minOffsetsPerTrigger is waited for; that is missing")
    topics = _topics(options, name_check=served_name if served else str)
    return Options(
        paths=paths,
        reach=_reach(options),
        topics=topics,
        starting=_bound(options, "starting", LATEST if streaming else EARLIEST, topics),
        ending=_bound(options, "ending", LATEST, topics),
        **found,
    )


def parse_sink(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Check everything. Raises ConfigError."""
    if any(name.lower() == "path" for name in given):
        raise ConfigError("path", "a data folder is its broker's to write; give its address (servers)")
    ours = {name: value for name, value in given.items() if name.lower() not in _OF_SPARK}
    options = GivenOptions(ours, _SINK, "the sink")
    servers = options.take("servers", parse_servers, ())
    if len(servers) != 1:
        raise ConfigError("servers", "one broker's address is needed, host:port, to write to")
    if streaming:
        options.refuse("stream")
    if options.has("epoch") and not options.has("writer"):
        raise ConfigError("epoch", "is a number of the option writer, which is missing")
    return SinkOptions(server=servers[0], reach=_reach(options), **options.fields(SinkOptions))


def _reach(options: GivenOptions) -> Reach:
    if options.has("tlsKey") and not options.has("tlsCertificate"):
        raise ConfigError("tlsKey", "is the key of a certificate: tlsCertificate")
    return Reach(**options.fields(Reach))


def _paths(text: str) -> tuple[str, ...]:
    """As Spark hands over the arguments of `load` when there are several."""
    paths = json_of(text)
    if not (isinstance(paths, list) and paths and all(isinstance(each, str) and each for each in paths)):
        raise ValueError(f"not a JSON list of folders: {text!r}")
    return once_each(map(path, paths))


# -- which topics


def _topics(options: GivenOptions, name_check: Callable[[str], str]) -> TopicChoice:
    """`name_check`: raises ValueError for what no topic there can be called."""
    given = [name for name in ("subscribe", "subscribePattern", "assign") if options.has(name)]
    if not given:
        raise ConfigError("subscribe", "say which topics: subscribe, subscribePattern or assign")
    if len(given) > 1:
        raise ConfigError(given[1], f"there is {given[0]} already, and one of them is enough")
    if given[0] == "subscribePattern":
        return TopicChoice(pattern=options.take("subscribePattern", _pattern, None), option=given[0])
    parse = _names if given[0] == "subscribe" else _assigned
    names = options.take(given[0], lambda text: tuple(map(name_check, parse(text))), ())
    return TopicChoice(names, option=given[0])


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise ValueError(f"not names with commas between: {text!r}")
    return names


def _assigned(text: str) -> tuple[str, ...]:
    """`["orders"]`, or as for Kafka `{"orders": [0]}`: a log is one partition, number 0."""
    found = json_of(text)
    names = list(found) if isinstance(found, dict | list) else []
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"not a JSON list of topics: {text!r}")
    if isinstance(found, dict) and any(partitions != [0] for partitions in found.values()):
        raise ValueError("a topic has one partition, 0")
    return tuple(dict.fromkeys(names))


# -- from where to where


def _bound(options: GivenOptions, side: str, default: At, topics: TopicChoice) -> ReadBound:
    """What is given counts in this order: a time for all, else times by topic, else offsets."""
    strict = False
    if side == "starting":
        strict = options.take("startingOffsetsByTimestampStrategy", _strategy, "error") == "error"
    if options.has(f"{side}Timestamp"):
        name = f"{side}Timestamp"
        return ReadBound(options.take(name, _time, default), {}, not strict, name)
    others = EARLIEST if side == "starting" else LATEST
    if options.has(name := f"{side}OffsetsByTimestamp"):
        times = options.take(name, lambda text: _of(topics, _times(text)), {})
        return ReadBound(others, times, not strict, name)
    if not options.has(name := f"{side}Offsets"):
        return ReadBound(default)
    words = {"latest": LATEST} | ({"earliest": EARLIEST} if side == "starting" else {})

    def parse(text: str) -> ReadBound:
        if (word := words.get(text.strip().lower())) is not None:
            return ReadBound(word, option=name)
        if not text.lstrip().startswith("{"):
            raise ValueError(f"not {' or '.join(sorted(words))}, nor JSON by topic: {text!r}")
        places = {topic: _at(topic, number, words) for topic, number in _by_topic(text)}
        return ReadBound(others, _of(topics, places), option=name)

    return options.take(name, parse, ReadBound(default))


def _of(topics: TopicChoice, places: Mapping[str, At]) -> Mapping[str, At]:
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
    if not 0 <= number <= NUMBER_MAX:
        raise ValueError(f"not an offset of {topic}: {number}")
    return At(PositionKind.OFFSET, number)


def _times(text: str) -> dict[str, At]:
    found = {}
    for topic, number in _by_topic(text):
        if not 0 <= number <= NUMBER_MAX:
            raise ValueError(f"not Unix milliseconds for {topic}: {number}")
        found[topic] = At(PositionKind.TIME, number)
    return found


def _by_topic(text: str) -> list[tuple[str, int]]:
    """`{"orders": 7}`, or as for Kafka `{"orders": {"0": 7}}`."""
    found = json_of(text)
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
        if number > NUMBER_MAX:
            raise ValueError(f"not Unix milliseconds: {text}")
        return At(PositionKind.TIME, number)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"neither Unix milliseconds nor ISO 8601: {text!r}") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} does not say its time zone (Z, +01:00)")
    return At(PositionKind.TIME, max(int(moment.timestamp() * 1000), 0))


def _strategy(text: str) -> str:
    if text.lower() not in ("error", "latest"):
        raise ValueError(f"not error or latest: {text!r}")
    return text.lower()
