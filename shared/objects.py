"""The objects of a running protocol, in a form that the API, commands and the page share.

A *kind* (queues, topics, connections ...) is described once: its columns, their units and help texts. A
service offers `Objects` for each kind that it has (`Service.objects`). A list joins those of all services.
Many objects do not hold the loop: names are copied at once, rows are made a few at a time.
"""

import base64
import codecs
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import attrs

from shared.errors import EXIT_MISSING, EXIT_USAGE, BrokerError

Unit = Literal["", "count", "bytes", "seconds", "time", "rate", "bytes_rate", "flag", "list", "table"]
"""The unit of a column. "": text; `time`: RFC 3339 with ms; `rate`: messages a second; `bytes_rate`: bytes a
second. A missing value is null in all units."""

UNSORTED: tuple[Unit, ...] = ("list", "table")
"""Units of columns by which no list is sorted."""

ANSWER_BYTES_MAX = 1 << 20
"""Bytes of messages in one answer: a megabyte takes some milliseconds of the loop to write as JSON."""
SHOWN_BYTES_MAX = 256 << 10
"""Bytes of one message in an answer; of a larger one the beginning is shown."""


CLIENT_MAX = 64
"""Characters of a client's name that lists show."""


def client_name(said: object) -> str:
    """What a client calls itself, fit to be shown."""
    if isinstance(said, bytes):
        said = said.decode(errors="replace")
    return "".join(each for each in said[:CLIENT_MAX] if each.isprintable()) if isinstance(said, str) else ""


class ObjectMissing(BrokerError):
    """No object has that name."""

    exit_code = EXIT_MISSING


class BadArgument(BrokerError):
    """An argument of an action does not fit, or not what is there now."""


class BadValue(BadArgument):
    """An argument is missing, of another kind or out of range: a mistake of the caller."""

    exit_code = EXIT_USAGE


@attrs.frozen
class KindColumn:
    """A value that every object of a kind has."""

    name: str
    help: str
    unit: Unit = "count"
    looked_up: bool = False
    """The value may be read from disk, so only shown rows have it, and no list is sorted by it."""
    counted_by: str = ""
    """What the names in a table of counts are, as metrics have them for a label."""


@attrs.frozen
class Chart:
    """A column that is drawn over time; `grows`: what it has grown by a second."""

    column: str
    grows: bool = False


@attrs.frozen
class ObjectKind:
    """A kind of objects. `columns`: the most important first; the first ones form the name.

    `parts`: the columns that form an object's name; with `by_protocol` the protocol goes before them.
    `filters`: columns that can narrow a list. `charts`: what is drawn of each object, three columns at most.
    `none`: what is said of an empty list.
    """

    name: str
    help: str
    columns: tuple[KindColumn, ...]
    parts: tuple[str, ...] = ("name",)
    by_protocol: bool = False
    filters: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    none: str = ""

    @property
    def name_columns(self) -> tuple[str, ...]:
        """The columns that name an object of any protocol."""
        return (("protocol",) if self.by_protocol else ()) + self.parts

    def chart_unit(self, chart: Chart) -> str:
        """The unit of a chart's figures: B, /s, B/s, or "" for a count."""
        (unit,) = [column.unit for column in self.columns if column.name == chart.column]
        size = "B" if unit in ("bytes", "bytes_rate") else ""
        return f"{size}/s" if chart.grows or unit in ("rate", "bytes_rate") else size


PROTOCOL = KindColumn("protocol", "Its protocol.", "")

CONNECTIONS = ObjectKind(
    "connections",
    "Every connection of every protocol.",
    (
        KindColumn("id", "Its name here.", ""),
        PROTOCOL,
        KindColumn("peer", "The client's address.", ""),
        KindColumn("user", "The user who logged in; anonymous: no login was required.", ""),
        KindColumn("client", "The name that the client gives itself.", ""),
        KindColumn("state", "open, paused (its input is not read), or finishing.", ""),
        KindColumn("waits_for", "What it waits for, and why its input is paused.", "list"),
        KindColumn("since", "When it was accepted.", "time"),
        KindColumn("tls", "Whether it is encrypted.", "flag"),
        KindColumn("bytes_in", "Bytes received, as the system counts them; null where it does not.", "bytes"),
        KindColumn("bytes_out", "Bytes that the client has received.", "bytes"),
        KindColumn("messages_in", "Messages received; null where its protocol does not count them."),
        KindColumn(
            "messages_out",
            "Messages sent; null where ranges of a log or a feed are sent as bytes, and nobody looks into"
            " them: `bytes_out` has these.",
        ),
        KindColumn("held", "Messages delivered to it and not acknowledged."),
        KindColumn("input_bytes", "Bytes received that are incomplete or not processed yet.", "bytes"),
        KindColumn("backlog_bytes", "Bytes that wait to be sent.", "bytes"),
    ),
    parts=("id",),
    filters=("protocol", "user"),
    charts=(Chart("bytes_in", grows=True), Chart("bytes_out", grows=True), Chart("held")),
)
QUEUES = ObjectKind(
    "queues",
    "Every queue.",
    (
        PROTOCOL,
        KindColumn("name", "Its name.", ""),
        KindColumn("ready", "Messages that can be delivered."),
        KindColumn("held", "Messages delivered and not acknowledged."),
        KindColumn("delayed", "Messages that become ready later."),
        KindColumn("dead", "Messages that wait for room in their dead-letter queue."),
        KindColumn(
            "dead_obstacle", "Why its dead letters have no place; null: they have one, or it has none.", ""
        ),
        KindColumn("consumers", "Consumers: those that wait, and those that have enough to do."),
        KindColumn("paused", "Whether deliveries are stopped; publishing goes on.", "flag"),
        KindColumn("in_rate", "Messages that come in, over the last seconds.", "rate"),
        KindColumn("out_rate", "Messages that leave, over the last seconds.", "rate"),
        KindColumn(
            "oldest_seconds", "How long the oldest ready message has waited; null: none is ready.", "seconds"
        ),
        KindColumn(
            "held_seconds",
            "How long a consumer has held the oldest delivery, to a second; null: none is held.",
            "seconds",
        ),
        KindColumn("ready_keys", "Keys of its ready messages; null: it does not look at keys."),
        KindColumn("bytes", "Bytes of its messages; of those only on disk, their size there.", "bytes"),
        KindColumn(
            "full_percent",
            "How much of its room is taken, in percent; at 100 it refuses messages. null: no limit of its own"
            " makes it refuse any.",
        ),
        KindColumn("durable", "Whether it outlives the process.", "flag"),
        KindColumn(
            "redelivered",
            "Deliveries that were a message's second, third ... (10+: tenth or later), since the start; all"
            " others were first ones.",
            "table",
            counted_by="delivery",
        ),
        KindColumn("settings", "What it was declared with.", "table"),
    ),
    by_protocol=True,
    filters=("protocol",),
    charts=(Chart("ready"), Chart("in_rate"), Chart("out_rate")),
)
CONSUMERS = ObjectKind(
    "consumers",
    "Who takes messages from queues.",
    (
        KindColumn("id", "Its name here.", ""),
        KindColumn("queue", "The queue that it consumes.", ""),
        PROTOCOL,
        KindColumn("connection", "Its connection; null: a bridge.", ""),
        KindColumn("peer", "The client's address; null: a bridge.", ""),
        KindColumn("user", "Its user; of a bridge null.", ""),
        KindColumn("client", "The name that the client gives itself.", ""),
        KindColumn("held", "Messages delivered to it and not acknowledged."),
        KindColumn(
            "held_seconds", "How long it has held the oldest, to a second; null: it holds none.", "seconds"
        ),
        KindColumn("room", "How many more it would take now; null: any number."),
        KindColumn("delivered", "Messages delivered to it."),
        KindColumn("out_rate", "Messages delivered to it, over the last seconds.", "rate"),
    ),
    parts=("id",),
    filters=("protocol", "queue", "user"),
)
TOPICS = ObjectKind(
    "topics",
    "Every topic: a log of records.",
    (
        KindColumn("name", "Its name.", ""),
        PROTOCOL,
        KindColumn("first", "The first kept offset."),
        KindColumn("end", "The offset of the next record."),
        KindColumn("records", "Kept records; null: they are being counted.", looked_up=True),
        KindColumn("bytes", "Kept bytes.", "bytes"),
        KindColumn("in_rate", "Bytes that come in, over the last seconds.", "bytes_rate"),
        KindColumn("first_time", "When the first kept record was written.", "time", looked_up=True),
        KindColumn("last_time", "When the last record was written.", "time", looked_up=True),
        KindColumn("durability", "When a write is acknowledged.", ""),
        KindColumn("retention_bytes", "How much is kept at least; null: all.", "bytes"),
        KindColumn("retention_seconds", "How long records are kept; null: for ever.", "seconds"),
        KindColumn("local_bytes", "How much is on this disk; the rest is in the bucket only.", "bytes"),
        KindColumn("local_retention_bytes", "How much stays on this disk; null: all.", "bytes"),
        KindColumn("local_retention_seconds", "How long they stay on this disk; null: for ever.", "seconds"),
        KindColumn("created", "When it was made.", "time"),
    ),
    filters=("protocol",),
    charts=(Chart("in_rate"), Chart("bytes")),
)
GROUPS = ObjectKind(
    "groups",
    "The committed offset of every group of consumers in every topic.",
    (
        KindColumn("group", "Its name.", ""),
        KindColumn("topic", "The topic that it reads.", ""),
        PROTOCOL,
        KindColumn("offset", "The committed offset, where it goes on."),
        KindColumn("end", "The end of the topic."),
        KindColumn("lag_bytes", "Bytes that it has not read.", "bytes"),
        KindColumn(
            "lag_records", "Records that it has not read; null: they are being counted.", looked_up=True
        ),
        KindColumn(
            "lag_seconds",
            "How long its next record has waited; 0: it has read all.",
            "seconds",
            looked_up=True,
        ),
    ),
    parts=("group", "topic"),
    filters=("protocol", "group", "topic"),
    charts=(Chart("lag_bytes"),),
)
SESSIONS = ObjectKind(
    "sessions",
    "Every client that has subscribed, connected or not.",
    (
        KindColumn("name", "The client's id; its address where clients have none.", ""),
        PROTOCOL,
        KindColumn("user", "The user who made it.", ""),
        KindColumn("peer", "The client's address; null: it is away.", ""),
        KindColumn("subscriptions", "How many subscriptions it has."),
        KindColumn("waiting_bytes", "Bytes that wait to be sent.", "bytes"),
        KindColumn("dropped", "Messages lost because the client did not read."),
        KindColumn("kept", "Messages kept until the client returns."),
        KindColumn("kept_bytes", "Bytes of the kept messages.", "bytes"),
        KindColumn(
            "kept_percent",
            "How much of the room for its kept messages is taken, in percent; at 100 the oldest are dropped.",
        ),
    ),
    filters=("protocol", "user"),
)
SUBSCRIPTIONS = ObjectKind(
    "subscriptions",
    "The subscriptions of all clients; with `topic`, those that match a message of it.",
    (
        KindColumn("client", "The client's id.", ""),
        KindColumn("pattern", "The topic or pattern.", ""),
        PROTOCOL,
        KindColumn("kept", "Whether messages are kept while the client is away.", "flag"),
        KindColumn("connected", "Whether the client is connected.", "flag"),
    ),
    parts=("client", "pattern"),
    filters=("protocol", "client"),
)
RETAINED = ObjectKind(
    "retained",
    "The topics whose last message is kept for whoever subscribes later.",
    (
        KindColumn("topic", "The topic.", ""),
        PROTOCOL,
        KindColumn("type", "The type of the message.", ""),
        KindColumn("bytes", "Bytes of the message.", "bytes"),
        KindColumn("time", "When it came.", "time"),
        KindColumn("sender", "The address that it came from.", ""),
    ),
    parts=("topic",),
    filters=("protocol",),
)
EXCHANGES = ObjectKind(
    "exchanges",
    "Every exchange.",
    (
        KindColumn("name", "Its name; amq.default: the default exchange.", ""),
        PROTOCOL,
        KindColumn("type", "How it routes.", ""),
        KindColumn("durable", "Whether it outlives the process.", "flag"),
        KindColumn("auto_delete", "Whether it is deleted with its last binding.", "flag"),
        KindColumn("internal", "Whether only other exchanges may publish to it.", "flag"),
        KindColumn("alternate", "The exchange that gets messages it cannot route.", ""),
        KindColumn("bindings", "Bindings from it."),
    ),
    filters=("protocol", "type"),
)
BINDINGS = ObjectKind(
    "bindings",
    "Every binding.",
    (
        KindColumn("id", "Its name here.", ""),
        PROTOCOL,
        KindColumn("exchange", "Its source.", ""),
        KindColumn("queue", "The queue that it leads to; null: an exchange.", ""),
        KindColumn("to_exchange", "The exchange that it leads to; null: a queue.", ""),
        KindColumn("key", "Its routing key.", ""),
        KindColumn("arguments", "Its arguments.", "table"),
    ),
    parts=("id",),
    filters=("protocol", "exchange", "queue"),
)
LEASES = ObjectKind(
    "leases",
    "Every lease that is not used yet.",
    (
        KindColumn("id", "Its name here; the lease itself is a secret.", ""),
        PROTOCOL,
        KindColumn("kind", "sink or feed.", ""),
        KindColumn("target", "The exchange of a sink, or the queue of a feed.", ""),
        KindColumn("age_seconds", "How long ago it was given.", "seconds"),
    ),
    parts=("id",),
    filters=("protocol",),
)
BRIDGES = ObjectKind(
    "bridges",
    "Every bridge.",
    (
        KindColumn("name", "Its name.", ""),
        KindColumn("state", "starting, running, waiting (see last_error) or paused.", ""),
        KindColumn("carried", "Messages written since the process started."),
        KindColumn("lag", "How much is not carried yet, in `lag_unit`; null: unknown."),
        KindColumn("lag_unit", "messages; for a log bytes.", ""),
        KindColumn("last_error", "Why it waits, or refused a message; null: no error since it runs.", ""),
        KindColumn("from", "The address of its source.", ""),
        KindColumn("to", "The address of its target.", ""),
        KindColumn("as", "The form of written messages: raw, text or json.", ""),
        KindColumn("guarantee", "Exactly once, at least once or at most once; null: it is not open.", ""),
        KindColumn("filtered", "Messages that its filter left out, or that had passed it before."),
        KindColumn("dead", "Dead messages, which the target never takes."),
        KindColumn("dropped", "Lost messages: refused and dropped, or without room."),
        KindColumn("bytes", "Bytes taken and not carried yet.", "bytes"),
        KindColumn("last_error_time", "When that was.", "time"),
    ),
    charts=(Chart("carried", grows=True), Chart("lag")),
)
USERS = ObjectKind(
    "users",
    "Who may log in, and what each may do.",
    (
        KindColumn("name", "Its name; anonymous, udp and bridge/<name> have rules alone.", ""),
        KindColumn("login", "How it logs in: password, certificate.", "list"),
        KindColumn("allow", "Its rules: <protocol>:<action>:<pattern>.", "list"),
        KindColumn("user_share", "The percent of each bound that it may have."),
    ),
)
SETTINGS = ObjectKind(
    "settings",
    "The settings in force, and where each value comes from.",
    (
        KindColumn("name", "Its name.", ""),
        KindColumn("value", "Its value.", ""),
        KindColumn("source", "A flag, a variable, a file, or the default.", ""),
        KindColumn("meaning", "What it is for.", "", looked_up=True),
    ),
    filters=("source",),
)
ATTENTION = ObjectKind(
    "attention",
    "What needs a person: it has lasted for 10 s, and does not end by itself.",
    (
        KindColumn("kind", "What sort of trouble it is.", ""),
        KindColumn("object", "Whose it is: the name of a queue, a group, a bridge ...", ""),
        KindColumn(
            "severity", "critical: clients are refused, or data is in danger; warning: that may come.", ""
        ),
        KindColumn("since", "When this process first saw it.", "time"),
        KindColumn("means", "What it means.", ""),
        KindColumn("advice", "What to do.", ""),
        KindColumn("link", "The page's view where that is done.", ""),
    ),
    parts=("kind", "object"),
    filters=("kind", "severity"),
    none="Nothing needs a person.",
)
KINDS: Mapping[str, ObjectKind] = {
    kind.name: kind
    for kind in (
        ATTENTION,
        CONNECTIONS,
        QUEUES,
        CONSUMERS,
        TOPICS,
        GROUPS,
        SESSIONS,
        SUBSCRIPTIONS,
        RETAINED,
        EXCHANGES,
        BINDINGS,
        LEASES,
        BRIDGES,
        USERS,
        SETTINGS,
    )
}


MESSAGES = ("items", "next")
"""The answer of actions that show messages: `items`, and in a topic the position of the next message."""


ArgumentKind = Literal["text", "lines", "number", "flag", "table", "list", "rows", "secret"]
"""What an argument is in JSON: a string (`lines`: of several lines; `secret`: shown nowhere), a whole number,
true or false, an object, an array of strings, an array of objects."""


@attrs.frozen
class Argument:
    """An argument of an action. `choices`: the only values of a text. `usual`: what a form begins with.
    `required`: the action does nothing without it."""

    help: str
    kind: ArgumentKind = "text"
    choices: Sequence[str] = ()
    usual: Any = None
    required: bool = False


def _arguments(takes: Mapping[str, str | Argument]) -> Mapping[str, Argument]:
    return {name: Argument(each) if isinstance(each, str) else each for name, each in takes.items()}


@attrs.frozen
class Declaration:
    """An action on one object, without what does it: API, OpenAPI, page and commands are made from this.

    `takes`: its arguments; a text is the help of one that is a text. `dry_runs`: it supports dry runs.
    `looks`: it changes nothing. `answers`: the names of the numbers in its answer, the main result first; or
    `MESSAGES`. `tells`: those of texts that it may have, too. `named_by`: of an action that creates an
    object, the arguments that name it, for the audit log. `paths`: the arguments that are paths on the
    server's machine; over TCP only paths below the data folder's `backups` are allowed.
    """

    name: str
    help: str
    takes: Mapping[str, Argument] = attrs.field(factory=dict, converter=_arguments)
    dry_runs: bool = False
    looks: bool = False
    answers: Sequence[str] = ()
    tells: Sequence[str] = ()
    named_by: Sequence[str] = ()
    paths: Sequence[str] = ()


@attrs.frozen
class Action(Declaration):
    """An action: `call(object, arguments, dry_run)` returns JSON's values. Raises BrokerError, whose text is
    for the user."""

    call: Callable[[Any, Mapping[str, Any], bool], Awaitable[Mapping[str, Any]]] = attrs.field(kw_only=True)


@attrs.frozen
class Objects:
    """The objects of one protocol and one kind.

    `items`: a copy of all objects in any order; there may be 50,000, so it only copies. `name`: the name of
    an object, made by `key_of`. `find`: the object with these parts of a name, or None. `row`: an object's
    columns without `protocol`; None if it was deleted. `actions`: the actions on each object. `makes`: the
    actions on the list, most of which create one; their object is None. `narrow`: query parameter to a
    function that returns fewer items. `totals`: (messages that ever came in, that left, the number of the
    oldest ready one or None); rates and ages come from it, read for all objects once a second. `look`: the
    `looked_up` columns of an object, within so many seconds of CPU time; null if those are too few. `begin`:
    how to create a first object: a command, or a table of the settings. `values`: columns of `row` that can
    be read without the row, for sorted or narrowed lists and for scrapes; meaningless for a deleted object.
    `holders`: who holds deliveries, each with how many it was given so far, and the numbers, counted so, of
    the oldest that it holds of each queue and as each consumer: their ages come from it, read as `totals`.
    """

    kind: ObjectKind
    items: Callable[[], Sequence[Any]]
    name: Callable[[Any], str]
    find: Callable[[Sequence[str]], Any | None]
    row: Callable[[Any], Mapping[str, Any] | None]
    actions: Sequence[Action] = ()
    makes: Sequence[Action] = ()
    narrow: Mapping[str, Callable[[str], Sequence[Any]]] = {}
    begin: str = ""
    totals: Callable[[Any], tuple[int, int, int | None]] | None = None
    look: Callable[[Any, float], Awaitable[Mapping[str, Any]]] | None = None
    values: Mapping[str, Callable[[Any], Any]] = {}
    holders: Callable[[], Iterator[tuple[Any, int, Mapping[Any, int]]]] | None = None


ObjectsByProtocol = Sequence[tuple[str, Objects]]
"""(protocol, its objects of one kind) pairs, of one kind or of all."""


def key_of(*parts: str) -> str:
    """The name that is unique within a kind: its parts joined by `/`, with `%` and `/` in them escaped."""
    return "/".join([part.replace("%", "%25").replace("/", "%2F") for part in parts])


def time_text(milliseconds: float) -> str:
    """A time in RFC 3339 with milliseconds, UTC."""
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def message_row(
    position: int | None,
    body: bytes,
    time_ms: float | None = None,
    *,
    size: int | None = None,
    properties: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A message as a row of lists; of a large one the beginning.

    `time_ms`: when it came in, Unix ms; None if unknown. `size`: the whole size, if `body` is only a part.
    """
    size = len(body) if size is None else size
    shown = bytes(body[:SHOWN_BYTES_MAX])
    time = None if time_ms is None else time_text(time_ms)
    row: dict[str, Any] = {"position": position, "time": time, "bytes": size, **more}
    if properties:
        row["properties"] = properties
    try:
        # A character that the cut divides is left out.
        row["text"] = codecs.utf_8_decode(shown, "strict", len(shown) == size)[0]
    except UnicodeDecodeError:
        row["base64"] = base64.b64encode(shown).decode()
    if len(shown) < size:
        row["truncated"] = True
    return row


SEARCHED_MAX, SEARCHED_BYTES_MAX = 100_000, 64 << 20
"""Messages that one request looks through, and their bytes: some tenths of a second, in turns."""


class MessageRows:
    """The messages of one answer, in `items`: as many as requested, within a bound of bytes. `contains`: a
    text that they have in them; then a bound of messages that are looked at holds, too."""

    def __init__(self, limit: int, contains: str = "") -> None:
        self.items: list[dict[str, Any]] = []
        self._limit = limit
        self._bytes = self._looked = self._looked_bytes = 0
        self._contains = contains.encode()

    @property
    def is_search(self) -> bool:
        return bool(self._contains)

    @property
    def left(self) -> int:
        """How many more messages fit."""
        over = self._looked >= SEARCHED_MAX or self._looked_bytes >= SEARCHED_BYTES_MAX
        return 0 if over or self._bytes >= ANSWER_BYTES_MAX else self._limit - len(self.items)

    def add(self, position: int, body: bytes, time_ms: float | None = None, **more: Any) -> None:
        """Add a message's row (`message_row`), if it is one that is looked for."""
        self._looked += 1
        self._looked_bytes += len(body)
        if self._contains in body:
            self._bytes += min(len(body), SHOWN_BYTES_MAX)
            self.items.append(message_row(position, body, time_ms, **more))


def an_optional_count(arguments: Mapping[str, Any], name: str) -> int | None:
    """An argument that is a whole number, if it is given. Raises BadValue."""
    return a_count(arguments, name, 0, 0, 1 << 63) if name in arguments else None


def a_count(arguments: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    """An argument that is a whole number. Raises BadValue."""
    value = arguments.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise BadValue(f"{name} is a number from {least} to {most}")
    return value


def a_text(arguments: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """An argument that is a text. Raises BadValue."""
    value = arguments.get(name, default)
    if not isinstance(value, str):
        raise BadValue(f"{name} is a text" if name in arguments else f"{name} is missing")
    return value


def a_flag(arguments: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """An argument that is true or false. Raises BadValue."""
    value = arguments.get(name, default)
    if not isinstance(value, bool):
        raise BadValue(f"{name} is true or false")
    return value


def a_table(arguments: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An argument that is an object; {} unless it is given. Raises BadValue."""
    value = arguments.get(name, {})
    if not isinstance(value, dict):
        raise BadValue(f"{name} is an object")
    return value


def a_list(arguments: Mapping[str, Any], name: str) -> Sequence[str]:
    """An argument that is a list of texts; none unless it is given. Raises BadValue."""
    value = arguments.get(name, [])
    if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise BadValue(f"{name} is a list of texts")
    return value


def a_body(arguments: Mapping[str, Any]) -> bytes:
    """The body of a message to publish, from `text` or `base64`. Raises BadValue."""
    if ("text" in arguments) == ("base64" in arguments):
        raise BadValue("give text or base64: the message")
    if "text" in arguments:
        return a_text(arguments, "text").encode()
    try:
        return base64.b64decode(a_text(arguments, "base64"), validate=True)
    except ValueError:
        raise BadValue("base64 is not base64") from None
