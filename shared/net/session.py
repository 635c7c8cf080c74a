"""The base of every protocol's session (ARCHITECTURE.md, "A connection: SessionBase").

A subclass parses and applies input in `apply`. Input that was read and not applied is kept, and charged to
the process's backlogs. It is applied when the last reason to hold input back is cleared, but never from
inside `apply`. No I/O and no clock: the driver calls, and time is `connection.now`.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from shared.access import ANONYMOUS, Guard
from shared.errors import RemoteProtocolError, StoreError
from shared.net.connection import HELD_BYTES_MIN, Connection
from shared.net.identity import Identity
from shared.net.stops import STOP_WORDS, Stop
from shared.replies import Replies
from shared.turns import Turn

if TYPE_CHECKING:
    from shared.storage.store import Store


COPIED_BYTES_MAX = 16 * 1024
"""At most this much of the read behind an incomplete request is copied when the two are joined."""
_IDLE, _APPLYING, _RELEASED = range(3)


class SessionBase:
    """The server side of one connection (`shared.net.connection.Session`), without its protocol.

    A subclass reads: `turn`, which begins with a call of `apply`; `stopped`, why input is held back (0: it is
    not); `kept`, input that is not applied yet;
    `hung_up`, the peer has sent its last byte; `ended`, no more input is taken; `lost`, the connection is
    gone; `user`, who has logged in ("": nobody yet); `guard`, the access rules to ask (None: everything is
    allowed).
    It sets: `input_seconds`, the time that a request has from its first byte to its last, without
    that in which input is held back; `amid`, a request
    has begun of which nothing is in `kept`; `gathered_bytes`, what the subclass holds of that request.
    """

    __slots__ = (
        "_at",
        "_deadlines",
        "_delimiter",
        "_eof",
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
        "hung_up",
        "identity",
        "input_seconds",
        "kept",
        "lost",
        "replies",
        "stopped",
        "turn",
        "user",
    )

    stop_words: ClassVar[Mapping[int, str]] = STOP_WORDS
    """Why input is held back, in words; a protocol adds those of its own reasons."""

    def __init__(self, connection: Connection, input_seconds: float = math.inf) -> None:
        self.connection = connection
        self.replies = Replies(self)
        self.input_seconds = input_seconds
        self.stopped = 0
        self.turn = Turn()
        self.kept: bytes | bytearray = b""
        self.amid = False
        self.ended = False
        self.hung_up = False
        self.lost = False
        self.gathered_bytes = 0
        self._at = 0  # how far `kept` has been applied
        self._needed_is_whole = False  # `_needed` is the exact length of the request that has begun
        self._needed = 0  # `apply` is called again once so many bytes are kept,
        self._delimiter = b""  # or once this has come
        self._phase = _IDLE
        self._eof = False
        self._released = False
        self._input_due = math.inf  # when the request that has begun must be whole
        self._wake = math.inf  # the deadline that the driver has been asked for
        self._deadlines: dict[int, float] | None = None  # made when first needed: most connections are idle
        self.user = ANONYMOUS
        self.guard: Guard | None = None
        self.identity = Identity(self)

    # What a subclass supplies.

    def apply(self, data: bytes, at: int) -> int:
        """Apply all complete requests in `data` from `at` on, until `stopped`; returns where that ended."""
        raise NotImplementedError

    def take_first(self, request: bytes) -> bool:
        """Apply one complete request of the length given to `need(whole=True)`; `apply` gets what follows.

        False: a rare kind that `take_first` does not handle; `apply` gets it joined with what follows.
        """
        raise NotImplementedError

    def drain(self) -> None:
        """The server stops: end waits, and say so where the protocol has words. Then the input ends."""

    def hang_up(self) -> None:
        """The peer has sent everything, and input may be left to apply: give it no new delivery.

        What it holds stays, for that input may acknowledge it. `input_ended` follows when all is applied.
        """
        self.hung_up = True

    def input_ended(self) -> None:
        """The peer has sent everything, and all of it is applied; an incomplete last request is dropped."""
        raise NotImplementedError

    def too_late(self) -> None:
        """The request that has begun was not complete within `input_seconds`."""
        raise NotImplementedError

    def due(self, what: int, now: float) -> None:
        """The deadline `what` has passed; it is not set any more."""
        raise NotImplementedError

    def release(self) -> None:
        """Release all that is held for this connection. Called once: by `end`, or when it is lost."""
        raise NotImplementedError

    def on_wire_error(self, error: RemoteProtocolError) -> None:
        """The peer broke the protocol: count it. Then the session ends, and the driver sends the reply."""

    def store_failed(self, error: StoreError, reply: bytes, count: int) -> bytes:
        """The reply in place of `reply`, which answered `count` requests that the disk did not take."""
        raise NotImplementedError

    # The driver's calls.

    def receive(self, data: bytes) -> None:
        """Take input. A subclass may override it with a fast path for when `kept` and `stopped` are empty."""
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
        if self.identity.crowded:
            self.close_for(f"{self.user} has his share of net.connections_max")
            return
        if self.stopped & Stop.OTHERS:
            self.resume_input(Stop.OTHERS)
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
        """Answer, in request order."""
        self.replies.reply(data)

    # Input.

    def need(self, length: int, delimiter: bytes = b"", *, whole: bool = False) -> None:
        """Call `apply` again only once `length` unapplied bytes are there, or `delimiter` has come.

        For `apply` to call before it returns. `whole`: `length` is exactly that of the request that has
        begun, which may then be given to `take_first`.
        """
        self._needed, self._delimiter, self._needed_is_whole = length, delimiter, whole

    def begin_input(self, seconds: float) -> None:
        """The next request has `seconds`, from its first byte on."""
        self.input_seconds = seconds
        self._input_due = math.inf

    def apply_kept(self) -> None:
        """Apply what was read, whatever holds it back: the server is stopping."""
        self.stopped = 0
        self._go_on()

    # Its pace.

    def pause_input(self, reason: int) -> None:
        """Hold input back until `resume_input` is called with the same reason."""
        if not (self.stopped or self._phase):
            self._pause()
        self.stopped |= reason

    def resume_input(self, reason: int) -> None:
        """Clear a reason to hold input back; when it was the last, apply what was kept."""
        if self.stopped & reason:
            self.stopped &= ~reason
            if not self.stopped and not self.lost:
                if self._phase:
                    self._phase = _RELEASED  # `_run` looks at it when `apply` returns
                else:
                    self._go_on()

    def resume_next_turn(self, reason: int) -> None:
        """As `resume_input`, but in the next turn: for calls from deep within a queue or the store."""
        if self.stopped & reason and not self.lost:
            self.yield_turn()
            self.stopped &= ~reason

    def yield_turn(self) -> None:
        """Serve other connections first; the rest of the input follows in the next turn."""
        if not self.stopped & Stop.OTHERS:
            self.pause_input(Stop.OTHERS)
            self.wake_by(self.connection.now)

    def stop_if_crowded(self) -> bool:
        """Stop if the peer does not read its answers. Returns whether anything holds input back."""
        outbox = self.connection.outbox
        if outbox.size > outbox.bound:
            self.connection.on_drained = self.drained  # set late: a bound method per connection costs memory
            self.pause_input(Stop.OUTBOX)
        return self.stopped != 0

    def stop_if_congested(self, store: "Store") -> None:
        """Stop if the disk does not keep up."""
        if store.congested and not self.stopped & Stop.STORE:
            self.pause_input(Stop.STORE)
            # Thousands may wait for the store: not all of them in one turn.
            store.when_uncongested(self.connection.guarded(partial(self.resume_next_turn, Stop.STORE)))

    def drained(self) -> None:
        """The outbox has drained. A subclass that has more to send then overrides this."""
        self.resume_input(Stop.OUTBOX)

    def replies_full(self, full: bool) -> None:
        """Too many answers are pending (`Replies`), or no longer."""
        if full:
            self.pause_input(Stop.REPLIES)
        else:
            self.resume_input(Stop.REPLIES)

    # Access.

    def access_changed(self) -> None:
        """The rules or the user have changed. A subclass also ends what is no longer allowed."""
        self.identity.look_again()

    def close_for(self, reason: str) -> None:
        """Close: the user no longer exists."""
        self.connection.abort(reason)

    def kick(self, reason: str) -> None:
        """Close: an administrator asks for it. A subclass says so first, if its protocol can."""
        self.close_for(reason)

    @property
    def waits_for(self) -> list[str]:
        """Why input is held back, in words."""
        return [word for bit, word in self.stop_words.items() if self.stopped & bit]

    @property
    def traffic(self) -> Mapping[str, Any]:
        """What only the protocol knows: `messages_in`, `messages_out`, `held`, `client`, its name, and a
        `state` in place of the connection's own.
        """
        return {}

    # Deadlines.

    def deadline(self, what: int, at: float) -> None:
        """Have `due(what)` called at `at`. Replaces an earlier deadline of that kind; inf cancels it."""
        deadlines = self._deadlines
        if at < math.inf:
            if deadlines is None:
                deadlines = self._deadlines = {}
            deadlines[what] = at
            self.wake_by(at)
        elif deadlines:
            deadlines.pop(what, None)  # the driver's wake-up stays set and finds nothing to do

    def wake_by(self, at: float) -> None:
        """Have `on_deadline` called at `at`, or earlier if that is set already."""
        if at < self._wake:
            self._wake = at
            self.connection.wake_at(at)

    # The end.

    def end(self) -> None:
        """Take no more input, and release everything. Pending answers may still be sent."""
        self.ended = True
        self.forget_input()
        self._deadlines = None
        self.let_go()

    def let_go(self) -> None:
        """Release everything now; input may still be taken."""
        if not self._released:
            self._released = True
            self.identity.leave()
            self.release()

    def finish_when_answered(self) -> None:
        """Half-close: pending answers are sent, then the connection closes."""
        self.replies.when_empty(self.connection.finish)

    # Within.

    def _run(self, data: bytes, at: int) -> None:
        """Apply what can be applied, and keep the rest."""
        start = at
        self._needed = self._at = 0
        self._needed_is_whole = False
        self._delimiter = b""
        self.turn.begin()
        self._phase = _APPLYING
        try:
            while True:
                at = self.apply(data, at)
                if self._phase == _APPLYING or self.stopped:
                    break
                self._phase = _APPLYING  # `apply` stopped for a reason that was cleared before it returned
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
            if self._input_due == math.inf or (left and at > start):  # the incomplete request is a new one
                self._await_rest_in_time()
        else:
            self._input_due = math.inf
        if left + self.gathered_bytes > HELD_BYTES_MIN or self.connection.held_bytes:
            self.count_held()

    def _joined(self, data: bytes) -> bytes | None:
        """What was kept plus `data`; None if it stays kept for now."""
        kept = self.kept
        if not self.stopped and (
            len(kept) + len(data) >= self._needed or (self._delimiter and self._delimiter in data)
        ):
            self.kept = b""
            return b"".join((kept, data))
        if type(kept) is not bytearray:  # grow in place: `kept` may be large, and this runs at every read
            self.kept = kept = bytearray(memoryview(kept)[self._at :])
            self._at = 0
        kept += data
        if not self.stopped:
            self.connection.await_rest()
        self.count_held()
        return None

    def _go_on(self) -> None:
        """Apply the input that was kept, now that nothing holds it back; then read on."""
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
        """Charge unapplied input and pending answers to the process's backlogs."""
        self.connection.hold(len(self.kept) - self._at + self.gathered_bytes + self.replies.pending_bytes)

    def forget_input(self) -> None:
        """Drop the input that was read and not applied."""
        self.kept, self._at, self.amid = b"", 0, False
        self._input_due = math.inf
        self.connection.hold(self.replies.pending_bytes)

    def _broken(self, error: RemoteProtocolError) -> None:
        if not self.ended:
            self.on_wire_error(error)
            self.end()
