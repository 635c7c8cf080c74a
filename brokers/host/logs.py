"""Log lines on standard error: text for people, JSON for machines.

    2026-03-01T09:30:00.125Z info    listening  protocol=logmq address=127.0.0.1:8080

Values come from peers as often as from us, so all are escaped and cut here, once, on the way out; no caller
has to remember. Payloads are never logged: bytes longer than any name are shown as their size.
"""

import json
import logging
import math
import os
import select
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TextIO, cast
from weakref import WeakSet

import attrs
import structlog

from brokers.escape import escape, escape_name
from brokers.host.recent import Recent

if TYPE_CHECKING:
    from brokers.settings.sections import LogFormat, LogLevel

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
LINES_PER_SECOND = 50
"""Lines of one matter: a few dozen matters are all that those who connect can bring up."""
MATTERS_MAX = 200
"""More of them in one second have one bound together."""
LEFT_OUT = "lines left out"
KINDS_MAX = 50
"""Kinds of lines that have one of their own in a second, and values that a line of gathered ones names."""
_LIMITED = frozenset(("info", "warning"))
_PLAIN = (bool, int, float, type(None))


def configure(
    level: "LogLevel",
    form: "LogFormat",
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> structlog.stdlib.BoundLogger:
    """Set up logging for the process and return the logger to bind names to.

    What libraries say through `logging` at WARNING and above comes out the same way.
    """
    lines = _LineWriter(stream or sys.stderr)
    set_level(level)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _AtMost(clock),
            _stamp,
            _flatten_exception,
            _harmless,
            _remember,
            _WhileRead(lines),
            _json if form == "json" else _text,
        ],
        wrapper_class=_Leveled,
        logger_factory=lines,
        cache_logger_on_first_use=False,
    )
    log = cast(structlog.stdlib.BoundLogger, structlog.get_logger())
    logging.basicConfig(handlers=[_Forward(log)], force=True)
    return log


RECENT = Recent()
"""The last lines of this process, whether or not somebody reads standard error."""


def at_least(level: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a row of `RECENT` is of this level or above; `audit`: is of the audit log; `refused`: is a
    warning or an error, or says in the audit log that something was refused. Raises KeyError.

    A line of the audit log counts as info.
    """
    if level == "audit":
        return lambda row: bool(row["level"] == "audit")
    if level == "refused":
        bad = at_least("warning")
        return lambda row: bad(row) or (row["level"] == "audit" and row["fields"].get("result") == "refused")
    least = _LEVELS[level]
    return lambda row: _LEVELS.get(row["level"], logging.INFO) >= least


class _Leveled(structlog.make_filtering_bound_logger(logging.INFO)):  # type: ignore[misc]  # made by a function
    """The class of all loggers; its base is the one that leaves out what is below the level."""


def set_level(level: "LogLevel") -> None:
    """Log what is at least of this level from now on, also by loggers that are bound already."""
    _Leveled.__bases__ = (structlog.make_filtering_bound_logger(_LEVELS[level]),)
    _AtMost.applies = level != "debug"
    logging.getLogger().setLevel(max(logging.WARNING, _LEVELS[level]))


def unfiltered() -> structlog.stdlib.BoundLogger:
    """A logger for what is said at any level: where we listen."""
    return _unfiltered(tuple(structlog.get_config()["processors"]))


@lru_cache(maxsize=1)
def _unfiltered(processors: tuple[Any, ...]) -> structlog.stdlib.BoundLogger:
    """Made once for a configuration: a flood of failed logins is as many lines of the audit log."""
    everything = structlog.make_filtering_bound_logger(logging.NOTSET)
    rest = [each for each in processors if not isinstance(each, _AtMost)]
    logger = structlog.wrap_logger(None, wrapper_class=everything, processors=rest)
    return cast(structlog.stdlib.BoundLogger, logger.bind())


_GATHERED: WeakSet["Gathered"] = WeakSet()


class Gathered:
    """Lines that clients can bring about at any rate: a kind has one line a second, and none is left out.

    The first of a kind is logged at once. Those that follow within the second are counted, and told in one
    line. `by`: the fields that lines of a kind share, the last one what they name. Above `KINDS_MAX` kinds in
    a second those that differ in that alone are one kind; its line has the first `KINDS_MAX` of what they
    name.
    """

    def __init__(self, log: Callable[..., object], *by: str) -> None:
        self._log = log
        self._by = by
        self._kinds: dict[tuple[str, ...], _More] = {}
        _GATHERED.add(self)

    def __call__(self, **fields: str) -> None:
        kind = tuple(fields[name] for name in self._by)
        more = self._kinds.get(kind)
        if more is None and len(self._kinds) < KINDS_MAX:
            self._kinds[kind] = _More()
            self._log(**fields)
            return
        if more is None:
            more = self._kinds.setdefault(kind[:-1], _More())
        more.add(fields)

    def tell(self) -> None:
        """Log what was gathered in the second that is over."""
        kinds, self._kinds = self._kinds, {}
        for kind, more in kinds.items():
            if more.count:
                self._kinds[kind] = _More()
                self._log(**more.fields, count=more.count)


@attrs.define(eq=False)
class _More:
    """Lines of one kind after its first. `count`: how many."""

    count: int = 0
    _values: dict[str, dict[str, None]] = attrs.field(factory=dict)

    def add(self, fields: Mapping[str, str]) -> None:
        self.count += 1
        for name, value in fields.items():
            values = self._values.setdefault(name, {})
            if len(values) < KINDS_MAX:
                values[value] = None

    @property
    def fields(self) -> Mapping[str, Any]:
        """By field its one value, or a list of them."""
        return {
            name: [*values] if len(values) > 1 else "".join(values) for name, values in self._values.items()
        }


audit = Gathered(
    lambda **fields: unfiltered().info("audit", **fields), "user", "protocol", "action", "result", "name"
)
"""Logs who did or tried what: user, peer, protocol, action, name, result. At every level."""


def tell_left_out() -> None:
    """Log what was left out or gathered; called once a second, since there may be no other line that would do
    it."""
    for each in structlog.get_config()["processors"]:
        if isinstance(each, _AtMost):
            each.tell()
    for lines in tuple(_GATHERED):
        lines.tell()


class _LineWriter:
    """Writes lines to a stream, from any thread. It never waits and never raises: the stream may be closed,
    or its reader may hang (a terminal that is held, a full pipe).
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._torn = False  # the last line has no end
        try:
            self._number: int | None = stream.fileno()
        except (OSError, ValueError):  # a stream in memory
            self._number = None

    def __call__(self, *_: Any) -> "_LineWriter":
        return self

    def msg(self, text: str) -> None:
        with self._lock:
            try:
                if self._number is None:
                    self._stream.write(text + "\n")
                    self._stream.flush()
                else:
                    self._write(self._number, text + "\n")
            except (OSError, ValueError):  # its reader is gone, or it is closed
                pass

    @property
    def has_room(self) -> bool:
        """Whether a piece can be written without waiting for a reader."""
        try:
            return self._number is None or bool(select.select((), (self._number,), (), 0)[1])
        except (OSError, ValueError):  # it is closed: writing finds out
            return True

    def _write(self, number: int, text: str) -> None:
        data = ("\n" if self._torn else "").encode() + text.encode("utf-8", "backslashreplace")
        while data and self.has_room:
            data = data[os.write(number, data[: select.PIPE_BUF]) :]
        self._torn = bool(data)

    debug = info = warning = error = critical = exception = msg


class _AtMost:
    """Drops lines above LINES_PER_SECOND of one matter; a line of its own tells how many of which.

    A peer that breaks a protocol causes a line, so without a bound peers could fill the disk. The bound is
    for each matter, so that a flood of one hides no other.
    """

    applies = True
    """Not where everything is logged."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since = -math.inf
        self._lines: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._level = "info"

    def __call__(self, _: Any, __: str, event: "Event") -> "Event":
        level = event["level"]
        if not self.applies or level not in _LIMITED or event["event"] == LEFT_OUT:
            return event
        self.tell()
        with self._lock:
            matter = _matter(event)
            if matter not in self._lines and len(self._lines) >= MATTERS_MAX:
                matter = "others"
            self._lines[matter] += 1
            if self._lines[matter] > LINES_PER_SECOND:
                self._left_out[matter] += 1
                self._level = max(self._level, level)  # info, warning
                raise structlog.DropEvent
        return event

    def tell(self) -> None:
        """Once its second is over, log what was left out of it, if anything was."""
        with self._lock:
            now = self._clock()
            if now < self._since + 1:
                return
            self._since = now
            self._lines.clear()
            level, self._level = self._level, "info"
            left_out, self._left_out = self._left_out, Counter()
        if left_out:
            log = structlog.get_logger()
            log.log(_LEVELS[level], LEFT_OUT, left_out=left_out.total(), of=dict(left_out))


def _matter(event: "Event") -> str:
    """What a line is about: its event, and whose; of a library's, whose words may be anything, its name."""
    name, protocol = event.get("logger") or event["event"], event.get("protocol")
    return f"{protocol}: {name}" if protocol else str(name)


class _WhileRead:
    """Drops lines while the stream takes none; the next line tells how many those were."""

    def __init__(self, lines: _LineWriter) -> None:
        self._lines = lines
        self._left_out = 0

    def __call__(self, _: Any, __: str, event: "Event") -> "Event":
        if not self._lines.has_room:
            self._left_out += (event["event"] != LEFT_OUT) + event.get("left_out", 0)
            raise structlog.DropEvent
        if self._left_out:
            event["left_out"] = event.get("left_out", 0) + self._left_out
            self._left_out = 0
        return event


class _Forward(logging.Handler):
    def __init__(self, log: structlog.stdlib.BoundLogger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


Event = MutableMapping[str, Any]


def _stamp(_: Any, __: str, event: Event) -> Event:
    if event["event"] == "audit":
        event["level"] = "audit"
    now = datetime.now(UTC)
    event["time"] = f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}Z"
    return event


def _flatten_exception(_: Any, __: str, event: Event) -> Event:
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    elif isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        event["traceback"] = "".join(traceback.format_exception(error))
    return event


def _harmless(_: Any, __: str, event: Event) -> Event:
    trace = event.pop("traceback", None)
    event = {escape_name(str(name)): _value(value) for name, value in event.items()}
    if trace is not None:
        event["traceback"] = [escape(line) for line in trace.rstrip("\n").split("\n")]
    return event


def _value(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, str | bytes):
        return escape_name(value)
    if isinstance(value, bytearray | memoryview):
        return escape_name(bytes(value))
    if isinstance(value, Mapping):
        return {escape_name(str(name)): _value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_value(inner) for inner in value]
    return escape_name(str(value))


def _remember(_: Any, __: str, event: Event) -> Event:
    row = {name: event.get(name) for name in ("time", "level", "protocol", "event")}
    fields = {name: value for name, value in event.items() if name not in ("time", "level", "event")}
    RECENT.add({**row, "fields": fields})
    return event


def line_of(row: Mapping[str, Any]) -> str:
    """The text that standard error has of a row of `RECENT`."""
    return _text(None, "", {name: row[name] for name in ("time", "level", "event")} | row["fields"])


def _json(_: Any, __: str, event: Event) -> str:
    return json.dumps({"time": event.pop("time"), "level": event.pop("level"), **event})


def _text(_: Any, __: str, event: Event) -> str:
    trace = event.pop("traceback", ())
    head = f"{event.pop('time')} {event.pop('level'):<7} {event.pop('event')}"
    fields = " ".join(f"{name}={_word(value)}" for name, value in event.items())
    # Indented and barred: whatever an error's text holds, it cannot pass for a log line of its own.
    return "\n".join([f"{head}  {fields}" if fields else head, *(f"  | {line}" for line in trace)])


def _word(value: Any) -> str:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    text = value if isinstance(value, str) else str(value)
    if text and not any(character in ' "=' for character in text):
        return text
    return '"' + text.replace('"', '\\"') + '"'
