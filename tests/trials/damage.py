"""`make trial-damage`: each file of a data folder damaged in every way: the rest is served, the loss told.

A folder with something in every protocol is made: stopped in order or killed, before its first checkpoint or
after some. Of each copy one file is damaged. Then the folder must start, serve all that did not stand in the
damaged place, say what is lost, and do the same after `brokers fsck --repair`.
"""

import itertools
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import trio
from structlog.testing import capture_logs

from shared.storage.tools import fsck, repair
from tests.support.server import NotReadyError, Server
from tests.trials import outcomes
from tests.trials.everything import Everything, Found
from tests.trials.planted import UNSYNCED, plant

RECORDS_MAX = 150
"""More than an index entry covers of any of these logs: so much a single bit may cost, and no more."""

MEMORY = Path("/dev/shm")
"""No power is cut here, so files need no disk: a case takes a third of the time."""

CASES = 2000
"""About so many there are."""


@attrs.frozen
class State:
    """How a folder was left."""

    clean: bool
    checkpoints: int

    def __str__(self) -> str:
        return f"{'stopped' if self.clean else 'killed'} after {self.checkpoints} checkpoints"


STATES = [State(clean, checkpoints) for clean in (True, False) for checkpoints in (0, 2)]


def make(folder: Path, state: State) -> Found:
    """Fill a folder, and leave it so; what it serves when it is started again."""
    folder.mkdir()

    async def run() -> None:
        everything = await Everything.open(folder)
        async with everything.running():
            for part in range(state.checkpoints + 1):
                await everything.fill(part)
                if part < state.checkpoints:
                    assert await everything.store.checkpoint()
            await trio.sleep(0.5)  # as long as the newest index entries take
            if not state.clean:
                everything.abandon()
                return
        await everything.store.close()

    with capture_logs():
        trio.run(run)
    served = folder.with_name("served")
    shutil.copytree(folder, served)
    return trio.run(looked_at, served)[0]


async def looked_at(folder: Path) -> tuple[Found, set[tuple[str, ...]], list[str]]:
    """The folder is started: what it serves, what it refuses, and what it warns of."""
    with capture_logs() as said:
        everything = await Everything.open(folder)
        found = await everything.look()
        everything.abandon()
    loud = [str(each) for each in said if each["log_level"] in ("warning", "error", "critical")]
    return found, everything.refused, loud


# -- damage

Damage = Callable[[bytes, random.Random], bytes | None]


def _flipped(at: float) -> Damage:
    def flip(data: bytes, chance: random.Random) -> bytes | None:
        place = min(int(len(data) * at), len(data) - 1)
        return (
            data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
            if data
            else None
        )

    return flip


def _zeroed(at: float) -> Damage:
    def zero(data: bytes, chance: random.Random) -> bytes | None:
        place = int(len(data) * at)
        zeros = bytes(min(4096, len(data) - place))
        return data[:place] + zeros + data[place + len(zeros) :]

    return zero


DAMAGES: Mapping[str, Damage] = {
    "a bit at the start": _flipped(0.0),
    "a bit at a third": _flipped(0.34),
    "a bit in the middle": _flipped(0.55),
    "a bit near the end": _flipped(0.97),
    "cut in half": lambda data, chance: data[: len(data) // 2],
    "a byte short": lambda data, chance: data[:-1],
    "4 KiB of zeros at the start": _zeroed(0.0),
    "4 KiB of zeros in the middle": _zeroed(0.5),
    "empty": lambda data, chance: b"",
    "missing": lambda data, chance: None,
    "its tail doubled": lambda data, chance: data + data[-4096:],
}


def files(folder: Path) -> list[str]:
    """Those that a start reads."""
    found = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in found if path not in ("LOCK",)]


def hurt(folder: Path, path: str, damage: Damage, chance: random.Random) -> bool:
    """Damage the file; whether that changed anything."""
    file = folder / path
    before = file.read_bytes()
    if path.startswith("journal/"):  # what is damaged in it is where something stands
        end = len(before.rstrip(b"\0")) + 512
        tail = before[end:]
        changed = damage(before[:end], chance)
        after = None if changed is None else changed + tail if len(changed) == end else changed
    else:
        after = damage(before, chance)
    if after == before:
        return False
    if after is None:
        file.unlink()
    else:
        file.write_bytes(after)
    return True


AT_THE_END = {"cut in half", "4 KiB of zeros at the start", "empty", "missing"}
"""Of a journal of a few hundred KiB: no good batch with what proves a loss is left behind the place."""


# -- what it may cost


def touched(path: str, place: tuple[str, ...]) -> bool:
    """Whether what stands in that file is part of what is served there."""
    namespace, _, name = path.partition("/")
    log = name.rpartition(".")[0]
    kind = place[0]
    match namespace:
        case "logmq":
            return place == ("topic", log)
        case "logmq-tables":
            return kind == log
        case "dms":
            return place == ("dms", log) or (place == ("dms", "dead") and log == "tried")
        case "dms-tables":
            return kind in ("options", "dms")
        case "dmp-queues":
            return place == ("dmp", log)
        case "dmp-tables":
            return kind in ("exchange", "bindings")
        case "pubsub":
            return kind in ("session", "kept", "retained")
        case "recorded":
            return place == ("recorded", log)
    return namespace == "journal"


def tells_of(path: str, place: tuple[str, ...]) -> bool:
    """Whether naming that file tells of a loss at that place: with a log goes what others say of it."""
    match place[0]:
        case "groups" if path.startswith("logmq/"):
            return True
        case "bindings" if path.startswith("dmp-queues/"):
            return True
        case "options" if path.startswith("dms/"):
            return touched(path, ("dms", place[1]))
    return touched(path, place)


def judge(
    path: str, how: str, expected: Found, found: Found, refused: set[tuple[str, ...]], told: Sequence[str]
) -> Iterator[str]:
    """What is wrong. `told`: what start and checker say of damage.

    What only the journal had at its damaged end nobody can name. That something is lost must be told all the
    same. Where a bit of it is flipped the batch is still there, and names its logs. In the last batch that
    looks like a torn tail (STORAGE.md, "Replay"), of which nothing is refused.
    """
    lost = 0
    of_journal = path.startswith("journal/")
    unnamed = of_journal and how in AT_THE_END
    torn = of_journal and any("torn" in each or "an unfinished write" in each for each in told)
    named = {name for each in told for name in re.findall(r"[\w%.-]+/[\w%.-]+\.log", each)}
    for place, things in expected.items():
        missing = things - found.get(place, type(things)())
        if not missing:
            continue
        lost += missing.total()
        if not touched(path, place):
            yield f"{place} has lost {missing.total()} of {things.total()}, and nothing of it stood there"
        elif "a bit" in how and missing.total() > RECORDS_MAX:
            yield f"{place} has lost {missing.total()} of {things.total()} by one bit"
        elif unnamed:
            continue
        elif of_journal and not any(tells_of(name, place) for name in named):
            yield f"{place} has lost {missing.total()} of {things.total()}, and nothing names it"
        elif of_journal and (torn or place not in found):  # the record of its making was lost
            continue
        elif place[0] in ("topic", "dms", "dmp") and place not in found:
            yield f"{place} is not there any more"
        elif place[0] in ("topic", "dms", "dmp") and place not in refused:
            yield f"{place} has lost {missing.total()} of {things.total()}, and answers as if it had not"
    for place, things in found.items():
        more = things - expected.get(place, type(things)())
        if more and not touched(path, place):
            yield f"{place} has {more.total()} more than it had"
    if lost and not told:
        yield f"{lost} things are lost, and nothing says so"


async def case(folder: Path, path: str, how: str, expected: Found, chance: random.Random) -> list[str]:
    """One file, one damage: what is wrong with what comes of it."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        copy = Path(name) / "copy"
        shutil.copytree(folder, copy)
        if not hurt(copy, path, DAMAGES[how], chance):
            return []
        faults: list[str] = []
        for when, prepare in PREPARED.items():
            again = Path(name) / when
            shutil.copytree(copy, again)
            try:
                told = await prepare(again)
                found, refused, said = await looked_at(again)
            except Exception as error:
                faults.append(f"{when}: {type(error).__name__}: {error}")
                continue
            if when == "as it is":  # each must tell all; after a repair the start need not
                faults += [
                    f"the checker: {each}" for each in judge(path, how, expected, found, refused, told)
                ]
                told = said
            wrong = judge(path, how, expected, found, refused, told)
            faults += [f"{when}: {each}" for each in wrong]
        return faults


async def _checked(folder: Path) -> list[str]:
    findings = fsck.check(folder).findings
    return [f"{each.path}: {each.text}" for each in findings if each.severity is not fsck.Severity.NOTE]


async def _repaired(folder: Path) -> list[str]:
    with capture_logs():
        report = repair.repair(folder)
    return [*report.repairs, *(f"{each.path}: {each.text}" for each in report.findings if not report.ok)]


PREPARED = {"as it is": _checked, "repaired": _repaired}
"""What is done to a damaged folder before it is looked at; what that told of the damage."""


def serve(folder: Path, path: str, how: str, chance: random.Random) -> list[str]:
    """The same with the real server: it starts, with every protocol, and ends in order."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        copy = Path(name) / "copy"
        shutil.copytree(folder, copy)
        hurt(copy, path, DAMAGES[how], chance)
        try:
            with Server(Path(name), data=copy) as server:
                served = {each["protocol"] for each in server.ready["addresses"]}
                code = server.stop()
        except NotReadyError as error:
            return [f"as a process: {error}"]
    missing = {"logmq", "dms", "pubsub", "kqmsgq", "dmp"} - served
    return [f"as a process: {each} is not served" for each in missing] + ([f"exit {code}"] if code else [])


def trial(place: Path, seed: int, only: str, processes: int) -> list[str]:
    """What was seen broken."""
    plant(UNSYNCED)  # no power is cut here
    cases, broken = 0, list[str]()
    draw = random.Random(seed)
    for number, state in enumerate(STATES):
        folder = place / str(number) / "folder"
        folder.parent.mkdir()
        expected = make(folder, state)
        for path, how in itertools.product(files(folder), DAMAGES):
            name = f"{state}: {path}: {how}"
            if only not in name:
                continue
            drawn = f"{seed} {state} {path} {how}"
            faults = trio.run(case, folder, path, how, expected, random.Random(drawn))
            if draw.random() < processes / CASES:
                faults += serve(folder, path, how, random.Random(drawn))
            cases += 1
            if faults:
                broken.append("\n    ".join([name, *faults]))
                print(broken[-1], flush=True)
    print(f"{cases} cases, {len(broken)} with a broken promise")
    return broken


def main(arguments: Sequence[str] | None = None) -> int:
    parser = outcomes.parser("damage", __doc__)
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument(
        "--processes", type=int, default=100, help="of all, so many with the real server, too"
    )
    parser.set_defaults(folder=MEMORY if MEMORY.is_dir() else None)
    options = parser.parse_args(arguments)
    return outcomes.judged(
        "damage",
        options,
        lambda place, seed: trial(place, seed, options.only, options.processes),
    )


if __name__ == "__main__":
    sys.exit(main())
