"""Every store keeps the same contract; a bucket sees through lost answers; encryption hides and binds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from brokers.ship.bucket import Away, Bucket, Exists, Missing, ObjectStore, Stale, Unusable
from brokers.ship.cipher import CHUNK_BYTES, HEAD_BYTES, Cipher
from brokers.ship.settings import ShipSettings
from brokers.ship.stores import FolderStore, ObstoreStore, open_bucket
from shared.errors import ConfigError
from tests.brokers.ship.fake_bucket import FakeStore, bucket_of

KEY = bytes(range(32))


def cipher_of(key: bytes = KEY) -> Cipher:
    pytest.importorskip("cryptography")
    return Cipher(key)


@pytest.fixture(params=["fake", "folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "fake":
        yield FakeStore()
    elif request.param == "folder":
        yield FolderStore(tmp_path / "bucket")
    else:
        obstore = pytest.importorskip("obstore")
        yield ObstoreStore(obstore.store.MemoryStore())


async def test_an_object_is_made_once_and_replaced_only_unchanged(store: ObjectStore) -> None:
    bucket = bucket_of(store)
    await bucket.create("wal/1", b"one")
    _, etag = await bucket.get("wal/1")
    with pytest.raises(Exists):
        await bucket.create("wal/1", b"two")
    assert await bucket.get("wal/1") == (b"one", etag)
    newer = await bucket.replace("wal/1", b"three", etag)
    assert newer != etag
    with pytest.raises(Stale):
        await bucket.replace("wal/1", b"four", etag)
    assert await bucket.get("wal/1") == (b"three", newer)


async def test_an_object_that_is_not_there_is_told(store: ObjectStore) -> None:
    bucket = bucket_of(store)
    with pytest.raises(Missing):
        await bucket.get("x")
    with pytest.raises(Missing):
        await bucket.get_range("x", 0, 1)
    await bucket.delete(["x"])
    assert await bucket.listed("") == []


async def test_parts_and_lists_are_exact(store: ObjectStore) -> None:
    bucket = bucket_of(store)
    for number in range(12):
        await bucket.create(f"wal/{number:03}", b"x" * number)
    await bucket.create("parts/1", bytes(range(100)))
    assert await bucket.get_range("parts/1", 10, 5) == bytes(range(10, 15))
    assert await bucket.get_range("parts/1", 90, 50) == bytes(range(90, 100))
    assert [(each.key, each.bytes) for each in await bucket.listed("wal/")] == [
        (f"wal/{number:03}", number) for number in range(12)
    ]
    await bucket.delete(f"wal/{number:03}" for number in range(11))
    assert [each.key for each in await bucket.listed("")] == ["parts/1", "wal/011"]


@pytest.mark.parametrize("operation", ["create", "replace"])
async def test_a_lost_answer_is_found_out_by_reading_back(operation: str) -> None:
    store = FakeStore()
    bucket = bucket_of(store)
    tag = ""
    if operation == "replace":
        await bucket.create("m", b"0")
        _, tag = await bucket.get("m")
    store.faults = {len(store.asked): "lost"}

    async def ask() -> object:
        return await (bucket.create("m", b"1") if operation == "create" else bucket.replace("m", b"1", tag))

    with pytest.raises(Away):
        await ask()
    made = await ask()
    assert await bucket.get("m") == (b"1", made or ANY)
    assert bucket.last_error == f"{operation}: the answer was lost"


@pytest.mark.parametrize("operation", ["create", "replace"])
async def test_a_conflict_where_nothing_is_as_was_said_may_be_better_later(operation: str) -> None:
    """S3 answers 409 while another request for the key is under way: that tells nothing of who wrote it."""
    store = FakeStore()
    bucket = bucket_of(store)
    tag = ""
    if operation == "replace":
        await bucket.create("m", b"0")
        _, tag = await bucket.get("m")
    store.faults = {len(store.asked): "conflict"}

    async def ask() -> object:
        return await (bucket.create("m", b"1") if operation == "create" else bucket.replace("m", b"1", tag))

    with pytest.raises(Away, match="was said"):
        await ask()
    made = await ask()
    assert await bucket.get("m") == (b"1", made or ANY)


async def test_an_object_of_another_is_not_taken_for_ours() -> None:
    store = FakeStore()
    bucket = bucket_of(store)
    await bucket.create("wal/1", b"theirs")
    store.faults = {1: "lost"}
    with pytest.raises(Exists):
        await bucket.create("wal/1", b"ours!!")


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 7])
async def test_an_encrypted_object_is_read_back_whole_and_in_parts(size: int) -> None:
    store, data = FakeStore(), bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    bucket = bucket_of(store, cipher_of())
    await bucket.create("parts/1", data)
    assert size < 16 or data[:16] not in store.objects["parts/1"]
    assert (await bucket.get("parts/1"))[0] == data
    for start in (0, 1, CHUNK_BYTES - 3, CHUNK_BYTES, size):
        assert await bucket.get_range("parts/1", start, 10) == data[start : start + 10]
    assert await bucket.get_range("parts/1", 0, size + 5) == data


@pytest.mark.parametrize("change", ["flip", "cut", "chunk", "other name", "other key", "plain"])
async def test_a_changed_object_is_not_decrypted(change: str) -> None:
    store, cipher = FakeStore(), cipher_of()
    await bucket_of(store, cipher).create("parts/1", bytes(CHUNK_BYTES + 10))
    sealed = bytearray(store.objects["parts/1"])
    if change == "flip":
        sealed[-1] ^= 1
    elif change == "cut":
        del sealed[-1:]
    elif change == "chunk":
        del sealed[HEAD_BYTES + CHUNK_BYTES + 16 :]
    elif change == "plain":
        sealed = bytearray(b"x" * 100)
    elif change == "other key":
        cipher = cipher_of(bytes(32))
    key = "parts/2" if change == "other name" else "parts/1"
    store.objects[key] = bytes(sealed)
    bucket = bucket_of(store, cipher)
    with pytest.raises(Unusable, match="encrypt"):
        await bucket.get(key)
    with pytest.raises(Unusable, match="encrypt"):
        await bucket.get_range(key, CHUNK_BYTES, 10)


async def test_two_encryptions_of_one_object_are_the_same_object() -> None:
    store = FakeStore(faults={0: "lost"})
    bucket = bucket_of(store, cipher_of())
    with pytest.raises(Away):
        await bucket.create("wal/1", b"secret")
    await bucket.create("wal/1", b"secret")


def test_a_key_file_is_64_hexadecimal_digits(tmp_path: Path) -> None:
    path = tmp_path / "key"
    pytest.importorskip("cryptography")
    path.write_text(KEY.hex() + "\n")
    Cipher.load(path)
    for text in ("", "zz", KEY.hex()[2:]):
        path.write_text(text)
        with pytest.raises(ConfigError, match="encrypt"):
            Cipher.load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        Cipher.load(tmp_path / "none")


def test_a_bucket_is_named_by_a_url(tmp_path: Path) -> None:
    bucket = open_bucket(ShipSettings(url=f"file://{tmp_path}/bucket"))
    assert isinstance(bucket.store, FolderStore)
    for wrong in ("s3:/b", "ftp://b/c", "bucket", "s3://"):
        with pytest.raises(ValueError, match="s3://bucket/prefix"):
            ShipSettings(url=wrong)


def test_credentials_of_a_file_are_not_in_an_error(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    path = tmp_path / "credentials"
    path.write_text("secret_access_key = hunter2")
    with pytest.raises(ConfigError) as error:
        open_bucket(ShipSettings(url="s3://b/p", credentials=path))
    assert "hunter2" not in str(error.value)
    path.write_text('nonsense = "hunter2"')
    with pytest.raises(ConfigError) as error:
        open_bucket(ShipSettings(url="s3://b/p", credentials=path))
    assert "hunter2" not in str(error.value)


async def test_a_store_that_is_away_is_told_and_asked_again(autojump_clock: object) -> None:
    store = FakeStore(faults={0: "refused", 1: "refused"})
    bucket = bucket_of(store)
    await bucket.retried(lambda: bucket.create("x", b"1"))
    assert bucket.counts["create"].errors == 2
    store.away = True
    with pytest.raises(Away):
        await bucket.retried(lambda: bucket.get("x"))


async def test_a_request_without_an_answer_ends(tmp_path: Path) -> None:
    import trio

    async def never(*_: Any, **__: Any) -> Any:
        await trio.sleep_forever()

    bucket = Bucket(FakeStore(), timeout=0.01, in_thread=never)
    with pytest.raises(Away, match="no answer"):
        await bucket.get("x")
