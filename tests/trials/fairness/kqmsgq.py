"""What clients of KqueueMsgQ do."""

from kqmsgq import wire
from tests.trials.fairness.peers import Kqmsgq, crowd, ping
from tests.trials.fairness.served import OBJECTS, Served, until

_CONSUMES_Q = wire.CONSUME + wire.subscribe(b"q")


def _send_until_seen(producer: Kqmsgq, data: bytes, consumer: Kqmsgq) -> None:
    def seen() -> bool:
        producer.send(data)
        return consumer.has_heard()

    until(seen)
    consumer.data.clear()


def kqmsgq_subscriptions_come_and_go(served: Served) -> None:
    wishes = b"".join(wire.subscribe(b"queue-%d" % number) for number in range(OBJECTS))
    served.begin()
    with Kqmsgq(served, wire.CONSUME + wishes) as consumer, Kqmsgq(served, wire.PRODUCE) as producer:
        _send_until_seen(producer, wire.message(b"queue-%d" % (OBJECTS - 1), b"x"), consumer)
    ping(served)
    ping(served)


def kqmsgq_messages_for_all_consumers_who_are_there_when_the_server_stops(served: Served) -> None:
    twenty = wire.message(b"q", b"x" * 100) * 20
    with (
        crowd(OBJECTS, lambda _: Kqmsgq(served, _CONSUMES_Q)) as consumers,
        Kqmsgq(served, wire.PRODUCE) as producer,
    ):
        _send_until_seen(producer, wire.message(b"q", b"x"), consumers[-1])
        served.begin()
        producer.send(twenty)
        consumers[-1].read(len(twenty))
        served.stop()


def kqmsgq_a_consumer_that_does_not_read_many_small_messages(served: Served) -> None:
    with Kqmsgq(served, _CONSUMES_Q) as _, Kqmsgq(served, wire.PRODUCE) as producer:
        ping(served)
        served.begin()
        for _ in range(200):
            producer.send(wire.message(b"q", b"x") * 10_000)
        ping(served)
