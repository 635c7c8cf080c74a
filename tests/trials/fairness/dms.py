"""What clients of DMS do."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.support import dms_spec as dms
from tests.trials.fairness.peers import Dms, crowd, ping
from tests.trials.fairness.served import Served, until

QUEUES = [f"queue-{number:05}" for number in range(50_000)]


def _filled(served: Served, count: int, body: bytes = b"x" * 100) -> None:
    with Dms(served) as client:
        client.create("q")
        client.produce(*["q"] * count, body=body)


def _consumes(count: int) -> list[bytes]:
    return [dms.frame(dms.CONSUME, number, dms.name("q")) for number in range(1, count + 1)]


def _held(served: Served, count: int) -> Dms:
    """A connection that holds so many of `q`, in runs of 4,000."""
    client = Dms(served)
    client.create("q")
    frames = dms.frame(dms.PRODUCE, 1, dms.name("q", b"x" * 20)) * 20_000
    for _ in range(count // 20_000):
        client.send(frames)
        client.replies(20_000)
    for _ in range(count // 4000):
        client.send(b"".join(_consumes(4000)))
        client.replies(4000)
    return client


def _held_left(served: Served) -> int:
    return int(served.ask("GET", "/api/v1/queues/dms/q")["held"])


def dms_100000_deliveries_come_back_with_their_connection(served: Served) -> None:
    _filled(served, 100_000)
    client = Dms(served)
    client.ask(_consumes(100_000))
    served.begin()
    client.close()
    until(lambda: not _held_left(served))


def dms_500000_deliveries_come_back_with_their_connection(served: Served) -> None:
    client = _held(served, 500_000)
    served.begin()
    client.close()
    until(lambda: not _held_left(served))


@contextmanager
def _one_held_of_each(served: Served) -> Iterator[Dms]:
    """A connection that holds a delivery of each of 50,000 queues."""
    with Dms(served) as client:
        client.create(*QUEUES)
        client.produce(*QUEUES, body=b"x")
        client.ask([dms.frame(dms.CONSUME, n, dms.name(name)) for n, name in enumerate(QUEUES)])
        yield client


def dms_50000_deliveries_of_as_many_queues_come_back_with_their_connection(served: Served) -> None:
    with _one_held_of_each(served) as client:
        served.begin()
        client.close()
    with Dms(served) as other:
        other.ask([dms.frame(dms.CONSUME, 1, dms.name(QUEUES[-1]))])
    time.sleep(2)  # what came back is noted on the disk


def dms_50000_deliveries_of_as_many_queues_are_held_when_the_server_stops(served: Served) -> None:
    with _one_held_of_each(served):
        served.begin()
        served.stop()


def _refused_in_one_go(served: Served, count: int, body: bytes) -> None:
    _filled(served, count, body)
    with Dms(served) as client:
        held = client.ask(_consumes(count))
        served.begin()
        client.send(b"".join(dms.frame(dms.NACK, reply[2]) for reply in held))
        client.replies(count)


def dms_100000_are_refused_in_one_go(served: Served) -> None:
    _refused_in_one_go(served, 100_000, b"x" * 100)


def dms_60000_of_2_kb_are_refused_in_one_go(served: Served) -> None:
    _refused_in_one_go(served, 60_000, b"x" * 2000)


def dms_100000_come_back_for_many_who_wait(served: Served) -> None:
    _filled(served, 100_000)
    client = Dms(served)
    client.ask(_consumes(100_000))
    with crowd(25, lambda _: Dms(served)) as others:
        for other in others:
            other.send(b"".join(_consumes(4000)))
        ping(served)
        served.begin()
        client.close()
        for other in others:
            other.replies(4000)


def _consume_one_by_one(client: Dms, count: int) -> None:
    """A read each, nearly."""
    for request in _consumes(count):
        client.send(request)


def dms_a_queue_with_20000_waits_is_deleted(served: Served) -> None:
    _filled(served, 0)
    with crowd(5, lambda _: Dms(served)) as others, Dms(served) as one:
        for other in others:
            _consume_one_by_one(other, 4000)
        until(lambda: "brokers_dms_consumes_waiting 20000" in served.ask("GET", "/metrics"))
        served.begin()
        one.delete("q")
        for other in others:
            other.hear(b"was deleted", 4000)


def dms_4096_consumes_end_with_a_disconnect(served: Served) -> None:
    _filled(served, 0)
    with Dms(served) as client:
        _consume_one_by_one(client, 4096)
        ping(served)
        served.begin()
        client.send(dms.frame(dms.DISCONNECT, 1))
        client.hear(b"no message in time", 4096)


@contextmanager
def _who_wait(served: Served, count: int) -> Iterator[Sequence[Dms]]:
    """So many connections, each with a CONSUME that waits."""
    with crowd(count, lambda _: Dms(served)) as others:
        for other in others:
            other.send(dms.frame(dms.CONSUME, 1, dms.name("q")))
        ping(served)
        served.begin()
        yield others


def dms_a_queue_that_9000_connections_wait_for_is_deleted(served: Served) -> None:
    _filled(served, 0)
    with _who_wait(served, 9000) as others, Dms(served) as one:
        one.delete("q")
        for other in others:
            other.hear(b"was deleted")


def dms_20000_messages_for_9000_who_wait(served: Served) -> None:
    _filled(served, 0)
    with _who_wait(served, 9000) as others, Dms(served) as client:
        client.produce(*["q"] * 20_000, body=b"x")
        for other in others:
            other.replies(1)


def dms_the_delay_of_10000_ends_and_9000_wait_for_them(served: Served) -> None:
    with Dms(served) as client:
        client.create("q", options=b'{"delay_ms": 10000}')
        client.produce(*["q"] * 10_000)
    with _who_wait(served, 9000) as others:
        for other in others:
            other.replies(1)


def dms_10000_consumers_are_there_when_the_server_stops(served: Served) -> None:
    _filled(served, 10_000)

    def consumer(number: int) -> Dms:
        client = Dms(served)
        client.send(b"".join(_consumes(4)))
        if number < 2500:
            client.replies(4)
        return client

    with crowd(10_000, consumer):
        ping(served)
        served.begin()
        served.stop()


def dms_100000_die_and_become_dead_letters(served: Served) -> None:
    with Dms(served) as client:
        client.create("dead")
        client.create("q", options=b'{"ttl_ms": 4000, "dead_letter": "dead"}')
        client.produce(*["q"] * 100_000)
        served.begin()
        until(lambda: client.depths()["dead"] >= 100_000)
    served.ask("POST", "/api/v1/queues/dms/dead/redrive")


def dms_50000_queues_are_listed_while_others_come_and_go(served: Served) -> None:
    with Dms(served) as client:
        client.create(*(QUEUES[n * 7919 % 50_000] for n in range(50_000)))
        client.depths()
        served.begin()
        for number in range(20):
            name = dms.name(f"queue-{number}")
            client.ask([dms.frame(dms.CREATE, 1, name), dms.frame(dms.LIST, 1)])
            client.ask([dms.frame(dms.DELETE, 1, name), dms.frame(dms.LIST, 1)])


def dms_50000_queues_are_listed_64_times_under_rules(served: Served) -> None:
    with Dms(served) as client:
        client.create(*QUEUES)
    served.allow("dms:read:orders-*", "dms:write:*-7?9?", "dms:*:*-123")
    with Dms(served) as client:
        served.begin()
        client.ask([dms.frame(dms.LIST, 1)] * 64)


def dms_100000_deliveries_are_held_when_rules_change(served: Served) -> None:
    _filled(served, 100_000)
    with Dms(served) as client:
        client.ask(_consumes(100_000))
        served.begin()
        served.allow("dms:*:other")
        ping(served)
        served.allow("dms:*:*")
        with Dms(served) as other:
            until(lambda: other.ask(_consumes(1)) != [])


def dms_100000_messages_of_0_to_2_bytes(served: Served) -> None:
    with Dms(served) as client:
        client.create("q")
        served.begin()
        client.send(
            b"".join(dms.frame(dms.PRODUCE, n, dms.name("q", b"x" * (n % 3))) for n in range(100_000))
        )
        client.replies(100_000)
        client.ask(_consumes(100_000))


def dms_a_full_queue_refuses_100000(served: Served) -> None:
    with Dms(served) as client:
        client.create("q", options=b'{"depth": 1}')
        client.produce("q")
        served.begin()
        frames = [dms.frame(dms.PRODUCE, n, dms.name("q", b"x" * (n % 3))) for n in range(100_000)]
        for at in range(0, len(frames), 10_000):
            client.send(b"".join(frames[at : at + 10_000]))
            client.hear(b"holds its 1 messages", 10_000)
            client.data.clear()


def dms_50000_queues_are_deleted(served: Served) -> None:
    with Dms(served) as client:
        client.create(*QUEUES)
        client.produce(*QUEUES, body=b"x")
        served.begin()
        client.delete(*QUEUES)


def dms_a_purge_of_100000(served: Served) -> None:
    _filled(served, 100_000)
    served.begin()
    served.ask("POST", "/api/v1/queues/dms/q/purge")
    ping(served)


def dms_a_purge_of_500000_that_came_back(served: Served) -> None:
    _held(served, 500_000).close()
    until(lambda: not _held_left(served))
    served.begin()
    served.ask("POST", "/api/v1/queues/dms/q/purge")
    ping(served)


def dms_a_million_are_purged_and_a_million_go_with_their_queue(served: Served) -> None:
    with Dms(served) as client:
        for verb in ("purge", "delete"):
            client.create(verb)
            client.produce(*[verb] * 1_000_000, body=b"x")
        served.begin()
        served.ask("POST", "/api/v1/queues/dms/purge/purge")
        client.delete("delete")
    ping(served)


def dms_50000_queues_are_written_and_checkpointed(served: Served) -> None:
    with Dms(served) as client:
        client.create(*QUEUES)
        time.sleep(8)  # what was made is checkpointed
        served.begin()
        client.produce(*QUEUES, body=b"x")
        time.sleep(8)
