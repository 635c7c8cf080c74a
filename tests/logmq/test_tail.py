"""TAIL: each record once, in order, to each, whoever else is slow or leaves."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from tests.logmq.world import Peer, World, slow_reads


def tails(world: World, count: int, topic: bytes = b"t", offset: int = 0) -> list[Peer]:
    peers = [world.connect() for _ in range(count)]
    for peer in peers:
        peer.send(b"TAIL %b %d\n" % (topic, offset))
    return peers


def test_a_tail_gets_what_is_there_and_what_comes(writer: Peer, reader: Peer) -> None:
    writer.ask(b"PRODUCE t one\nPRODUCE t two\n")
    reader.send(b"TAIL t 7\n")
    assert reader.take() == b"MESSAGE 7 3 two\n"
    writer.send(b"PRODUCE t three\nPRODUCE t four\n")
    assert reader.take() == b""
    writer.settle()
    assert reader.take() == b"MESSAGE 14 5 three\nMESSAGE 23 4 four\n"


def test_a_tail_waits_for_its_topic(writer: Peer, reader: Peer) -> None:
    reader.send(b"TAIL t 0\n")
    writer.ask(b"PRODUCE t one\n")
    writer.ask(b"PRODUCE t two\n")
    assert reader.take() == b"MESSAGE 0 3 one\nMESSAGE 7 3 two\n"


def test_any_line_ends_a_tail_and_is_not_executed(world: World, writer: Peer, reader: Peer) -> None:
    writer.ask(b"PRODUCE t one\n")
    for line in (b"QUIT\n", b"\n", b"PRODUCE t x\r\n", b"x" * 5000 + b"\n"):
        reader.send(b"TAIL t 0\n")
        reader.send(line)
        assert reader.take() == b"MESSAGE 0 3 one\nOK 7\n"
        assert reader.ask(b"PING\n") == b"PONG\n"
    assert world.log("t").end == 7
    assert world.log("t").watchers == set()


def test_the_line_that_ends_a_tail_may_come_in_pieces(writer: Peer, reader: Peer) -> None:
    reader.send(b"TAIL t 0\nst")
    writer.ask(b"PRODUCE t one\n")
    reader.send(b"op")
    assert reader.take() == b"MESSAGE 0 3 one\n"
    reader.send(b"\nPING\n")
    assert reader.take() == b"OK 7\nPONG\n"


def test_a_line_that_a_tails_refusal_overtakes_is_still_not_a_request(
    world: World, writer: Peer, reader: Peer
) -> None:
    writer.ask(b"PRODUCE t one\n")
    reader.send(b"TAIL t 7\nPRODUCE t ")
    writer.ask(b"DELETE t\n")
    reader.send(b"boo\nPING\n")
    assert reader.take() == b"ERR NO_TOPIC the topic was deleted\nPONG\n"
    assert world.topics() == []


def test_a_tail_begins_when_what_was_asked_before_is_answered(reader: Peer) -> None:
    reader.send(b"PRODUCE t one\nTAIL t 0\n")
    assert reader.take() == b""
    reader.settle()
    assert reader.take() == b"OK 0\nMESSAGE 0 3 one\n"


def test_a_tail_that_ends_before_its_turn_says_so_in_turn(reader: Peer) -> None:
    reader.send(b"PRODUCE t one\nTAIL t 0\nenough\nPING\n")
    reader.settle()
    assert reader.take() == b"OK 0\nOK 0\nPONG\n"


def test_a_tail_that_ends_before_its_turn_is_refused_as_one_that_goes_on(writer: Peer, reader: Peer) -> None:
    writer.ask(b"PRODUCE t one\nPRODUCE t two\n")
    reader.send(b"PRODUCE u x\nTAIL t 9\nenough\nTAIL t 7\nenough\nTAIL none 9\nenough\nPING\n")
    reader.settle()
    refused = b"ERR BAD_OFFSET not the start of a record; the nearest below is 7\n"
    assert reader.take() == b"OK 0\n" + refused + b"OK 7\nOK 9\nPONG\n"


def test_a_half_close_ends_a_tail(writer: Peer, reader: Peer) -> None:
    writer.ask(b"PRODUCE t one\n")
    reader.send(b"TAIL t 0\n")
    reader.close_input()
    assert reader.connection.finished
    assert reader.take() == b"MESSAGE 0 3 one\nOK 7\n"
    writer.ask(b"PRODUCE t two\n")
    assert reader.take() == b""


def test_a_deleted_topic_ends_its_tails(world: World, writer: Peer) -> None:
    writer.ask(b"PRODUCE t one\n")
    readers = tails(world, 3)
    writer.ask(b"DELETE t\nPRODUCE t new\n")
    for reader in readers:
        assert reader.take() == b"MESSAGE 0 3 one\nERR NO_TOPIC the topic was deleted\n"
        assert reader.ask(b"CONSUME t 0\n") == b"MESSAGE 0 3 new\n"


def test_a_tail_that_has_all_and_yet_to_take_it_hears_of_its_topics_end(
    world: World, writer: Peer, reader: Peer
) -> None:
    writer.ask(b"PRODUCE t one\n")
    reader.connection.outbox.bound = 3
    reader.send(b"TAIL t 0\n")
    assert reader.connection.outbox.size > 3
    writer.ask(b"DELETE t\n")
    assert reader.take() == b"MESSAGE 0 3 one\nERR NO_TOPIC the topic was deleted\n"
    assert world.broker.counts.tails == 0


def test_a_tail_from_amid_a_record_is_refused(world: World) -> None:
    writer, reader = world.connect(), world.connect()
    writer.ask(b"PRODUCE t one\nPRODUCE t two\n")
    reader.send(b"TAIL t 9\nPING\n")
    refused = b"ERR BAD_OFFSET not the start of a record; the nearest below is 7\n"
    assert reader.take() == refused + b"PONG\n"


def test_a_slow_tail_falls_behind_alone_and_catches_up_without_a_gap(world: World, writer: Peer) -> None:
    writer.ask(b"PRODUCE t 0\n")
    quick, slow = world.connect(), world.connect(bound=20_000)
    for peer in (quick, slow):
        peer.send(b"TAIL t 0\n")
    got = quick.take()
    for round_ in range(100):
        writer.ask(b"".join(b"PRODUCE t %04d-%04d\n" % (round_, number) for number in range(100)))
        got += quick.take()
        assert slow.connection.outbox.size < 50_000
    assert world.broker.counts.tails_fallen_behind >= 1
    late = b""
    while more := slow.ask(b""):
        late += more
    assert late == got
    assert got.count(b"\n") == 10_001
    writer.ask(b"PRODUCE t news\n")
    assert quick.take() == slow.take() != b""


def test_a_tail_of_a_long_log_gives_others_their_turn(world: World) -> None:
    writer, reader = world.connect(), world.connect(bound=1 << 30)
    writer.ask(b"APPEND t 900000\n" + b"x" * 900_000)
    writer.ask(b"APPEND t 900000\n" + b"y" * 900_000)
    reader.send(b"TAIL t 0\n")
    assert reader.connection.outbox.size < 1_000_000
    reader.settle()
    assert reader.connection.outbox.size > 1_800_000


def test_a_tail_reads_from_the_disk_where_it_must(world: World) -> None:
    writer, early = world.connect(), world.connect()
    writer.ask(b"PRODUCE t one\n")
    early.send(b"TAIL t 0\n")
    assert early.take() == b"MESSAGE 0 3 one\n"
    late = world.connect()
    with slow_reads("t") as disk:
        late.send(b"TAIL t 0\n")
        writer.ask(b"PRODUCE t two\n")
        writer.ask(b"PRODUCE t three\n")
        assert early.take() == late.take() == b""
        disk.thaw()
        for peer in (early, late):
            peer.settle()
            disk.thaw()
    assert early.take() == b"MESSAGE 7 3 two\nMESSAGE 14 5 three\n"
    assert late.take() == b"MESSAGE 0 3 one\nMESSAGE 7 3 two\nMESSAGE 14 5 three\n"


def test_a_tail_that_ends_while_it_reads_sends_nothing_more(writer: Peer, reader: Peer) -> None:
    writer.ask(b"PRODUCE t one\n")
    with slow_reads("t") as disk:
        reader.send(b"TAIL t 0\n")
        reader.send(b"stop\n")
        disk.thaw()
    assert reader.take() == b"OK 0\n"


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(1, 40)),
            st.tuples(st.just("settle"), st.just(0)),
            st.tuples(st.just("read"), st.integers(0, 3)),
            st.tuples(st.just("thaw"), st.just(0)),
            st.tuples(st.just("cold"), st.integers(0, 1)),
            st.tuples(st.just("join"), st.integers(0, 30)),
            st.tuples(st.just("leave"), st.integers(0, 3)),
            st.tuples(st.just("round"), st.integers(0, 3)),
        ),
        max_size=40,
    )
)
def test_every_tail_gets_every_record_once_whatever_happens(steps: list[tuple[str, int]]) -> None:
    world = World()
    writer = world.connect()
    writer.ask(b"PRODUCE t first\n")
    readers: list[tuple[Peer, int]] = []
    got: dict[Peer, bytes] = {}
    written = 0
    with slow_reads() as disk:
        for what, number in steps:
            if what == "write":
                written += 1
                writer.send(b"".join(b"PRODUCE t %d-%d\n" % (written, which) for which in range(number)))
            elif what == "settle":
                world.commit()
            elif what == "thaw":
                disk.thaw()
            elif what == "cold":
                disk.cold = {"t"} if number else set()
            elif what == "join":
                starts = [0, *accumulate(4 + len(message) for message in world.messages("t"))]
                offset = starts[number % len(starts)]
                peer = world.connect(bound=200)
                peer.send(b"TAIL t %d\n" % offset)
                readers.append((peer, offset))
                got[peer] = b""
            elif readers:
                peer, _ = readers[number % len(readers)]
                if what == "read":
                    got[peer] += peer.take()
                elif what == "leave":
                    peer.lose()
                    readers = [entry for entry in readers if entry[0] is not peer]
                else:
                    peer.settle()
        disk.cold.clear()
        world.commit()
        for _ in range(200):
            disk.thaw()
            for peer, _ in readers:
                got[peer] += peer.ask(b"")
    messages = world.messages("t")
    starts = [0, *accumulate(4 + len(message) for message in messages)]
    lines = [b"MESSAGE %d %d %b\n" % (at, len(m), m) for at, m in zip(starts, messages, strict=False)]
    for peer, offset in readers:
        assert got[peer] == b"".join(lines[starts.index(offset) :])
