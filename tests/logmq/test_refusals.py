"""What is refused, how, and what goes on after it."""

import errno

import pytest

from logmq.settings import LogmqSettings
from tests.logmq.world import Peer, World, record


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"", "SYNTAX"),
        (b" PING", "UNKNOWN_COMMAND"),
        (b"NOPE", "UNKNOWN_COMMAND"),
        (b"ping", "UNKNOWN_COMMAND"),
        (b"PRODUCE", "SYNTAX"),
        (b"PRODUCE t", "SYNTAX"),
        (b"PRODUCE  x", "BAD_TOPIC"),
        (b"PRODUCE .t x", "BAD_TOPIC"),
        (b"PRODUCE a/b x", "BAD_TOPIC"),
        (b"PRODUCE \xc3\xbc x", "BAD_TOPIC"),
        (b"PRODUCE " + b"n" * 201 + b" x", "BAD_TOPIC"),
        (b"CONSUME t", "SYNTAX"),
        (b"CONSUME t 0 0", "SYNTAX"),
        (b"CONSUME  t 0", "SYNTAX"),
        (b"CONSUME t -1", "SYNTAX"),
        (b"CONSUME t +1", "SYNTAX"),
        (b"CONSUME t 1_0", "SYNTAX"),
        (b"CONSUME t \xb2", "SYNTAX"),
        (b"CONSUME t 9223372036854775808", "SYNTAX"),
        (b"CONSUME t " + b"9" * 5000, "SYNTAX"),
        (b"CONSUME .. 0", "BAD_TOPIC"),
        (b"CONSUME t 1", "BAD_OFFSET"),
        (b"FETCH t 1 100", "BAD_OFFSET"),
        (b"FETCH t 0", "SYNTAX"),
        (b"FETCH t 0 x", "SYNTAX"),
        (b"FETCH t 0 1 x", "SYNTAX"),
        (b"FETCH t 0 1 0 0", "SYNTAX"),
        (b"TAIL .t 0", "BAD_TOPIC"),
        (b"TAIL t x", "SYNTAX"),
        (b"APPEND t", "SYNTAX"),
        (b"APPEND t x", "SYNTAX"),
        (b"APPEND t 5 5", "SYNTAX"),
        (b"BATCH t w 1 x", "SYNTAX"),
        (b"BATCH t w 1", "SYNTAX"),
        (b"BATCH t w 1 0", "SYNTAX"),
        (b"MARKS nix 0 1", "NO_TOPIC"),
        (b"MARKS nix x 1", "SYNTAX"),
        (b"MARKS nix 0 x", "SYNTAX"),
        (b"SEEK nix x", "SYNTAX"),
        (b"COMMIT g nix x", "SYNTAX"),
        (b"CONSUME nix x", "SYNTAX"),
        (b"MARKS t 0", "SYNTAX"),
        (b"OFFSETS nix", "NO_TOPIC"),
        (b"OFFSETS", "SYNTAX"),
        (b"SEEK nix 0", "NO_TOPIC"),
        (b"SEEK t now", "SYNTAX"),
        (b"TOPICS t", "SYNTAX"),
        (b"COMMIT g nix 0", "NO_TOPIC"),
        (b"COMMIT .g t 0", "SYNTAX"),
        (b"COMMIT g t 1", "BAD_OFFSET"),
        (b"COMMITTED g nix", "NO_TOPIC"),
        (b"COMMITTED g t", "NO_COMMIT"),
        (b"DELETE nix", "NO_TOPIC"),
        (b"DELETE " + b"n" * 201, "BAD_TOPIC"),
        (b"PING PING", "SYNTAX"),
        (b"QUIT now", "SYNTAX"),
    ],
)
def test_every_refusal_is_one_line_and_the_connection_goes_on(peer: Peer, line: bytes, code: str) -> None:
    peer.ask(b"PRODUCE t one\n")
    answer = peer.ask(line + b"\n" + b"PING\n")
    assert answer.startswith(b"ERR %b " % code.encode())
    assert answer.endswith(b"\nPONG\n")
    assert answer.count(b"\n") == 2
    assert len(answer) < 200
    assert answer.decode("ascii")[:-1].replace("\n", "").isprintable()
    assert peer.world.topics() == ["t"]
    assert peer.world.broker.counts.refusals == {code: 1}


def test_the_longest_names_and_numbers_are_good(peer: Peer) -> None:
    name = b"n" * 200
    assert peer.ask(b"PRODUCE %b x\nCONSUME %b 9223372036854775807\n" % (name, name)) == b"OK 0\nEOF\n"
    assert peer.ask(b"CONSUME %b %b\n" % (name, b"0" * 50)) == b"MESSAGE 0 1 x\n"


@pytest.mark.parametrize(
    "request_", [b"CONSUME t %d\n", b"FETCH t %d 100\n", b"COMMIT g t %d\n", b"TAIL t %d\n"]
)
def test_an_offset_below_the_first_kept_is_out_of_range(peer: Peer, request_: bytes) -> None:
    peer.ask(b"PRODUCE t one\nPRODUCE t two\nPRODUCE t three\n")
    peer.ask(b"CONSUME t 0\n")
    peer.world.log("t").drop_below(7)
    peer.settle()
    assert peer.ask(request_ % 0) == b"ERR OUT_OF_RANGE the first kept offset is 7\n"
    assert not peer.ask(request_ % 7).startswith(b"ERR")


def test_what_was_read_ahead_is_not_served_once_it_is_dropped(peer: Peer) -> None:
    peer.ask(b"PRODUCE t one\nPRODUCE t two\nPRODUCE t three\n")
    assert peer.ask(b"CONSUME t 0\n") == b"MESSAGE 0 3 one\n"
    peer.world.log("t").drop_below(14)
    peer.settle()
    assert peer.ask(b"CONSUME t 7\n") == b"ERR OUT_OF_RANGE the first kept offset is 14\n"


def test_too_large_is_refused_before_it_is_kept() -> None:
    world = World(LogmqSettings(message_bytes_max=10))
    peer = world.connect()
    assert peer.ask(b"PRODUCE t 1234567890\n") == b"OK 0\n"
    assert peer.ask(b"PRODUCE t 12345678901\n").startswith(b"ERR TOO_LARGE ")
    assert peer.ask(b"PRODUCE t 1234567890\nPRODUCE t 12345678901\n").startswith(b"OK 14\nERR TOO_LARGE ")
    assert peer.ask(b"PRODUCE t 1234567890\r\n") == b"OK 28\n"
    assert peer.ask(b"APPEND t 10\n1234567890") == b"OK 42\n"
    assert peer.ask(b"APPEND t 11\n12345678901PING\n").endswith(b"\nPONG\n")
    assert peer.ask(b"BATCH b w 1 14\n" + record(b"1234567890")) == b"OK 0\n"
    assert peer.ask(b"BATCH b w 2 15\n" + record(b"12345678901") + b"PING\n").startswith(b"ERR TOO_LARGE ")
    assert peer.ask(b"PRODUCE new " + b"x" * 11 + b"\n").startswith(b"ERR TOO_LARGE ")
    assert world.log("t").end == 56
    assert world.topics() == ["b", "t"]


def test_a_refused_body_is_thrown_away(peer: Peer) -> None:
    assert peer.ask(b"APPEND .bad 5\nPING\nPING\n").endswith(b"start with a dot\nPONG\n")
    assert peer.ask(b"BATCH t w x 5\nPING\nPING\n").endswith(b"PONG\n")
    assert peer.ask(b"BATCH t .w 1 5\nPING\nPING\n").count(b"\n") == 2
    megabyte = 1024 * 1024
    answer = peer.ask(b"APPEND t %d\n" % (megabyte + 4) + b"PING\n" * (megabyte // 5 + 1) + b"PING\n")
    assert answer.startswith(b"ERR TOO_LARGE ")
    assert answer.endswith(b"\nPONG\n")
    assert answer.count(b"\n") == 2


def test_a_body_above_64_mib_closes_the_connection(peer: Peer) -> None:
    assert peer.ask(b"APPEND t 67108865\nPING\n").startswith(b"ERR TOO_LARGE ")
    assert peer.connection.finished


def test_a_batch_of_broken_records_is_refused_whole(peer: Peer) -> None:
    for body in (b"\0\0\0\x05hell", record(b"one") + b"\0", b"\xff\xff\xff\xff", b"abc"):
        assert peer.ask(b"BATCH t w 1 %d\n%bPING\n" % (len(body), body)).startswith(b"ERR SYNTAX a batch ")
    assert peer.world.topics() == []


def test_a_topic_or_commit_above_the_limit_is_refused_and_names_it() -> None:
    world = World(LogmqSettings(topics_max=2, commits_max=1))
    peer = world.connect()
    assert peer.ask(b"PRODUCE a 1\nPRODUCE b 1\nPRODUCE c 1\nPRODUCE a 1\n").splitlines() == [
        b"OK 0",
        b"OK 0",
        b"ERR LIMIT there are topics_max = 2 topics already",
        b"OK 5",
    ]
    assert peer.ask(b"COMMIT g a 5\nCOMMIT g a 0\n") == b"OK 5\nOK 0\n"
    assert peer.ask(b"COMMIT h a 5\n") == b"ERR LIMIT there are commits_max = 1 commits already\n"


def test_a_failed_commit_is_told_to_everyone_who_wrote_and_to_nobody_else(peer: Peer) -> None:
    peer.ask(b"PRODUCE t one\n")
    peer.send(b"PRODUCE t two\nPING\nPRODUCE t three\nCONSUME t 7\nPRODUCE u x\n")
    peer.world.fail_disk()
    peer.settle()
    answers = peer.take()
    refused = answers[: answers.index(b"\n") + 1]
    assert refused.startswith(b"ERR STORAGE ")
    assert answers == refused + b"PONG\n" + refused + b"EOF\n" + refused
    assert peer.ask(b"PRODUCE t four\nPRODUCE t five\nCONSUME t 0\n") == refused * 2 + b"MESSAGE 0 3 one\n"
    assert peer.ask(b"PRODUCE new x\nBATCH t w 1 5\n\0\0\0\1x") == refused * 2


def test_damage_is_told_as_such(world: World) -> None:
    world.connect().ask(b"PRODUCE t one\n")
    world.damage("t")
    peer = world.connect()
    for request_ in (b"CONSUME t 0\n", b"FETCH t 0 9\n"):
        assert peer.ask(request_) == (
            b"ERR STORAGE damaged bytes at offset 0; records go on at 7; see brokers fsck\n"
        )


def test_the_place_before_damage_and_the_one_behind_it_can_be_committed(world: World) -> None:
    peer = world.connect()
    for number in range(3):
        peer.ask(record_line := b"PRODUCE t %b\n" % (b"%d" % number * 70_000))  # an index entry of its own
    size = len(record_line) - len(b"PRODUCE t \n") + 4
    world.damage("t", size + 1)
    peer = world.connect()
    refused = b"ERR STORAGE damaged bytes at offset %d; records go on at %d; see brokers fsck\n" % (
        size,
        2 * size,
    )
    assert peer.ask(b"CONSUME t %d\n" % size) == refused
    assert peer.ask(b"COMMIT g t %d\nCOMMIT g t %d\n" % (size, 2 * size)) == b"OK %d\nOK %d\n" % (
        size,
        2 * size,
    )
    assert peer.ask(b"COMMIT g t %d\n" % (size + 5)) == refused
    assert peer.ask(b"CONSUME t %d\n" % (2 * size)).startswith(b"MESSAGE %d 70000 222" % (2 * size))


def test_a_store_that_is_full_still_serves_readers(world: World, peer: Peer) -> None:
    peer.ask(b"PRODUCE t one\n")
    world.fail_disk(errno.ENOSPC, times=1)
    refused, message, _ = peer.ask(b"PRODUCE t two\nCONSUME t 0\n").split(b"\n")
    assert refused.startswith(b"ERR STORAGE ")
    assert b"space" in refused
    assert message == b"MESSAGE 0 3 one"
