"""Encryption of objects, so that the bucket's owner reads nothing. Source: SHIP.md, Encryption.

AES-256-GCM over chunks, so that a part of an object can be read alone. Each object has a key of its own,
derived from the key file's by a random salt; a chunk's nonce is its number. The object's name and its head
are authenticated with each chunk, so that no object passes for another, nor for a shorter one.
"""

import secrets
import struct
from pathlib import Path

import attrs

from shared.errors import ConfigError

MAGIC = b"BRSHENC1"
CHUNK_BYTES = 256 << 10
"""A request for a part reads up to two of these more than it needs."""
_HEAD = struct.Struct(">8sII16sQ")
HEAD_BYTES = _HEAD.size
TAG_BYTES = 16
KEY_BYTES = 32


class Undecipherable(Exception):
    """Another key encrypted the bytes, or they were changed, or cut short."""


@attrs.frozen
class Sealed:
    """The head of an encrypted object, and its length in the clear."""

    head: bytes
    chunk_bytes: int
    salt: bytes
    length: int

    @classmethod
    def of(cls, data: bytes | memoryview) -> "Sealed":
        """Raises Undecipherable where the bytes are not of an encrypted object."""
        head = bytes(data[:HEAD_BYTES])
        if len(head) < HEAD_BYTES or head[:8] != MAGIC:
            raise Undecipherable("it is not encrypted")
        _, version, chunk_bytes, salt, length = _HEAD.unpack(head)
        if version != 1 or not chunk_bytes:
            raise Undecipherable("a newer version encrypted it")
        return cls(head, chunk_bytes, salt, length)

    @property
    def step(self) -> int:
        """Bytes of an encrypted chunk."""
        return self.chunk_bytes + TAG_BYTES

    def span(self, start: int, length: int) -> tuple[int, int, int]:
        """The chunks that have a part: the first one's number; where they begin, and their length."""
        first, last = start // self.chunk_bytes, max(start + length - 1, start) // self.chunk_bytes
        return first, HEAD_BYTES + first * self.step, (last + 1 - first) * self.step


class Cipher:
    """Encrypts whole objects; decrypts them, and parts of them."""

    def __init__(self, key: bytes) -> None:
        # Not at the top: only who encrypts needs the package.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        def aead(salt: bytes) -> AESGCM:
            return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, b"brokers ship 1").derive(key))

        self._aead = aead

    @classmethod
    def load(cls, path: Path) -> "Cipher":
        """The key of a file: 64 hexadecimal digits. Raises ConfigError."""
        try:
            key = bytes.fromhex(path.read_text().strip())
        except (OSError, ValueError) as error:
            raise ConfigError("ship.encrypt", f"{path} cannot be read as a key: {error}") from error
        if len(key) != KEY_BYTES:
            text = f"{path} has {len(key)} bytes; a key has {KEY_BYTES}, written as 64 hexadecimal digits"
            raise ConfigError("ship.encrypt", text)
        try:
            return cls(key)
        except ImportError as error:
            raise ConfigError("ship.encrypt", "needs a package: install brokers[ship]") from error

    def encrypt(self, name: str, data: bytes | bytearray | memoryview) -> bytearray:
        """An object's bytes as they go to the bucket under its name."""
        salt = secrets.token_bytes(16)
        head = _HEAD.pack(MAGIC, 1, CHUNK_BYTES, salt, len(data))
        aead, view, bound = self._aead(salt), memoryview(data), head + name.encode()
        made = bytearray(head)
        for number, start in enumerate(range(0, max(len(data), 1), CHUNK_BYTES)):
            made += aead.encrypt(number.to_bytes(12, "big"), view[start : start + CHUNK_BYTES], bound)
        return made

    def decrypt(self, name: str, data: bytes | memoryview) -> bytes:
        """A whole object's bytes. Raises Undecipherable."""
        sealed = Sealed.of(data)
        return self.decrypt_part(name, sealed, memoryview(data)[HEAD_BYTES:], 0, sealed.length)

    def decrypt_part(self, name: str, sealed: Sealed, data: memoryview, start: int, length: int) -> bytes:
        """A part of an object. `data`: the chunks that `Sealed.span` tells. Raises Undecipherable."""
        from cryptography.exceptions import InvalidTag

        length = min(length, sealed.length - start)
        aead, bound = self._aead(sealed.salt), sealed.head + name.encode()
        first = start // sealed.chunk_bytes
        try:
            clear = b"".join(
                aead.decrypt((first + number).to_bytes(12, "big"), data[at : at + sealed.step], bound)
                for number, at in enumerate(range(0, len(data), sealed.step))
            )
        except (InvalidTag, ValueError) as error:
            raise Undecipherable("another key, or other bytes") from error
        at = start - first * sealed.chunk_bytes
        part = clear[at : at + length]
        if len(part) < length:
            raise Undecipherable("it is cut short")
        return part
