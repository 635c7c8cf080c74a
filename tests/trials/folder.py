"""One data folder's life through many cuts: recover, compare, load, cut, and again."""

import contextlib
import math
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from tests.support.server import NotReadyError
from tests.trials.ledger import Book, Ledger, Write
from tests.trials.load import KEPT, RETENTION_BYTES, Load
from tests.trials.serving import TrialServer
from tests.trials.tally import Tally
from tests.trials.verify import Dialog, DialogError, Snapshot, Verification, take, verify

MODES = ("always", "interval", "none")
SEGMENTS = ("64KiB", "256KiB", "1MiB", "8MiB")
"""Journal segments from a checkpoint every few milliseconds under load to one in seconds."""
_LEAST_SECONDS = 30.0


class BrokenPromiseError(Exception):
    """What the comparison found, one fault a line."""

    def __init__(self, faults: Sequence[str]) -> None:
        more = [f"... and {len(faults) - 20} more"] if len(faults) > 20 else []
        super().__init__("\n".join([*faults[:20], *more]))


def settings(modes: Sequence[str], source: random.Random) -> str:
    """TOML: topics whose name begins with a mode's have that mode; the storage's ways are drawn."""
    lines = [*storage_settings(source), "[logmq]", f'durability = "{durability(modes[0])}"']
    for mode in modes:
        lines += [f'[logmq.topics."{mode}-{KEPT}"]', f'durability = "{durability(mode)}"']
        lines += [f"retention_bytes = {RETENTION_BYTES}"]
        lines += [f'[logmq.topics."{mode}-*"]', f'durability = "{durability(mode)}"']
    return "\n".join(lines) + "\n"


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
    ]


@attrs.define(eq=False)
class Folder:
    """A data folder, its server, and the book of all that was asked of it."""

    server: TrialServer
    modes: Sequence[str]
    source: random.Random
    tally: Tally
    load_factor: float = 1.0
    least: int = attrs.field(default=0, kw_only=True)
    """A kill waits until so many records are acknowledged, however slow the machine."""
    book: Book = attrs.field(factory=Book)

    def recover(self, promised_until: Callable[[Ledger], float] = lambda ledger: math.inf) -> Verification:
        """Start, compare, send again. Raises BrokenPromiseError; the server is left running."""
        try:
            self.server.begin()
            done = self._verify(promised_until)
        except (NotReadyError, DialogError, OSError, ValueError) as error:
            raise BrokenPromiseError([f"{type(error).__name__}: {error}", *self._said()]) from error
        self.tally.recoveries += 1
        self.tally.repeated += done.repeated
        faults, done.verdict.faults = done.verdict.faults, []
        faults += self._alarms()
        self.tally.verdict.add(done.verdict)
        self.tally.lost += Counter({mode: one.lost for mode, one in done.verdicts.items()})
        if faults:
            raise BrokenPromiseError([*faults, *self._said()])
        return done

    def recover_again(self, before: Snapshot) -> None:
        """Start on what a recovery left: everything must be as it was. Raises BrokenPromiseError."""
        try:
            self.server.begin()
            now = self._look()
        except (NotReadyError, DialogError, OSError, ValueError) as error:
            raise BrokenPromiseError([f"{type(error).__name__}: {error}", *self._said()]) from error
        self.tally.recoveries_again += 1
        changed = [name for name in sorted({*now, *before}) if not self._same(name, before, now)]
        if changed:
            raise BrokenPromiseError(
                [*(f"{name}: another recovery changed it" for name in changed), *self._said()]
            )

    def _verify(self, promised_until: Callable[[Ledger], float]) -> Verification:
        return verify(self.server.address("logmq"), self.server.data, self.book, promised_until)

    def _look(self) -> Snapshot:
        with Dialog(self.server.address("logmq")) as dialog:
            return take(dialog, self.book)

    def _same(self, name: str, before: Snapshot, now: Snapshot) -> bool:
        old, new = before.get(name), now.get(name)
        if old is not None and new is not None and self.book.ledgers[name].kept_bytes is not None:
            shorter = max(new.first - old.first, 0)  # retention goes on
            old = attrs.evolve(old, first=old.first + shorter, data=old.data[shorter:])
        return old == new

    def promised_records(self, until: float) -> int:
        """Acknowledged by then, since the last recovery."""
        return sum(
            operation.count
            for ledger in self.book.ledgers.values()
            for operation in ledger.operations
            if isinstance(operation, Write) and operation.promised(until)
        )

    def load(self) -> Load:
        return Load(self.server.address("logmq"), self.book, self.modes, self.source)

    def load_seconds(self) -> float:
        """Short ones hit a server that has just begun, long ones journals that have gone round."""
        longest = 0.1 if self.source.random() < 0.3 else 0.5
        return self.source.uniform(0, longest) * self.load_factor

    def kill_under_load(self) -> None:
        """Load, and SIGKILL at a random instant of it. Raises BrokenPromiseError."""
        load = self.load()
        load.run(self.load_seconds())
        give_up = time.monotonic() + _LEAST_SECONDS
        while self.promised_records(math.inf) < self.least and time.monotonic() < give_up:
            load.run(0.02)
        cut = time.monotonic()
        self.server.kill()
        self.tally.cuts += 1
        self._end(load, cut)

    def stop_under_load(self) -> None:
        """Load, and SIGTERM: whatever was answered by the end is there. Raises BrokenPromiseError."""
        load = self.load()
        load.run(self.load_seconds())
        cut = time.monotonic()
        code = self.server.stop()
        self.tally.clean_stops += 1
        self._end(load, cut)
        if code:
            raise BrokenPromiseError([f"SIGTERM: exit {code}", *self._said()])

    def _end(self, load: Load, cut: float) -> None:
        faults = load.drain(cut)
        if faults:
            raise BrokenPromiseError([*faults, *self._said()])

    def _alarms(self) -> list[str]:
        """What a start after a crash had to say of damage: bytes that are found again may hide a loss."""
        levels = ("error", "critical")
        lines = self.server.said.splitlines()
        return [f"the server said at its start: {line}" for line in lines if _level(line) in levels]

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
