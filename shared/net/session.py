"""What every protocol's session is built on: the pace of its input, the order of its answers, its deadlines.

A subclass says in `apply` how input is parsed and what it does. The rest is here, once for all protocols:

*Partial input.* What is left of a read, the beginning of a request, is kept and joined with what follows; it
counts with the process's backlogs. `need` says how much must come before another look is worth it, so that a
large request is gathered in place and not joined anew with every read. Where that is the request's whole
length, only its rest may be joined with it (`take_first`): most of a large read is not copied.

*Time.* What has begun must be whole within `input_seconds`. That time does not run while we hold input back:
then it is not the peer that is late.

*Pauses.* While one of the reasons in `stopped` holds, nothing is read. What was read and not applied is kept,
and applied when the last reason goes: never from inside `apply`.

*Fairness.* After a stretch of work `let_others` leaves the rest of the input to the next turn of the loop.

*The end.* The end of input is told when everything before it has been applied. What the session holds is
given back exactly once, when it ends or when its connection is lost.

No I/O and no clock: the driver calls, and time is `connection.now`.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shared.access import ANONYMOUS, READ, Guard
from shared.errors import RemoteProtocolError, StoreError
from shared.net.connection import HELD_BYTES_MIN, Connection
from shared.replies import Replies

if TYPE_CHECKING:
    from shared.storage.store import Store, Ticket


class Stop:
    """Why input is held back: bits, for several may hold at once. A protocol's own begin at `FIRST_OWN`.

    Plain numbers: an operation on an `IntFlag` takes twenty times as long, and these are on every path.
    """

    OWED = 1
    """Too many answers wait."""
    OUTBOX = 2
    """The peer does not take its answers."""
    STORE = 4
    """The disk is behind."""
    OTHERS = 8
    """Other connections have their turn."""
    LOGIN = 16
    """A password is being checked."""
    FIRST_OWN = 1 << 8


STOP_WORDS = {
    Stop.OWED: "answers that wait",
    Stop.OUTBOX: "its peer to read",
    Stop.STORE: "the disk",
    Stop.OTHERS: "its turn",
    Stop.LOGIN: "its login",
}

COPIED_BYTES_MAX = 16 * 1024
"""So much behind a request that had begun is copied to it."""
LOGIN_SECONDS = 10.0
"""For the first whole request where a login is required: strangers hold no connection for longer."""
_IDLE, _APPLYING, _RELEASED = range(3)


class SessionBase:
    """One connection's server side (`shared.net.connection.Session`), without its protocol.

    For a subclass to read: `stopped`, why input is held back (0: it is not); `kept`, input that is not
    applied yet; `ended`, nothing more is taken from the peer; `lost`, the connection is gone.
    `user`: whose connection it is, "" while he has to log in first; `guard`: what to ask whether he may do
    something, None where everything is allowed.
    For it to set: `input_seconds`, the time that a request has from its first byte to its last; `amid`, a
    request has begun of which nothing is kept here; `gathered_bytes`, what the subclass itself holds of it.
    """

    __slots__ = (
        "_at",
        "_deadlines",
        "_delimiter",
        "_eof",
        "_gate",
        "_input_due",
        "_needed",
        "_needed_is_whole",
        "_phase",
        "_released",
        "_wake",
        "amid",
        "connection",
        "ended",
        "gathered_bytes",
        "guard",
        "input_seconds",
        "kept",
        "lost",
        "replies",
        "stopped",
        "user",
    )

    def __init__(self, connection: Connection, input_seconds: float = math.inf) -> None:
        self.connection = connection
        self.replies = Replies(self)
        self.input_seconds = input_seconds
        self.stopped = 0
        self.kept: bytes | bytearray = b""
        self.amid = False
        self.ended = False
        self.lost = False
        self.gathered_bytes = 0
        self._at = 0  # how far `kept` has been applied
        self._needed_is_whole = False  # that is the length of what has begun
        self._needed = 0  # so much must be kept before it is looked at again,
        self._delimiter = b""  # or this must have come
        self._phase = _IDLE
        self._eof = False
        self._released = False
        self._input_due = math.inf  # when the request that has begun must be whole
        self._wake = math.inf  # what the driver was asked for
        self._deadlines: dict[int, float] | None = None  # made when first needed: most connections are idle
        self.user = ANONYMOUS
        self.guard: Guard | None = None
        self._gate: Guard | None = None  # the protocol's, whether anything is to be asked or not

    # What a subclass supplies.

    def apply(self, data: bytes, at: int) -> int:
        """Apply all that is whole in `data` from `at` on, until `stopped`; returns where that ended."""
        raise NotImplementedError

    def take_first(self, request: bytes) -> bool:
        """One whole request, whose length was said by `need`: `apply` comes next, with what follows it.

        False: it is not what nearly all are, and `apply` gets both in one piece. For those who say `whole`.
        """
        raise NotImplementedError

    def input_ended(self) -> None:
        """The peer has sent all, and everything whole is applied. A request that did not end was nothing."""
        raise NotImplementedError

    def too_late(self) -> None:
        """The request that has begun was not whole within `input_seconds`."""
        raise NotImplementedError

    def due(self, what: int, now: float) -> None:
        """A `deadline` has come, and is none any more."""
        raise NotImplementedError

    def release(self) -> None:
        """Give back everything that depends on this connection. Called once: by `end`, or when it is lost."""
        raise NotImplementedError

    def on_wire_error(self, error: RemoteProtocolError) -> None:
        """The peer has broken the protocol: count it. Then the session ends, and the driver sends the reply
        that the error carries.
        """

    def store_failed(self, error: StoreError, reply: bytes, count: int) -> bytes:
        """What is said in place of `reply`, the answers to `count` requests: the disk has not taken them."""
        raise NotImplementedError

    # The driver's calls.

    def receive(self, data: bytes) -> None:
        """For a fast path to override: it takes what it can where nothing is `kept` and nothing `stopped`,
        and leaves the rest to this.
        """
        if self.ended:
            return
        at = 0
        if self.kept or self.stopped:
            if self._needed_is_whole and not self.stopped:
                at = self._needed - len(self.kept)
            if 0 < at <= len(data) - COPIED_BYTES_MAX and self.take_first(
                b"".join((self.kept, memoryview(data)[:at]))
            ):
                self.kept = b""
            else:
                joined = self._joined(data)
                if joined is None:
                    return
                data, at = joined, 0
        self._run(data, at)

    def receive_eof(self) -> None:
        self._eof = True
        if not (self.stopped or self.ended):
            self.forget_input()
            self.input_ended()

    def on_deadline(self, now: float) -> None:
        self._wake = math.inf
        if self.stopped & Stop.OTHERS:
            self.go(Stop.OTHERS)
        if self._input_due <= now:
            self._input_due = math.inf
            try:
                self.too_late()
            except RemoteProtocolError as error:
                self._broken(error)
                raise
        if self._deadlines:
            for what, at in tuple(self._deadlines.items()):
                if at <= now and self._deadlines.get(what) == at:
                    del self._deadlines[what]
                    self.due(what, now)
        self.wake_by(self._input_due)
        if self._deadlines:
            self.wake_by(min(self._deadlines.values()))

    def connection_lost(self) -> None:
        self.lost = True
        self.replies.drop()
        self.end()

    # What a subclass uses: answers.

    def reply(self, data: bytes) -> None:
        """An answer, in its turn."""
        self.replies.reply(data)

    def reply_after(self, ticket: "Ticket", data: bytes, count: int = 1) -> None:
        """The answers to `count` requests, in their turn, once `ticket` is done."""
        self.replies.reply_after(ticket, data, count)

    def push(self, data: bytes) -> None:
        """Something that has no turn."""
        self.connection.write(data)

    # Input.

    def need(self, length: int, delimiter: bytes = b"", *, whole: bool = False) -> None:
        """What is left where `apply` ends is worth another look once so many bytes are there, or `delimiter`
        has come. Said in `apply`, for its end. `whole`: the request that has begun is so long, and may be
        given to `take_first`.
        """
        self._needed, self._delimiter, self._needed_is_whole = length, delimiter, whole

    def begin_input(self, seconds: float) -> None:
        """What comes next is something new: it has so many seconds from now on, or from its first byte."""
        self.input_seconds = seconds
        self._input_due = math.inf

    def apply_kept(self) -> None:
        """Apply what was read, whatever holds it back: the server stops."""
        self.stopped = 0
        self._go_on()

    # Its pace.

    def stop(self, reason: int) -> None:
        """Hold input back until `go` is called with the same reason."""
        if not (self.stopped or self._phase):
            self._pause()
        self.stopped |= reason

    def go(self, reason: int) -> None:
        """The reason to hold input back has gone; with the last one what was kept is applied."""
        if self.stopped & reason:
            self.stopped &= ~reason
            if not self.stopped and not self.lost:
                if self._phase:
                    self._phase = _RELEASED  # `_run` looks at it when `apply` returns
                else:
                    self._go_on()

    def go_soon(self, reason: int) -> None:
        """As `go`, for a call from deep within a queue or the store: input goes on in the next turn."""
        if self.stopped & reason and not self.lost:
            self.let_others()
            self.stopped &= ~reason

    def let_others(self) -> None:
        """Other connections have their turn; then input goes on."""
        if not self.stopped & Stop.OTHERS:
            self.stop(Stop.OTHERS)
            self.wake_by(self.connection.now)

    def stop_if_crowded(self) -> bool:
        """Stop where the peer does not take its answers. Returns whether anything holds input back."""
        outbox = self.connection.outbox
        if outbox.size > outbox.bound:
            self.connection.on_drained = self.drained  # not before: a bound method for each is memory
            self.stop(Stop.OUTBOX)
        return self.stopped != 0

    def stop_if_congested(self, store: "Store") -> None:
        """Stop where the disk is behind."""
        if store.congested and not self.stopped & Stop.STORE:
            self.stop(Stop.STORE)
            store.when_uncongested(self.connection.guarded(self._uncongested))

    def drained(self) -> None:
        """The peer has taken its answers. A subclass that has more to say then hangs itself in here."""
        self.go(Stop.OUTBOX)

    def replies_full(self, full: bool) -> None:
        """Too many answers wait, or not any more (`Replies`)."""
        if full:
            self.stop(Stop.OWED)
        else:
            self.go(Stop.OWED)

    # Who it is, and what he may do.

    def admit(self, gate: Guard | None, user: str = "") -> None:
        """Say who watches over this protocol's clients. The connection is `user`'s; where that is "", it is
        that of the user whose certificate was shown.
        """
        if gate is not None:
            self._gate = gate
            gate.clients.add(self)
            if user:
                self.user = user
            elif self.connection.certificate_user:
                self.user = gate.user_of_certificate(self.connection.certificate_user) or ANONYMOUS
            self._set_guard(gate)

    def await_first(self, farewell: bytes = b"") -> None:
        """`Connection.await_first`, with less time for who has to log in."""
        gate = self._gate
        has_to_log_in = gate is not None and gate.asks_login
        self.connection.await_first(farewell, LOGIN_SECONDS if has_to_log_in else math.inf)

    def audit(self, action: str, name: str | bytes) -> None:
        """Leave a line in the audit log: the user has done that."""
        if self._gate is not None:
            self._gate.done(self.user, self.connection.peer, action, name)

    def log_in(self, user: str, password: bytes, done: Callable[[bool], None]) -> None:
        """Tell `done` whether they fit: then the connection is that user's. Meanwhile input is held back."""

        def checked(fits: bool) -> None:
            if self.lost or self.ended:
                return
            if fits:
                self.user = user
                self.access_changed()
            done(fits)
            self.go_soon(Stop.LOGIN)  # in a turn of the driver, whose end commits what was written

        gate = self._gate
        if gate is None:
            done(False)
        else:
            self.stop(Stop.LOGIN)
            gate.log_in(user, password, self.connection.peer, checked, self.connection.in_its_turn)

    def may(self, action: str, name: str | bytes) -> bool:
        """Whether the user may do that; a refusal is counted and told."""
        guard = self.guard
        if guard is None or guard.may(self.user, action, name):
            return True
        guard.refuse(self.user, action, name, self.connection.peer)
        return False

    def may_see(self, name: str | bytes) -> bool:
        """Whether the user may do anything at all with it; a refusal is counted and told, as one to read."""
        guard = self.guard
        if guard is None or guard.may_see(self.user, name):
            return True
        guard.refuse(self.user, READ, name, self.connection.peer)
        return False

    def access_changed(self) -> None:
        """Rules are others now, or the user is. For a subclass to end what is no longer allowed."""
        if self._gate is not None:
            self._set_guard(self._gate)

    def close_for(self, reason: str) -> None:
        """Its user is gone."""
        self.connection.abort(reason)

    def kick(self, reason: str) -> None:
        """An administrator closes it. A subclass says so, where its protocol has words and it takes them."""
        self.close_for(reason)

    def _set_guard(self, gate: Guard) -> None:
        if self.user in ("", ANONYMOUS):
            self.user = "" if gate.asks_login else ANONYMOUS
        self.connection.set_stranger(not self.user)
        self.guard = None if self.user == ANONYMOUS and gate.opens else gate

    @property
    def waits_for(self) -> list[str]:
        """Why its input is held back, in words."""
        return [word for bit, word in STOP_WORDS.items() if self.stopped & bit]

    @property
    def traffic(self) -> Mapping[str, Any]:
        """Columns of a connection that only its protocol knows: `messages_in`, `messages_out`, `held`."""
        return {}

    # Deadlines.

    def deadline(self, what: int, at: float) -> None:
        """Have `due(what)` called at that time; replaces the one before, inf: not any more."""
        deadlines = self._deadlines
        if at < math.inf:
            if deadlines is None:
                deadlines = self._deadlines = {}
            deadlines[what] = at
            self.wake_by(at)
        elif deadlines:
            deadlines.pop(what, None)  # the wake-up that was set finds nothing to do

    def wake_by(self, at: float) -> None:
        """Have `on_deadline` called then, if it would not be before."""
        if at < self._wake:
            self._wake = at
            self.connection.wake_at(at)

    # The end.

    def end(self) -> None:
        """Nothing more is taken from the peer, and all is given back. What it is owed may still be sent."""
        self.ended = True
        self.forget_input()
        self._deadlines = None
        self.let_go()

    def let_go(self) -> None:
        """Have everything given back now, where the peer is still listened to."""
        if not self._released:
            self._released = True
            if self._gate is not None:
                self._gate.clients.discard(self)
            self.release()

    def finish_when_answered(self) -> None:
        """Half-close: what is owed is sent, then the connection closes."""
        self.replies.when_empty(self.connection.finish)

    # Within.

    def _run(self, data: bytes, at: int) -> None:
        """Apply what can be, and keep the rest."""
        start = at
        self._needed = self._at = 0
        self._needed_is_whole = False
        self._delimiter = b""
        self._phase = _APPLYING
        try:
            while True:
                at = self.apply(data, at)
                if self._phase == _APPLYING or self.stopped:
                    break
                self._phase = _APPLYING  # it stopped for something that went before it returned
        except RemoteProtocolError as error:
            self._broken(error)
            raise
        finally:
            self._phase = _IDLE
        if self.ended:
            return
        left = len(data) - at
        if self.stopped:
            if left:
                self.kept, self._at = data, at
            self._pause()
        elif left or self.amid:
            if left:
                self.kept = data[at:]
            self.connection.await_rest()
            if self._input_due == math.inf or (left and at > start):  # it is new: something else ended before
                self._await_rest_in_time()
        else:
            self._input_due = math.inf
        if left + self.gathered_bytes > HELD_BYTES_MIN or self.connection.held_bytes:
            self.count_held()

    def _joined(self, data: bytes) -> bytes | None:
        """What was kept, with `data` behind it; None where that is not to be looked at now."""
        kept = self.kept
        if not self.stopped and (
            len(kept) + len(data) >= self._needed or (self._delimiter and self._delimiter in data)
        ):
            self.kept = b""
            return b"".join((kept, data))
        if type(kept) is not bytearray:  # it may be large: no copy of all of it with every read
            self.kept = kept = bytearray(memoryview(kept)[self._at :])
            self._at = 0
        kept += data
        if not self.stopped:
            self.connection.await_rest()
        self.count_held()
        return None

    def _go_on(self) -> None:
        """Nothing holds input back any more."""
        if self.kept:
            data, self.kept = bytes(self.kept), b""
            self._run(data, self._at)
        elif self.amid:
            self._await_rest_in_time()
        if not self.stopped:
            self.connection.resume_reading()
            if self._eof:
                self.receive_eof()

    def _await_rest_in_time(self) -> None:
        self._input_due = self.connection.now + self.input_seconds
        self.wake_by(self._input_due)

    def _pause(self) -> None:
        self._input_due = math.inf
        self.connection.pause_reading()

    def count_held(self) -> None:
        """What is kept, and answers that wait, count with what waits to be sent."""
        self.connection.hold(len(self.kept) - self._at + self.gathered_bytes + self.replies.owed_bytes)

    def forget_input(self) -> None:
        """What was read and not applied is not applied any more."""
        self.kept, self._at, self.amid = b"", 0, False
        self._input_due = math.inf
        self.connection.hold(self.replies.owed_bytes)

    def _broken(self, error: RemoteProtocolError) -> None:
        if not self.ended:
            self.on_wire_error(error)
            self.end()

    def _uncongested(self) -> None:
        self.go_soon(Stop.STORE)  # very many wait for the same: what they kept is not for one stretch
