"""What clients of DMS do."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support import dms_spec as dms
from tests.trials.fairness.peers import Dms, crowd, ping
from tests.trials.fairness.served import MESSAGES, OBJECTS, Served, until

QUEUES = [f"queue-{number:05}" for number in range(OBJECTS)]
_CREDITS = 4000
"""CONSUMEs that one connection may have waiting, nearly."""


def _consumes(count: int) -> list[bytes]:
    return [dms.frame(dms.CONSUME, number, dms.name("q")) for number in range(1, count + 1)]


def _queue(served: Served, count: int = 0, body: bytes = b"x" * 100, options: bytes = b"") -> Dms:
    """A connection that has made `q`, with so many messages."""
    client = Dms(served)
    client.create("q", options=options)
    client.produce(*["q"] * count, body=body)
    return client


def _holding(served: Served, body: bytes = b"x" * 100) -> tuple[Dms, list[dms.Reply]]:
    """A connection that holds all messages of `q`."""
    client = _queue(served, MESSAGES, body)
    return client, client.ask(_consumes(MESSAGES))


def _held_left(served: Served) -> int:
    return int(served.ask("GET", "/api/v1/queues/dms/q")["held"])


def dms_deliveries_come_back_with_their_connection_and_are_purged(served: Served) -> None:
    client, _ = _holding(served)
    served.begin()
    client.close()
    until(lambda: not _held_left(served))
    served.ask("POST", "/api/v1/queues/dms/q/purge")
    ping(served)


@contextmanager
def _one_held_of_each(served: Served) -> Iterator[Dms]:
    """A connection that holds a delivery of each of many queues."""
    with Dms(served) as client:
        client.create(*QUEUES)
        client.produce(*QUEUES, body=b"x")
        client.ask([dms.frame(dms.CONSUME, n, dms.name(name)) for n, name in enumerate(QUEUES)])
        yield client


def dms_deliveries_of_as_many_queues_come_back_with_their_connection(served: Served) -> None:
    with _one_held_of_each(served) as client:
        served.begin()
        client.close()
    with Dms(served) as other:
        other.ask([dms.frame(dms.CONSUME, 1, dms.name(QUEUES[-1]))])
    time.sleep(2)  # what came back is noted on the disk


def dms_deliveries_of_as_many_queues_are_held_when_the_server_stops(served: Served) -> None:
    with _one_held_of_each(served):
        served.begin()
        served.stop()


def dms_deliveries_of_2_kb_are_refused_in_one_go(served: Served) -> None:
    client, held = _holding(served, b"x" * 2000)
    with client:
        served.begin()
        client.send(b"".join(dms.frame(dms.NACK, reply[2]) for reply in held))
        client.replies(len(held))


def dms_deliveries_come_back_for_many_who_wait(served: Served) -> None:
    client, _ = _holding(served)
    with crowd(MESSAGES // _CREDITS, lambda _: Dms(served)) as others:
        for other in others:
            other.send(b"".join(_consumes(_CREDITS)))
        ping(served)
        served.begin()
        client.close()
        for other in others:
            other.replies(_CREDITS)


def dms_deliveries_are_held_when_rules_change(served: Served) -> None:
    client, held = _holding(served)
    with client:
        served.begin()
        served.allow("dms:*:other")
        ping(served)
        served.allow("dms:*:*")
        client.send(b"".join(dms.frame(dms.NACK, reply[2]) for reply in held))
        client.replies(len(held))


def dms_a_connection_with_4000_waits_ends_with_a_disconnect(served: Served) -> None:
    with _queue(served) as client:
        for request in _consumes(_CREDITS):
            client.send(request)  # a read each, nearly
        ping(served)
        served.begin()
        client.send(dms.frame(dms.DISCONNECT, 1))
        client.hear(b"no message in time", _CREDITS)


@contextmanager
def _who_wait(served: Served) -> Iterator[list[Dms]]:
    """Many connections, each with a CONSUME that waits."""
    with crowd(OBJECTS, lambda _: Dms(served)) as others:
        for other in others:
            other.send(_consumes(1)[0])
        ping(served)
        served.begin()
        yield others


def dms_a_queue_that_all_wait_for_is_deleted(served: Served) -> None:
    with _queue(served) as client, _who_wait(served) as others:
        client.delete("q")
        for other in others:
            other.hear(b"was deleted")


def dms_messages_for_all_who_wait(served: Served) -> None:
    with _queue(served) as client, _who_wait(served) as others:
        client.produce(*["q"] * 2 * OBJECTS, body=b"x")
        for other in others:
            other.replies(1)


def dms_the_delay_of_messages_ends_and_all_wait_for_them(served: Served) -> None:
    _queue(served, OBJECTS, options=b'{"delay_ms": 10000}').close()
    with _who_wait(served) as others:
        for other in others:
            other.replies(1)


def dms_consumers_are_there_when_the_server_stops(served: Served) -> None:
    _queue(served, OBJECTS).close()

    def consumer(number: int) -> Dms:
        client = Dms(served)
        client.send(b"".join(_consumes(4)))
        if number < OBJECTS // 4:
            client.replies(4)
        return client

    with crowd(OBJECTS, consumer):
        ping(served)
        served.begin()
        served.stop()


def dms_messages_die_and_become_dead_letters_and_go_back(served: Served) -> None:
    with Dms(served) as client:
        client.create("dead")
        client.create("q", options=b'{"ttl_ms": 4000, "dead_letter": "dead"}')
        client.produce(*["q"] * MESSAGES)
        served.begin()
        until(lambda: client.depths()["dead"] >= MESSAGES)
    served.ask("POST", "/api/v1/queues/dms/dead/redrive")


def dms_messages_of_0_to_2_bytes(served: Served) -> None:
    with _queue(served) as client:
        served.begin()
        client.send(b"".join(dms.frame(dms.PRODUCE, n, dms.name("q", bytes(n % 3))) for n in range(MESSAGES)))
        client.replies(MESSAGES)
        client.ask(_consumes(MESSAGES))


def dms_a_full_queue_refuses_messages(served: Served) -> None:
    with _queue(served, 1, options=b'{"depth": 1}') as client:
        served.begin()
        client.send(dms.frame(dms.PRODUCE, 1, dms.name("q", b"x")) * MESSAGES)
        client.hear(b"holds its 1 messages", MESSAGES)


def dms_queues_are_listed_under_rules_while_others_come_and_go(served: Served) -> None:
    with Dms(served) as client:
        client.create(*(QUEUES[n * 7919 % OBJECTS] for n in range(OBJECTS)))
    served.allow("dms:*:orders-*", "dms:read:*-7?9?", "dms:*:*-?2?")
    with Dms(served) as client:
        served.begin()
        for number in range(20):
            client.create(f"queue-{number}-x2x")
            client.delete(f"queue-{number}-x2x")
            client.depths()


def dms_queues_are_written_and_checkpointed_and_deleted(served: Served) -> None:
    with Dms(served) as client:
        client.create(*QUEUES)
        time.sleep(5)  # what was made is checkpointed
        served.begin()
        client.produce(*QUEUES, body=b"x")
        time.sleep(5)
        client.delete(*QUEUES)
