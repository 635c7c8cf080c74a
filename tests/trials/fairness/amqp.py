"""What clients of AMQP do, and a sink of DMP."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from pamqp import base, commands, frame

from dmp import wire as dmp
from dmp.amqp.wire import Direct, encode
from tests.trials.fairness.peers import PERSISTENT, Amqp, Dmp, crowd, message, ping
from tests.trials.fairness.served import Served, until


def _queue(served: Served, count: int = 0, **arguments: Any) -> Amqp:
    """The durable queue `q` with so many messages."""
    peer = Amqp(served)
    peer.call(commands.Queue.Declare(queue="q", durable=True, arguments=arguments))
    if count:
        peer.publish("", "q", count)
    return peer


def _properties(**properties: Any) -> commands.Basic.Properties:
    return commands.Basic.Properties(**properties)


# -- what a queue holds, and who holds what of it


def amqp_a_purge_of_100000(served: Served) -> None:
    with _queue(served, 100_000) as peer:
        served.begin()
        peer.call(commands.Queue.Purge(queue="q"))


def amqp_a_purge_of_100000_that_are_durable(served: Served) -> None:
    with _queue(served) as peer:
        peer.publish("", "q", 100_000, properties=PERSISTENT)
        served.begin()
        peer.call(commands.Queue.Purge(queue="q"))


def amqp_a_million_are_purged_and_a_million_go_with_their_queue(served: Served) -> None:
    with _queue(served) as peer:
        peer.call(commands.Queue.Declare(queue="other"))
        for number in range(40):
            peer.publish("", "other" if number % 2 else "q", 50_000, b"x")
        served.begin()
        peer.call(commands.Queue.Purge(queue="q"))
        peer.call(commands.Queue.Delete(queue="other"))
        ping(served)


def _holding(served: Served, count: int) -> Amqp:
    _queue(served, count).close()
    peer = Amqp(served)
    peer.call(commands.Basic.Qos(prefetch_count=0))
    peer.call(commands.Basic.Consume(queue="q", consumer_tag="c"))
    peer.wait("Basic.Deliver", count)
    return peer


def amqp_100000_are_acknowledged_at_once(served: Served) -> None:
    with _holding(served, 90_000) as peer:
        served.begin()
        peer.say(commands.Basic.Ack(0, multiple=True))
        peer.call(commands.Basic.Cancel("c"))
        ping(served)


def amqp_100000_come_back_at_once(served: Served) -> None:
    with _holding(served, 90_000) as peer:
        peer.call(commands.Basic.Cancel("c"))
        served.begin()
        peer.say(commands.Basic.Nack(0, multiple=True, requeue=True))
        peer.depth()
        ping(served)


def amqp_100000_are_delivered_again_at_once(served: Served) -> None:
    with _holding(served, 90_000) as peer:
        served.begin()
        peer.call(commands.Basic.Recover(requeue=False))
        peer.wait("Basic.Deliver", 90_000)
        ping(served)


def amqp_100000_come_back_with_their_connection(served: Served) -> None:
    peer = _holding(served, 90_000)
    served.begin()
    peer.close()
    with _queue(served) as other:
        until(lambda: other.depth() >= 90_000)


def amqp_100000_of_ten_priorities_are_delivered_and_come_back(served: Served) -> None:
    ten = [message("", "q", b"x" * 100, _properties(priority=n)) for n in range(10)]
    with _queue(served, **{"x-max-priority": 10}) as peer:
        served.begin()
        peer.publish_all(b"".join(ten) * 10_000, 100_000)
        with Amqp(served) as other:
            other.call(commands.Basic.Consume(queue="q"))
            other.wait("Basic.Deliver", 100_000)
        until(lambda: peer.depth() == 100_000)
        peer.call(commands.Queue.Purge(queue="q"))


_DEAD: Mapping[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def amqp_100000_expire_and_become_dead_letters(served: Served) -> None:
    with _queue(served, **{"x-message-ttl": 6000, **_DEAD}) as peer:
        peer.call(commands.Queue.Declare(queue="dead", durable=True))
        peer.publish("", "q", 100_000)
        served.begin()
        until(lambda: peer.depth("dead") == 100_000)
        served.ask("POST", "/api/v1/queues/dmp/dead/redrive", {})


def amqp_a_large_message_pushes_40000_small_ones_out(served: Served) -> None:
    limits: Any = {"x-max-length-bytes": 120_000, **_DEAD}
    with Amqp(served) as peer:
        peer.call(commands.Queue.Declare(queue="dead"))
        peer.call(commands.Queue.Declare(queue="q", arguments=limits))
        peer.publish("", "q", 40_000, b"xxx")
        served.begin()
        peer.publish("", "q", 1, b"x" * 119_000)
        until(lambda: peer.depth("dead") >= 39_600)


# -- transactions


def amqp_a_transaction_of_4096_messages(served: Served) -> None:
    with _queue(served) as peer:
        peer.call(commands.Tx.Select())
        peer.send(message("", "q", b"x" * 100) * 4096)
        ping(served)
        served.begin()
        peer.call(commands.Tx.Commit())


def _for_all_queues_in_a_transaction(served: Served, count: int, *, durable: bool) -> None:
    with Amqp(served) as peer:
        _all_queues(peer, count, durable=durable)
        peer.call(commands.Tx.Select())
        served.begin()
        for _ in range(4):
            peer.send(message("amq.fanout", "", b"x" * 100, _properties(delivery_mode=1 + durable)))
            peer.call(commands.Tx.Commit())


def amqp_a_transaction_for_4000_queues(served: Served) -> None:
    _for_all_queues_in_a_transaction(served, 4000, durable=False)


def amqp_a_transaction_for_4000_durable_queues(served: Served) -> None:
    _for_all_queues_in_a_transaction(served, 4000, durable=True)


def amqp_a_transaction_of_4000_messages_that_differ(served: Served) -> None:
    with _queue(served) as peer:
        peer.call(commands.Tx.Select())
        peer.send(b"".join(message("", "q", b"x" * number, PERSISTENT) for number in range(1, 4001)))
        ping(served)
        served.begin()
        peer.call(commands.Tx.Commit())


def amqp_a_transaction_for_50000_durable_queues(served: Served) -> None:
    """With the limit raised."""
    served.reload_with("[dmp]\ntransaction_messages_max = 200000\n")
    _for_all_queues_in_a_transaction(served, 50_000, durable=True)


def _in_a_transaction(served: Served, method: base.Frame, end: base.Frame) -> None:
    with _holding(served, 90_000) as peer:
        peer.call(commands.Tx.Select())
        served.begin()
        peer.say(method)
        peer.call(end)
        ping(served)


def amqp_a_transaction_of_90000_acks(served: Served) -> None:
    _in_a_transaction(served, commands.Basic.Ack(0, True), commands.Tx.Commit())


def amqp_a_transaction_of_all_acks_but_one(served: Served) -> None:
    _in_a_transaction(served, commands.Basic.Ack(89_999, True), commands.Tx.Commit())


def amqp_a_transaction_gives_90000_back(served: Served) -> None:
    _in_a_transaction(served, commands.Basic.Nack(0, True, True), commands.Tx.Commit())


def amqp_a_transaction_of_90000_acks_is_rolled_back(served: Served) -> None:
    _in_a_transaction(served, commands.Basic.Ack(89_999, True), commands.Tx.Rollback())


# -- connections, channels and consumers


def amqp_5000_consumers_are_there_when_the_server_stops(served: Served) -> None:
    def consumer(number: int) -> Amqp:
        peer = Amqp(served)
        peer.call(commands.Basic.Qos(0, 5, False))
        peer.call(commands.Basic.Consume(queue="q"))
        if number < 2000:
            peer.wait("Basic.Deliver", 5)
        return peer

    with _queue(served, 10_000), crowd(5000, consumer):
        served.begin()
        served.stop()


def amqp_2047_channels_are_opened_and_closed_with_their_connection(served: Served) -> None:
    with _queue(served) as peer:
        served.begin()
        for number in range(2, 2048):
            peer.say(commands.Channel.Open(), channel=number)
        peer.wait("Channel.OpenOk", 2046)
        peer.call(commands.Connection.Close(200, "", 0, 0), 0)
    ping(served)


def amqp_2047_channels_with_consumers_end_with_their_connection(served: Served) -> None:
    with _queue(served, 20_470) as peer, Amqp(served) as other:
        for channel in range(2, 2048):
            other.call(commands.Channel.Open(), channel)
            other.call(commands.Basic.Qos(0, 10, False), channel)
            other.call(commands.Basic.Consume(queue="q"), channel)
        until(lambda: peer.depth() == 10)
        served.begin()
        other.call(commands.Connection.Close(200, "", 0, 0), 0)
        until(lambda: peer.depth() == 20_470)


def _with_4000_consumers(served: Served) -> AbstractContextManager[list[Amqp]]:
    """Ten connections with so many of one queue each."""

    def consumers(_: int) -> Amqp:
        peer = _queue(served)
        peer.say(*(commands.Basic.Consume(0, "q", f"c{n}", no_ack=True, nowait=True) for n in range(4000)))
        peer.depth()
        return peer

    return crowd(10, consumers)


def amqp_4000_of_40000_consumers_of_a_queue_are_cancelled(served: Served) -> None:
    with _with_4000_consumers(served) as peers:
        served.begin()
        peers[0].say(*(commands.Basic.Cancel(f"c{n}", nowait=True) for n in range(4000)))
        peers[0].depth()


def amqp_a_queue_with_40000_consumers_is_deleted(served: Served) -> None:
    with _with_4000_consumers(served) as peers:
        served.begin()
        peers[0].call(commands.Queue.Delete(queue="q"))
        ping(served)


def amqp_a_queue_of_200_consumers_is_resumed_over_600000(served: Served) -> None:
    with crowd(200, lambda _: _queue(served)) as peers:
        served.ask("POST", "/api/v1/queues/dmp/q/pause", {})
        for peer in peers:
            peer.call(commands.Basic.Consume(queue="q"))
        peers[0].publish("", "q", 600_000, b"x")
        served.begin()
        served.ask("POST", "/api/v1/queues/dmp/q/resume", {})
        ping(served)


def amqp_2000_exclusive_queues_end_with_their_connection(served: Served) -> None:
    with Amqp(served) as peer, Amqp(served) as other:
        for number in range(2000):
            name, key = f"q{number}", f"#.{number}.#"
            other.say(commands.Queue.Declare(queue=name, exclusive=True))
            other.say(commands.Queue.Bind(queue=name, exchange="amq.topic", routing_key=key))
        other.wait("Queue.BindOk", 2000)
        served.begin()
        other.close()
        peer.call(commands.Queue.Declare(queue="last"))
    ping(served)


# -- bindings


def _bound(served: Served, kind: str, bind: Callable[[int], Mapping[str, Any]]) -> Amqp:
    """The queue `q` with 10,000 bindings to the exchange `e`."""
    peer = _queue(served)
    peer.call(commands.Exchange.Declare(exchange="e", exchange_type=kind))
    for at in range(0, 10_000, 1000):
        peer.say(*(commands.Queue.Bind(0, "q", "e", **bind(number)) for number in range(at, at + 1000)))
        peer.wait("Queue.BindOk", 1000)
    return peer


def bound_by_topics(served: Served) -> Amqp:
    return _bound(served, "topic", lambda number: {"routing_key": f"a.{number}.#"})


def amqp_an_exchange_with_10000_bindings_is_deleted(served: Served) -> None:
    with bound_by_topics(served) as peer:
        served.begin()
        peer.call(commands.Exchange.Delete(exchange="e"))
        ping(served)


def amqp_10000_bindings_are_unbound(served: Served) -> None:
    unbind = [commands.Queue.Unbind(queue="q", exchange="e", routing_key=f"a.{n}.#") for n in range(10_000)]
    with bound_by_topics(served) as peer:
        served.begin()
        peer.say(*unbind)
        peer.wait("Queue.UnbindOk", len(unbind))


def amqp_a_message_under_10000_topic_bindings_and_their_queues_end(served: Served) -> None:
    with _bound(served, "topic", lambda n: {"routing_key": f"*.*.*.{n}"}) as peer:
        served.begin()
        peer.publish("e", "a.b.c.7", 100, b"x")
        peer.call(commands.Queue.Delete(queue="q"))
        peer.call(commands.Exchange.Delete(exchange="e"))


def amqp_a_message_under_10000_headers_bindings(served: Served) -> None:
    with _bound(served, "headers", lambda n: {"arguments": {"x-match": "all", "n": n, "m": 1}}) as peer:
        served.begin()
        peer.publish("e", "", 20, b"x", _properties(headers={"n": 5, "m": 1}))


def _bind_by_headers(peer: Amqp, queues: list[str], arguments: Callable[[int], Mapping[str, Any]]) -> None:
    """200,000 bindings to these in turn."""
    for at in range(0, 200_000, 5000):
        peer.say(
            *(
                commands.Queue.Bind(0, queues[n % len(queues)], "amq.headers", "", True, dict(arguments(n)))
                for n in range(at, at + 5000)
            )
        )
    peer.depth(queues[0])


def amqp_a_message_under_200000_headers_bindings(served: Served) -> None:
    with _queue(served) as peer:
        _bind_by_headers(peer, ["q"], lambda n: {f"k{n}": n})
        served.begin()
        peer.publish("amq.headers", "", 4, b"x", _properties(headers={"k5": 5}))


def _looked_through(
    served: Served, arguments: Callable[[int], Mapping[str, Any]], headers: Mapping[str, int]
) -> None:
    """Messages with these headers, under 200,000 bindings to 1,000 queues."""
    queues = [f"q{number}" for number in range(1000)]
    with Amqp(served) as peer:
        peer.say(*(commands.Queue.Declare(queue=name, nowait=True) for name in queues))
        _bind_by_headers(peer, queues, arguments)
        served.begin()
        # They differ, so that no route is known.
        differing = [_properties(headers={**headers, "other": number}) for number in range(4)]
        peer.publish_all(b"".join(message("amq.headers", "", b"x", each) for each in differing), 4)


def amqp_a_message_under_200000_bindings_to_any_of_eight_headers(served: Served) -> None:
    shared = {f"shared{number}": 1 for number in range(8)}
    _looked_through(served, lambda n: {**shared, "n": n, "x-match": "any"}, shared)


def amqp_a_message_under_200000_bindings_to_all_of_some_headers(served: Served) -> None:
    """Each wants eight or more of eighteen, and one that no message has: no index tells them apart."""
    wanted = [n for n in range(1 << 18) if n.bit_count() >= 8]
    names = [f"h{number}" for number in range(18)]

    def arguments(number: int) -> Mapping[str, Any]:
        some = wanted[number % len(wanted)]
        return {name: 1 for bit, name in enumerate(names) if some >> bit & 1} | {"missing": 1}

    _looked_through(served, arguments, dict.fromkeys(names, 1))


def amqp_40000_messages_that_differ_go_nowhere(served: Served) -> None:
    with _queue(served) as peer:
        served.begin()
        peer.publish_all(b"".join(message("amq.topic", f"k{n % 200}", b"x") for n in range(40_000)), 40_000)


# -- one message for many queues


def _all_queues(peer: Amqp, count: int, *, durable: bool = False) -> None:
    """So many, bound to `amq.fanout`; 50,000 are as many as the limit has."""
    for at in range(0, count, 1000):
        for number in range(at, at + 1000):
            name = f"q{number}"
            peer.say(
                commands.Queue.Declare(queue=name, durable=durable, nowait=True),
                commands.Queue.Bind(queue=name, exchange="amq.fanout", nowait=True),
            )
        peer.depth("q0")


def amqp_a_message_for_2000_queues(served: Served) -> None:
    with Amqp(served) as peer:
        _all_queues(peer, 2000)
        served.begin()
        peer.publish("amq.fanout", "", 50)


def amqp_a_message_for_50000_queues(served: Served) -> None:
    with Amqp(served) as peer:
        _all_queues(peer, 50_000)
        served.begin()
        peer.publish("amq.fanout", "", 4)


def amqp_a_message_through_9900_exchanges(served: Served) -> None:
    with Amqp(served) as peer:
        peer.call(commands.Queue.Declare(queue="q"))
        for at in range(0, 9900, 900):
            for number in range(at, at + 900):
                name = f"e{number}"
                peer.say(
                    commands.Exchange.Declare(exchange=name, exchange_type="fanout", nowait=True),
                    commands.Exchange.Bind(destination=name, source="amq.fanout", nowait=True),
                    commands.Queue.Bind(queue="q", exchange=name, nowait=True),
                )
            peer.depth("q")
        served.begin()
        peer.publish("amq.fanout", "", 4)


def amqp_a_persistent_message_for_50000_durable_queues(served: Served) -> None:
    with Amqp(served) as peer:
        _all_queues(peer, 50_000, durable=True)
        served.begin()
        peer.publish("amq.fanout", "", 4, properties=PERSISTENT)


def amqp_an_immediate_message_for_50000_queues_that_nobody_takes(served: Served) -> None:
    with Amqp(served) as peer:
        _all_queues(peer, 50_000)
        publish = frame.marshal(commands.Basic.Publish(exchange="amq.fanout", immediate=True), 1)
        content = message("amq.fanout", "", b"x").partition(b"\xce")[2]
        served.begin()
        peer.send((publish + content) * 4)
        peer.wait("Basic.Return", 4)


def amqp_dead_letters_for_49000_durable_queues(served: Served) -> None:
    with Amqp(served) as peer:
        _all_queues(peer, 49_000, durable=True)
        dead: Any = {"x-dead-letter-exchange": "amq.fanout"}
        peer.call(commands.Queue.Declare(queue="q", durable=True, arguments=dead))
        peer.publish("", "q", 3, properties=PERSISTENT)
        peer.call(commands.Basic.Consume(queue="q"))
        peer.wait("Basic.Deliver", 3)
        served.begin()
        peer.say(commands.Basic.Nack(0, True, False))
        until(lambda: peer.depth("q48999") == 3)


def amqp_a_sink_writes_to_40000_queues(served: Served) -> None:
    with Amqp(served) as peer:
        _all_queues(peer, 40_000)
        peer.send(encode(Direct.Put("amq.fanout"), 1))
        with Dmp(served, dmp.DMP_HEADER + peer.lease()) as sink:
            served.begin()
            sink.send(dmp.message(dmp.Message(b"", b"k", b"x" * 100)) * 4)
            until(lambda: peer.depth("q39999") == 4)


def _one_got_of_each(served: Served, peer: Amqp, count: int, *, durable: bool = False) -> Amqp:
    """A connection that holds a message of each of so many queues, which `peer` makes."""
    _all_queues(peer, count, durable=durable)
    peer.publish("amq.fanout", "", 1, b"x", _properties(delivery_mode=1 + durable))
    other = Amqp(served)
    other.say(*(commands.Basic.Get(queue=f"q{number}") for number in range(count)))
    other.wait("Basic.GetOk", count)
    return other


def amqp_messages_of_40000_queues_come_back_with_their_connection(served: Served) -> None:
    with Amqp(served) as peer:
        other = _one_got_of_each(served, peer, 40_000)
        served.begin()
        other.close()
        until(lambda: peer.depth("q39999") == 1 and peer.depth("q0") == 1)


def amqp_messages_of_8000_durable_queues_are_acknowledged_at_once(served: Served) -> None:
    with Amqp(served) as peer, _one_got_of_each(served, peer, 8000, durable=True) as other:
        served.begin()
        other.say(commands.Basic.Ack(0, multiple=True))
        other.depth("q0")
        ping(served)
