"""A small DMS that can be told to break a promise: the trials must find it out, else they prove nothing.

`python -m tests.trials.dms_stand_in --fault NAME serve ...` takes the place of `brokers serve` in a trial. It
has one journal, and writes every change to it before it answers.

Faults: `late` answers before it writes; at a restart `forget-acks` has everything again, `forget-deletes` has
deleted queues again, `swap` has two messages in the wrong order, `skip` has lost some; `greedy` delivers to
two connections what only one should get. At a restart `die-lost` has the dead in no queue; `hasty` takes no
notice of delays.
"""

import json
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import attrs

from tests.support import dms_spec as spec
from tests.support.dms_model import Fate
from tests.trials.impostor import pose

FAULTS = ("late", "forget-acks", "forget-deletes", "swap", "skip", "greedy", "die-lost", "hasty")
CONSUME_SECONDS = 0.25


def command(fault: str = "") -> Sequence[str]:
    """What goes before `serve` to start it, as another process."""
    return (sys.executable, "-m", "tests.trials.dms_stand_in", *(("--fault", fault) if fault else ()))


@attrs.define
class Course:
    """A message's: when it came, when it may go out, both in the server's age; how often it did of late."""

    came: float
    due: float
    deliveries: int = 0


class StandIn:
    """All queues in memory, and the journal that they come from. One lock for everything."""

    def __init__(self, folder: Path, fault: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "LOCK").write_text(f"{os.getpid()}\n")
        self.lock = threading.RLock()
        self.fault = fault
        self.queues: dict[str, dict[int, bytes]] = {}
        """Messages by number; those that are held too."""
        self.fates: dict[str, Fate] = {}
        self.courses: dict[tuple[str, int], Course] = {}
        self.held: dict[int, tuple[str, int, object]] = {}
        self.waiting: deque[tuple[float, str, int, Connection]] = deque()
        self._next = 0
        self._late: list[bytes] = []
        self._born = time.monotonic()
        self._journal = os.open(folder / "journal", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._recover()
        threading.Thread(target=self._tick, daemon=True).start()

    def change(self, what: str, queue: str, number: int = 0, body: bytes = b"") -> None:
        """Make it durable, then so."""
        age = self.age()
        head = json.dumps([what, queue, number, len(body), age]).encode() + b"\n"
        if self.fault == "late":
            self._late.append(head + body)
        else:
            os.write(self._journal, head + body)
        self._apply(what, queue, number, body, age)

    def age(self) -> float:
        """Seconds that it has served, in all its lives."""
        return time.monotonic() - self._born

    def give_back(self, queue: str, number: int, *, nacked: bool = False) -> None:
        """It goes to the dead, or waits for another try, or neither."""
        course, fate = self.courses[queue, number], self.fates[queue]
        if fate.max_deliveries and course.deliveries >= fate.max_deliveries:
            self.change("die", queue, number, fate.dead_letter.encode())
        elif nacked and fate.retry_ms:
            course.due = self.age() + fate.retry_seconds(course.deliveries)

    def bury(self) -> None:
        """What is past its lifetime, and held by nobody, dies."""
        held = {(queue, number) for queue, number, _ in self.held.values()}
        for (queue, number), course in list(self.courses.items()):
            fate = self.fates[queue]
            if fate.ttl_ms and (queue, number) not in held and self.age() >= course.came + fate.ttl_ms / 1000:
                self.change("die", queue, number, fate.dead_letter.encode())

    def number(self) -> int:
        self._next += 1
        return self._next

    def serve(self) -> None:
        """Give waiting CONSUMEs what is there."""
        self.bury()
        held = {(queue, number) for queue, number, _ in self.held.values()}
        age = self.age()
        left: deque[tuple[float, str, int, Connection]] = deque()
        now = time.monotonic()
        for until, queue, message_id, connection in self.waiting:
            messages = self.queues.get(queue)
            ready = [
                number
                for number in messages or ()
                if (queue, number) not in held and self.courses[queue, number].due <= age
            ]
            if messages is None:
                connection.send(spec.frame(spec.ERROR, message_id, b"deleted", status=2))
            elif ready:
                delivery = 0x80000000 | self.number()
                self.held[delivery] = (queue, min(ready), connection)
                self.courses[queue, min(ready)].deliveries += 1
                if self.fault != "greedy" or self._next % 50:
                    held.add((queue, min(ready)))
                connection.send(spec.frame(spec.DELIVER, delivery, messages[min(ready)]))
            elif until < now:
                connection.send(spec.frame(spec.ERROR, message_id, b"nothing came", status=4))
            else:
                left.append((until, queue, message_id, connection))
        self.waiting = left

    def _apply(self, what: str, queue: str, number: int, body: bytes, age: float) -> None:
        if what == "create":
            self.queues[queue] = {}
            self.fates[queue] = Fate(**json.loads(body or b"{}"))
        elif what == "delete":
            for each in self.queues.pop(queue, {}):
                del self.courses[queue, each]
        elif what == "produce":
            delay = 0.0 if self.fault == "hasty" else self.fates[queue].delay_ms / 1000
            self.queues[queue][number] = body
            self.courses[queue, number] = Course(age, age + delay)
        elif what == "ack":
            self.queues[queue].pop(number, None)
            self.courses.pop((queue, number), None)
        elif what == "die" and number in self.queues[queue]:
            self.queues[body.decode()][number] = self.queues[queue].pop(number)
            self.courses[body.decode(), number] = self.courses.pop((queue, number))

    def _recover(self) -> None:
        data = os.pread(self._journal, os.fstat(self._journal).st_size, 0)
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            what, queue, number, size, age = json.loads(data[at:end])
            body = data[end + 1 : end + 1 + size]
            if len(body) < size:
                break
            at = end + 1 + size
            self._next = max(self._next, number)
            self._born = min(self._born, time.monotonic() - age)
            forgotten = {"forget-acks": "ack", "forget-deletes": "delete"}.get(self.fault) == what
            if forgotten or (self.fault == "skip" and what == "produce" and number % 100 == 0):
                continue
            if what == "create" and queue in self.queues:
                continue
            moves = what == "die" and number in self.queues[queue]
            self._apply(what, queue, number, body, age)
            if moves and self.fault == "die-lost":
                self._apply("ack", body.decode(), number, b"", age)
        os.ftruncate(self._journal, at)
        if self.fault == "swap":
            for messages in self.queues.values():
                for one, other in zip(list(messages)[:1], list(messages)[1:2], strict=False):
                    messages[one], messages[other] = messages[other], messages[one]

    def _tick(self) -> None:
        while True:
            time.sleep(0.03)
            with self.lock:
                late, self._late = self._late, []
                os.write(self._journal, b"".join(late))
                self.serve()


class Connection:
    def __init__(self, state: StandIn, sock: socket.socket) -> None:
        self._state = state
        self._socket = sock

    def run(self) -> None:
        state, data = self._state, bytearray()
        with self._socket:
            try:
                while received := self._socket.recv(1 << 16):
                    data += received
                    with state.lock:
                        for type_, _, message_id, payload in spec.parse(data):
                            self._answer(type_, message_id, payload)
                        state.serve()
            except OSError:
                pass
            with state.lock:
                ours = [each for each in state.held.values() if each[2] is self]
                state.held = {key: each for key, each in state.held.items() if each[2] is not self}
                for queue, number, _ in ours:
                    state.give_back(queue, number)
                state.waiting = deque(each for each in state.waiting if each[3] is not self)
                state.serve()

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            pass

    def _answer(self, type_: int, message_id: int, payload: bytes) -> None:
        state = self._state
        end = 2 + int.from_bytes(payload[:2], "big")
        queue = payload[2:end].decode() if type_ not in (spec.HANDSHAKE, spec.ACK, spec.NACK) else ""
        status, answer = 0, b""
        if type_ == spec.CONSUME:
            state.waiting.append((time.monotonic() + CONSUME_SECONDS, queue, message_id, self))
            return
        if type_ == spec.LIST:
            entries = [
                spec.name(each) + len(messages).to_bytes(4, "big") for each, messages in state.queues.items()
            ]
            answer = len(entries).to_bytes(2, "big") + b"".join(entries)
        elif type_ == spec.CREATE:
            state.change("create", queue, 0, payload[end:])
        elif type_ == spec.DELETE:
            state.change("delete", queue)
        elif type_ == spec.PRODUCE:
            state.change("produce", queue, state.number(), payload[end:])
        elif type_ in (spec.ACK, spec.NACK):
            held, number, _ = state.held.pop(message_id)
            if type_ == spec.ACK:
                state.change("ack", held, number)
            else:
                state.give_back(held, number, nacked=True)
        elif type_ == spec.DISCONNECT:
            self.send(spec.frame(type_ + 1, message_id))
            self._socket.shutdown(socket.SHUT_RDWR)
            return
        self.send(spec.frame(spec.ERROR if status else type_ + 1, message_id, answer, status=status))


if __name__ == "__main__":
    pose("dms", FAULTS, StandIn, lambda state, connection: Connection(state, connection).run())
