"""A DMS client over one blocking socket, written from the specification alone.

It shares no code with the broker, and stands for the clients of strangers, in C or anything else. It knows
nothing that is marked **ext** but how its frames are made and read.
"""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, Self

HEADER = struct.Struct(">IIBBHI")
MAGIC = 0xDEADBEEF
HANDSHAKE, HANDSHAKE_ACK, HANDSHAKE_NACK = 0x01, 0x02, 0x04
CREATE, DELETE, LIST = 0x11, 0x13, 0x15
PRODUCE, CONSUME, DELIVER = 0x21, 0x31, 0x34
PRODUCE_WITH, CONSUME_WITH, DELIVER_WITH = 0x23, 0x33, 0x36
CANCEL, RESCHEDULE, GET_JOB = 0x47, 0x49, 0x4B
WITH_BYTES_MAX = 16384
"""Of a payload with an object, of a server beyond the specification."""
ACK, NACK, TOUCH, DISCONNECT, ERROR = 0x41, 0x43, 0x45, 0x51, 0xFE
FULL, NOT_FOUND, EXISTS, TIMEOUT, PROTOCOL, BAD_MAGIC, VERSION, TOO_LARGE, TYPE, INTERNAL = range(1, 11)
"""Of an ERROR."""
SECONDS = 60.0

Reply = tuple[int, int, int, bytes]
"""Type, status, message id, payload."""


def frame(type_: int, message_id: int, payload: bytes = b"", *, version: int = 1, status: int = 0) -> bytes:
    return HEADER.pack(MAGIC, len(payload), type_, version, status, message_id) + payload


def answer_to(type_: int) -> int:
    """The type of a request's good answer."""
    return PRODUCE + 1 if type_ == PRODUCE_WITH else type_ + 1


def name(queue: str, rest: bytes = b"") -> bytes:
    """A payload that begins with a queue's name."""
    encoded = queue.encode()
    return len(encoded).to_bytes(2, "big") + encoded + rest


def split(payload: bytes) -> tuple[str, bytes]:
    """The name that a payload begins with, and the rest."""
    end = 2 + int.from_bytes(payload[:2], "big")
    return payload[2:end].decode(), payload[end:]


def with_object(queue: str, said: Mapping[str, Any], body: bytes = b"") -> bytes:
    """A payload with an object behind the queue's name."""
    text = json.dumps(said).encode()
    return name(queue, len(text).to_bytes(2, "big") + text + body)


def split_object(payload: bytes) -> tuple[dict[str, Any], bytes]:
    """The object that a payload begins with, and the rest."""
    text, rest = split(payload)
    return json.loads(text), rest


def parse(data: bytearray, bytes_max: int = 4096) -> list[Reply]:
    """Take whole frames off the front of `data`. Raises ValueError for what is not DMS, or longer."""
    replies = []
    at = 0
    while len(data) - at >= HEADER.size:
        magic, length, type_, version, status, message_id = HEADER.unpack_from(data, at)
        if magic != MAGIC or version != 1 or length > bytes_max:
            raise ValueError(f"not a frame: {bytes(data[at : at + 16]).hex()}")
        end = at + HEADER.size + length
        if end > len(data):
            break
        replies.append((type_, status, message_id, bytes(data[at + HEADER.size : end])))
        at = end
    del data[:at]
    return replies


def listed(payload: bytes) -> tuple[int, list[tuple[str, int]]]:
    """LIST_QUEUES_OK: the total, and names with depths."""
    queues, at = [], 2
    while at < len(payload):
        end = at + 2 + int.from_bytes(payload[at : at + 2], "big")
        queues.append((payload[at + 2 : end].decode(), int.from_bytes(payload[end : end + 4], "big")))
        at = end + 4
    return int.from_bytes(payload[:2], "big"), queues


class SpecClient:
    """A connection. `greet`: with its handshake made."""

    def __init__(
        self, address: tuple[str, int], *, greet: bool = True, seconds: float = SECONDS, bytes_max: int = 4096
    ) -> None:
        """`bytes_max`: of a payload that may come."""
        self._bytes_max = bytes_max
        self.socket = socket.create_connection(address, timeout=seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = bytearray()
        self._replies: list[Reply] = []
        self._next_id = 0
        if greet:
            reply = self.ask(HANDSHAKE, b"spec client")
            if reply[0] != HANDSHAKE_ACK:
                raise ValueError(f"no handshake: {reply}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self) -> Reply:
        """The next frame. Raises Ended where the server closes first, TimeoutError."""
        while not self._replies:
            received = self.socket.recv(1 << 18)
            if not received:
                raise Ended(f"closed behind {bytes(self._data)!r}")
            self._data += received
            self._replies = parse(self._data, self._bytes_max)
        return self._replies.pop(0)

    def rest(self) -> list[Reply]:
        """Everything until the server closes."""
        replies = []
        while True:
            try:
                replies.append(self.reply())
            except ConnectionError:
                return replies

    def ask(self, type_: int, payload: bytes = b"", message_id: int | None = None) -> Reply:
        """Send one request and return the next frame that comes."""
        self.send(frame(type_, self.new_id() if message_id is None else message_id, payload))
        return self.reply()

    # The spec's requests, each with the one answer that is a success; another raises Refused.

    def create(self, queue: str, options: bytes = b"") -> None:
        """`options`: what a server beyond the specification may take behind the name."""
        self._expect(CREATE, name(queue) + options)

    def delete(self, queue: str) -> None:
        self._expect(DELETE, name(queue))

    def produce(self, queue: str, body: bytes) -> None:
        self._expect(PRODUCE, name(queue) + body)

    def consume(self, queue: str) -> tuple[int, bytes]:
        """Wait for one message: its delivery id, and the body."""
        type_, status, message_id, payload = self.ask(CONSUME, name(queue))
        if type_ != DELIVER:
            raise Refused(status, payload)
        return message_id, payload

    def ack(self, delivery: int) -> None:
        self._expect(ACK, b"", delivery)

    def nack(self, delivery: int) -> None:
        self._expect(NACK, b"", delivery)

    def queues(self) -> dict[str, int]:
        return dict(listed(self._expect(LIST, b""))[1])

    def disconnect(self) -> None:
        self._expect(DISCONNECT, b"")

    def _expect(self, type_: int, payload: bytes, message_id: int | None = None) -> bytes:
        sent = self.new_id() if message_id is None else message_id
        found, status, echoed, answer = self.ask(type_, payload, sent)
        if found == ERROR:
            raise Refused(status, answer)
        if found != type_ + 1 or echoed != sent or status:
            raise ValueError(f"{found:#x}, status {status}, id {echoed} to {type_:#x} of id {sent}")
        return answer


class Refused(ValueError):
    """ERROR: the status, and what it says."""

    def __init__(self, status: int, text: bytes) -> None:
        super().__init__(f"status {status}: {text.decode(errors='backslashreplace')}")
        self.status = status


class Ended(ConnectionError):
    """The server closed the connection."""
