"""What every protocol's session gets from its base: input however it is cut, pauses, deadlines, ends."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.access import Access
from shared.errors import RemoteProtocolError, StoreError
from shared.net.session import SessionBase
from shared.net.stops import Stop
from tests.support.connections import HandTicket, MemoryConnection

SECONDS = 30.0
OWN = Stop.FIRST_OWN


class Lines(SessionBase):
    """Lines, and bodies: `#5` announces five bytes. Each whole one is noted in `done`; some do more.

    `stop`: input stops. `turn`: others have theirs. `both`: input stops, and goes on before `apply` returns.
    `skip 5`: five bytes are thrown away as they come. `bad`: the protocol is broken.
    """

    def __init__(self, connection: MemoryConnection) -> None:
        super().__init__(connection, SECONDS)
        self.done: list[bytes] = []
        self.told: list[object] = []
        self.looks = 0
        self.skip = 0

    def apply(self, data: bytes, at: int) -> int:
        self.looks += 1
        while at < len(data) and not (self.stopped or self.ended):
            if self.skip:
                skipped = min(self.skip, len(data) - at)
                at += skipped
                self.skip -= skipped
                self.amid = self.skip > 0
                continue
            end = data.find(b"\n", at) + 1
            if not end:
                self.need(100, b"\n")
                break
            line = data[at : end - 1]
            if line.startswith(b"#"):
                end += int(line[1:])
                if end > len(data):
                    self.need(end - at)
                    break
                line = data[at:end]
            at = end
            self.done.append(line)
            if line == b"stop":
                self.pause_input(OWN)
            elif line == b"both":
                self.pause_input(OWN)
                self.resume_input(OWN)
                self.pause_input(OWN)
                self.resume_input(OWN)
                return at
            elif line == b"turn":
                self.yield_turn()
            elif line.startswith(b"skip "):
                self.skip = int(line[5:])
                self.amid = True
            elif line == b"bad":
                raise RemoteProtocolError("bad", b"no!")
            elif line == b"quit":
                self.end()
        return at

    def input_ended(self) -> None:
        self.told.append("input ended")
        self.end()
        self.finish_when_answered()

    def too_late(self) -> None:
        self.told.append("too late")
        raise RemoteProtocolError("too late")

    def due(self, what: int, now: float) -> None:
        self.told.append((what, now))

    def release(self) -> None:
        self.told.append("released")

    def on_wire_error(self, error: RemoteProtocolError) -> None:
        self.told.append(error.text)

    def store_failed(self, error: StoreError, reply: bytes, count: int) -> bytes:
        return b"failed" * count


class Clocked(MemoryConnection):
    """It has the deadlines served as a driver does."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.session = Lines(self)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.deadline <= end:
            self.now = max(self.now, self.deadline)
            self.deadline = math.inf
            self.session.on_deadline(self.now)
        self.now = end


def opened(**settings: Any) -> tuple[Lines, Clocked]:
    connection = Clocked(**settings)
    return connection.session, connection


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places) if a < b]


WORDS = st.sampled_from([b"a", b"", b"stop", b"both", b"turn", b"skip 7\n1234567", b"#5\n12\n45", b"#0\n"])


@given(st.lists(WORDS, max_size=20), st.lists(st.integers(0, 1000), max_size=12), st.booleans())
def test_however_input_is_cut_and_stopped_the_same_is_applied(
    words: list[bytes], cuts: list[int], goes_on_late: bool
) -> None:
    data = b"".join(word if word.startswith(b"#") else word + b"\n" for word in words)
    plain, connection = opened()
    for line in data.splitlines(keepends=True):
        plain.receive(line)
        plain.resume_input(OWN)
        connection.advance(0)
    cut, connection = opened()
    for piece in pieces(data, cuts):
        cut.receive(piece)
        if not goes_on_late:
            cut.resume_input(OWN)
            connection.advance(0)
    while cut.stopped:
        assert not connection.reading
        cut.resume_input(OWN)
        connection.advance(0)
    assert cut.done == plain.done
    assert connection.reading
    assert not cut.kept
    assert not cut.amid
    cut.receive_eof()
    assert cut.told == ["input ended", "released"]


def test_what_is_not_whole_is_looked_at_once_what_it_needs_is_there() -> None:
    session, connection = opened()
    session.receive(b"#1000\n" + bytes(10))
    assert (session.looks, connection.rests_awaited) == (1, 1)
    for _ in range(98):
        session.receive(bytes(10))
    assert (session.looks, connection.rests_awaited) == (1, 99)
    session.receive(bytes(9))
    assert session.looks == 1
    session.receive(b"\0ab")
    assert session.looks == 2
    session.receive(b"cd")
    assert (session.looks, len(session.done)) == (2, 1)
    session.receive(b"e\n")
    assert session.done[1:] == [b"abcde"]


def test_what_is_kept_counts_with_the_backlogs_while_it_is_kept() -> None:
    session, connection = opened()
    session.receive(b"#20000\n" + bytes(9_993))
    assert connection.held_bytes == 10_000
    session.receive(bytes(5_000))
    assert connection.held_bytes == 15_000
    session.receive(bytes(5_007))
    assert connection.held_bytes == 0
    session.receive(b"stop\n" + b"x\n" * 5_000)
    assert connection.held_bytes == 10_000
    session.receive(b"x\n" * 1_000)
    assert connection.held_bytes == 12_000
    session.resume_input(OWN)
    assert connection.held_bytes == 0
    session.gathered_bytes = 9_000
    session.receive(b"x")
    assert connection.held_bytes == 9_001
    session.receive_eof()
    assert connection.held_bytes == 0


@pytest.mark.parametrize("reason", [Stop.REPLIES, Stop.OUTBOX, Stop.STORE, OWN])
def test_input_waits_for_the_last_of_its_reasons(reason: int) -> None:
    session, connection = opened()
    session.pause_input(reason)
    session.pause_input(OWN << 1)
    assert not connection.reading
    session.receive(b"a\nb")  # it was on its way
    session.receive(b"c\n")
    assert session.done == []
    session.resume_input(reason)
    session.resume_input(reason)
    assert session.done == []
    session.resume_input(OWN << 1)
    assert session.done == [b"a", b"bc"]
    assert connection.reading


def test_what_stops_and_goes_within_a_read_does_not_pause_it() -> None:
    session, connection = opened()
    session.receive(b"both\nboth\nx\n")
    assert session.done == [b"both", b"both", b"x"]
    assert connection.reading


def test_others_have_their_turn_between_two_stretches_and_again_if_need_be() -> None:
    session, connection = opened()
    session.receive(b"turn\nturn\na\nb")
    assert session.done == [b"turn"]
    assert not connection.reading
    assert connection.deadline == connection.now
    session.on_deadline(connection.now)
    assert session.done == [b"turn", b"turn"]
    assert not connection.reading
    session.on_deadline(connection.now)
    assert session.done == [b"turn", b"turn", b"a"]
    assert connection.reading


def test_who_says_go_from_deep_within_has_input_go_on_a_turn_later() -> None:
    session, connection = opened()
    session.receive(b"stop\na\n")
    session.resume_next_turn(Stop.STORE)  # which did not stop it
    assert session.stopped == OWN
    session.resume_next_turn(OWN)
    assert (session.done, session.stopped) == ([b"stop"], Stop.OTHERS)
    connection.advance(0)
    assert session.done == [b"stop", b"a"]


def test_what_is_behind_a_login_goes_on_in_a_turn_of_the_driver_which_commits_it() -> None:
    session, connection = opened()
    access, told = Access({}), list[bool]()
    access.check_password = lambda user, password, peer, done: checks.append(done)
    checks: list[Callable[[bool], None]] = []
    session.identity.admit(access.guard("lines"))
    session.identity.log_in("ann", b"right", told.append)
    session.receive(b"a\n")
    checks[0](True)
    assert (told, session.user, session.done) == ([True], "ann", [])
    connection.advance(0)
    assert session.done == [b"a"]


def test_a_peer_that_does_not_take_its_answers_is_not_read_until_it_has() -> None:
    session, connection = opened(bound=100)
    session.connection.write(bytes(101))
    assert session.stop_if_crowded()
    session.receive(b"a\n")
    assert (session.done, connection.reading) == ([], False)
    connection.taken()
    assert (session.done, connection.reading) == ([b"a"], True)
    assert not session.stop_if_crowded()


def test_too_many_answers_that_wait_hold_input_back_until_half_have_left() -> None:
    session, connection = opened()
    slots = [session.replies.slot() for _ in range(257)]
    session.reply(b"last")
    assert session.stopped == Stop.REPLIES
    assert not connection.reading
    for slot in slots:
        slot.resolve(b".")
    assert (session.stopped, connection.reading) == (0, True)
    assert connection.taken() == b"." * 257 + b"last"


class Disk:
    """`congested`, and who waits until it is not."""

    congested = True

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def when_uncongested(self, callback: Any) -> None:
        self.waiting.append(callback)


def test_a_disk_that_is_behind_holds_input_back_until_it_says_so() -> None:
    session, connection = opened()
    disk: Any = Disk()
    for _ in range(2):
        session.stop_if_congested(disk)
    assert len(disk.waiting) == 1
    assert not connection.reading
    disk.waiting[0]()
    assert not connection.reading, "in a turn of its own: very many may wait for the disk"
    session.on_deadline(connection.now)
    assert connection.reading
    disk.congested = False
    session.stop_if_congested(disk)
    assert connection.reading


def test_answers_leave_in_the_order_of_requests_and_the_last_finishes() -> None:
    session, connection = opened()
    good, bad = HandTicket(), HandTicket()
    session.reply(b"1")
    session.replies.reply_after(good, b"2")  # type: ignore[arg-type]
    session.reply(b"3")
    session.replies.reply_after(bad, b"45", 2)  # type: ignore[arg-type]
    session.connection.write(b"!")
    session.receive_eof()
    bad.resolve(StoreError("no"))
    assert (connection.taken(), connection.finished) == (b"1!", False)
    good.resolve()
    assert (connection.taken(), connection.finished) == (b"23failedfailed", True)


def test_what_has_begun_must_be_whole_in_time_and_silence_between_is_free() -> None:
    session, connection = opened()
    connection.advance(1000)
    session.receive(b"a")
    connection.advance(SECONDS - 1)
    session.receive(b"b\n")
    connection.advance(1000)
    session.receive(b"c")
    connection.advance(SECONDS - 1)
    session.receive(b"d")  # which buys no time
    with pytest.raises(RemoteProtocolError):
        connection.advance(1)
    assert session.told == ["too late", "too late", "released"]
    session.receive(b"\nquit\n")
    assert session.done == [b"ab"]


def test_what_begins_behind_something_whole_has_the_whole_time() -> None:
    session, connection = opened()
    for _ in range(10):
        session.receive(b"\na")
        connection.advance(SECONDS - 1)
    session.begin_input(SECONDS / 2)
    session.receive(b"b\nc")
    with pytest.raises(RemoteProtocolError):
        connection.advance(SECONDS / 2)


def test_what_is_thrown_away_as_it_comes_must_come_in_time_too() -> None:
    session, connection = opened()
    session.receive(b"skip 100\n")
    assert connection.rests_awaited == 1
    connection.advance(SECONDS / 2)
    session.receive(bytes(50))
    with pytest.raises(RemoteProtocolError):
        connection.advance(SECONDS / 2)
    session, connection = opened()
    session.receive(b"skip 100\n")
    connection.advance(SECONDS - 1)
    session.receive(bytes(100))
    connection.advance(1000)
    assert session.told == []


@pytest.mark.parametrize("begun", [b"a", b"skip 5\n"], ids=["kept", "thrown away as it comes"])
def test_time_does_not_run_while_input_is_held_back(begun: bytes) -> None:
    session, connection = opened()
    session.receive(begun)
    session.pause_input(OWN)
    connection.advance(1000)
    session.receive(b"b")
    connection.advance(1000)
    assert session.told == []
    session.resume_input(OWN)
    connection.advance(SECONDS - 1)
    assert session.told == []
    with pytest.raises(RemoteProtocolError):
        connection.advance(1)


def test_deadlines_come_each_at_its_time_and_once() -> None:
    session, connection = opened()
    session.receive(b"a")
    for what, at in ((1, 5.0), (2, 3.0), (3, 4.0), (1, 6.0), (3, math.inf), (4, math.inf)):
        session.deadline(what, at)
    connection.advance(10)
    assert session.told == [(2, 3.0), (1, 6.0)]
    session.deadline(1, 11.0)
    session.end()
    connection.advance(1000)
    assert session.told == [(2, 3.0), (1, 6.0), "released"]


def test_a_peer_that_sends_well_has_one_wake_up_set() -> None:
    session, connection = opened()
    asked: list[float] = []
    connection.wake_at = asked.append  # type: ignore[method-assign]
    for _ in range(100):
        session.receive(b"a")
        session.receive(b"\n")
    assert asked == [SECONDS]


def test_the_end_of_input_comes_behind_what_was_read_and_a_request_that_did_not_end_was_nothing() -> None:
    session, connection = opened()
    session.receive(b"stop\na\nb")
    session.receive_eof()
    assert session.told == []
    session.resume_input(OWN)
    assert session.done == [b"stop", b"a"]
    assert session.told == ["input ended", "released"]
    assert connection.finished


def test_who_breaks_the_protocol_is_released_once_and_heard_no_more() -> None:
    session, _ = opened()
    with pytest.raises(RemoteProtocolError):
        session.receive(b"a\nbad\nb\n")
    session.receive(b"c\n")
    session.receive_eof()
    session.connection_lost()
    assert session.done == [b"a", b"bad"]
    assert session.told == ["bad", "released"]


def test_a_session_that_ends_takes_nothing_more_and_gives_everything_back_once() -> None:
    session, connection = opened()
    session.receive(b"a\nquit\nb\n")
    assert session.told == ["released"]
    session.let_go()
    session.receive(b"c\n")
    session.receive_eof()
    session.connection_lost()
    connection.advance(1000)
    assert session.done == [b"a", b"quit"]
    assert session.told == ["released"]


def test_what_is_given_back_early_leaves_the_peer_heard() -> None:
    session, _ = opened()
    session.let_go()
    session.receive(b"a\n")
    assert session.done == [b"a"]
    session.connection_lost()
    assert session.told == ["released"]


def test_nothing_goes_on_when_the_connection_is_lost() -> None:
    session, _ = opened()
    session.receive(b"stop\na\n")
    session.connection_lost()
    session.resume_input(OWN)
    session.resume_next_turn(OWN)
    assert (session.done, session.told) == ([b"stop"], ["released"])


def test_a_server_that_stops_has_what_was_read_applied_whatever_holds_it_back() -> None:
    session, _ = opened()
    session.receive(b"stop\na\nb")
    session.apply_kept()
    assert session.done == [b"stop", b"a"]
