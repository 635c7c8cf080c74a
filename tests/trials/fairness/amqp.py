"""What clients of AMQP do, and a sink of DMP."""

from collections.abc import Callable, Mapping
from typing import Any

from pamqp import base, commands, frame

from dmp import wire as dmp
from dmp.amqp.wire import Direct, encode
from tests.trials.fairness.peers import PERSISTENT, Amqp, Dmp, crowd, message, ping
from tests.trials.fairness.served import MESSAGES, OBJECTS, Served, until

_DEAD: Mapping[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
_SENT_AT_ONCE = 500
"""Methods, so that neither side waits for the other."""


def _properties(**properties: Any) -> commands.Basic.Properties:
    return commands.Basic.Properties(**properties)


def _queue(served: Served, count: int = 0, properties: Any = None, **arguments: Any) -> Amqp:
    """The durable queue `q` with so many messages."""
    peer = Amqp(served)
    peer.call(commands.Queue.Declare(queue="q", durable=True, arguments=arguments))
    if count:
        peer.publish("", "q", count, properties=properties)
    return peer


def declared(peer: Amqp, count: int = OBJECTS, *, exchange: str = "", **declare: Any) -> None:
    """So many queues, perhaps bound to an exchange."""
    for at in range(0, count, _SENT_AT_ONCE):
        for number in range(at, at + _SENT_AT_ONCE):
            peer.say(commands.Queue.Declare(queue=f"q{number}", nowait=True, **declare))
            if exchange:
                peer.say(commands.Queue.Bind(queue=f"q{number}", exchange=exchange, nowait=True))
        peer.depth("q0")


def bound(served: Served, kind: str, bind: Callable[[int], Mapping[str, Any]]) -> Amqp:
    """The queue `q` with many bindings to the exchange `e`."""
    peer = _queue(served)
    peer.call(commands.Exchange.Declare(exchange="e", exchange_type=kind))
    for at in range(0, OBJECTS, _SENT_AT_ONCE):
        peer.say(*(commands.Queue.Bind(0, "q", "e", **bind(n)) for n in range(at, at + _SENT_AT_ONCE)))
        peer.wait("Queue.BindOk", _SENT_AT_ONCE)
    return peer


# -- what a queue holds, and who holds what of it


def amqp_a_purge_of_durable_messages_and_the_end_of_a_queue(served: Served) -> None:
    with _queue(served, MESSAGES, PERSISTENT) as peer:
        served.begin()
        peer.call(commands.Queue.Purge(queue="q"))
        peer.publish("", "q", MESSAGES)
        peer.call(commands.Queue.Delete(queue="q"))
        ping(served)


def _holding(served: Served) -> Amqp:
    _queue(served, MESSAGES).close()
    peer = Amqp(served)
    peer.call(commands.Basic.Qos(prefetch_count=0))
    peer.call(commands.Basic.Consume(queue="q", consumer_tag="c"))
    peer.wait("Basic.Deliver", MESSAGES)
    return peer


def amqp_all_are_delivered_again_and_come_back_and_go_out_and_are_acknowledged(served: Served) -> None:
    with _holding(served) as peer:
        served.begin()
        peer.call(commands.Basic.Recover(requeue=False))
        peer.wait("Basic.Deliver", MESSAGES)
        peer.say(commands.Basic.Nack(0, multiple=True, requeue=True))
        peer.wait("Basic.Deliver", MESSAGES)
        peer.say(commands.Basic.Ack(0, multiple=True))
        peer.call(commands.Basic.Cancel("c"))
        ping(served)


def amqp_all_come_back_with_their_connection(served: Served) -> None:
    peer = _holding(served)
    served.begin()
    peer.close()
    with _queue(served) as other:
        until(lambda: other.depth() >= MESSAGES)


def amqp_messages_of_ten_priorities_are_delivered_and_come_back(served: Served) -> None:
    ten = [message("", "q", b"x" * 100, _properties(priority=n)) for n in range(10)]
    with _queue(served, **{"x-max-priority": 10}) as peer:
        served.begin()
        peer.publish_all(b"".join(ten) * (MESSAGES // 10), MESSAGES)
        with Amqp(served) as other:
            other.call(commands.Basic.Consume(queue="q"))
            other.wait("Basic.Deliver", MESSAGES)
        until(lambda: peer.depth() == MESSAGES)


def amqp_messages_expire_and_become_dead_letters_and_go_back(served: Served) -> None:
    with _queue(served, **{"x-message-ttl": 6000, **_DEAD}) as peer:
        peer.call(commands.Queue.Declare(queue="dead", durable=True))
        peer.publish("", "q", MESSAGES)
        served.begin()
        until(lambda: peer.depth("dead") == MESSAGES)
        served.ask("POST", "/api/v1/queues/dmp/dead/redrive", {})


def amqp_a_large_message_pushes_small_ones_out(served: Served) -> None:
    count, size = 39_000, 117_000  # what a frame takes
    with _queue(served, **{"x-max-length-bytes": size, **_DEAD}) as peer:
        peer.call(commands.Queue.Declare(queue="dead"))
        peer.publish("", "q", count, b"xxx")
        served.begin()
        peer.publish("", "q", 1, b"x" * size)
        until(lambda: peer.depth("dead") == count)


def amqp_messages_that_differ_go_nowhere(served: Served) -> None:
    with _queue(served) as peer:
        served.begin()
        sent = b"".join(message("amq.topic", f"k{number % 200}", b"x") for number in range(MESSAGES))
        peer.publish_all(sent, MESSAGES)


# -- transactions


def amqp_a_transaction_of_4000_messages_that_differ(served: Served) -> None:
    with _queue(served) as peer:
        peer.call(commands.Tx.Select())
        peer.send(b"".join(message("", "q", b"x" * number, PERSISTENT) for number in range(1, 4001)))
        ping(served)
        served.begin()
        peer.call(commands.Tx.Commit())


def amqp_a_transaction_for_4000_durable_queues(served: Served) -> None:
    with Amqp(served) as peer:
        declared(peer, 4000, exchange="amq.fanout", durable=True)
        peer.call(commands.Tx.Select())
        served.begin()
        for _ in range(4):
            peer.send(message("amq.fanout", "", b"x" * 100, PERSISTENT))
            peer.call(commands.Tx.Commit())


def _in_a_transaction(served: Served, method: base.Frame, end: base.Frame) -> None:
    with _holding(served) as peer:
        peer.call(commands.Tx.Select())
        served.begin()
        peer.say(method)
        peer.call(end)
        ping(served)


def amqp_a_transaction_of_all_acks_but_one(served: Served) -> None:
    _in_a_transaction(served, commands.Basic.Ack(MESSAGES - 1, True), commands.Tx.Commit())


def amqp_a_transaction_gives_all_back(served: Served) -> None:
    _in_a_transaction(served, commands.Basic.Nack(0, True, True), commands.Tx.Commit())


def amqp_a_transaction_of_acks_is_rolled_back(served: Served) -> None:
    _in_a_transaction(served, commands.Basic.Ack(MESSAGES - 1, True), commands.Tx.Rollback())


# -- connections, channels and consumers


def amqp_consumers_are_there_when_the_server_stops(served: Served) -> None:
    def consumer(number: int) -> Amqp:
        peer = Amqp(served)
        peer.call(commands.Basic.Qos(0, 5, False))
        peer.call(commands.Basic.Consume(queue="q"))
        if number < 2000:
            peer.wait("Basic.Deliver", 5)
        return peer

    with _queue(served, 10_000), crowd(OBJECTS, consumer):
        served.begin()
        served.stop()


def amqp_2047_channels_with_consumers_end_with_their_connection(served: Served) -> None:
    with _queue(served, 20_470) as peer, Amqp(served) as other:
        served.begin()
        for channel in range(2, 2048):
            other.call(commands.Channel.Open(), channel)
            other.call(commands.Basic.Qos(0, 10, False), channel)
            other.call(commands.Basic.Consume(queue="q"), channel)
        until(lambda: peer.depth() == 10)
        other.call(commands.Connection.Close(200, "", 0, 0), 0)
        until(lambda: peer.depth() == 20_470)


def amqp_consumers_of_a_queue_are_cancelled_and_the_queue_is_deleted(served: Served) -> None:
    with _queue(served) as peer, _queue(served) as other:
        for each, count in ((peer, 4000), (other, 1000)):
            named = [f"c{number}" for number in range(count)]
            each.say(*(commands.Basic.Consume(0, "q", name, no_ack=True, nowait=True) for name in named))
            each.depth()
        served.begin()
        other.say(*(commands.Basic.Cancel(f"c{n}", nowait=True) for n in range(1000)))
        other.call(commands.Queue.Delete(queue="q"))
        ping(served)


def amqp_a_queue_of_200_consumers_is_resumed(served: Served) -> None:
    with crowd(200, lambda _: _queue(served)) as peers:
        served.ask("POST", "/api/v1/queues/dmp/q/pause", {})
        for peer in peers:
            peer.call(commands.Basic.Consume(queue="q"))
        peers[0].publish("", "q", MESSAGES, b"x")
        served.begin()
        served.ask("POST", "/api/v1/queues/dmp/q/resume", {})
        ping(served)


def amqp_exclusive_queues_end_with_their_connection(served: Served) -> None:
    with Amqp(served) as peer, Amqp(served) as other:
        declared(other, exchange="amq.fanout", exclusive=True)
        served.begin()
        other.close()
        peer.call(commands.Queue.Declare(queue="last"))
    ping(served)


# -- bindings


def bound_by_topics(served: Served) -> Amqp:
    return bound(served, "topic", lambda number: {"routing_key": f"a.{number}.#"})


def amqp_an_exchange_with_many_bindings_is_deleted(served: Served) -> None:
    with bound_by_topics(served) as peer:
        served.begin()
        peer.call(commands.Exchange.Delete(exchange="e"))
        ping(served)


def amqp_a_message_under_topic_bindings_which_are_unbound(served: Served) -> None:
    keys = [f"*.*.*.{number}" for number in range(OBJECTS)]
    with bound(served, "topic", lambda number: {"routing_key": keys[number]}) as peer:
        served.begin()
        peer.publish("e", "a.b.c.7", 100, b"x")
        peer.say(*(commands.Queue.Unbind(queue="q", exchange="e", routing_key=key) for key in keys))
        peer.wait("Queue.UnbindOk", OBJECTS)


def _under_headers(
    served: Served, arguments: Callable[[int], Mapping[str, Any]], headers: Mapping[str, int]
) -> None:
    with bound(served, "headers", lambda number: {"arguments": arguments(number)}) as peer:
        served.begin()
        # They differ, so that no route is known.
        differing = [_properties(headers={**headers, "other": number}) for number in range(20)]
        peer.publish_all(b"".join(message("e", "", b"x", each) for each in differing), len(differing))


def amqp_a_message_under_bindings_to_any_of_eight_headers(served: Served) -> None:
    common = {f"common{number}": 1 for number in range(8)}
    _under_headers(served, lambda number: {**common, "n": number, "x-match": "any"}, common)


def amqp_a_message_under_bindings_to_all_of_some_headers(served: Served) -> None:
    """Each wants eight or more of eighteen, and one that no message has: no index tells them apart."""
    wanted = [number for number in range(1 << 18) if number.bit_count() >= 8]
    names = [f"h{number}" for number in range(18)]

    def arguments(number: int) -> Mapping[str, Any]:
        return {name: 1 for bit, name in enumerate(names) if wanted[number] >> bit & 1} | {"missing": 1}

    _under_headers(served, arguments, dict.fromkeys(names, 1))


# -- one message for many queues


def amqp_a_persistent_message_for_many_durable_queues(served: Served) -> None:
    with Amqp(served) as peer:
        declared(peer, exchange="amq.fanout", durable=True)
        served.begin()
        peer.publish("amq.fanout", "", 4, properties=PERSISTENT)


def amqp_a_message_through_many_exchanges(served: Served) -> None:
    with _queue(served) as peer:
        for at in range(0, OBJECTS, _SENT_AT_ONCE):
            for number in range(at, at + _SENT_AT_ONCE):
                name = f"e{number}"
                peer.say(
                    commands.Exchange.Declare(exchange=name, exchange_type="fanout", nowait=True),
                    commands.Exchange.Bind(destination=name, source="amq.fanout", nowait=True),
                    commands.Queue.Bind(queue="q", exchange=name, nowait=True),
                )
            peer.depth()
        served.begin()
        peer.publish("amq.fanout", "", 4)


def amqp_an_immediate_message_for_many_queues_that_nobody_takes(served: Served) -> None:
    with Amqp(served) as peer:
        declared(peer, exchange="amq.fanout")
        publish = frame.marshal(commands.Basic.Publish(exchange="amq.fanout", immediate=True), 1)
        content = message("amq.fanout", "", b"x").partition(b"\xce")[2]
        served.begin()
        peer.send((publish + content) * 4)
        peer.wait("Basic.Return", 4)


def amqp_dead_letters_for_many_durable_queues(served: Served) -> None:
    dead: Any = {"x-dead-letter-exchange": "amq.fanout"}
    with _queue(served, **dead) as peer:
        declared(peer, exchange="amq.fanout", durable=True)
        peer.publish("", "q", 3, properties=PERSISTENT)
        peer.call(commands.Basic.Consume(queue="q"))
        peer.wait("Basic.Deliver", 3)
        served.begin()
        peer.say(commands.Basic.Nack(0, True, False))
        until(lambda: peer.depth(f"q{OBJECTS - 1}") == 3)


def amqp_a_sink_writes_to_many_queues(served: Served) -> None:
    with Amqp(served) as peer:
        declared(peer, exchange="amq.fanout")
        peer.send(encode(Direct.Put("amq.fanout"), 1))
        with Dmp(served, dmp.DMP_HEADER + peer.lease()) as sink:
            served.begin()
            sink.send(dmp.message(dmp.Message(b"", b"k", b"x" * 100)) * 4)
            until(lambda: peer.depth(f"q{OBJECTS - 1}") == 4)


def amqp_messages_of_many_durable_queues_come_back_and_are_acknowledged_at_once(served: Served) -> None:
    def one_of_each() -> Amqp:
        other = Amqp(served)
        other.say(*(commands.Basic.Get(queue=f"q{number}") for number in range(OBJECTS)))
        other.wait("Basic.GetOk", OBJECTS)
        return other

    with Amqp(served) as peer:
        declared(peer, exchange="amq.fanout", durable=True)
        peer.publish("amq.fanout", "", 1, b"x", PERSISTENT)
        first = one_of_each()
        served.begin()
        first.close()
        until(lambda: peer.depth(f"q{OBJECTS - 1}") == 1 == peer.depth("q0"))
        with one_of_each() as other:
            other.say(commands.Basic.Ack(0, multiple=True))
            other.depth("q0")
            ping(served)
