"""What an archive must be, held against what was written to the logs: each record once, as it was, in order.

It reads Parquet files with pyarrow, and partitions from paths, and shares no code with the archive. A topic
that was deleted and made again has had several *lives*; the archive may have missed the end of one that was
deleted, or all of it, but what it has of a life begins at its beginning and has no hole.
"""

import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq


class Row(NamedTuple):
    """A record, as a log or an archive has it."""

    offset: int
    value: bytes


Lives = Sequence[Sequence[Row]]
"""Of a topic: what was acknowledged in each of its lives, the present one last."""

Found = Mapping[tuple[str, str], Sequence[Row]]
"""By topic and log: the rows, by offset."""


def visible(folder: Path) -> list[Path]:
    """What a glob finds that knows nothing of archives."""
    return sorted(folder.glob("topic=*/date=*/*.parquet"))


def rows(paths: Iterable[Path], faults: list[str]) -> Found:
    """The rows of these files. What is wrong with a file itself is added to `faults`."""
    found: dict[tuple[str, str], list[Row]] = {}
    for path in paths:
        values = dict(part.split("=", 1) for part in path.parts if "=" in part)
        topic = urllib.parse.unquote(values["topic"])
        try:
            with pq.ParquetFile(path) as file:
                table = file.read()
        except (pa.ArrowInvalid, OSError) as error:
            faults.append(f"{path}: {error}")
            continue
        for offset, time, value, log in zip(
            *(table[name].to_pylist() for name in ("offset", "timestamp", "value", "log")), strict=True
        ):
            found.setdefault((topic, log), []).append(Row(offset, value))
            day = time.astimezone(UTC).date() if isinstance(time, datetime) else None
            if str(day) != values["date"]:
                faults.append(f"{path}: a record of {time}")
                break
    for each in found.values():
        each.sort()
    return found


def judge(found: Found, written: Mapping[str, Lives], *, complete: bool) -> list[str]:
    """What is wrong. `complete`: every present life is there to its end."""
    faults = []
    for topic, lives in written.items():
        logs = {log: each for (name, log), each in found.items() if name == topic}
        taken: set[int] = set()
        for log, those in logs.items():
            number = _life(those, lives)
            if number is None:
                faults.append(_difference(topic, log, those, lives))
            elif number in taken and those:
                faults.append(f"{topic}: two logs have the same life, one of them {log}")
            else:
                taken.add(number)
        present = lives[-1]
        if complete and present and not any(list(those) == list(present) for those in logs.values()):
            longest = max((len(those) for those in logs.values()), default=0)
            faults.append(f"{topic}: {len(present)} records were written; the longest log has {longest}")
    faults += [f"{topic}: nobody wrote to it" for topic, _ in found if topic not in written]
    return faults


def _life(those: Sequence[Row], lives: Lives) -> int | None:
    """The life that these rows begin."""
    return next(
        (
            number
            for number, life in enumerate(lives)
            if len(those) <= len(life) and list(life[: len(those)]) == list(those)
        ),
        None,
    )


def _difference(topic: str, log: str, those: Sequence[Row], lives: Lives) -> str:
    """Where the rows leave the life that they are nearest to."""

    def alike(life: Sequence[Row]) -> int:
        return next(
            (at for at, (one, other) in enumerate(zip(those, life, strict=False)) if one != other),
            min(len(those), len(life)),
        )

    nearest = max(lives, key=alike)
    at = alike(nearest)
    if at and at < len(those) and those[at].offset == those[at - 1].offset:
        return f"{topic}, log {log}: the record at {those[at].offset} is there twice"
    has = f"{those[at].offset} {those[at].value[:40]!r}" if at < len(those) else "no more"
    wants = f"{nearest[at].offset} {nearest[at].value[:40]!r}" if at < len(nearest) else "no more"
    return f"{topic}, log {log}: record {at} is {has}, and was {wants}"
