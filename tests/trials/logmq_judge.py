"""What a topic holds after a cut, compared with what was asked and answered.

Pure: bytes and ledgers in, faults out. What is promised: what was acknowledged is there, at the offset that
was said; each writer's records are there in order, without a hole; a write is there whole or not at all;
nothing is there that nobody sent, or twice; a deleted topic is gone, and what is made by its name later
holds nothing of it.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence, Set

import attrs

from tests.trials.logmq_ledger import Commit, Delete, Ledger, Write
from tests.trials.plain_reader import record_count
from tests.trials.tally import Verdict


@attrs.frozen
class Found:
    """A topic as it is after recovery: its records from offset `first` to `end`, and its groups' offsets."""

    first: int = 0
    data: bytes = b""
    commits: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def end(self) -> int:
        return self.first + len(self.data)


@attrs.frozen
class _Life:
    """A topic between two deletes: what stood in it before these operations, and the writes to it since."""

    before: bytes | None
    """From `first` on; None: it was not there."""
    first: int
    writes: Sequence[Write]
    begun: Delete | None


def judge(ledger: Ledger, found: Found | None, promised_until: float = math.inf) -> Verdict:
    """Compare a topic with its ledger; `found` is None where there is no such topic.

    What was acknowledged by `promised_until` must be there; what was acknowledged later may be missing, the
    newest first (a suffix). If that is -inf nothing was ever promised, not even what was verified before.

    A DELETE that was refused took place or it did not. Where the server went on after it, it did not, and is
    struck out of the ledger.
    """
    verdict = _judge(ledger, found, promised_until)
    kept = [one for one in ledger.operations if not (isinstance(one, Delete) and one.refused)]
    if verdict.faults and len(kept) < len(ledger.operations):
        without = _judge(attrs.evolve(ledger, operations=kept), found, promised_until)
        if not without.faults:
            ledger.operations[:] = kept
            return without
    return verdict


def _judge(ledger: Ledger, found: Found | None, promised_until: float) -> Verdict:
    lives = _lives(ledger)
    least = _life_promised(ledger, promised_until)
    verdict = _judge_lives(ledger, lives, least, found, promised_until)
    if found is not None and verdict.life == 0 and not verdict.faults:
        _judge_read(ledger, found, promised_until, verdict)
    _judge_commits(ledger, found, promised_until, verdict)
    return verdict


def settle(ledger: Ledger, found: Found | None, life: int) -> list[Write]:
    """Begin a new page: what was found, in this life of the topic, is what stands.

    Returns that life's BATCHes, in order: what a client that lost its connection would send again.
    """
    writes = _lives(ledger)[life].writes
    ledger.exists = found is not None
    ledger.first = found.first if found is not None else 0
    ledger.settled = found.data if found is not None else b""
    ledger.commits = dict(found.commits) if found is not None else {}
    ledger.operations.clear()
    ledger.read.clear()
    return [write for write in dict.fromkeys(writes) if write.batch is not None]


def _lives(ledger: Ledger) -> list[_Life]:
    lives: list[_Life] = []
    before: bytes | None = ledger.settled if ledger.exists else None
    first = ledger.first
    writes: list[Write] = []
    begun: Delete | None = None
    for operation in ledger.effective():
        if isinstance(operation, Delete):
            lives.append(_Life(before, first, writes, begun))
            before, first, writes, begun = None, 0, [], operation
        elif isinstance(operation, Write):
            writes.append(operation)
    lives.append(_Life(before, first, writes, begun))
    return lives


def _life_promised(ledger: Ledger, until: float) -> int:
    """The earliest life that the topic may be in: that of the last operation on it that was promised."""
    promised = life = 0
    for operation in ledger.effective():
        life += isinstance(operation, Delete)
        if not isinstance(operation, Commit) and operation.promised(until):
            promised = life
    return promised


def _judge_lives(
    ledger: Ledger, lives: Sequence[_Life], least: int, found: Found | None, until: float
) -> Verdict:
    """The latest life that fits; where none does, the one that comes nearest to fitting tells most."""
    nearest: Verdict | None = None
    for number in reversed(range(least, len(lives))):
        verdict = _judge_life(ledger, lives[number], found, until)
        verdict.life = number
        for life in lives[number + 1 :]:
            _count_missing(ledger.name, life.writes, until, verdict)
        verdict.deletes = sum(
            life.begun is not None and life.begun.acknowledged for life in lives[: number + 1]
        )
        if not verdict.faults:
            return verdict
        if nearest is None or verdict.kept > nearest.kept:
            nearest = verdict
    assert nearest is not None
    return nearest


def _judge_life(ledger: Ledger, life: _Life, found: Found | None, until: float) -> Verdict:
    name = ledger.name
    verdict = Verdict()
    if found is None:
        if life.before is not None:
            verdict.faults.append(f"{name}: gone, with {len(life.before)} bytes that were verified before")
        _count_missing(name, life.writes, until, verdict)
        return verdict
    if life.before is None and not life.writes:
        verdict.faults.append(f"{name}: there ({len(found.data)} bytes), though deleted or never written")
        return verdict
    before = life.before or b""
    dropped = found.first - life.first
    if dropped and not (dropped > 0 and _kept_enough(ledger, found)):
        verdict.faults.append(
            f"{name}: begins at {found.first} with {len(found.data)} bytes left, not at {life.first}"
        )
    elif found.data.startswith(before[dropped:]):
        _place(name, life.writes, found, life.first + len(before), until, verdict)
    elif (
        until == -math.inf
        and before[dropped:].startswith(found.data)
        and record_count(found.data) is not None
    ):
        _count_missing(name, life.writes, until, verdict)
    else:
        at = _first_difference(before[dropped:], found.data)
        what = "gone" if at == len(found.data) else "others now"
        verdict.faults.append(
            f"{name}: of the bytes verified before, up to {life.first + len(before)}, "
            f"those from {found.first + at} on are {what}"
        )
    return verdict


def _kept_enough(ledger: Ledger, found: Found) -> bool:
    return ledger.kept_bytes is not None and len(found.data) >= ledger.kept_bytes


def _place(
    name: str, writes: Sequence[Write], found: Found, known: int, until: float, verdict: Verdict
) -> None:
    """Account for every byte from offset `known` on by the next write of one of the writers."""
    waiting: dict[str, deque[Write]] = {}
    placed: set[Write] = set()
    for write in writes:
        waiting.setdefault(write.writer, deque()).append(write)
    at = _pass_dropped(waiting, found, verdict) if found.first > known else known
    while at < found.end:
        fitting = _next_at(waiting, placed, found, at)
        if fitting is None:
            verdict.faults.append(f"{name}: {_explain(writes, waiting, found, at)}")
            break
        write = fitting
        queue = waiting[write.writer]
        while queue.popleft() is not write:
            pass  # refused ones, which need not be there
        if write.acknowledged:
            verdict.kept += write.count
            if write.offset != at:
                verdict.faults.append(f"{name}: acknowledged at {write.offset}, found at {at}")
        else:
            verdict.extra += write.count
        write.stands = at
        placed.add(write)
        verdict.newest_kept = max(verdict.newest_kept, write.queued)
        at += len(write.records)
    _count_missing(name, [write for queue in waiting.values() for write in queue], until, verdict)


def _pass_dropped(waiting: Mapping[str, deque[Write]], found: Found, verdict: Verdict) -> int:
    """Retention took what lies below `first`; returns where the first whole write behind it is.

    Of the writes that were not answered it may have taken those that come before one that was. It goes by
    records, so the rest of a BATCH may be left.
    """
    first = found.first
    for queue in waiting.values():
        dropped = [
            number for number, one in enumerate(queue) if one.offset is not None and one.offset < first
        ]
        for _ in range(dropped[-1] + 1 if dropped else 0):
            write = queue.popleft()
            if write.acknowledged:
                verdict.kept += write.count
                write.stands = write.offset
                assert write.offset is not None
                rest = write.records[first - write.offset :]
                if rest and found.data.startswith(rest):
                    first += len(rest)
    return first


def _next_at(waiting: Mapping[str, deque[Write]], placed: Set[Write], found: Found, at: int) -> Write | None:
    """Which writer's next write stands at `at`; one that was acknowledged there before any other, and one
    that was refused last: empty ones are alike.
    """
    fitting: Write | None = None
    for queue in waiting.values():
        for write in queue:
            if write not in placed and found.data.startswith(write.records, at - found.first):
                if write.offset == at:
                    return write
                if fitting is None or fitting.acknowledged or (fitting.refused and not write.refused):
                    fitting = write
            if not write.refused:
                break
    return fitting


def _explain(writes: Sequence[Write], waiting: Mapping[str, deque[Write]], found: Found, at: int) -> str:
    here = found.data[at - found.first :]
    left = {id(write) for queue in waiting.values() for write in queue}
    for write in writes:
        if here.startswith(write.records):
            what = "out of order, after a hole" if id(write) in left else "a second time"
            return f"at {at} a write of {write.writer} {what}: {_short(write.records)}"
        if len(write.records) > 8 and here.startswith(write.records[:8]):
            return f"at {at} a part of a write of {write.writer}, or one with other bytes: {_short(here)}"
    return f"at {at} something that nobody wrote: {_short(here)}"


def _count_missing(name: str, writes: Sequence[Write], until: float, verdict: Verdict) -> None:
    missing = [write for write in writes if write.acknowledged]
    if not missing:
        return
    verdict.lost += sum(write.count for write in missing)
    verdict.oldest_lost = min(verdict.oldest_lost, *(write.answered or 0.0 for write in missing))
    broken = [write for write in missing if write.promised(until)]
    if broken:
        verdict.faults.append(
            f"{name}: {sum(write.count for write in broken)} acknowledged records lost, "
            f"the first acknowledged at {min(write.answered or 0.0 for write in broken):.4f} s, "
            f"at {broken[0].offset}: {_short(broken[0].records)}"
        )


def _judge_read(ledger: Ledger, found: Found, until: float, verdict: Verdict) -> None:
    """What a reader was shown stays: in `always`, and in any mode if only the process died."""
    now = found.data[max(ledger.end - found.first, 0) :]
    length = len(ledger.read) if until == math.inf else min(len(ledger.read), len(now))
    if now[:length] != ledger.read[:length]:
        at = len(ledger.settled) + _first_difference(ledger.read, now)
        verdict.faults.append(f"{ledger.name}: a reader was shown other bytes at {at}, or bytes now gone")


def _judge_commits(ledger: Ledger, found: Found | None, until: float, verdict: Verdict) -> None:
    for group in sorted(ledger.groups):
        history: list[int | None] = [ledger.commits.get(group)]
        kept = [0]  # positions in `history` that were promised
        for operation in ledger.effective():
            if isinstance(operation, Delete):
                history.append(None)
            elif isinstance(operation, Commit) and operation.group == group:
                history.append(operation.value)
            else:
                continue
            if operation.promised(until):
                kept.append(len(history) - 1)
        now = found.commits.get(group) if found is not None else None
        allowed = history[kept[-1] :]
        clamped = ledger.mode != "always" and until < math.inf and found is not None and now == found.end
        if now not in allowed and not clamped:
            verdict.faults.append(f"{ledger.name}: group {group} is at {now}, not one of {allowed[:4]}")
        elif found is not None and now is not None and now > found.end:
            verdict.faults.append(f"{ledger.name}: group {group} is at {now}, past the end {found.end}")
        else:
            verdict.commits += len(kept) - 1


def _first_difference(one: bytes | bytearray, other: bytes | bytearray) -> int:
    """Where two byte strings part; the length of the shorter where one begins the other."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # the common prefix, by halves
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _short(data: bytes) -> str:
    return repr(data[:48]) + (f" ({len(data)} bytes)" if len(data) > 48 else "")
