"""The bucket on a server that speaks S3, over HTTP: the same contract, and a store shipped to it."""

from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from brokers.ship import epochs
from brokers.ship.bucket import Away, Bucket, Exists, Missing, Stale
from brokers.ship.formats import unpack_manifest
from brokers.ship.settings import ShipSettings
from brokers.ship.shipper import Shipper, opened_with
from brokers.ship.stores import open_bucket, open_store
from shared.storage import format
from shared.storage.settings import Durability
from shared.storage.store import Store
from tests.brokers.ship.reassembled import assembled

KEYS = 'access_key_id = "test"\nsecret_access_key = "test"\n'


@pytest.fixture
def settings(endpoint: str, tmp_path: Path, request: pytest.FixtureRequest) -> ShipSettings:
    """A bucket of this test's own."""
    import urllib.request

    name = f"b{abs(hash(request.node.name)) % 10**9}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")).close()
    credentials = tmp_path / "credentials.toml"
    credentials.write_text(KEYS)
    return ShipSettings(
        url=f"s3://{name}/pre/fix",
        endpoint=endpoint,
        region="us-east-1",
        credentials=credentials,
        interval=0.05,
    )


@pytest.fixture
def bucket(settings: ShipSettings) -> Bucket:
    pytest.importorskip("obstore")
    return open_bucket(settings)


async def test_the_contract_holds_over_http(bucket: Bucket) -> None:
    await bucket.create("wal/1", b"one")
    _, etag = await bucket.get("wal/1")
    with pytest.raises(Exists):
        await bucket.create("wal/1", b"two")
    newer = await bucket.replace("wal/1", b"three", etag)
    with pytest.raises(Stale):
        await bucket.replace("wal/1", b"four", etag)
    assert await bucket.get("wal/1") == (b"three", newer)
    assert await bucket.get_range("wal/1", 1, 2) == b"hr"
    with pytest.raises(Missing):
        await bucket.get("wal/2")
    assert [each.key for each in await bucket.listed("wal/")] == ["wal/1"]
    await bucket.delete(["wal/1", "wal/2"])
    assert await bucket.listed("") == []
    await epochs.probe(bucket, delete=True)


async def test_a_server_that_does_not_answer_is_away(settings: ShipSettings) -> None:
    import attrs

    bucket = open_bucket(attrs.evolve(settings, endpoint="http://127.0.0.1:1"))
    with pytest.raises(Away):
        await bucket.get("x")


async def test_a_store_is_shipped_with_its_threads_and_files(settings: ShipSettings, tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "data", ships=opened_with(settings))
    bucket = open_bucket(settings)
    shipper = Shipper(store, settings, bucket, structlog.stdlib.get_logger())
    await shipper.start()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        nursery.start_soon(shipper.run)
        log, _ = store.namespace("logs", Durability("always")).create("orders")
        for number in range(20):
            _, ticket = log.append(format.record(b"%d" % number * 1000), 1)
            await store.wait(ticket)
        with trio.fail_after(20):
            while not shipper.is_even:  # noqa: ASYNC110 - threads and a socket are waited for
                await trio.sleep(0.02)
        await shipper.finish()
        nursery.cancel_scope.cancel()
    expected = b"".join(format.record(b"%d" % number * 1000) for number in range(20))
    await store.close()
    objects: dict[str, Any] = {each.key: (await bucket.get(each.key))[0] for each in await bucket.listed("")}
    assert assembled(objects).logs == {("logs", "orders"): expected}
    assert unpack_manifest(objects["manifest.json"]).epoch == 1


@pytest.mark.parametrize(
    ("endpoint_url", "line", "unsigned"),
    [("", "", "true"), ("http://127.0.0.1:1", "", None), ("", "unsigned_payload = false", "False")],
)
def test_over_https_a_request_is_signed_without_a_hash_of_what_it_sends_unless_asked_for(
    tmp_path: Path, endpoint_url: str, line: str, unsigned: str | None
) -> None:
    pytest.importorskip("obstore")
    credentials = tmp_path / "credentials.toml"
    credentials.write_text(KEYS + line)
    store: Any = open_store(
        ShipSettings(url="s3://b/p", endpoint=endpoint_url, region="x", credentials=credentials)
    )
    assert store.store.config.get("unsigned_payload") == unsigned
