"""A small LogMQ that can be told to break a promise: the trials must find it out, else they prove nothing.

`python -m tests.trials.logmq_stand_in --fault NAME serve ...` takes the place of `brokers serve` in a trial.
It has one journal, writes every change to it before it answers, and makes its log files anew from it at every
start.

Faults: `late` answers before it writes; and at a restart `forget-batches` does not know which batches it
wrote, `forget-deletes` brings back what was deleted.
"""

import json
import os
import socket
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import crc32c

from tests.trials.impostor import pose

FAULTS = ("late", "forget-batches", "forget-deletes")


def command(fault: str = "") -> Sequence[str]:
    """What goes before `serve` to start it, as another process."""
    return (sys.executable, "-m", "tests.trials.logmq_stand_in", *(("--fault", fault) if fault else ()))


class StandIn:
    """All topics in memory, and the journal that they come from."""

    def __init__(self, folder: Path, fault: str) -> None:
        self._fault = fault
        self._folder = folder
        (folder / "logmq").mkdir(parents=True, exist_ok=True)
        (folder / "LOCK").write_text(f"{os.getpid()}\n")
        self._journal = os.open(folder / "journal", os.O_RDWR | os.O_CREAT)
        self._lock = threading.Lock()
        self._late: list[bytes] = []
        self.logs: dict[str, bytearray] = {}
        self._commits: dict[tuple[str, str], int] = {}
        self._batches: dict[tuple[str, str, int], int] = {}
        self._recover()
        if fault == "late":
            threading.Thread(target=self._write_late, daemon=True).start()

    def change(self, what: dict[str, Any], records: bytes = b"") -> int:
        """Make it durable, then so. Returns the offset of what was written."""
        with self._lock:
            batch = what.get("batch")
            if batch is not None:
                written = self._batches.get((what["topic"], *batch))
                if written is not None:
                    return written
            head = json.dumps(what).encode() + b"\n"
            body = head + records
            data = len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body
            if self._fault == "late":
                self._late.append(data)
            else:
                os.write(self._journal, data)
            offset = self._apply(what, records)
            self._to_file(what["topic"], offset)
            return offset

    def committed(self, group: str, topic: str) -> int | None:
        return self._commits.get((topic, group))

    def _apply(self, what: dict[str, Any], records: bytes) -> int:
        topic = what["topic"]
        match what["do"]:
            case "write":
                log = self.logs.setdefault(topic, bytearray())
                offset = len(log)
                log += records
                if "batch" in what:
                    self._batches[topic, *what["batch"]] = offset
                return offset
            case "delete":
                self.logs.pop(topic, None)
                self._commits = {key: at for key, at in self._commits.items() if key[0] != topic}
                self._batches = {key: at for key, at in self._batches.items() if key[0] != topic}
            case "commit":
                self._commits[topic, what["group"]] = what["offset"]
        return 0

    def _to_file(self, topic: str, start: int) -> None:
        path = self._folder / "logmq" / f"{topic}.log"
        log = self.logs.get(topic)
        if log is None:
            path.unlink(missing_ok=True)
            return
        with open(path, "r+b" if path.exists() else "w+b") as file:
            file.seek(start)
            file.write(log[start:])
            file.truncate()

    def _write_late(self) -> None:
        while True:
            time.sleep(0.03)
            with self._lock:
                late, self._late = self._late, []
            os.write(self._journal, b"".join(late))

    def _recover(self) -> None:
        data = os.pread(self._journal, os.fstat(self._journal).st_size, 0)
        at = 0
        while at + 8 <= len(data):
            length = int.from_bytes(data[at : at + 4], "big")
            body = data[at + 8 : at + 8 + length]
            if len(body) != length or zlib.crc32(body) != int.from_bytes(data[at + 4 : at + 8], "big"):
                break
            at += 8 + length
            head, _, records = body.partition(b"\n")
            what = json.loads(head)
            if self._fault == "forget-deletes" and what["do"] == "delete":
                continue
            self._apply(what, records)
        os.ftruncate(self._journal, at)
        os.lseek(self._journal, at, os.SEEK_SET)
        if self._fault == "forget-batches":
            self._batches.clear()
        for old in (self._folder / "logmq").iterdir():
            old.unlink()
        for topic, log in self.logs.items():
            self._to_file(topic, 0)
            (self._folder / "logmq" / f"{topic}.idx").write_bytes(_index(bytes(log)))


def _index(log: bytes) -> bytes:
    header = b"BRKIDX01".ljust(60, b"\0")
    return header + crc32c.crc32c(header).to_bytes(4, "big") + (_entry(log) if log else b"")


def _entry(log: bytes) -> bytes:
    entry = bytes(24) + len(log).to_bytes(4, "big") + _count(log).to_bytes(4, "big")
    entry += crc32c.crc32c(log).to_bytes(4, "big") + bytes(24)
    return entry + crc32c.crc32c(entry).to_bytes(4, "big")


def _count(log: bytes) -> int:
    at = count = 0
    while at < len(log):
        at += 4 + int.from_bytes(log[at : at + 4], "big")
        count += 1
    return count


def _serve(state: StandIn, connection: socket.socket) -> None:
    with connection, connection.makefile("rwb") as stream:
        while (line := stream.readline()).endswith(b"\n"):
            word, _, rest = line[:-1].partition(b" ")
            stream.write(_answer(state, word, rest, stream))
            stream.flush()


def _answer(state: StandIn, word: bytes, rest: bytes, stream: Any) -> bytes:
    fields = rest.decode("latin-1").split(" ")
    topic = fields[1] if word in (b"COMMIT", b"COMMITTED") else fields[0]
    log = state.logs.get(topic)
    match word:
        case b"PRODUCE":
            payload = rest.partition(b" ")[2]
            records = len(payload).to_bytes(4, "big") + payload
            return b"OK %d\n" % state.change({"do": "write", "topic": topic}, records)
        case b"APPEND":
            payload = stream.read(int(fields[1]))
            records = len(payload).to_bytes(4, "big") + payload
            return b"OK %d\n" % state.change({"do": "write", "topic": topic}, records)
        case b"BATCH":
            records = stream.read(int(fields[3]))
            batch = (fields[1], int(fields[2]))
            return b"OK %d\n" % state.change({"do": "write", "topic": topic, "batch": batch}, records)
        case b"DELETE":
            state.change({"do": "delete", "topic": topic})
            return b"OK\n"
        case b"COMMIT":
            offset = int(fields[2])
            state.change({"do": "commit", "topic": topic, "group": fields[0], "offset": offset})
            return b"OK %d\n" % offset
        case b"COMMITTED":
            committed = state.committed(fields[0], topic)
            return b"ERR NO_COMMIT none\n" if committed is None else b"OK %d\n" % committed
        case b"TOPICS":
            return (
                b"".join(b"TOPIC %s 0 %d\n" % (n.encode(), len(one)) for n, one in state.logs.items())
                + b"END\n"
            )
        case b"OFFSETS":
            return b"OFFSETS 0 %d\n" % len(log or b"")
        case b"MARKS":
            assert log is not None
            mark = b"MARK 0 %d %d %d 0\n" % (len(log), _count(bytes(log)), crc32c.crc32c(bytes(log)))
            return (mark if log else b"") + b"END\n"
        case b"CONSUME":
            assert log is not None
            at = int(fields[1])
            size = int.from_bytes(log[at : at + 4], "big")
            return b"MESSAGE %d %d %s\n" % (at, size, log[at + 4 : at + 4 + size])
        case b"FETCH":
            at = int(fields[1])
            if log is None or at >= len(log):
                return b"EOF\n"
            return b"CHUNK %d %d %d\n%s" % (at, len(log) - at, len(log), log[at:])
        case _:
            return b"ERR UNKNOWN_COMMAND\n"


if __name__ == "__main__":
    pose("logmq", FAULTS, StandIn, _serve)
