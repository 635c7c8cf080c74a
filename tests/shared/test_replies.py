"""Answers leave in request order, whatever they wait for."""

import tempfile
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import replies as module
from shared.errors import StoreError, StoreReadOnly
from shared.file_range import FileRange
from shared.replies import PART_BYTES, Replies, ReplySlot
from tests.support.connections import HandTicket, MemoryConnection


def refused(error: StoreError, reply: bytes, count: int) -> bytes:
    return f"<{error}>".encode() * count


class Owner:
    """`told`: what it heard of too many answers."""

    def __init__(self, connection: MemoryConnection, store_failed: Callable[..., bytes] = refused) -> None:
        self.connection = connection
        self.store_failed = store_failed
        self.told: list[bool] = []
        self.held_bytes: list[int] = []
        self.replies: Replies | None = None

    def count_held(self) -> None:
        if self.replies is not None:
            self.held_bytes.append(self.replies.pending_bytes)

    def replies_full(self, full: bool) -> None:
        self.told.append(full)
        if full:
            self.connection.pause_reading()
        else:
            self.connection.resume_reading()


def pair() -> tuple[Replies, MemoryConnection]:
    connection = MemoryConnection()
    return Replies(Owner(connection)), connection


def reply_after(replies: Replies, ticket: HandTicket, reply: bytes, count: int = 1) -> None:
    replies.reply_after(cast(Any, ticket), reply, count)


def file_range(data: bytes, released: list[bytes]) -> FileRange:
    file = tempfile.TemporaryFile()  # noqa: SIM115 (release closes it)
    file.write(data)
    file.flush()

    def release() -> None:
        file.close()
        released.append(data)

    return FileRange(file.fileno(), 0, len(data), release)


def test_a_failed_ticket_refuses_each_of_its_requests_and_no_other() -> None:
    replies, connection = pair()
    ticket = HandTicket()
    reply_after(replies, ticket, b"OK\nOK\n", 2)
    replies.reply(b"PONG\n")
    reply_after(replies, ticket, b"OK\n")
    ticket.resolve(StoreReadOnly("bad"))
    assert connection.taken() == b"<bad><bad>PONG\n<bad>"


def test_a_ticket_that_is_done_already_is_answered_at_once() -> None:
    replies, connection = pair()
    good, bad = HandTicket(), HandTicket()
    good.resolve()
    bad.resolve(StoreReadOnly("bad"))
    reply_after(replies, good, b"fine")
    reply_after(replies, bad, b"OK OK", 2)
    assert connection.taken() == b"fine<bad><bad>"


def test_a_turn_comes_once_everything_before_has_left() -> None:
    replies, connection = pair()
    ticket = HandTicket()
    turns: list[ReplySlot] = []

    def on_turn(held: ReplySlot) -> None:
        assert connection.taken() == b"1"
        held.write(b"2a")
        turns.append(held)

    reply_after(replies, ticket, b"1")
    held = replies.slot(on_turn)
    replies.reply(b"3")
    assert turns == []
    ticket.resolve()
    assert turns == [held]
    assert connection.taken() == b"2a"
    held.write(b"2b")
    held.resolve(b"2c")
    assert connection.taken() == b"2b2c3"


def test_a_turn_comes_at_once_where_nothing_is_owed_and_may_resolve_there() -> None:
    replies, connection = pair()
    replies.slot(lambda held: held.resolve(b"now"))
    assert connection.taken() == b"now"
    assert not replies.pending


def test_a_file_range_keeps_its_place() -> None:
    replies, connection = pair()
    released: list[bytes] = []
    held = replies.slot()
    replies.reply(file_range(b"second ", released))
    replies.reply(b"third")
    held.resolve([b"first: ", file_range(b"file ", released)])
    assert connection.taken() == b"first: file second third"
    assert released == [b"file ", b"second "]


def test_a_lost_connection_lets_go_of_files_and_ignores_what_comes_later() -> None:
    replies, connection = pair()
    released: list[bytes] = []
    ticket = HandTicket()
    early = replies.slot()
    late = replies.slot()
    reply_after(replies, ticket, b"x")
    replies.reply(file_range(b"said", released))
    late.resolve(file_range(b"resolved", released))
    replies.drop()
    early.resolve(file_range(b"after", released))
    ticket.resolve()
    assert sorted(released) == [b"after", b"resolved", b"said"]
    assert connection.taken() == b""
    assert not replies.pending


def test_reading_goes_on_once_half_of_the_bytes_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_BYTES_MAX", 1000)
    replies, connection = pair()
    tickets = [HandTicket() for _ in range(3)]
    for ticket, size in zip(tickets, (300, 400, 400), strict=True):
        reply_after(replies, ticket, bytes(size))
    assert not connection.reading
    tickets[0].resolve()
    assert (replies.pending_bytes, connection.reading) == (2 * (400 + PART_BYTES), False)
    tickets[1].resolve()
    assert (replies.pending_bytes, connection.reading) == (400 + PART_BYTES, True)


def test_answers_that_come_out_of_turn_count_with_what_is_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_BYTES_MAX", 100)
    replies, connection = pair()
    first, second = replies.slot(), replies.slot()
    second.resolve([b"x" * 60, b"y" * 41])
    assert replies.pending_bytes == 101 + 2 * PART_BYTES
    assert not connection.reading
    first.resolve(b"")
    assert replies.pending_bytes == 0
    assert connection.reading


def test_reading_pauses_while_too_much_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_ENTRIES_MAX", 4)
    owner = Owner(MemoryConnection())
    replies = Replies(owner)
    held = [replies.slot() for _ in range(4)]
    assert not replies.full
    held.append(replies.slot())
    assert replies.full
    for one in held[:2]:
        one.resolve(b"")
    assert replies.full
    held[2].resolve(b"")
    assert not replies.full
    assert owner.told == [True, False]


def test_when_empty_comes_once_and_after_the_last_answer_has_left() -> None:
    replies, connection = pair()
    seen: list[bytes] = []
    replies.when_empty(lambda: seen.append(b"at once"))
    held = replies.slot()
    replies.when_empty(lambda: seen.append(connection.taken()))
    replies.when_empty(lambda: replies.reply(b"more"))
    held.resolve(b"last")
    replies.reply(b"!")
    assert seen == [b"at once", b"last"]
    assert connection.taken() == b"more!"


LINES = 3
STEPS = st.lists(
    st.tuples(
        st.integers(0, LINES - 1),
        st.one_of(
            st.tuples(st.just("say"), st.integers(0, 99)),
            st.tuples(st.just("reply_after"), st.integers(0, 3)),
            st.tuples(st.just("hold"), st.booleans()),
            st.tuples(st.just("ticket"), st.integers(0, 3)),
            st.tuples(st.just("refuse"), st.integers(0, 3)),
            st.tuples(st.just("resolve"), st.integers(0, 99)),
            st.tuples(st.just("drop"), st.just(0)),
        ),
    ),
    max_size=80,
)


@given(STEPS)
def test_in_any_course_of_events_answers_leave_in_request_order(
    steps: list[tuple[int, tuple[str, int]]],
) -> None:
    """Of several connections, which wait for the same tickets; some are lost."""
    lines = [pair() for _ in range(LINES)]
    tickets = [HandTicket() for _ in range(4)]
    held: list[list[tuple[ReplySlot, bytes]]] = [[] for _ in lines]
    answers: list[list[tuple[bytes, HandTicket | None]]] = [[] for _ in lines]
    sent = [b""] * LINES
    gone: set[int] = set()

    def look() -> None:
        for at, (_, connection) in enumerate(lines):
            sent[at] += connection.taken()
            expected = b"".join(
                answer if ticket is None or ticket.error is None else refused(ticket.error, answer, 2)
                for answer, ticket in answers[at]
            )
            assert expected.startswith(sent[at])
            assert at in gone or lines[at][0].pending or expected == sent[at]

    for number, (at, (what, which)) in enumerate(steps):
        replies, _ = lines[at]
        answer = b"%d," % number
        if what in ("ticket", "refuse"):
            if not tickets[which].done:
                tickets[which].resolve(StoreReadOnly("bad") if what == "refuse" else None)
        elif at in gone:
            continue
        elif what == "say":
            replies.reply(answer)
            answers[at].append((answer, None))
        elif what == "reply_after":
            if tickets[which].done:
                tickets[which] = HandTicket()
            answers[at].append((answer, tickets[which]))
            reply_after(replies, tickets[which], answer, 2)
        elif what == "hold":
            answers[at].append((answer, None))
            held[at].append((replies.slot((lambda _: None) if which else None), answer))
        elif what == "drop":
            replies.drop()
            gone.add(at)
        elif held[at]:
            one, text = held[at].pop(which % len(held[at]))
            one.resolve(text)
        look()
    for ticket in tickets:
        if not ticket.done:
            ticket.resolve()
    for slots in held:
        for one, text in slots:
            one.resolve(text)
    look()
    for at, (replies, _) in enumerate(lines):
        assert not replies.pending
        assert replies.pending_bytes == 0, at


def test_a_bug_in_one_session_leaves_the_others_their_answers() -> None:
    def breaks(error: StoreError, reply: bytes, count: int) -> bytes:
        raise ZeroDivisionError

    broken = Guarded()
    ticket = HandTicket()
    first, last = pair(), pair()
    reply_after(first[0], ticket, b"1")
    reply_after(Replies(Owner(broken, breaks)), ticket, b"2")
    reply_after(last[0], ticket, b"3")
    ticket.resolve(StoreReadOnly("bad"))
    assert [type(error) for error in broken.errors] == [ZeroDivisionError]
    assert (first[1].taken(), broken.taken(), last[1].taken()) == (b"<bad>", b"", b"<bad>")


class Guarded(MemoryConnection):
    """Keeps what its session's callbacks raise."""

    __slots__ = ("errors",)

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Exception] = []

    def fail(self, error: Exception) -> None:
        self.errors.append(error)
        self.abort("crash")


def bug(*_: object) -> bytes:
    raise ZeroDivisionError


def test_a_bug_in_what_goes_on_when_a_ticket_is_done_is_its_own_connections_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for later in ("on_turn", "when_empty", "room"):
        connection, ticket = Guarded(), HandTicket()
        owner = Owner(connection)
        owner.replies_full = lambda full: None if full else cast(None, bug())  # type: ignore[method-assign]
        monkeypatch.setattr(module, "PENDING_BYTES_MAX", 1 if later == "room" else 99)
        replies = Replies(owner)
        reply_after(replies, ticket, b"answer")
        if later == "on_turn":
            replies.slot(cast(Any, bug))
        elif later == "when_empty":
            replies.when_empty(cast(Any, bug))
        ticket.resolve()
        assert connection.aborted == "crash", later


def test_what_waits_is_told_in_steps_and_once_more_when_nothing_does() -> None:
    owner = Owner(MemoryConnection())
    owner.replies = replies = Replies(owner)
    slot = replies.slot()
    for _ in range(2000):
        replies.reply(b"PONG\n")
    assert 2000 * (41 + 5) < replies.pending_bytes < 2000 * 100, "with what an object takes beside its bytes"
    assert len(owner.held_bytes) == replies.pending_bytes // (16 * 1024)
    slot.resolve(b"")
    assert owner.held_bytes[-1] == replies.pending_bytes == 0
    ticket = HandTicket()
    reply_after(replies, ticket, b"x" * 20_000)
    assert owner.held_bytes[-1] > 20_000
    ticket.resolve()
    assert owner.held_bytes[-1] == 0
    told = len(owner.held_bytes)
    for _ in range(1000):
        ticket = HandTicket()
        reply_after(replies, ticket, b"x" * 100)
        ticket.resolve()
    assert len(owner.held_bytes) == told, "who waits with little costs nothing"
