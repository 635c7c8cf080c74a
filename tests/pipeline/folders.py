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
from brokers.pipeline.source.folder import FolderReader, LogIndex
from brokers.pipeline.source.options import SourceOptions, TopicChoice, parse
from brokers.pipeline.source.ranges import LogRange
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


def whole(folder: Path, name: str = "orders", namespace: str = "logmq") -> LogRange:
    with closing(FolderReader(str(folder), namespace)) as reader:
        return reader.logs(TopicChoice((name,)))[name]


def values(chosen: SourceOptions, *those: LogRange) -> list[bytes]:
    return [value for batch in rows.read(chosen, those) for value in batch["value"].to_pylist()]


def placed(payloads: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """The records of a log, each behind its offset."""
    ends = accumulate((format.LENGTH_BYTES + len(payload) for payload in payloads), initial=0)
    return list(zip(ends, payloads, strict=False))


def offset_of(number: int) -> int:
    return sum(format.LENGTH_BYTES + len(payload) for payload in RECORDS[:number])


def part(span: LogRange, first: int, last: int) -> LogRange:
    """The span of RECORDS[first:last]."""
    return attrs.evolve(span, start=offset_of(first), stop=offset_of(last))


def rewrite_entry(folder: Path, number: int, change: Callable[[bytes], bytes]) -> None:
    path = folder / "logmq" / "orders.idx"
    with path.open("r+b") as file:
        file.seek(entry_position(number))
        changed = change(file.read(INDEX_ENTRY_BYTES))
        file.seek(entry_position(number))
        file.write(changed)


def entries_of(folder: Path) -> list[format.IndexEntry]:
    log = whole(folder)
    with OsDisk(folder, create=False) as disk:
        index = LogIndex(disk, disk.open("logmq/orders.idx"), log.log_id)
        return list(index.entries(log.start, log.stop))


def retimed(folder: Path) -> list[format.IndexEntry]:
    """Give each entry of `orders` a second of its own; they are as they are then."""
    log_id = whole(folder).log_id
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
    return values(chosen, *stream.ranges(chosen, start, end))


def planned(*folders: Path, **given: str) -> list[LogRange]:
    chosen = options(*folders, streaming=False, **given)
    shares = data_source.BatchReader(chosen).partitions()
    return [span for share in shares for span in data_source.ranges_of(share)]
