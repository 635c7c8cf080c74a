"""One DMS connection: frames to changes of queues, in order, as many as one read brings.

Theory of operation. `receive` goes through all whole frames of what one read brought. Neighbours are taken
together: PRODUCEs to one queue become one append, ACKs one change, CONSUMEs one wait; where a stretch is
alike to the byte it is not even taken apart one by one (`dms.runs`). What is said meanwhile is gathered, and
written once at the end. Answers that wait for the disk take their place in `Replies`, which keeps the order
of the requests; deliveries, and the answers to CONSUMEs that have waited, are pushes and take none.

Input is held back while too many answers wait, the peer does not take them, the disk is behind, or others
are to have their turn. What was read but not applied stays in `_data`.
"""

import math
from typing import TYPE_CHECKING

from dms import requests, runs, straight
from dms.consuming import Consuming
from dms.pacing import STOP_OTHERS
from dms.producing import Producing
from dms.runs import WORDS, word
from dms.states import TRANSITIONS, Event, State
from dms.wire import (
    HEADER_BYTES,
    ID_AT,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    VERSION,
    Broken,
    Refusal,
    Status,
    Type,
    malformed,
    pack,
    unpack_header,
)
from shared.errors import LocalProtocolError
from shared.net.connection import Connection

if TYPE_CHECKING:
    from dms.broker import Broker

FRAMES_PER_ROUND = 1024
"""Looked at one by one before others have their turn: some hundred microseconds."""

_TOO_LARGE = Refusal(Status.PAYLOAD_TOO_LARGE, f"a payload is at most {PAYLOAD_BYTES_MAX} bytes")

_SAID_NOTHING = malformed("no handshake came in time; closing").frame(0)

REQUESTS_PER_ROUND = 64
"""The same for those that make work by themselves: listing, creating."""

_ACK = word(Type.ACK)
_CONSUME = word(Type.CONSUME)
_PRODUCE = word(Type.PRODUCE)
_VERSION = VERSION << 16
_VERSION_BITS = 0x00FF0000
_TYPE_BITS = 0xFF000000


class Session(Consuming):
    """The server's side of one connection."""

    __slots__ = ("_data", "_due", "_eof", "_producing", "_skip", "_skip_id", "state")

    def __init__(self, connection: Connection, broker: "Broker") -> None:
        super().__init__(connection, broker)
        self.state = State.NEW
        self._producing = Producing(self)
        self._data = b""
        self._eof = False
        self._skip = self._skip_id = 0
        self._due = math.inf
        broker.log.debug("client connected", peer=connection.peer)
        connection.await_first(_SAID_NOTHING)

    # -- the driver's calls

    def receive(self, data: bytes) -> None:
        if self.state is State.OPEN and not self._data and not self._stops:
            done = straight.taken(self, data)
            if done == len(data):
                if self.is_crowded():
                    self.connection.pause_reading()
                return
            if done:
                data = data[done:]
        if self.state is State.CLOSING:
            return  # too late: only what was owed before still goes out
        if self._data:
            data = self._data + data
            self._data = b""
        if self._stops:
            self._data = data
            return
        self._apply(data)

    def receive_eof(self) -> None:
        self._eof = True
        if not self._stops and self.state not in (State.CLOSING, State.LEAVING):
            self._step(Event.INPUT_ENDS)
            self._data, self._due = b"", math.inf  # what is not whole is not executed
            self._waits_over()

    def on_deadline(self, now: float) -> None:
        self._wake = math.inf
        if self._stops & STOP_OTHERS:
            self.go(STOP_OTHERS)
        self.expire_waits(now)
        if self._due <= now:
            self.broker.counts.too_late += 1
            self._close_with(malformed("a frame took too long to come; closing"), Event.TOO_LATE)
        if self.waits or self._due < math.inf:
            self.wake_by(min(self._due, self.waits[0].deadline if self.waits else math.inf))

    def connection_lost(self) -> None:
        self.lost = True
        self.broker.log.debug("client gone", peer=self.connection.peer, held=len(self.held))
        self.replies.drop()
        self.broker.sessions.pop(self, None)
        self.forget_waits()
        self.give_back()

    def drain(self) -> None:
        """The server stops: what was received is answered, waits end as if timed out, and that is all."""
        if self._data and self._stops and self.state is not State.CLOSING:
            data, self._data, self._stops = self._data, b"", 0
            self._apply(data)
        self.expire_waits(math.inf)
        if self.state is not State.CLOSING:
            goodbye = self.state is State.OPEN or self.state is State.SKIPPING
            self._step(Event.DRAIN)
            self._due = math.inf
            if goodbye:
                self.say(pack(Type.DISCONNECT, 0))
            self.replies.when_empty(self.connection.finish)

    # -- what requests and queues use

    def end(self, event: Event) -> None:
        """Nothing more is taken from the peer; what it is owed is sent, then the connection ends."""
        self._step(event)
        self._data, self._due = b"", math.inf
        self.broker.sessions.pop(self, None)
        self.forget_waits()
        self.give_back()
        self.flush()
        self.replies.when_empty(self.connection.finish)

    @property
    def open_already(self) -> bool:
        return self.state is not State.NEW

    def open(self) -> bool:
        """The handshake is there: who has not made it takes nobody's place. False: there are too many."""
        self.connection.spoke()
        if len(self.broker.sessions) >= self.broker.settings.clients_max:
            return False
        self.broker.sessions[self] = None
        self._step(Event.HANDSHAKE)
        return True

    # -- input

    def _apply(self, data: bytes) -> None:
        """Apply everything whole in `data`, as far as nothing stops it."""
        self._out = []
        at, skip = 0, self._skip
        try:
            at = self._frames(data)
        except Broken as broken:
            self._close_with(broken, Event.BROKEN, broken.message_id)
        finally:
            self.flush()
        if self.state is State.CLOSING:
            return
        if self._stops:
            self._due = math.inf  # it is not the peer that is late
            self._data = data[at:]
            self.connection.pause_reading()
        elif at < len(data) or self._skip:
            self._data = data[at:]
            self.connection.await_rest()
            if self._due == math.inf or (at and not (skip and skip - self._skip == len(data))):
                self._due = self.connection.now + self.broker.settings.frame_seconds
                self.wake_by(self._due)
        else:
            self._due = math.inf

    def _frames(self, data: bytes) -> int:
        """Go through the frames; returns the position behind the last that was applied."""
        at, end = 0, len(data)
        acks: list[bytes] = []
        wants: list[bytes] = []
        name, size = self.queue_name, len(self.queue_name)
        whole = self.state is State.OPEN
        looked = self._producing.looked = 0  # how far there is no run
        slow = 0
        for _ in range(FRAMES_PER_ROUND):
            if end - at < HEADER_BYTES and (not self._skip or at == end):
                break
            if whole:
                magic, length, what, message_id = WORDS.unpack_from(data, at)
                stop = at + HEADER_BYTES + length
                if magic == MAGIC and length <= PAYLOAD_BYTES_MAX and stop <= end:
                    if what == _ACK and not length:
                        turn = 2 * HEADER_BYTES + size
                        if at >= looked and not acks and runs.begins(data, at, turn):
                            run = runs.by_turns(data, at, name)
                            if run is not None and self.may_want(len(wants) + len(run[0])):
                                if wants:  # those came before
                                    self.consume(wants)
                                    wants = []
                                if self.ack_held(run[0]):
                                    self.consume(run[1])
                                    at += len(run[0]) * turn
                                    continue
                            looked = at + runs.RUN_MOST * turn
                        ack = data[at + ID_AT : at + HEADER_BYTES]
                        if wants and self.broker.comes_soon(message_id, len(wants)):  # those may bring it
                            self._both(acks, wants)
                            acks, wants = [], []
                        acks.append(ack)
                        at = stop
                        continue
                    if (
                        what == _CONSUME
                        and length == size
                        and data.startswith(name, at + HEADER_BYTES)
                        and self.may_want(len(wants) + 1)
                    ):
                        wants.append(data[at + ID_AT : at + HEADER_BYTES])
                        at = stop
                        continue
                    if what & _VERSION_BITS == _VERSION:
                        if acks or wants:
                            self._both(acks, wants)
                            acks, wants = [], []
                        if what & _TYPE_BITS == _PRODUCE & _TYPE_BITS:
                            at = self._producing.frames(data, at, length)
                        else:
                            self._request(what >> 24, message_id, data[at + HEADER_BYTES : stop])
                            at = stop
                            name, size = self.queue_name, len(self.queue_name)
                            if self.state is State.CLOSING:
                                break  # what is behind a DISCONNECT comes too late
                            whole = self.state is State.OPEN
                            slow += 1
                        if self.is_crowded():
                            break
                        if slow >= REQUESTS_PER_ROUND:
                            self._let_others()
                            break
                        continue
            if acks or wants:
                self._both(acks, wants)
                acks, wants = [], []
            after = self._odd(data, at)
            if after < 0 or self.state is State.CLOSING:
                break
            at = after
            whole = self.state is State.OPEN
        else:
            self._let_others()
        if acks or wants:
            self._both(acks, wants)
            self.is_crowded()
        return at

    def _request(self, type_: int, message_id: int, payload: bytes) -> None:
        """One whole frame that is in order here."""
        try:
            requests.answer(self, type_, message_id, payload)
        except Refusal as refusal:
            self.refuse(message_id, refusal)

    def _odd(self, data: bytes, at: int) -> int:
        """A frame out of the ordinary; returns the position behind it, -1 if it is not all there yet."""
        if self._skip:
            skipped = min(self._skip, len(data) - at)
            self._skip -= skipped
            if self._skip:
                return len(data)
            self.refuse(self._skip_id, _TOO_LARGE)
            self._step(Event.SKIPPED)
            return at + skipped
        header = unpack_header(data, at)
        if header is None:
            return -1
        length, type_, version, _, message_id = header
        if length > PAYLOAD_BYTES_MAX:
            self._skip, self._skip_id = length, message_id
            self._step(Event.TOO_LARGE)
            return at + HEADER_BYTES
        if version != VERSION:
            refusal = Refusal(Status.VERSION_MISMATCH, f"this server speaks version {VERSION}, not {version}")
            nack = type_ == Type.HANDSHAKE
            self._close_with(refusal, Event.BROKEN, message_id, Type.HANDSHAKE_NACK if nack else Type.ERROR)
            return at
        if self.state is State.NEW and type_ != Type.HANDSHAKE:
            self._close_with(malformed("the handshake comes first"), Event.TOO_EARLY, message_id)
            return at
        stop = at + HEADER_BYTES + length
        if stop > len(data):
            return -1
        self._request(type_, message_id, data[at + HEADER_BYTES : stop])
        return stop

    # -- how it goes on, and ends

    def _close_with(
        self, refusal: Refusal, event: Event, message_id: int = 0, type_: Type = Type.ERROR
    ) -> None:
        """The last answer, behind which nothing can be understood any more."""
        self.broker.refusals.tell_last(self.connection, refusal)
        self.say(refusal.frame(message_id, type_))
        self.end(event)

    def _continue(self) -> None:
        if self._out is not None:
            return
        data, self._data = self._data, b""
        if self.state is not State.CLOSING:
            self._apply(data)
        if not self._stops:
            self.connection.resume_reading()
            if self._eof:
                self.receive_eof()

    def _waits_over(self) -> None:
        if self.state is State.LEAVING and not self.waits:
            self._step(Event.NOTHING_WAITS)
            self.replies.when_empty(self.connection.finish)

    def _step(self, event: Event) -> None:
        try:
            self.state = TRANSITIONS[self.state][event]
        except KeyError:
            raise LocalProtocolError(f"{event.name} while {self.state.name}") from None
