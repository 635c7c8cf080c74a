"""How trials begin and end: a seed, a folder of their own, a verdict, and what is left behind.

Where a promise was broken the folder is kept, for whoever has to find out why; else nothing stays.
"""

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shared.storage import catalog
from shared.storage.tools.fsck import Severity, check

NOTHING_BROKEN = "nothing promised was broken"


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """With the options that each has."""
    summary = (doc or "").splitlines()[0]
    made = argparse.ArgumentParser(prog=f"python -m tests.trials.{name}", description=summary)
    made.add_argument("--seed", type=int, default=None, help="of the load, and of the moments")
    made.add_argument("--folder", type=Path, default=None, help="where to put data (a temporary one)")
    return made


def judged(
    name: str,
    options: argparse.Namespace,
    trial: Callable[[Path, int], Sequence[str]],
    *,
    kept: str = NOTHING_BROKEN,
) -> int:
    """Run it in a folder, with a seed; the exit code. It returns what it saw broken, and ends all it began.

    `kept`: what is said where nothing was.
    """
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    place = Path(tempfile.mkdtemp(prefix=f"trial-{name}-", dir=options.folder))
    print(f"--seed {seed}, in {place}", flush=True)
    begun = time.monotonic()
    try:
        faults = trial(place, seed) or unread(place)
    except KeyboardInterrupt:
        shutil.rmtree(place, ignore_errors=True)
        return 130
    if faults:
        return told([*faults, f"kept: {place}"])
    shutil.rmtree(place)
    return told([], f"{kept}; {time.monotonic() - begun:.0f} s")


def unread(place: Path) -> list[str]:
    """What cannot be read of the data folders in a place, whose servers have ended."""
    return [
        f"{found.parent / finding.path}: {finding.text} (from {finding.offset}, {finding.length} bytes)"
        for found in sorted(place.rglob(catalog.PATH))
        for finding in check(found.parent).findings
        if finding.severity is Severity.DAMAGE
    ]


@contextmanager
def passing_place(name: str) -> Iterator[Path]:
    """A temporary folder for a trial's data. In the end every byte of it is read."""
    with tempfile.TemporaryDirectory(prefix=f"trial-{name}-") as folder:
        yield Path(folder)
        assert not (faults := unread(Path(folder))), faults


def told(faults: Sequence[str], kept: str = NOTHING_BROKEN) -> int:
    """Say what was seen broken, or `kept` where nothing was; the exit code."""
    print(*(["BROKEN:", *faults] if faults else [kept]), sep="\n")
    return 1 if faults else 0
