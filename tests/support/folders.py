"""Data folders on real files for the tests of the tools: made by a real store, and damaged by hand."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import trio

from shared.storage.settings import Durability, StorageSettings
from shared.storage.store import Store
from shared.storage.tools.view import Trust, ranges, viewing
from tests.support.crashes import inline
from tests.support.promises import read_all
from tests.support.stores import ALWAYS, records

SETTINGS = StorageSettings(segment_bytes=64 << 10, zero_fill=False, scrub_bytes_per_second=0)
Contents = dict[tuple[str, str], list[bytes]]


async def open_folder(folder: Path) -> Store:
    return await Store.open(folder, SETTINGS, in_thread=inline)


def add(
    store: Store, namespace: str, name: str, payloads: Sequence[bytes], mode: Durability = ALWAYS
) -> None:
    space = store.namespace(namespace, ALWAYS)
    log = space.logs.get(name) or space.create(name, mode)[0]
    log.append(records(*payloads), len(payloads))
    store.commit_pending()


def fill(folder: Path, contents: Mapping[tuple[str, str], Sequence[bytes]], *, clean: bool = True) -> None:
    """Make the folder, or add to it. Not `clean`: the process dies, and the journal holds the newest."""

    async def run() -> None:
        store = await open_folder(folder)
        for (namespace, name), payloads in contents.items():
            add(store, namespace, name, payloads)
        if clean:
            await store.close()
        else:
            store.abandon()

    trio.run(run)


def contents(folder: Path) -> Contents:
    """What a store serves from the folder. It is opened, and closed in order."""

    namespaces = [p.name for p in sorted(folder.iterdir()) if p.is_dir()]

    async def run() -> Contents:
        store = await open_folder(folder)
        try:
            found: Contents = {}
            for namespace in namespaces:
                for name, log in store.namespace(namespace, ALWAYS).logs.items():
                    found[namespace, name] = [payload for _, payload in await read_all(store, log)]
            return found
        finally:
            await store.close()

    return trio.run(run)


def flip(path: Path, bit: int) -> None:
    """Turn one bit over."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def tree(folder: Path) -> dict[str, bytes]:
    """Every file's bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def checked(folder: Path, namespace: str, name: str) -> tuple[int, Counter[Trust]]:
    """How many records of a log can be read, and how many of its bytes can be trusted how far."""
    sums: Counter[Trust] = Counter()
    records = 0
    with viewing(folder) as view:
        log = view.find(namespace, name)
        assert log is not None
        with view.reader(log) as reader:
            for part in ranges(view, log, reader, log.first, log.end):
                sums[part.state] += part.length
                records += part.records if part.state is not Trust.DAMAGED else 0
    return records, sums
