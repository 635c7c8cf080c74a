"""What lists and metrics say of deliveries: those after the first, who holds what, and which keys wait."""

from pamqp import commands

from tests.dmp.amqp_peer import Peer
from tests.dmp.test_admin import admin_of, row
from tests.dmp.test_job_keys import publish
from tests.dmp.world import World


async def test_the_oldest_held_delivery_is_known_by_queue_and_by_consumer(world: World) -> None:
    peer = Peer(world).login()
    for name in ("q", "r"):
        peer.ask(commands.Queue.Declare(queue=name, durable=True))
    q, r = world.broker.queues[b"q"], world.broker.queues[b"r"]
    for name in ("q", "r"):
        peer.ask(commands.Basic.Consume(queue=name, consumer_tag=name))
    (of_q,), (of_r,) = q.takers, r.takers
    consumers = admin_of(world).objects[1]
    assert consumers.holders is not None
    for queue in (b"q", b"q", b"r", b"q"):
        world.publish(b"", queue, b"body")
    world.settle()
    ((_, given, oldest),) = consumers.holders()
    assert (given, oldest) == (4, {q: 0, (q, of_q): 0, r: 2, (r, of_r): 2})
    peer.method(commands.Basic.Ack(2))
    peer.method(commands.Basic.Ack(1))
    ((_, given, oldest),) = consumers.holders()
    assert (given, oldest) == (4, {q: 3, (q, of_q): 3, r: 2, (r, of_r): 2})
    peer.method(commands.Basic.Ack(0, multiple=True))
    ((_, given, oldest),) = consumers.holders()
    assert (given, oldest) == (4, {})


async def test_what_waits_for_its_key_has_an_age(world: World) -> None:
    queue = world.queue(durable=True, per_key=1)
    publish(world, ("a", b"1"), ("a", b"2"))
    world.settle()
    totals = admin_of(world).objects[0].totals
    assert totals is not None
    assert totals(queue) == (2, 0, 0)
    taken = queue.get(no_ack=False)
    assert taken is not None
    assert totals(queue) == (2, 0, 1)
    queue.requeue([taken])
    assert totals(queue) == (2, 0, 0)


async def test_deliveries_after_the_first_are_counted_by_number_and_ready_keys_where_keys_count(
    world: World,
) -> None:
    queue, plain = world.queue(per_key=1), world.queue(b"plain")
    publish(world, ("a", b"1"), ("a", b"2"), ("b", b"3"))
    peer = Peer(world).login()
    peer.say(commands.Basic.Consume(queue="q", consumer_tag="t"))
    tag = 0
    for _ in range(11):
        for _ in range(2):
            tag += 1
            peer.method(commands.Basic.Nack(tag, requeue=True))
    assert (row(world, queue)["ready_keys"], row(world, plain)["ready_keys"]) == (1, None)
    by_number = row(world, queue)["redelivered"]
    assert (by_number["2"], by_number["9"], row(world, plain)["redelivered"]) == (2, 2, {})
    assert dict(world.broker.counts.redelivered) == by_number
    assert world.broker.counts.delivered - by_number.total() == 2, "the rest were first ones"
