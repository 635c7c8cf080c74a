"""What clients of LogMQ do."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from tests.trials.fairness.peers import Logmq, crowd, ping
from tests.trials.fairness.served import Served, until

CONNECTIONS = 19_000
"""Nearly `net.connections_max`, and what a process with 20,000 files can have."""
WAITS_OF_ONE = 500
"""FETCHes that one connection sends. 257 wait, and the rest is read when some are answered."""
EMPTY, ONE_BYTE = b"\0\0\0\0", b"\0\0\0\1y"
"""Records."""


def to_each(count: int, step: int = 1) -> list[bytes]:
    """A message to each topic."""
    return [b"PRODUCE topic-%d x\n" % number for number in range(0, count, step)]


def topics(served: Served, count: int) -> Logmq:
    peer = Logmq(served)
    peer.ask(to_each(count))
    return peer


def connected(served: Served, count: int) -> AbstractContextManager[list[Logmq]]:
    """So many clients, each of which has had an answer."""

    def connect(_: int) -> Logmq:
        peer = Logmq(served, b"PING\n")
        peer.hear(b"\n")
        return peer

    return crowd(count, connect)


def _answered(peers: Sequence[Logmq], answer: bytes, count: int = 1) -> None:
    for peer in peers:
        peer.hear(answer, count)


# -- topics and connections


def logmq_20000_topics_are_made(served: Served) -> None:
    served.begin()
    topics(served, 20_000).close()


def logmq_20000_topics_are_listed(served: Served) -> None:
    with topics(served, 20_000) as peer:
        served.begin()
        peer.ask_at_once(b"TOPICS\n", 1, b"END\n")


def logmq_20000_topics_are_listed_under_rules(served: Served) -> None:
    with topics(served, 20_000):
        served.allow(*(f"logmq:read:topic-*{number}" for number in range(20)))
        with Logmq(served) as peer:
            served.begin()
            peer.ask_at_once(b"TOPICS\n" * 3, 3, b"END\n")


def logmq_20000_topics_are_written_and_checkpointed(served: Served) -> None:
    with topics(served, 20_000) as peer:
        time.sleep(3)  # what was made is checkpointed
        served.begin()
        peer.ask(to_each(20_000))
        time.sleep(3)


def logmq_20000_topics_are_made_and_the_server_stops(served: Served) -> None:
    with topics(served, 20_000) as peer:
        peer.ask(to_each(20_000, 2))
    served.begin()
    served.stop()


def logmq_20000_topics_lose_what_retention_drops(served: Served) -> None:
    with topics(served, 20_000) as peer:
        peer.ask([b"PRODUCE topic-%d %s\n" % (number, b"x" * 1000) for number in range(20_000)])
        time.sleep(3)  # what was made is checkpointed
        served.begin()
        served.reload_with("[logmq]\nretention_bytes = 100\n")
        peer.ask(to_each(20_000))
        path = "/api/v1/topics?sort=-bytes&limit=1"
        until(lambda: served.ask("GET", path)["items"][0]["bytes"] < 500)


def logmq_5000_topics_are_deleted(served: Served) -> None:
    with topics(served, 5_000) as peer:
        served.begin()
        peer.ask([b"DELETE topic-%d\n" % number for number in range(5_000)])


def _with_groups_is_deleted(served: Served, count: int) -> None:
    with topics(served, 1) as peer:
        peer.ask([b"COMMIT group-%d topic-0 0\n" % number for number in range(count)])
        served.begin()
        peer.ask([b"DELETE topic-0\n"])
        ping(served)
        time.sleep(1)


def logmq_a_topic_with_20000_groups_is_deleted(served: Served) -> None:
    _with_groups_is_deleted(served, 20_000)


def logmq_a_topic_with_100000_groups_is_deleted(served: Served) -> None:
    _with_groups_is_deleted(served, 100_000)


def logmq_10000_connections_end_at_once(served: Served) -> None:
    with connected(served, 10_000) as peers:
        served.begin()
        with served.paused():
            for peer in peers:
                peer.close()
    until(lambda: not served.get("connections?protocol=logmq&limit=1")["items"])


def logmq_10000_connections_are_there_when_the_server_stops(served: Served) -> None:
    with connected(served, 10_000):
        served.begin()
        served.stop()


# -- many requests in one go


def _batches(seqs: Iterable[int], records: bytes = ONE_BYTE) -> bytes:
    return b"".join(b"BATCH topic-0 w %d %d\n" % (seq, len(records)) + records for seq in seqs)


def logmq_50000_batches_of_one_record(served: Served) -> None:
    with topics(served, 1) as peer:
        served.begin()
        peer.ask_at_once(_batches(range(1, 50_001)), 50_000)


def logmq_50000_batches_that_are_repeated(served: Served) -> None:
    with topics(served, 1) as peer:
        peer.ask([_batches([1])])
        served.begin()
        peer.ask_at_once(_batches([1] * 50_000), 50_000)


def logmq_400000_messages_of_a_byte(served: Served) -> None:
    with topics(served, 1) as peer:
        served.begin()
        peer.ask_at_once(b"PRODUCE topic-0 x\n" * 400_000, 400_000)


def logmq_400000_messages_of_0_and_1_byte(served: Served) -> None:
    with topics(served, 1) as peer:
        served.begin()
        peer.ask_at_once(b"PRODUCE topic-0 \nPRODUCE topic-0 y\n" * 200_000, 400_000)


def logmq_50000_commits_of_one_group(served: Served) -> None:
    with topics(served, 1) as peer:
        served.begin()
        peer.ask_at_once(b"COMMIT g topic-0 0\n" * 50_000, 50_000)


# -- readers that wait


@contextmanager
def _fetching(served: Served, connections: int, count: int, wait_ms: int = 60_000) -> Iterator[list[Logmq]]:
    """So many connections, each with `count` FETCHes that wait behind the first record of topic-0."""
    with crowd(connections, lambda _: Logmq(served)) as peers:
        with served.paused():
            for peer in peers:
                peer.send(b"FETCH topic-0 5 1000 %d\n" % wait_ms * count)
        time.sleep(2)
        ping(served)
        served.begin()
        yield peers


def logmq_51400_fetches_of_200_connections_wait_for_one_record(served: Served) -> None:
    with topics(served, 1) as peer, _fetching(served, 200, WAITS_OF_ONE) as readers:
        peer.ask([b"PRODUCE topic-0 yyy\n"])
        _answered(readers, b"CHUNK", WAITS_OF_ONE)


def logmq_19000_fetches_of_as_many_connections_wait_for_one_record(served: Served) -> None:
    with topics(served, 1) as peer, _fetching(served, CONNECTIONS, 1) as readers:
        peer.ask([b"PRODUCE topic-0 yyy\n"])
        _answered(readers, b"CHUNK")


def logmq_19000_fetches_of_as_many_connections_time_out_at_once(served: Served) -> None:
    with topics(served, 1), _fetching(served, CONNECTIONS, 1, 5000) as readers:
        _answered(readers, b"EOF")


def logmq_a_topic_that_51400_fetches_wait_for_is_deleted(served: Served) -> None:
    with topics(served, 1) as peer, _fetching(served, 200, WAITS_OF_ONE) as readers:
        peer.ask([b"DELETE topic-0\n"])
        _answered(readers, b"NO_TOPIC", 257)
        ping(served)


def logmq_a_topic_that_51400_fetches_wait_for_is_made(served: Served) -> None:
    with Logmq(served) as peer, _fetching(served, 200, WAITS_OF_ONE) as readers:
        peer.ask([b"PRODUCE topic-0 y\n", b"PRODUCE topic-0 yyy\n"])
        _answered(readers, b"CHUNK", WAITS_OF_ONE)


def logmq_51400_fetches_far_beyond_the_end_and_1000_records(served: Served) -> None:
    lines = b"".join(b"FETCH topic-0 9%06d 9 60000\n" % number for number in range(WAITS_OF_ONE))
    with topics(served, 1) as peer, crowd(200, lambda _: Logmq(served, lines)):
        time.sleep(2)
        served.begin()
        for _ in range(100):
            peer.ask([b"PRODUCE topic-0 yyy\n"] * 10)


@contextmanager
def _tails(served: Served, count: int) -> Iterator[list[Logmq]]:
    """So many connections that have had the first record of topic-0."""
    with crowd(count, lambda _: Logmq(served, b"TAIL topic-0 0\n")) as tails:
        _answered(tails, b"MESSAGE")
        served.begin()
        yield tails


def logmq_one_record_for_1000_tails(served: Served) -> None:
    with topics(served, 1) as peer, _tails(served, 1000) as tails:
        peer.ask([b"PRODUCE topic-0 x\n"] * 100)
        _answered(tails, b"MESSAGE", 101)


def logmq_one_record_for_19000_tails(served: Served) -> None:
    with topics(served, 1) as peer, _tails(served, CONNECTIONS) as tails:
        for count in range(2, 7):
            peer.ask([b"PRODUCE topic-0 x\n"])
            _answered(tails, b"MESSAGE", count)


def logmq_a_topic_with_19000_tails_is_deleted(served: Served) -> None:
    with topics(served, 1) as peer, _tails(served, CONNECTIONS) as tails:
        peer.ask([b"DELETE topic-0\n"])
        _answered(tails, b"NO_TOPIC")


# -- large batches of small records


def logmq_a_batch_of_260000_empty_records_is_written_and_read(served: Served) -> None:
    count = 260_000
    served.begin()
    with Logmq(served) as peer, Logmq(served, b"TAIL topic-0 0\n") as tail:
        peer.ask_at_once(_batches([1], EMPTY * count), 1)
        tail.hear(b"\n", count)
        peer.ask_at_once(b"".join(b"CONSUME topic-0 %d\n" % (4 * n) for n in range(50_000)), 50_000)


_SMALL_OFFSETS = [4 * number + number // 2 for number in range(232_000)]
_SMALL_RECORDS = b"".join(
    EMPTY if start % 9 == 0 else ONE_BYTE for start in _SMALL_OFFSETS
)  # 1 MiB of records of 0 and 1 byte, in turns


def logmq_batches_of_232000_records_of_0_and_1_byte_are_written(served: Served) -> None:
    with Logmq(served) as peer:
        served.begin()
        peer.ask_at_once(_batches(range(5), _SMALL_RECORDS), 5)


def logmq_232000_records_of_0_and_1_byte_are_tailed_and_consumed(served: Served) -> None:
    with Logmq(served) as peer:
        peer.ask([_batches([1], _SMALL_RECORDS)])
        served.begin()
        with Logmq(served, b"TAIL topic-0 0\n") as tail:
            tail.hear(b"\n", len(_SMALL_OFFSETS))
        for at in range(0, 200_000, 20_000):
            asked = _SMALL_OFFSETS[at : at + 20_000]
            peer.ask_at_once(b"".join(b"CONSUME topic-0 %d\n" % offset for offset in asked), len(asked))


def logmq_places_all_over_232000_records_of_0_and_1_byte(served: Served) -> None:
    places = _SMALL_OFFSETS[1::1999]
    with Logmq(served) as peer:
        peer.ask([_batches([1], _SMALL_RECORDS)])
        served.begin()
        for _ in range(2):  # in memory, and then in the file
            for request in (b"COMMIT g topic-0 %d\n", b"CONSUME topic-0 %d\n", b"FETCH topic-0 %d 1\n"):
                peer.ask_at_once(b"".join(request % place for place in places[::-1]), len(places))
            time.sleep(3)
        for back in (1, 100_001, 231_000):
            served.ask("POST", "/api/v1/topics/topic-0/records", {"records_back": back, "limit": 1000})
