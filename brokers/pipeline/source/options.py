"""The options of the source and of the sink: how each is declared, parsed and checked.

An option is called as in Spark's own Kafka source where that has one for the purpose, and means the same. A
class of options declares each with `option`, at the field that holds it. A wrong one is a ConfigError that
names it. Keys are compared without regard to case, as Spark does it. Only `Reach`
opens files.
"""

import json
import os
import re
import ssl
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs

from brokers.errors import nearest
from logmq.connector import NAME_BYTES_MAX, SKIPPED_BODY_BYTES_MAX, Refusal, name_untrusted, topic_untrusted
from shared.client.login import NOBODY, PASSWORD_FILE_VARIABLE, USER_VARIABLE, Login, read_password
from shared.errors import ConfigError
from shared.local_path import local_path
from shared.net.tls import client_context
from shared.units import parse_quantity

_T = TypeVar("_T")

NUMBER_MAX = (1 << 63) - 1
_TIMEOUT_MS_MAX = (1 << 31) - 1
"""The most that poll(2) takes: 24 days."""


@attrs.frozen
class Option:
    """`parse` raises ValueError. `not_of`: where it is a mistake (`servers`, `stream`, ...), and why."""

    name: str
    parse: Callable[[str], Any]
    not_of: Mapping[str, str] = {}


def option(name: str, parse: Callable[[str], Any], default: Any = None, **not_of: str) -> Any:
    """Declare a field that the option `name` sets."""
    return attrs.field(default=default, metadata={"option": Option(name, parse, not_of)})


def declared(kind: type[attrs.AttrsInstance]) -> dict[str, Option]:
    """Return the options of a class, by field."""
    return {
        field.name: field.metadata["option"] for field in attrs.fields(kind) if "option" in field.metadata
    }


class GivenOptions:
    """The values of the options that a user gave, by declared name. `options`: all that `what` knows."""

    def __init__(self, given: Mapping[str, str], options: Iterable[Option], what: str) -> None:
        self._given: dict[str, Option] = {}
        self.values: dict[str, Any] = {}
        known = {each.name.lower(): each for each in options}
        for key, text in given.items():
            found = known.get(key.lower())
            if found is None:
                names = ", ".join(each.name for each in known.values())
                meant = nearest(key.lower(), known)
                hint = f"; did you mean {known[meant].name}?" if meant else f"; there are {names}"
                raise ConfigError(key, f"{what} has no such option{hint}")
            self._given[found.name] = found
            try:
                self.values[found.name] = found.parse(text)
            except ValueError as error:
                raise ConfigError(found.name, str(error)) from None

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def refuse(self, place: str) -> None:
        """Raise ConfigError if an option was given that is a mistake in that `place`."""
        for name, each in self._given.items():
            if place in each.not_of:
                raise ConfigError(name, each.not_of[place])

    def fields(self, kind: type[attrs.AttrsInstance]) -> dict[str, Any]:
        """Return what was given of a class's options, by field."""
        found = declared(kind).items()
        return {field: self.values[each.name] for field, each in found if each.name in self}


# -- texts that many options have; each raises ValueError


def json_of(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_each_name_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_name = dict(pairs)
    if len(by_name) < len(pairs):
        raise ValueError("a name stands there twice")
    return by_name


BUCKET_URL = re.compile(r"(s3|gs|az)://[^/]+")


def path(text: str) -> str:
    return str(local_path(text))


def _source(text: str) -> str:
    """Parse a data folder, or a bucket to which one is shipped."""
    return text.rstrip("/") if BUCKET_URL.match(text) else path(text)


def count(text: str) -> int:
    if not text.strip().isdecimal() or not 0 < int(text) <= NUMBER_MAX:
        raise ValueError(f"not a whole number above 0: {text!r}")
    return int(text)


def size(text: str) -> int:
    """Parse bytes: `1048576`, `1m`, `1MiB`. All units are powers of 1024, as in Spark."""
    amount = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if amount is None:
        raise ValueError(f"not a size: {text!r}")
    unit = f"{amount[2].upper()}iB" if amount[2] else "B"
    return _at_most(NUMBER_MAX, count(str(parse_quantity(f"{amount[1]}{unit}", "bytes"))))


def timeout(text: str) -> float:
    """Parse milliseconds, and return seconds."""
    return _at_most(_TIMEOUT_MS_MAX, count(text)) / 1000


def flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"not true or false: {text!r}")
    return text.strip().lower() == "true"


PORT = 8080


@attrs.frozen
class Server:
    host: str
    port: int = PORT

    @classmethod
    def parse(cls, text: str) -> "Server":
        """Parse `host`, `host:port`, `[v6]` or `[v6]:port`. Raises ValueError."""
        text = text.strip()
        if "@" in text:  # it may be followed by a password, which is shown nowhere
            raise ValueError("a server is host:port; the options user and passwordFile say who logs in")
        try:
            parts = urlsplit(f"//{text}")
            server = cls(parts.hostname or "", PORT if parts.port is None else parts.port)
            server.host.encode("idna")  # as whoever resolves it does
        except ValueError:
            server = cls("")
        same = str(server) in (text.lower(), f"{text.lower()}:{PORT}")
        if not (same and server.host and server.port) or any(map(str.isspace, text)):
            raise ValueError(f"{text!r} is not host:port; an IPv6 address stands in brackets, [::1]:{PORT}")
        return server

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@attrs.frozen
class Reach:
    """How servers are reached: TLS and timeouts. The process that connects reads the certificate files."""

    tls: bool = option("tls", flag, False)
    ca: str | None = option("tlsCa", path)
    certificate: str | None = option("tlsCertificate", path)
    key: str | None = option("tlsKey", path)
    connect_seconds: float = option("connectTimeoutMs", timeout, 10.0)
    reply_seconds: float = option("replyTimeoutMs", timeout, 60.0)
    """The longest wait without a single byte of an answer."""
    retry_seconds: float = option("retryTimeoutMs", timeout, 20.0)
    """The default leaves time for a server to restart."""
    user: str | None = option("user", str)
    password_file: str | None = option("passwordFile", path)
    """The process that connects reads it, so no plan of Spark's holds a password."""

    def login(self) -> Login:
        """Return who logs in. Raises ConfigError for a file that cannot be used."""
        if self.user is None or self.password_file is None:
            return NOBODY
        try:
            return Login(self.user, read_password(self.password_file))
        except ValueError as error:
            raise ConfigError("passwordFile", str(error)) from None

    def context(self) -> ssl.SSLContext | None:
        """Return a TLS context, or None without TLS. Raises ConfigError for files that cannot be used."""
        if not (self.tls or self.ca or self.certificate):
            return None
        option, file = "tlsCa", self.ca
        try:
            context = client_context(self.ca)
            if self.certificate is not None:
                option, file = "tlsCertificate", self.certificate
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise ConfigError(option, f"{file} cannot be used: {error.strerror or error}") from None
        return context


def reach_options(said: Mapping[str, Any]) -> dict[str, str]:
    """Return what is said of the fields of `Reach` as options. Empty values say nothing."""
    found = {each.name: said.get(field) for field, each in declared(Reach).items()}
    return {name: "true" if value is True else str(value) for name, value in found.items() if value}


def parse_servers(text: str) -> tuple[Server, ...]:
    """Parse `host:port,host:port`. Raises ValueError."""
    servers = tuple(Server.parse(each) for each in text.split(",") if each.strip())
    if not servers:
        raise ValueError("names no server; host:port,host:port is expected")
    twice = {str(each) for each in servers if servers.count(each) > 1}
    if twice:
        raise ValueError(f"names {min(twice)} twice")
    return servers


NAMESPACE = "logmq"
"""The default of the option `namespace`."""
BATCH_BYTES = 1024 * 1024
"""The largest batch that a server with default settings takes."""
_WRITER_BYTES_MAX = NAME_BYTES_MAX - 80
"""The sink appends a stream's id, and the numbers of a partition and a group of pieces, which need room."""
_EPOCH_MAX = (1 << 55) - 1
"""Each epoch takes 128 seqs, and the wire carries a seq in 63 bits."""

_OF_SPARK = ("checkpointlocation", "queryname")
"""Options of every stream, which Spark passes to the sink, too."""


class PositionKind(Enum):
    """The kinds of positions in a log."""

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

    `option`: the option that says so; empty for a default.
    `past_end_is_latest`: a time after a log's newest record means the log's end; else it is an error.
    """

    default: At
    topics: Mapping[str, At] = {}
    past_end_is_latest: bool = True
    option: str = ""

    def of(self, topic: str) -> At:
        return self.topics.get(topic, self.default)


@attrs.frozen
class TopicChoice:
    """Topics by name, or those whose whole name matches `pattern`. `option`: the option that says so."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    option: str = "subscribe"

    def matching(self, found: Mapping[str, Any]) -> list[str]:
        """Return all topics that are named, there or not; or those of `found` that match, sorted."""
        if self.pattern is None:
            return list(self.names)
        return sorted(name for name in found if re.fullmatch(self.pattern, name))


# -- values of one option; each raises ValueError


def _word(words: Mapping[str, _T]) -> Callable[[str], _T]:
    """Return a parser of one of these words."""

    def parse(text: str) -> _T:
        try:
            return words[text.strip().lower()]
        except KeyError:
            raise ValueError(f"not {', '.join(words)}: {text!r}") from None

    return parse


def _namespace(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9_-][a-z0-9._-]*", text):
        raise ValueError(f"not the name of a namespace (a-z 0-9 . _ -): {text!r}")
    return text


def _pattern(text: str) -> str:
    if not text:
        raise ValueError("is empty, which no topic's name is")
    try:
        with warnings.catch_warnings(action="ignore"):  # of what `[[` may mean to a later Python
            re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


def served_name(name: str) -> str:
    """Return the name of a topic. Raises ValueError for a name that no topic of a server can have."""
    return _named(topic_untrusted, name)


def _writer(text: str) -> str:
    name = _named(name_untrusted, text, "writer")
    if len(name) > _WRITER_BYTES_MAX:
        raise ValueError(f"longer than {_WRITER_BYTES_MAX} letters")
    return name


def _named(check: Callable[..., str], text: str, *what: str) -> str:
    try:
        return check(text.encode(), *what)
    except Refusal as error:
        raise ValueError(error.text) from None


def _epoch(text: str) -> int:
    return 0 if text.strip() == "0" else _at_most(_EPOCH_MAX, count(text))


def _batch_bytes(text: str) -> int:
    return _at_most(SKIPPED_BODY_BYTES_MAX, size(text), ", the most that the wire carries at once")


def _at_most(most: int, number: int, why: str = "") -> int:
    if number > most:
        raise ValueError(f"above {most}{why}: {number}")
    return number


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise ValueError(f"not names with commas between: {text!r}")
    return names


def _assigned(text: str) -> tuple[str, ...]:
    """Parse `["orders"]`, or as for Kafka `{"orders": [0]}`. A log has one partition, number 0."""
    found = json_of(text)
    names = list(found) if isinstance(found, dict | list) else []
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"not a JSON list of topics: {text!r}")
    if isinstance(found, dict) and any(partitions != [0] for partitions in found.values()):
        raise ValueError("a topic has one partition, 0")
    return tuple(dict.fromkeys(names))


def _paths(text: str) -> tuple[str, ...]:
    """Parse several arguments of `load`, in the form in which Spark passes them."""
    paths = json_of(text)
    if not (isinstance(paths, list) and paths and all(isinstance(each, str) and each for each in paths)):
        raise ValueError(f"not a JSON list of folders: {text!r}")
    once: dict[str, str] = {}
    for source in map(_source, paths):
        once.setdefault(os.path.realpath(source), source)
    return tuple(once.values())


def _offsets(**words: At) -> Callable[[str], At | dict[str, At]]:
    """Return a parser of one of these words, or of JSON by topic: -1 is `latest` and -2 `earliest`."""
    numbers = {number: words[word] for word, number in (("latest", -1), ("earliest", -2)) if word in words}

    def at(topic: str, number: int) -> At:
        if number in numbers:
            return numbers[number]
        if not 0 <= number <= NUMBER_MAX:
            raise ValueError(f"not an offset of {topic}: {number}")
        return At(PositionKind.OFFSET, number)

    def parse(text: str) -> At | dict[str, At]:
        if (word := words.get(text.strip().lower())) is not None:
            return word
        if not text.lstrip().startswith("{"):
            raise ValueError(f"not {' or '.join(sorted(words))}, nor JSON by topic: {text!r}")
        return {topic: at(topic, number) for topic, number in _by_topic(text)}

    return parse


def _times(text: str) -> dict[str, At]:
    found = {}
    for topic, number in _by_topic(text):
        if not 0 <= number <= NUMBER_MAX:
            raise ValueError(f"not Unix milliseconds for {topic}: {number}")
        found[topic] = At(PositionKind.TIME, number)
    return found


def _by_topic(text: str) -> list[tuple[str, int]]:
    """Parse `{"orders": 7}`, or as for Kafka `{"orders": {"0": 7}}`."""
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
    """Parse Unix milliseconds, as for Kafka, or ISO 8601 with a time zone."""
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


# -- all of them

_NO_TRIGGERS = "a batch has no triggers; only a stream takes this"
_NO_END = "a stream has no end; only a batch takes this"
_OF_BUCKETS = "is of a bucket (path); there is none to read"


@attrs.frozen(kw_only=True)
class SourceOptions:
    """What to read, from where to where, and how. None means no limit."""

    paths: tuple[str, ...] = ()
    servers: tuple[str, ...] = option("servers", lambda text: tuple(map(str, parse_servers(text))), ())
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
    max_value_bytes: int | None = option("maxValueBytes", size)
    min_partitions: int | None = option("minPartitions", count)
    fail_on_data_loss: bool = option("failOnDataLoss", flag, True)
    verify_crc: bool = option("verifyCrc", flag, True)
    instant: At | None = option(  # noqa: RUF009 - it makes a field
        "endingInstant", _time, stream=_NO_END, servers=_OF_BUCKETS
    )
    endpoint: str | None = option("endpoint", str, servers=_OF_BUCKETS)
    region: str | None = option("region", str, servers=_OF_BUCKETS)
    credentials: str | None = option("credentials", path, servers=_OF_BUCKETS)
    encrypt: str | None = option("encrypt", path, servers=_OF_BUCKETS)

    @property
    def sources(self) -> tuple[str, ...]:
        return self.paths or self.servers


@attrs.frozen(kw_only=True)
class SinkOptions:
    """Where rows go. `writer`: the name under which they are written once; None: the query's own."""

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
    Option("path", _source),
    Option("paths", _paths),
    Option("subscribe", _names),
    Option("subscribePattern", _pattern),
    Option("assign", _assigned),
    Option("startingOffsets", _offsets(earliest=EARLIEST, latest=LATEST)),
    Option("startingOffsetsByTimestamp", _times),
    Option("startingTimestamp", _time),
    Option("endingOffsets", _offsets(latest=LATEST), {"stream": _NO_END}),
    Option("endingOffsetsByTimestamp", _times, {"stream": _NO_END}),
    Option("endingTimestamp", _time, {"stream": _NO_END}),
    Option("startingOffsetsByTimestampStrategy", _word({"error": False, "latest": True})),
    *_REACH,
    *declared(SourceOptions).values(),
)
_SINK = (Option("servers", parse_servers), *_REACH, *declared(SinkOptions).values())
NAMES = tuple(each.name for each in _SOURCE)


def parse(given: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Parse and check all options of a read. `streaming`: None if that is not known yet. Raises ConfigError.

    Without `startingOffsets` a stream begins at the end of what is there, and a batch at the beginning.
    """
    options = GivenOptions(given, _SOURCE, "the source")
    paths = options.values.get("paths", ())
    if "path" in options:
        if paths:
            raise ConfigError("path", "give path or the paths of load(), not both")
        paths = (options.values["path"],)
    # A relative path would mean another folder to an executor, which runs elsewhere.
    paths = tuple(each if "://" in each else os.path.join(os.getcwd(), each) for each in paths)
    found = options.fields(SourceOptions)
    served = bool(found.get("servers"))
    if bool(paths) == served:
        raise ConfigError("path", "give either a data folder (path) or brokers (servers)")
    options.refuse("servers" if served else "folders")
    if streaming is not None:
        options.refuse("stream" if streaming else "batch")
    topics = _topics(options.values, served=served)
    return SourceOptions(
        paths=paths,
        reach=_reach(options),
        topics=topics,
        starting=_bound(options.values, "starting", LATEST if streaming else EARLIEST, topics),
        ending=_bound(options.values, "ending", LATEST, topics),
        **found,
    )


def parse_sink(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse and check all options of a write. Raises ConfigError."""
    if any(name.lower() == "path" for name in given):
        raise ConfigError("path", "only its broker writes a data folder; give the broker's address (servers)")
    ours = {name: value for name, value in given.items() if name.lower() not in _OF_SPARK}
    # INSERT INTO a view comes with the options by which it is read, which say the topic, too.
    views = {name.lower() for name in NAMES} - {each.name.lower() for each in _SINK}
    read = GivenOptions(
        {name: value for name, value in ours.items() if name.lower() in views}, _SOURCE, "the source"
    ).values
    ours = {name: value for name, value in ours.items() if name.lower() not in views}
    topics: tuple[str, ...] = read.get("subscribe") or read.get("assign") or ()
    if len(topics) == 1 and "topic" not in map(str.lower, ours):
        ours["topic"] = topics[0]
    options = GivenOptions(ours, _SINK, "the sink")
    servers = options.values.get("servers", ())
    if len(servers) != 1:
        raise ConfigError("servers", "one broker's address is needed, host:port, to write to")
    if streaming:
        options.refuse("stream")
    if "epoch" in options and "writer" not in options:
        raise ConfigError("epoch", "needs the option writer, which is missing")
    if "writer" in options and "epoch" not in options and not streaming:
        text = "needs the option epoch, a number that rises with each write of that name"
        raise ConfigError("writer", text)
    return SinkOptions(server=servers[0], reach=_reach(options), **options.fields(SinkOptions))


def _topics(values: Mapping[str, Any], *, served: bool) -> TopicChoice:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name in values]
    if not given:
        raise ConfigError("subscribe", "say which topics: subscribe, subscribePattern or assign")
    if len(given) > 1:
        raise ConfigError(given[1], f"{given[0]} is given, too; give only one of them")
    if given[0] == "subscribePattern":
        return TopicChoice(pattern=values[given[0]], option=given[0])
    if served:
        for name in values[given[0]]:
            try:
                served_name(name)
            except ValueError as error:
                raise ConfigError(given[0], str(error)) from None
    return TopicChoice(values[given[0]], option=given[0])


def _bound(values: Mapping[str, Any], side: str, default: At, topics: TopicChoice) -> ReadBound:
    """The first of these that is given counts: a time for all topics, times by topic, offsets."""
    is_latest = side == "ending" or values.get("startingOffsetsByTimestampStrategy", False)
    for name in (f"{side}Instant", f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"):
        found = values.get(name)
        if isinstance(found, At):
            return ReadBound(found, {}, is_latest, name)
        if found is not None:
            for topic in found:
                if topics.pattern is None and topic not in topics.names:
                    raise ConfigError(name, f"{topic} is not among the topics of {topics.option}")
            return ReadBound(EARLIEST if side == "starting" else LATEST, found, is_latest, name)
    return ReadBound(default)


def _reach(options: GivenOptions) -> Reach:
    if "tlsKey" in options and "tlsCertificate" not in options:
        raise ConfigError("tlsKey", "needs tlsCertificate, which is missing")
    reach = Reach(**options.fields(Reach))
    # The variables are the driver's: executors are told what they say.
    user = reach.user or os.environ.get(USER_VARIABLE) or None
    file = reach.password_file or (os.environ.get(PASSWORD_FILE_VARIABLE) or None if user else None)
    if file is not None and user is None:
        raise ConfigError("passwordFile", f"needs user, or the variable {USER_VARIABLE}, which is missing")
    if user is not None and file is None and reach.certificate is None:
        raise ConfigError("user", f"needs passwordFile, or the variable {PASSWORD_FILE_VARIABLE}")
    return attrs.evolve(reach, user=user, password_file=file)
