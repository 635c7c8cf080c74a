"""A folder with a history, taken apart; and a server that speaks S3."""

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import attrs
import pytest

from tests.brokers.ship.apart import Apart
from tests.support.stores import ALWAYS, INTERVAL, SMALL, open_store, records


@pytest.fixture
async def apart(tmp_path: Path) -> AsyncIterator[Apart]:
    """A snapshot, and much behind it: every kind of entry, two starts, one of them after a crash."""
    folder = tmp_path / "live"
    parts = Apart(folder)
    settings = attrs.evolve(SMALL, reference_bytes=8 << 10)
    store = await open_store(folder=folder, settings=settings)
    one, two = store.namespace("one", ALWAYS), store.namespace("two", INTERVAL)
    first, _ = one.create("a")
    other, _ = two.create("b")
    one.create("empty")
    for number in range(300):
        first.append(records(b"a%d" % number), 1)
        other.append(records(b"b%d" % number), 1)
        store.commit_pending()
    first.drop_below(60 + 7 * 10)
    store.commit_pending()
    await parts.snap(store)
    await parts.ship(store)
    for number in range(3):  # the first is an APPEND that is ahead, the next ones are references
        first.append(records(b"large%d" % number + bytes(20 << 10)), 1)
        await parts.ship(store)
    made, _ = one.create("made")
    made.append(records(b"first life"), 1)
    await parts.ship(store)
    one.delete("made")
    again, _ = one.create("made")
    again.append(records(b"x" * (9 << 10)), 1)
    again.append(records(b"second life"), 1)
    await parts.ship(store)
    two.change_mode("b", ALWAYS)
    other.drop_below(other.end)
    one.delete("empty")
    await parts.ship(store)
    gone, _ = one.create("gone")
    await parts.ship(store)
    gone.append(records(b"in the batch that deletes it"), 1)
    one.delete("gone")
    other.append(records(b"in the batch that drops it"), 1)
    other.drop_below(other.end)
    await parts.ship(store)
    await store.close()
    store = await open_store(folder=folder, settings=settings)  # LSNs jump, and a chain of batches begins
    parts.started()
    store.namespace("one", ALWAYS).logs["a"].append(records(b"after a stop"), 1)
    await parts.ship(store)
    for number in range(40):  # several segments
        store.namespace("one", ALWAYS).logs["made"].append(records(b"%d" % number + bytes(5000)), 1)
        await parts.ship(store)
    store.abandon()
    store = await open_store(folder=folder, settings=settings)
    parts.started()
    store.namespace("two", INTERVAL).logs["b"].append(records(b"after a crash"), 1)
    await parts.ship(store)
    yield parts
    store.abandon()


@pytest.fixture(scope="package")
def endpoint() -> Iterator[str]:
    server = pytest.importorskip("moto.server")
    serving = pytest.importorskip("werkzeug.serving")
    made = serving.make_server("127.0.0.1", 0, server.create_backend_app("s3"), True)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{made.port}"
    made.shutdown()
    thread.join()
