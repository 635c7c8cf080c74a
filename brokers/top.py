"""`brokers top`: what is busy, on the terminal, until `q`.

`Board` is what is shown, without a terminal: it takes keys and answers, and gives lines. `run` draws it. A
thread asks the server meanwhile, and rests nine times as long as the answers took. So looking at 50,000
queues costs a tenth of a processor at most.
"""

import codecs
import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import attrs
from cyclopts import Parameter

from brokers.control import AdminClient
from brokers.errors import Failure
from brokers.escape import escape
from brokers.flags import host_command
from brokers.object_cli import SMALLEST_FIRST
from brokers.render import Listing, Several, columns_of, lay_out, readable_cell
from brokers.server_address import ServerAddress
from shared.cli.options import Json, flag
from shared.errors import UsageError
from shared.objects import CONNECTIONS, QUEUES, TOPICS, ObjectKind
from shared.units import parse_quantity, readable

ROWS_MAX = 200
"""More than any terminal has lines."""
LINES_MIN = 4
"""Lines of a table beside others: where there are fewer, one table is shown alone."""
REST = 9
"""Times as long as the server took to answer."""
KEYS = "q quit  Tab table  s sort  r reverse  / filter  z zoom  p pause"
TAKEN = ("messages_produced", "messages_published")
GIVEN = ("messages_delivered", "messages_consumed", "messages_got")
"""Series that count a protocol's messages in and out, behind its name."""

Row = Mapping[str, Any]
Line = tuple[str, str]
"""A style of rich's, and a text."""


def _words(text: str) -> Sequence[str]:
    return text.split()


@attrs.define(eq=False)
class RankedTable:
    """One of the tables: sorted by one of `columns`, but for those that are worked out here, or looked up."""

    kind: ObjectKind
    columns: Sequence[str] = attrs.field(converter=_words)
    sort: str
    reverse: bool = False

    @property
    def units(self) -> Mapping[str, str]:
        return {column.name: column.unit for column in self.kind.columns}

    def query(self, match: str, limit: int) -> Mapping[str, str]:
        descending = (self.units[self.sort] not in SMALLEST_FIRST) is not self.reverse
        asked = {"sort": f"-{self.sort}" if descending else self.sort, "limit": str(limit)}
        return {**asked, "match": match} if match else asked

    def sort_next(self, step: int) -> None:
        sortable = {column.name for column in self.kind.columns if not column.looked_up}
        names = [name for name in self.columns if name in sortable]
        self.sort = names[(names.index(self.sort) + step) % len(names)]


@attrs.frozen
class Sight:
    """What the server answered. `rows`: of each kind; `at`: seconds of a clock that only grows."""

    overview: Mapping[str, Any]
    rows: Mapping[str, Sequence[Row]]
    at: float


def look(client: AdminClient, queries: Mapping[str, Mapping[str, str]]) -> Sight:
    """Ask the server for all that is shown. Raises Failure."""
    overview = client.get("overview")
    rows = {kind: client.get(kind, **query)["items"] for kind, query in queries.items()}
    return Sight(overview, rows, time.monotonic())


class Board:
    """What is shown, and how: no terminal, no clock, no server. `name`: of the server."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.tables = [
            RankedTable(
                QUEUES,
                "protocol name ready held delayed dead consumers in_rate out_rate oldest_seconds bytes",
                "in_rate",
            ),
            RankedTable(TOPICS, "name end records bytes in_rate last_time", "in_rate"),
            RankedTable(
                CONNECTIONS,
                "id protocol peer user state in_rate out_rate bytes_in bytes_out held backlog_bytes since",
                "bytes_in",
            ),
        ]
        self.focus = 0
        self.zoomed = False
        self.paused = False
        self.match = ""
        self.typed: str | None = None
        """A filter that is being typed."""
        self._last: Sight | None = None
        self._before: Sight | None = None
        self._error = ""

    @property
    def queries(self) -> Mapping[str, Mapping[str, str]]:
        """What to ask for: the parameters of each list."""
        shown = [self.tables[self.focus]] if self.zoomed else self.tables
        return {table.kind.name: table.query(self.match, ROWS_MAX) for table in shown}

    def take(self, found: "Sight | Failure") -> None:
        """What the server answered, or why it did not."""
        if isinstance(found, Failure):
            self._error = str(found)
            return
        self._error = ""
        self._before, self._last = self._last, found

    def key(self, key: str) -> bool:
        """A key was pressed; whether to go on."""
        if self.typed is not None:
            self._type(key)
            return True
        table = self.tables[self.focus]
        if key in ("q", "Q"):
            return False
        if key in ("\t", "\x1b[Z"):
            self.focus = (self.focus + (1 if key == "\t" else -1)) % len(self.tables)
        elif key in ("s", "S"):
            table.sort_next(1 if key == "s" else -1)
        elif key == "r":
            table.reverse = not table.reverse
        elif key == "/":
            self.typed = self.match
        elif key in ("z", "\r", "\n"):
            self.zoomed = not self.zoomed
        elif key == "p":
            self.paused = not self.paused
        elif key == "\x1b":
            self.match, self.zoomed = "", False
        return True

    def _type(self, key: str) -> None:
        assert self.typed is not None
        if key in ("\r", "\n"):
            self.match, self.typed = self.typed, None
        elif key == "\x1b":
            self.typed = None
        elif key in ("\x7f", "\b"):
            self.typed = self.typed[:-1]
        elif key == "\x15":
            self.typed = ""
        elif len(key) == 1 and key.isprintable():
            self.typed += key

    def lines(self, width: int, height: int) -> list[Line]:
        """The screen: `height` lines at most, none wider than `width`."""
        found = self._last
        if found is None:
            return [("", _cut(f"asking {self._name} …", width))]
        lines = self._head(found, width)
        if height >= 16 and not self.zoomed:
            lines += [("bold", ""), *self._table(protocols(found, self._before), {}, width)]
        room = height - len(lines) - 1
        alone = self.zoomed or room < LINES_MIN * len(self.tables)
        tables = [self.tables[self.focus]] if alone else self.tables
        lines += _share([self._part(table, self._rows(found, table), width) for table in tables], room)
        lines = lines[: height - 1]
        lines += [("", "")] * (height - 1 - len(lines))
        foot = KEYS if self.typed is None else f"filter: {self.typed}▏ Enter takes it, Esc leaves it"
        return [*lines, ("reverse", _cut(foot, width).ljust(width))]

    def _head(self, found: Sight, width: int) -> list[Line]:
        seen = found.overview
        store, loop = seen["store"], seen.get("loop") or {}
        budget: Mapping[str, Any] = next(iter(seen.get("budget") or ()), {})
        commits = seen.get("rates", {}).get("", {}).get("store_commits", 0)
        first = [
            f"brokers {seen['version']}",
            seen["state"] + (f" ({seen['reason']})" if seen["reason"] else ""),
            f"up {readable(round(seen['uptime_seconds']), 'seconds')}",
            self._name,
            *([f"filter: {self.match}"] if self.match else []),
            *(["PAUSED"] if self.paused else []),
        ]
        second = [
            f"commits {readable_cell('', commits, 'rate')}",
            f"sync {readable(store['sync_seconds_median'], 'seconds')}"
            f", p99 {readable(store['sync_seconds_p99'], 'seconds')}",
            f"free {readable(store['free_bytes'], 'bytes')}",
        ]
        if budget:
            second.append(f"memory {readable(budget['bytes'], 'bytes')}")
        if loop.get("longest_seconds") is not None:
            second.append(f"loop {readable(loop['longest_seconds'], 'seconds')} at most")
        lines = [
            ("bold" if seen["state"] == "ready" else "bold red", _cut("  ".join(first), width)),
            ("", _cut("  ".join(second), width)),
        ]
        wrong = [name for name in ("read_only", "full", "damaged_ranges") if store.get(name)]
        if wrong:
            lines.append(("bold red", _cut(f"store: {', '.join(wrong)}: brokers fsck, and the log", width)))
        if self._error:
            lines.append(("bold red", _cut(f"{self._error}; trying again", width)))
        return lines

    def _rows(self, found: Sight, table: RankedTable) -> list[Row]:
        rows = found.rows.get(table.kind.name, ())
        if table.kind is CONNECTIONS:
            rows = with_rates(rows, found, self._before)
        return [{name: row.get(name) for name in table.columns} for row in rows]

    def _part(self, table: RankedTable, rows: Sequence[Row], width: int) -> list[Line]:
        arrow = "▲" if (table.units[table.sort] in SMALLEST_FIRST) is not table.reverse else "▼"
        focused = table is self.tables[self.focus]
        title = (
            "bold reverse" if focused else "bold",
            _cut(f"{table.kind.name} by {table.sort} {arrow}", width),
        )
        if not rows:
            return [("", ""), title, ("dim", "none" + (" with this filter" if self.match else ""))]
        # Of a connection these are worked out here, and not in its description.
        units = {"in_rate": "bytes_rate", "out_rate": "bytes_rate", **table.units}
        return [("", ""), title, *self._table(rows, units, width, table.sort)]

    def _table(self, rows: Sequence[Row], units: Mapping[str, str], width: int, kept: str = "") -> list[Line]:
        columns = [
            # A row is a line: what would be folded at its spaces is cut.
            attrs.evolve(column, cells=[cell.replace(" ", "\u00a0") for cell in column.cells])
            for column in columns_of(rows, units, readable_cell)
        ]
        head, *lines = lay_out(columns, width, kept=kept).lines
        return [("bold", head), *(("", line) for line in lines)]


def protocols(found: Sight, before: Sight | None) -> list[Row]:
    """A row for each protocol, with what it did since the sight before; at first, in the last minute."""
    overview = found.overview
    return [
        {
            "protocol": (name := each["protocol"]),
            "state": each["state"],
            "connections": each["connections"],
            "messages in": f"{_grown(found, before, '', _series(name, TAKEN)):,}/s",
            "out": f"{_grown(found, before, '', _series(name, GIVEN)):,}/s",
            "received": f"{readable(_grown(found, before, name, ('net_bytes_in',)), 'bytes')}/s",
            "sent": f"{readable(_grown(found, before, name, ('net_bytes_out',)), 'bytes')}/s",
            "restarts": each["restarts"],
            "addresses": ", ".join(each["addresses"]),
        }
        for each in overview["protocols"]
    ]


def _series(protocol: str, names: Sequence[str]) -> Sequence[str]:
    return [f"{protocol}_{name}" for name in names]


def _grown(found: Sight, before: Sight | None, protocol: str, names: Sequence[str]) -> int:
    """How much these series of a protocol grew a second."""
    if before is None or found.at <= before.at:
        rates: Mapping[str, float] = found.overview["rates"].get(protocol, {})
        return round(sum(rates.get(name, 0) for name in names))
    now: Mapping[str, float] = found.overview["totals"].get(protocol, {})
    then: Mapping[str, float] = before.overview["totals"].get(protocol, {})
    grown = sum(max(now.get(name, 0) - then.get(name, 0), 0) for name in names)
    return round(grown / (found.at - before.at))


def with_rates(rows: Sequence[Row], found: Sight, before: Sight | None) -> list[Row]:
    """Connections with the bytes a second of each since the sight before."""
    then = {} if before is None else {row["id"]: row for row in before.rows.get("connections", ())}
    seconds = 0.0 if before is None else found.at - before.at

    def rate(row: Row, name: str) -> float | None:
        was: int | None = then.get(row["id"], {}).get(name)
        now: int | None = row[name]
        if was is None or now is None or seconds <= 0:
            return None
        return round((now - was) / seconds, 1)

    return [{**row, "in_rate": rate(row, "bytes_in"), "out_rate": rate(row, "bytes_out")} for row in rows]


def _share(parts: Sequence[list[Line]], room: int) -> list[Line]:
    """Cut parts so that all fit into `room` lines; what a short one does not need, longer ones get."""
    sizes: dict[int, int] = {}
    for left, number in zip(
        range(len(parts), 0, -1), sorted(range(len(parts)), key=lambda each: len(parts[each])), strict=True
    ):
        sizes[number] = min(len(parts[number]), max(room, 0) // left)
        room -= sizes[number]
    return [line for number, part in enumerate(parts) for line in part[: sizes[number]]]


def _cut(text: str, width: int) -> str:
    text = escape(text)
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


@host_command(
    "top",
    "top",
    "top --once --json | jq .queries",
    before="Keys: q quits; Tab goes to the next table, z shows it alone; s and S sort it by\n"
    "the next or last column, r the other way round; / filters names; p pauses.\n\n",
)
def top(
    *,
    every: Annotated[
        str, Parameter(help="Ask so often; the server's time for it is a tenth at most.")
    ] = "2s",
    once: Annotated[bool, flag("Show it once, and end; so it is where there is no terminal.")] = False,
    at: ServerAddress,
    json: Json = False,
) -> Any:
    """Show what is busy now: protocols, queues, topics and connections."""
    try:
        seconds = parse_quantity(every, "seconds")
    except ValueError as error:
        raise UsageError("--every", str(error)) from None
    if not 0.2 <= seconds <= 3600:
        raise UsageError("--every", "0.2s to 1h")
    client = at.client()
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if interactive and not (once or json):
        return run(client, seconds)
    board = Board(client.name)
    found = look(client, board.queries)
    if json:
        return {"overview": found.overview, **found.rows}
    parts: list[Any] = [protocols(found, None)]
    for table in board.tables:
        rows = [
            {name: row.get(name) for name in table.columns if name in table.units}
            for row in found.rows[table.kind.name][:10]
        ]
        parts += [f"{table.kind.name} by {table.sort}", Listing(rows, table.units)] if rows else []
    return Several(tuple(parts))


# The terminal.


def run(client: AdminClient, every_seconds: float) -> None:
    """Show a server's board until `q`. The terminal is as it was, however this ends. Raises Failure."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    board = Board(client.name)
    board.take(look(client, board.queries))  # what cannot be asked at all ends it here
    console = Console()
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)

    def tell(*_: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(wake, b"!")

    asker = _Asker(client, board, every_seconds, tell)
    live = Live(console=console, screen=True, auto_refresh=False)

    def draw() -> None:
        width, height = console.size
        lines = [Text(text, style) for style, text in board.lines(width, height)]
        live.update(Text("\n", no_wrap=True, end="").join(lines), refresh=True)

    with contextlib.ExitStack() as stack:
        stack.callback(os.close, wakes)
        keys = _Keys()
        stack.callback(keys.leave)
        keys.enter()
        stack.enter_context(live)
        stack.enter_context(_signals(live, keys, tell))
        asker.start()
        while True:
            while asker.found:
                board.take(asker.found.pop(0))
            draw()
            ready, _, _ = select.select([sys.stdin, wakes], [], [])
            if wakes in ready:
                os.read(wakes, 4096)
            if sys.stdin not in ready:
                continue
            asked = board.queries
            for key in keys.read():
                if not board.key(key):
                    return
            if board.queries != asked or not board.paused:
                asker.again.set()


class _Asker(threading.Thread):
    """Asks the server in turn; what it answers is in `found`."""

    def __init__(
        self, client: AdminClient, board: Board, every_seconds: float, tell: Callable[[], None]
    ) -> None:
        super().__init__(daemon=True)
        self.found: list[Sight | Failure] = []
        self.again = threading.Event()
        self._client = client
        self._board = board
        self._every_seconds = every_seconds
        self._tell = tell

    def run(self) -> None:
        took = 0.0
        while True:
            self.again.wait(max(self._every_seconds, REST * took))
            asked = self.again.is_set()
            self.again.clear()
            if self._board.paused and not asked:
                continue
            began = time.monotonic()
            try:
                found: Sight | Failure = look(self._client, self._board.queries)
            except Failure as error:
                found = error
            took = time.monotonic() - began
            self.found.append(found)
            self._tell()


class _Keys:
    """Keys as they are pressed, without Enter, and without being shown."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._saved = termios.tcgetattr(sys.stdin)

    def enter(self) -> None:
        tty.setcbreak(sys.stdin)

    def leave(self) -> None:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, self._saved)

    def read(self) -> Iterator[str]:
        data = os.read(sys.stdin.fileno(), 1024)
        if not data:  # the terminal is gone
            yield "q"
        text = self._decode(data)
        if text.startswith("\x1b") and len(text) > 1:  # one key that is no letter
            yield text
        else:
            yield from text


@contextlib.contextmanager
def _signals(live: Any, keys: _Keys, tell: Callable[..., None]) -> Iterator[None]:
    """A new size draws anew; an end puts the terminal back; so does Ctrl-Z, until we are in front again."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    def stop(*_: object) -> None:
        live.stop()
        keys.leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, stop)
        keys.enter()
        live.start()
        tell()

    handlers: Mapping[signal.Signals, Callable[[int, Any], None]] = {
        signal.SIGWINCH: tell,
        signal.SIGTERM: end,
        signal.SIGHUP: end,
        signal.SIGTSTP: stop,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
