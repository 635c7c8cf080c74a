"""Stores of objects: those of obstore (S3, Google, Azure, memory), and a folder of our own.

obstore's store of a folder cannot replace an object only if unchanged, so `FolderStore` is here: it makes
objects by hard links, which fail where there is one, and replaces them under a lock.
"""

import fcntl
import os
import secrets
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import attrs
from crc32c import crc32c

from brokers.ship.bucket import (
    Away,
    Bucket,
    BucketError,
    Exists,
    Listed,
    Missing,
    ObjectStore,
    Stale,
    Unusable,
)
from brokers.ship.cipher import Cipher
from brokers.ship.settings import ShipSettings
from shared.errors import ConfigError

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Remote

REQUEST_SECONDS = 30
"""One request of obstore's; an object of 64 MiB takes so long at 2 MiB a second."""
CONNECT_SECONDS = 5


def open_bucket(settings: ShipSettings) -> Bucket:
    """The bucket that the settings name. Nothing is asked of it yet. Raises ConfigError."""
    cipher = None if settings.encrypt is None else Cipher.load(settings.encrypt)
    return Bucket(open_store(settings), cipher)


def open_store(settings: ShipSettings) -> ObjectStore:
    """Raises ConfigError."""
    scheme, _, rest = settings.url.partition("://")
    if scheme == "file":
        return FolderStore(Path("/" + rest.lstrip("/")))
    try:
        return _remote(settings, scheme)
    except ImportError as error:
        raise ConfigError("ship.url", f"{scheme}:// needs a package: install brokers[ship]") from error


def _remote(settings: ShipSettings, scheme: str) -> ObjectStore:
    """A provider's store. Raises ConfigError, and ImportError without obstore."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    config: dict[str, Any] = {}
    plain = settings.endpoint.startswith("http://")
    if scheme == "s3" and not plain:
        # TLS proves the bytes. SHA-256 over them took two thirds of a request's processor time.
        config["unsigned_payload"] = True
    if settings.credentials is not None:
        config |= _credentials(settings.credentials)
    if settings.region:
        config["region"] = settings.region
    if settings.endpoint:
        config["endpoint"] = settings.endpoint
    options: dict[str, Any] = {
        "timeout": timedelta(seconds=REQUEST_SECONDS),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "allow_http": plain,
    }
    # The shipper tries again by itself, and counts it.
    retry: dict[str, Any] = {"max_retries": 1, "retry_timeout": timedelta(seconds=REQUEST_SECONDS)}
    try:
        store = from_url(settings.url, config=config, client_options=options, retry_config=retry)  # type: ignore[call-overload, unused-ignore]
    except (BaseError, ValueError) as error:
        raise ConfigError("ship.url", _first_line(error)) from error
    return ObstoreStore(store)


def _credentials(path: Path) -> dict[str, str]:
    """What a file says to the store. Raises ConfigError, which names no value."""
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not TOML"
        raise ConfigError("ship.credentials", f"{path} cannot be read: {reason}") from None
    return {name: str(value) for name, value in found.items()}


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


@attrs.define(eq=False)
class ObstoreStore:
    """A store of obstore's, whose errors become ours."""

    store: "Remote"

    def create(self, key: str, data: bytes | bytearray | memoryview) -> None:
        import obstore

        with _told(key):
            obstore.put(self.store, key, data, mode="create", use_multipart=False)

    def replace(self, key: str, data: bytes | bytearray | memoryview, etag: str) -> str:
        import obstore

        with _told(key):
            made = obstore.put(self.store, key, data, mode={"e_tag": etag}, use_multipart=False)
            return _etag(made)

    def get(self, key: str) -> tuple[bytes, str]:
        import obstore

        with _told(key):
            found = obstore.get(self.store, key)
            return bytes(found.bytes()), found.meta["e_tag"] or ""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        import obstore

        with _told(key):
            return bytes(obstore.get(self.store, key, options={"range": (start, start + length)}).bytes())

    def listed(self, prefix: str) -> list[Listed]:
        import obstore

        with _told(prefix):
            found = [
                Listed(each["path"], each["size"])
                for part in obstore.list(self.store, prefix)
                for each in part
            ]
        return sorted(found)

    def delete(self, keys: Sequence[str]) -> None:
        import obstore

        with _told(keys[0]), suppress(FileNotFoundError):
            obstore.delete(self.store, list(keys))


def _etag(made: Any) -> str:
    return made["e_tag"] or ""


@contextmanager
def _told(key: str) -> Iterator[None]:
    """Turn obstore's errors into ours."""
    from obstore import exceptions

    try:
        yield
    except exceptions.AlreadyExistsError:
        raise Exists(key) from None
    except exceptions.PreconditionError:
        raise Stale(key) from None
    except FileNotFoundError:
        raise Missing(key) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise Unusable(_first_line(error)) from None
    except (exceptions.NotSupportedError, exceptions.InvalidPathError) as error:
        raise Unusable(_first_line(error)) from None
    except (exceptions.BaseError, OSError) as error:
        raise Away(_first_line(error)) from None


@attrs.define(eq=False)
class FolderStore:
    """Objects are files below a folder, whole or not there: each is written under another name first."""

    folder: Path

    def create(self, key: str, data: bytes | bytearray | memoryview) -> None:
        with self._written(key, data) as path:
            try:
                os.link(path, self.folder / key)
            except FileExistsError:
                raise Exists(key) from None
            _sync((self.folder / key).parent)

    def replace(self, key: str, data: bytes | bytearray | memoryview, etag: str) -> str:
        with self._written(key, data) as path, self._locked():
            if self.get(key)[1] != etag:
                raise Stale(key)
            os.rename(path, self.folder / key)
            _sync((self.folder / key).parent)
        return _tag(data)

    def get(self, key: str) -> tuple[bytes, str]:
        with _folder_told(key):
            data = (self.folder / key).read_bytes()
        return data, _tag(data)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with _folder_told(key), open(self.folder / key, "rb") as file:
            return os.pread(file.fileno(), length, start)

    def listed(self, prefix: str) -> list[Listed]:
        found = []
        with _folder_told(prefix):
            for path in (self.folder / prefix.rpartition("/")[0]).rglob("*"):
                key = path.relative_to(self.folder).as_posix()
                with suppress(FileNotFoundError):  # deleted meanwhile
                    if key.startswith(prefix) and not path.name.startswith(".") and path.is_file():
                        found.append(Listed(key, path.stat().st_size))
        return sorted(found)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            with _folder_told(key), suppress(FileNotFoundError):
                os.unlink(self.folder / key)

    @contextmanager
    def _written(self, key: str, data: bytes | bytearray | memoryview) -> Iterator[Path]:
        """A synced file beside the object's place, removed at the end."""
        place = self.folder / key
        path = place.parent / f".{place.name}.{secrets.token_hex(8)}"
        with _folder_told(key):
            try:
                with _new(path) as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                yield path
            finally:
                path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.folder / ".lock", "ab") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            yield


def _new(path: Path) -> BinaryIO:
    """A new file, in a folder that is made where it is not there."""
    with suppress(FileNotFoundError):
        return open(path, "xb")
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(path, "xb")


def _tag(data: bytes | bytearray | memoryview) -> str:
    return f"{crc32c(data):08x}-{len(data)}"


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _folder_told(key: str) -> Iterator[None]:
    try:
        yield
    except BucketError:
        raise
    except FileNotFoundError:
        raise Missing(key) from None
    except PermissionError as error:
        raise Unusable(f"{key}: {error.strerror}") from None
    except OSError as error:
        raise Away(f"{key}: {error.strerror}") from None
