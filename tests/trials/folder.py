"""One data folder's life through many cuts: recover, compare, load, cut, and again. For every protocol."""

import contextlib
import math
import random
import shutil
import subprocess
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import attrs

from shared.storage.recovery import MISSING
from tests.support.server import NotReadyError
from tests.trials import outcomes
from tests.trials.peers import PeersLoad
from tests.trials.serving import TrialServer
from tests.trials.tally import Tally, Verdict

MODES = ("always", "interval", "none")
SEGMENTS = ("64KiB", "256KiB", "1MiB", "8MiB")
"""Journal segments from a checkpoint every few milliseconds under load to one in seconds."""
_LEAST_SECONDS = 30.0
_LIMITED = 0.2
"""The share of loads in which log files come to take nothing more."""
_ANSWER_SECONDS = 15.0
"""Somebody is answered within it, whatever log files take."""


class BrokenPromiseError(Exception):
    """What the comparison found, one fault a line."""

    def __init__(self, faults: Sequence[str]) -> None:
        more = [f"... and {len(faults) - 20} more"] if len(faults) > 20 else []
        super().__init__("\n".join([*faults[:20], *more]))


def durability(mode: str) -> str:
    """A mode as settings have it."""
    return "interval:50ms" if mode == "interval" else mode


def storage_settings(source: random.Random) -> list[str]:
    """The storage's ways, drawn, whatever the protocol."""
    return [
        "[storage]",
        "retention_seconds = 0.1",
        f'segment_bytes = "{source.choice(SEGMENTS)}"',
        f"zero_fill = {source.choice(('true', 'false'))}",
        f"inline_bytes_max = {source.choice((0, 1 << 20))}",  # 0: every commit in a thread
        f"sync_all_logs = {source.choice((0, 64))}",  # 0: checkpoints by syncfs alone
        f"open_files_max = {source.choice((0, 4))}",
        f"reference_bytes = {source.choice((5000, 50_000, 256 << 10))}",  # of a log in a batch
        f"tail_log_bytes = {source.choice((0, 20_000, 256 << 10, 8 << 20))}",  # the last: by age alone
    ]


class HasMode(Protocol):
    """What a part of a book promises: `always`, `interval` or `none`."""

    @property
    def mode(self) -> str: ...


class DialogError(Exception):
    """The server said what it must not say here, or nothing."""


@attrs.define
class Verification:
    """What a recovery came to."""

    verdict: Verdict
    verdicts: Mapping[str, Verdict]
    """The same by mode."""
    snapshot: Mapping[Any, Any]
    """What the server shows, by name of the topic, queue or subscription."""
    repeated: int = 0
    """BATCHes sent again."""


class Load(Protocol):
    """Clients at work, and what they noticed."""

    def run(self, seconds: float) -> None:
        """Keep it up for so long. What is answered is accounted for as it comes."""

    def drain(self, cut: float) -> list[str]:
        """The server is gone: read what it still said, close, and return what was wrong before the cut."""


@attrs.define(eq=False)
class Adapter:
    """What the trials know of one protocol: its settings, its load, and how what it shows is judged."""

    protocol: ClassVar[str]
    server: TrialServer
    modes: Sequence[str]
    source: random.Random
    load_factor: float = attrs.field(default=1.0, kw_only=True)

    @staticmethod
    def settings(modes: Sequence[str], source: random.Random) -> list[str]:
        """Lines of TOML for logs of these modes; the rest is drawn."""
        raise NotImplementedError

    def load(self) -> Load:
        raise NotImplementedError

    def load_seconds(self, *, intervals: bool) -> float:
        """Short ones hit a server that has just begun, long ones journals that have gone round.

        `intervals`: now and then long enough for several intervals to have been synced.
        """
        if intervals and "interval" in self.modes and self.source.random() < 0.5:
            return self.source.uniform(0.5, 1.5)
        longest = 0.1 if self.source.random() < 0.3 else 0.5
        return self.source.uniform(0, longest) * self.load_factor

    def promised_records(self, until: float) -> int:
        """Acknowledged by then, since the last recovery."""
        raise NotImplementedError

    def verify(self, promised_until: Callable[[HasMode], float]) -> Verification:
        """Compare what the server shows with the book, which takes it for granted from then on."""
        raise NotImplementedError

    def look(self) -> Mapping[Any, Any]:
        """What the server shows, as in `Verification.snapshot`."""
        raise NotImplementedError

    def same(self, name: Any, before: Mapping[Any, Any], now: Mapping[Any, Any]) -> bool:
        return bool(before.get(name) == now.get(name))

    @property
    def address(self) -> tuple[str, int]:
        return self.server.address(self.protocol)

    def mode_set(self, section: str) -> str:
        """The one mode that a section of the server's settings has for all its logs."""
        found = tomllib.loads((self.server.folder / "brokers.toml").read_text())[section]["durability"]
        return str(found.partition(":")[0])


@attrs.define(eq=False)
class Folder:
    """A data folder and its server, under the load of one protocol."""

    adapter: Adapter
    tally: Tally
    least: int = attrs.field(default=0, kw_only=True)
    """A kill waits until so many records are acknowledged, however slow the machine."""
    _ended_in_start: bool = attrs.field(init=False, default=False)
    _limited_at: float = attrs.field(init=False, default=math.inf)

    @property
    def server(self) -> TrialServer:
        return self.adapter.server

    @property
    def source(self) -> random.Random:
        return self.adapter.source

    def recover(self, promised_until: Callable[[HasMode], float] = lambda book: math.inf) -> Verification:
        """Start, compare, send again. Raises BrokenPromiseError; the server is left running."""
        try:
            self.server.begin()
            done = self.adapter.verify(promised_until)
        except (NotReadyError, DialogError, OSError, ValueError) as error:
            raise BrokenPromiseError([f"{type(error).__name__}: {error}", *self._said()]) from error
        self.tally.recoveries += 1
        self.tally.repeated += done.repeated
        faults, done.verdict.faults = done.verdict.faults, []
        faults += self._alarms()
        self._ended_in_start = False
        self.tally.verdict.add(done.verdict)
        self.tally.lost += Counter({mode: one.lost for mode, one in done.verdicts.items()})
        if faults:
            raise BrokenPromiseError([*faults, *self._said()])
        return done

    def recover_again(self, before: Mapping[Any, Any]) -> None:
        """Start on what a recovery left: everything must be as it was. Raises BrokenPromiseError."""
        try:
            self.server.begin()
            now = self.adapter.look()
        except (NotReadyError, DialogError, OSError, ValueError) as error:
            raise BrokenPromiseError([f"{type(error).__name__}: {error}", *self._said()]) from error
        self.tally.recoveries_again += 1
        changed = [name for name in sorted({*now, *before}) if not self.adapter.same(name, before, now)]
        if changed:
            raise BrokenPromiseError(
                [*(f"{name}: another recovery changed it" for name in changed), *self._said()]
            )

    def kill_under_load(self) -> None:
        """Load, and SIGKILL at a random instant of it. Raises BrokenPromiseError."""
        load = self._loaded()
        give_up = time.monotonic() + _LEAST_SECONDS
        while self.adapter.promised_records(math.inf) < self.least and time.monotonic() < give_up:
            load.run(0.02)
        cut = time.monotonic()
        self.server.kill()
        self.tally.cuts += 1
        self._end(load, cut)

    def kill_in_start(
        self, seconds: float, *, after_lock: bool = True, before_kill: Callable[[], None] = lambda: None
    ) -> None:
        """Start, and SIGKILL so many seconds later (`TrialServer.begin_and_kill`)."""
        early = self.server.begin_and_kill(seconds, after_lock=after_lock, before_kill=before_kill)
        self.tally.cuts_in_recovery += early
        self.tally.cuts += 1
        self._ended_in_start = early

    def stop_under_load(self) -> None:
        """Load, and SIGTERM: whatever was answered by the end is there. Raises BrokenPromiseError."""
        load = self._loaded()
        self.server.limit_files(None)
        cut = time.monotonic()
        self.stop(lambda: self._end(load, cut))

    def stop(self, then: Callable[[], None] = lambda: None) -> None:
        """SIGTERM, and `then`. Raises BrokenPromiseError where it ends with an error."""
        code = self.server.stop()
        self.tally.clean_stops += 1
        then()
        if code:
            raise BrokenPromiseError([f"SIGTERM: exit {code}", *self._said()])
        if faults := outcomes.unread(self.server.data):
            raise BrokenPromiseError(faults)

    def _loaded(self, *, intervals: bool = False) -> Load:
        """A load that has run for a while."""
        load = self.adapter.load()
        load.run(self.adapter.load_seconds(intervals=intervals))
        self._limited_at = math.inf
        if isinstance(load, PeersLoad) and self.source.random() < _LIMITED:
            self._limit_files(load)
        return load

    def _limit_files(self, load: PeersLoad) -> None:
        """Log files take no more than the largest file has: the rest stands in the journal alone.

        Answers must go on; they may be refusals once the journal is full. Now and then the limit is lifted.
        """
        self._limited_at = time.monotonic()
        sizes = [_size(file) for file in self.server.data.rglob("*.*")]
        self.server.limit_files(max(sizes))
        self.tally.limited += 1
        load.run(self.adapter.load_seconds(intervals=False))
        answered, give_up = load.received_bytes, time.monotonic() + _ANSWER_SECONDS
        while load.received_bytes == answered:
            if time.monotonic() > give_up:
                text = f"log files took nothing, and nobody was answered for {_ANSWER_SECONDS:g} s"
                raise BrokenPromiseError([text, *self._said()])
            load.run(0.02)
        if self.source.random() < 0.3:
            self.server.limit_files(None)
            load.run(self.adapter.load_seconds(intervals=False))

    def _end(self, load: Load, cut: float) -> None:
        faults = load.drain(min(cut, self._limited_at))
        if faults:
            raise BrokenPromiseError([*faults, *self._said()])

    def _alarms(self) -> list[str]:
        """What a start after a crash had to say of damage: bytes that are found again may hide a loss."""
        levels = ("error", "critical")
        lines = self.server.said.splitlines()
        told = [line for line in lines if _level(line) in levels]
        if self._ended_in_start:  # maybe between its catalog and its journal's first segment
            told = [line for line in told if MISSING not in line]
        return [f"the server said at its start: {line}" for line in told]

    def _said(self) -> list[str]:
        """What the server had to say, and how it ended if it did."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.server.wait(1.0)
            return [f"the server ended with {code}, and said:", *self._last_lines()]
        return ["the server said:", *self._last_lines()]

    def _last_lines(self) -> list[str]:
        return [f"  {line}" for line in self.server.said.splitlines()[-30:]]


def _level(line: str) -> str:
    """Of a line of the server's log, `<time> <level> <event>`."""
    return [*line.split(maxsplit=2), "", ""][1]


def keep_as_it_was(data: Path, copy: Path) -> None:
    """A copy of the data folder for whoever has to find out what went wrong in the recovery that follows."""
    shutil.rmtree(copy, ignore_errors=True)
    if data.exists():
        shutil.copytree(data, copy, ignore=shutil.ignore_patterns("control.sock"))


def _size(file: Path) -> int:
    """Bytes of a file; 0: it is none, or was deleted meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return file.stat().st_size if file.is_file() else 0
    return 0
