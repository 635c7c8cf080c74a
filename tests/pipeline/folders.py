"""Data folders as the source reads them, without Spark: made by a real store, and damaged by hand."""

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from brokers.pipeline.source import data_source, rows, stream
from brokers.pipeline.source.folder import Folder, LogIndex
from brokers.pipeline.source.options import SourceOptions, TopicChoice, parse
from brokers.pipeline.source.spans import LogSpot, Span
from shared.storage import format
from shared.storage.format import INDEX_ENTRY_BYTES
from shared.storage.index import entry_position
from shared.storage.os_disk import OsDisk
from shared.storage.store import Store
from tests.support.folders import ALWAYS, add, open_folder

RECORDS = [b"%06d" % n + b"." * (n * 7 % 400) for n in range(3000)]
ORDERS = ("logmq", "orders")
Result = TypeVar("Result")


def options(*folders: Path, streaming: bool | None = None, **given: str) -> SourceOptions:

    paths = json.dumps([str(folder) for folder in folders])
    return parse({"paths": paths, "subscribe": "orders"} | given, streaming=streaming)


def spot(folder: Path, name: str = "orders", namespace: str = "logmq") -> LogSpot:
    with closing(Folder(str(folder), namespace)) as place:
        return place.spots(TopicChoice((name,)))[name]


def whole(folder: Path, name: str = "orders", namespace: str = "logmq") -> Span:
    found = spot(folder, name, namespace)
    return found.span(found.first, found.end)


def values(chosen: SourceOptions, *those: Span) -> list[bytes]:
    return [value for batch in rows.read(chosen, those) for value in batch["value"].to_pylist()]


def placed(payloads: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """The records of a log, each behind its offset."""
    ends = accumulate((format.LENGTH_BYTES + len(payload) for payload in payloads), initial=0)
    return list(zip(ends, payloads, strict=False))


def offset_of(number: int) -> int:
    return sum(format.LENGTH_BYTES + len(payload) for payload in RECORDS[:number])


def part(span: Span, first: int, last: int) -> Span:
    """The span of RECORDS[first:last]."""
    return attrs.evolve(span, start=offset_of(first), stop=offset_of(last))


def rewrite_entry(folder: Path, number: int, change: Callable[[bytes], bytes]) -> None:
    path = folder / "logmq" / "orders.idx"
    with path.open("r+b") as file:
        file.seek(entry_position(number))
        changed = change(file.read(INDEX_ENTRY_BYTES))
        file.seek(entry_position(number))
        file.write(changed)


def drop_front(folder: Path, entries: int) -> None:
    """As retention leaves a front of so many index entries: a hole in the log, and zeros in the index."""
    with OsDisk(folder, create=False) as disk:
        log_fd, index_fd = disk.open("logmq/orders.log"), disk.open("logmq/orders.idx")
        disk.punch(log_fd, 0, entries_of(folder)[entries].offset)
        disk.write(index_fd, bytes(entries * INDEX_ENTRY_BYTES), entry_position(0))


def entries_of(folder: Path) -> list[format.IndexEntry]:
    found = spot(folder)
    with OsDisk(folder, create=False) as disk:
        index = LogIndex(disk, disk.open("logmq/orders.idx"), found.id)
        return list(index.entries(found.first, found.end))


def retimed(folder: Path) -> list[format.IndexEntry]:
    """Give each entry of `orders` a second of its own; they are as they are then."""
    log_id = spot(folder).id
    every = [
        entry._replace(first_ms=1000 * number, last_ms=1000 * number + 500)
        for number, entry in enumerate(entries_of(folder), 1)
    ]
    for number, entry in enumerate(every):
        rewrite_entry(folder, number, lambda _, entry=entry: format.pack_index_entry(entry, log_id))  # type: ignore[misc]
    return every


def in_store(folder: Path, act: Callable[[Store], Awaitable[Result]], *, clean: bool = False) -> Result:
    """What `act` gives, of a store on the folder. Not `clean`: the process dies then."""

    async def run() -> Result:
        store = await open_folder(folder)
        try:
            return await act(store)
        finally:
            if clean:
                await store.close()
            else:
                store.abandon()

    return trio.run(run)


def remake(folder: Path, payloads: list[bytes], *, clean: bool = True) -> None:
    """Delete the topic, and make it again. Not `clean`: the process dies before the catalog has it."""

    async def again(store: Store) -> None:
        await store.wait(store.namespace("logmq", ALWAYS).delete("orders"))
        add(store, *ORDERS, payloads)
        await store.flush()

    in_store(folder, again, clean=clean)


def follow(chosen: SourceOptions, start: stream.Offset, limit: stream.Limit | None = None) -> stream.Offset:
    return stream.planned(chosen, start, limit or stream.Limit()).end


def between(chosen: SourceOptions, start: stream.Offset, end: stream.Offset) -> list[bytes]:
    return values(chosen, *stream.spans(chosen, start, end))


def planned(*folders: Path, **given: str) -> list[Span]:
    chosen = options(*folders, streaming=False, **given)
    shares = data_source.BatchReader(chosen).partitions()
    return [span for share in shares for span in data_source.spans_of(share)]
