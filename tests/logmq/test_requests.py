"""What each request answers."""

import pytest
from crc32c import crc32c

from logmq.listener import LogmqService
from logmq.settings import LogmqSettings, TopicSettings
from logmq.wire import HELP_LINE, REQUESTS
from shared.storage.settings import Durability
from tests.logmq.world import Peer, World, record, records, slow_reads
from tests.support.stores import HandClock


def test_the_example_of_the_specification_is_answered_as_it_says(peer: Peer) -> None:
    assert peer.ask(b"PRODUCE orders item-1\n") == b"OK 0\n"
    assert peer.ask(b"CONSUME orders 0\n") == b"MESSAGE 0 6 item-1\n"
    assert peer.ask(b"CONSUME orders 10\n") == b"EOF\n"
    assert peer.world.messages("orders") == [b"item-1"]


@pytest.mark.parametrize(
    ("message", "line_end"),
    [
        (b"", b"\n"),
        (b" ", b"\n"),
        (b"a b  c ", b"\n"),
        (b"x", b"\r\n"),
        (b"x\r", b"\r\n"),
        (b"\xff\x00\t", b"\n"),
    ],
)
def test_a_message_is_everything_behind_the_topics_space(peer: Peer, message: bytes, line_end: bytes) -> None:
    expected = message if line_end == b"\r\n" or not message.endswith(b"\r") else message[:-1]
    assert peer.ask(b"PRODUCE t " + message + line_end) == b"OK 0\n"
    assert peer.ask(b"CONSUME t 0" + line_end) == b"MESSAGE 0 %d %b\n" % (len(expected), expected)


def test_a_topic_that_does_not_exist_is_at_its_end(peer: Peer) -> None:
    assert peer.ask(b"CONSUME nix 0\nCONSUME nix 77\nFETCH nix 0 100\n") == b"EOF\nEOF\nEOF\n"
    assert peer.world.topics() == []


def test_a_consume_sees_what_the_same_connection_wrote_just_before(peer: Peer) -> None:
    peer.send(b"PRODUCE t one\nCONSUME t 0\nPRODUCE t two\nCONSUME t 7\nCONSUME t 14\nFETCH t 7 99\n")
    assert peer.take() == b""
    peer.settle()
    assert peer.take() == (
        b"OK 0\nMESSAGE 0 3 one\nOK 7\nMESSAGE 7 3 two\nEOF\nCHUNK 7 7 14\n" + record(b"two")
    )


def test_a_consume_at_the_end_does_not_see_what_is_written_after_it(peer: Peer) -> None:
    assert peer.ask(b"CONSUME t 0\nPRODUCE t one\n") == b"EOF\nOK 0\n"


def test_a_fetch_does_not_see_what_is_written_after_it(peer: Peer) -> None:
    sent = b"PRODUCE t one\nFETCH t 0 100\nPRODUCE t two\n"
    assert peer.ask(sent) == b"OK 0\nCHUNK 0 7 7\n" + record(b"one") + b"OK 7\n"


def test_a_delete_waits_for_what_was_asked_before_it(peer: Peer) -> None:
    sent = b"PRODUCE t one\nCONSUME t 0\nDELETE t\nCONSUME t 0\n"
    assert peer.ask(sent) == b"OK 0\nMESSAGE 0 3 one\nOK\nEOF\n"


def test_nobody_sees_what_the_disk_has_not_confirmed(writer: Peer, reader: Peer) -> None:
    writer.send(b"PRODUCE t one\n")
    reader.send(b"CONSUME t 0\nFETCH t 0 100\nOFFSETS t\n")
    assert reader.take() == b"EOF\nEOF\nOFFSETS 0 0\n"
    writer.settle()
    reader.send(b"CONSUME t 0\n")
    assert reader.take() == b"MESSAGE 0 3 one\n"


def test_a_reader_sees_a_record_before_its_producer_is_answered(
    world: World, writer: Peer, reader: Peer
) -> None:
    reader.send(b"TAIL t 0\n")
    seen: list[bytes] = []
    writer.send(b"PRODUCE t one\n")
    writer.session.replies.when_empty(lambda: seen.append(reader.take()))
    world.commit()
    assert seen == [b"MESSAGE 0 3 one\n"]


def test_append_takes_any_bytes(peer: Peer) -> None:
    body = bytes(range(256)) + b"\n\r\nPRODUCE t x\n"
    assert peer.ask(b"APPEND t %d\n%bPING\n" % (len(body), body)) == b"OK 0\nPONG\n"
    assert peer.ask(b"CONSUME t 0\n") == b"MESSAGE 0 %d %b\n" % (len(body), body)
    assert peer.ask(b"APPEND t 0\n") == b"OK %d\n" % (4 + len(body))


def test_fetch_gives_whole_records_and_at_least_one(peer: Peer) -> None:
    peer.ask(b"PRODUCE t one\nPRODUCE t three\nPRODUCE t x\n")
    with slow_reads() as disk:
        assert peer.ask(b"FETCH t 0 1\n") == b"CHUNK 0 7 7\n" + record(b"one")
        assert peer.ask(b"FETCH t 0 16\n") == b"CHUNK 0 16 16\n" + records(b"one", b"three")
        assert peer.ask(b"FETCH t 7 20\n") == b"CHUNK 7 14 21\n" + records(b"three", b"x")
        assert peer.ask(b"FETCH t 21 20\n") == b"EOF\n"
    assert disk.open == 0


BEGUN_MS = HandClock().wall_ms()


def with_marks() -> Peer:
    """A topic with three index entries of two records each, which were written two seconds apart."""
    world = World()
    peer = world.connect()
    for _ in range(3):
        for _ in range(2):
            peer.ask(b"PRODUCE t %b\n" % (b"m" * 30))
        world.clock.advance(2)
    return peer


def test_marks_lists_the_entries_that_touch_a_range() -> None:
    peer = with_marks()
    crc = crc32c(records(b"m" * 30, b"m" * 30))
    first, second, third = (b"MARK %d 68 2 %d %d\n" % (68 * n, crc, BEGUN_MS + 2000 * n) for n in range(3))
    assert peer.ask(b"MARKS t 0 9999\n") == first + second + third + b"END\n"
    assert peer.ask(b"MARKS t 68 69\n") == second + b"END\n"
    assert peer.ask(b"MARKS t 67 69\n") == first + second + b"END\n"
    assert peer.ask(b"MARKS t 9 2\nMARKS t 9999 99999\n") == b"END\nEND\n"


def test_seek_finds_the_first_record_at_or_after_a_time() -> None:
    peer = with_marks()
    times = (0, BEGUN_MS + 1500, BEGUN_MS + 3500, 1 << 60)
    lines = b"".join(b"SEEK t %d\n" % time for time in times)
    assert peer.ask(lines) == b"OK 0\nOK 68\nOK 136\nOK 204\n"


def test_topics_are_listed_in_order_however_many(peer: Peer) -> None:
    names = sorted(b"t%d" % number for number in range(2000))
    peer.ask(b"".join(b"PRODUCE %b x\n" % name for name in names))
    expected = b"".join(b"TOPIC %b 0 5\n" % name for name in names) + b"END\n"
    assert peer.ask(b"TOPICS\nPING\n") == expected + b"PONG\n"


def test_topics_of_an_empty_server() -> None:
    assert World().connect().ask(b"TOPICS\n") == b"END\n"


def test_a_listing_goes_on_as_its_peer_takes_it(world: World) -> None:
    world.connect().ask(b"".join(b"PRODUCE t%d x\n" % number for number in range(3000)))
    peer = world.connect(bound=4096)
    peer.send(b"TOPICS\nPING\n")
    peer.settle()
    assert peer.connection.outbox.size < 3000 * 5
    listed = peer.take()
    assert listed.count(b"TOPIC ") == 3000
    assert listed.endswith(b"END\nPONG\n")


def test_groups_commit_and_are_told_what_they_committed(peer: Peer) -> None:
    peer.ask(b"PRODUCE t one\nPRODUCE t two\n")
    assert peer.ask(b"COMMITTED g t\n") == b"ERR NO_COMMIT group g has committed nothing of t\n"
    assert (
        peer.ask(b"COMMIT g t 7\nCOMMITTED g t\nCOMMIT g t 14\nCOMMITTED g t\n")
        == b"OK 7\nOK 7\nOK 14\nOK 14\n"
    )
    assert peer.ask(b"COMMITTED other t\n").startswith(b"ERR NO_COMMIT ")
    assert (
        peer.ask(b"COMMIT g t 3\n") == b"ERR BAD_OFFSET not the start of a record; the nearest below is 0\n"
    )
    assert peer.ask(b"COMMIT g t 15\n") == b"ERR BAD_OFFSET beyond the end; the nearest below is 14\n"
    assert peer.ask(b"COMMITTED g t\n") == b"OK 14\n"


def test_a_commit_may_follow_its_record_in_one_go(peer: Peer) -> None:
    assert peer.ask(b"PRODUCE t one\nCOMMIT g t 7\nCOMMITTED g t\n") == b"OK 0\nOK 7\nOK 7\n"


def test_a_commit_is_not_told_to_others_before_it_is_durable(world: World) -> None:
    peer, other = world.connect(), world.connect()
    peer.ask(b"PRODUCE t one\n")
    peer.send(b"COMMIT g t 7\n")
    other.send(b"COMMITTED g t\n")
    assert other.take() == b""
    world.commit()
    assert (peer.take(), other.take()) == (b"OK 7\n", b"OK 7\n")


def test_delete_ends_a_topic_and_all_that_hangs_on_it(peer: Peer) -> None:
    blob = record(b"one")
    peer.ask(b"BATCH t w 1 7\n" + blob + b"PRODUCE t two\nCOMMIT g t 7\n")
    assert peer.ask(b"DELETE t\nCONSUME t 0\nOFFSETS t\n").startswith(b"OK\nEOF\nERR NO_TOPIC t ")
    assert (len(peer.world.broker.groups), len(peer.world.broker.writers)) == (0, 0)
    assert peer.ask(b"PRODUCE t new\nCOMMITTED g t\nCONSUME t 0\n").startswith(b"OK 0\nERR NO_COMMIT ")
    assert peer.ask(b"BATCH t w 1 7\n" + blob) == b"OK 7\n"


def test_a_write_behind_a_delete_makes_the_topic_anew(peer: Peer) -> None:
    peer.ask(b"PRODUCE t old\n")
    answers = peer.ask(b"PRODUCE t older\nDELETE t\nPRODUCE t a\nAPPEND t 1\nbCONSUME t 0\n")
    assert answers == b"OK 7\nOK\nOK 0\nOK 5\nMESSAGE 0 1 a\n"


def test_another_connection_goes_on_in_the_new_topic(world: World) -> None:
    writer, other = world.connect(), world.connect()
    writer.ask(b"PRODUCE t 1\nPRODUCE t 2\n")
    other.ask(b"DELETE t\n")
    assert writer.ask(b"PRODUCE t 3\nPRODUCE t 4\n") == b"OK 0\nOK 5\n"
    other.ask(b"DELETE t\n")
    assert writer.ask(b"PRODUCE t 5\nAPPEND t 1\n6PRODUCE u 1\n") == b"OK 0\nOK 5\nOK 0\n"


def test_help_lists_every_request_in_one_line() -> None:
    answer = World().connect().ask(b"HELP\n")
    assert answer == HELP_LINE
    assert answer.count(b"\n") == 1
    assert all(word in answer.split() for word in REQUESTS)


def test_quit_answers_what_came_before_and_takes_nothing_after(peer: Peer) -> None:
    peer.send(b"PRODUCE t one\nQUIT\nPRODUCE t two\n")
    assert not peer.connection.finished
    peer.settle()
    assert peer.connection.finished
    assert peer.take() == b"OK 0\n"
    assert peer.world.messages("t") == [b"one"]


def test_topics_get_the_durability_of_the_first_pattern_that_matches() -> None:
    always, none = Durability.parse("always"), Durability.parse("none")
    settings = LogmqSettings(
        topics={
            "log.*": TopicSettings(durability=none, retention_bytes=10),
            "*": TopicSettings(retention_bytes=20),
        },
        retention_ms=30,
    )
    world = World(settings)
    world.connect().ask(b"PRODUCE log.a x\nPRODUCE other x\n")
    assert world.log("log.a").mode == none
    assert world.log("other").mode == always
    assert settings.for_topic("log.a") == TopicSettings(none, 10, 30, 0, 0)
    assert settings.for_topic("other") == TopicSettings(always, 20, 30, 0, 0)


@pytest.mark.parametrize("topics", [{}, {"other": TopicSettings(retention_bytes=20)}])
def test_a_topic_shows_the_retention_that_it_has(topics: dict[str, TopicSettings]) -> None:
    world = World(LogmqSettings(topics=topics, retention_bytes=10, retention_ms=30))
    world.connect().ask(b"PRODUCE t x\n")
    listed, _ = LogmqService(world.broker).objects
    row = listed.row(world.log("t"))
    assert row is not None
    assert (row["retention_bytes"], row["retention_seconds"]) == (10, 0.03)


def test_writes_of_different_modes_are_answered_in_order_each_when_its_mode_allows() -> None:
    world = World(LogmqSettings(topics={"n*": TopicSettings(durability=Durability.parse("none"))}))
    peer = world.connect()
    assert peer.ask(b"PRODUCE t 1\nPRODUCE n 1\nPRODUCE t 2\nPRODUCE n 2\n") == b"OK 0\nOK 0\nOK 5\nOK 5\n"
