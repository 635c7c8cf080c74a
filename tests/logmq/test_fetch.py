"""A FETCH that waits: for a record, for its topic, for its time."""

import pytest

from tests.logmq.world import Peer, World, record, slow_reads


def test_a_fetch_waits_for_the_next_record(world: World, writer: Peer, reader: Peer) -> None:
    writer.ask(b"PRODUCE t one\n")
    reader.send(b"FETCH t 7 100 5000\n")
    assert reader.take() == b""
    writer.send(b"PRODUCE t two\n")
    assert reader.take() == b""
    writer.settle()
    assert reader.take() == b"CHUNK 7 7 14\n" + record(b"two")
    assert world.log("t").watchers == set()


def test_a_fetch_waits_for_its_topic_too(writer: Peer, reader: Peer) -> None:
    reader.send(b"FETCH t 0 100 5000\n")
    writer.ask(b"PRODUCE t one\n")
    assert reader.take() == b"CHUNK 0 7 7\n" + record(b"one")


def test_a_fetch_that_has_waited_in_vain_is_at_the_end(world: World) -> None:
    reader = world.connect(now=50.0)
    reader.send(b"FETCH t 0 100 5000\nPING\n")
    reader.advance(4.9)
    assert reader.take() == b""
    reader.advance(0.2)
    assert reader.take() == b"EOF\nPONG\n"
    assert world.broker.counts.fetches_waiting == 0


def test_a_fetch_sees_what_its_connection_wrote_before_it_also_where_the_disk_takes_longer(
    world: World,
) -> None:
    peer, other = world.connect(now=50.0), world.connect(now=50.0)
    peer.send(b"PRODUCE t one\nFETCH t 0 100 10\nFETCH t 7 100 10\n")
    other.send(b"FETCH t 0 100 10\n")
    for each in (peer, other):
        each.advance(0.02)
    assert peer.take() == b""
    assert other.take() == b"EOF\n"
    peer.settle()
    assert peer.take() == b"OK 0\nCHUNK 0 7 7\n" + record(b"one") + b"EOF\n"
    assert world.log("t").watchers == set()


def test_a_fetch_behind_a_write_that_fails_is_at_the_end(world: World) -> None:
    peer = world.connect(now=50.0)
    peer.send(b"PRODUCE t one\nFETCH t 0 100 10\n")
    peer.advance(0.02)
    world.fail_disk()
    world.commit()
    assert peer.take().splitlines()[1] == b"EOF"
    assert world.broker.counts.fetches_waiting == 0


def test_a_fetch_waits_60_s_at_most(reader: Peer) -> None:
    reader.send(b"FETCH t 0 100 99999999\n")
    reader.advance(59.9)
    assert reader.take() == b""
    reader.advance(0.2)
    assert reader.take() == b"EOF\n"


def test_several_fetches_wait_each_for_its_own_time_and_answer_in_order(reader: Peer) -> None:
    reader.send(b"FETCH t 0 100 3000\nFETCH u 0 100 1000\nPING\n")
    reader.advance(2)
    assert reader.take() == b""
    reader.advance(1.5)
    assert reader.take() == b"EOF\nEOF\nPONG\n"


def test_what_follows_a_waiting_fetch_is_executed_and_may_end_its_wait(peer: Peer) -> None:
    peer.send(b"FETCH t 0 100 5000\nPRODUCE t one\n")
    peer.settle()
    assert peer.take() == b"CHUNK 0 7 7\n" + record(b"one") + b"OK 0\n"


@pytest.mark.parametrize("request_line", [b"FETCH t 9 100\n", b"FETCH t 9 100 5000\n", b"TAIL t 9\n"])
def test_an_offset_beyond_the_end_is_of_another_topic_by_that_name(world: World, request_line: bytes) -> None:
    writer, early, late = world.connect(), world.connect(), world.connect()
    early.send(request_line)
    writer.ask(b"PRODUCE t one\n")
    late.send(request_line)
    assert late.take() == b"ERR OUT_OF_RANGE the end is 7\n"
    waits = request_line != b"FETCH t 9 100\n"
    assert early.take() == (b"ERR OUT_OF_RANGE the end is 0\n" if waits else b"EOF\n")
    assert late.ask(b"FETCH t 7 100\nPING\n") == b"EOF\nPONG\n", "the end itself is not beyond it"


def test_a_deleted_topic_ends_a_fetch_that_waits_and_its_successor_does_not_serve_it(
    writer: Peer, reader: Peer
) -> None:
    writer.ask(b"PRODUCE t one\n")
    reader.send(b"FETCH t 7 100 5000\n")
    writer.ask(b"DELETE t\nPRODUCE t new\nPRODUCE t newer\n")
    assert reader.take() == b"ERR NO_TOPIC the topic was deleted\n"


def test_a_fetch_that_waits_is_read_from_the_disk_where_it_must(writer: Peer, reader: Peer) -> None:
    reader.send(b"FETCH t 0 100 1000\n")
    writer.send(b"PRODUCE t one\n")
    with slow_reads("t") as disk:
        writer.settle()
        reader.advance(5)  # it was in time: the disk was not
        assert reader.take() == b""
        disk.thaw()
        assert reader.take() == b"CHUNK 0 7 7\n" + record(b"one")
    assert disk.open == 0


def test_a_fetch_whose_connection_is_lost_while_it_reads_lets_go_of_what_was_read(
    writer: Peer, reader: Peer
) -> None:
    writer.ask(b"PRODUCE t one\n")
    reader.send(b"FETCH t 7 100 60000\n")
    with slow_reads("t") as disk:
        writer.ask(b"PRODUCE t two\n")
        reader.lose()
        assert disk.waiting
        disk.thaw()
    assert disk.open == 0
