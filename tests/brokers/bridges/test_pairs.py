"""Every pair of source and target: order, bodies, and what a crash leaves."""

import itertools

import pytest

from dmp.declarations import QueueArguments, QueueKind
from dms.job_requests import JobRequest
from tests.brokers.bridges.world import World, bridge
from tests.support.fake_disk import FakeDisk
from tests.support.stores import SMALL, open_store, reopen

SOURCES = {
    "pubsub": "pubsub:in/+",
    "kqmsgq": "kqmsgq:in/a",
    "logmq": "logmq:in*",
    "dms": "dms:in",
    "dmp": "dmp:in",
    "exchange": "dmp:amq.topic/in.#",
}
NAMES = {"pubsub": "in/a", "kqmsgq": "in/a", "logmq": "in-a", "dms": "in", "dmp": "in", "exchange": "in.a"}
TARGETS = {
    "pubsub": "pubsub:out",
    "kqmsgq": "kqmsgq:out",
    "logmq": "logmq:out",
    "dms": "dms:out",
    "dmp": "dmp:out",
    "exchange": "dmp:amq.topic/out",
}
DURABLE = ("logmq", "dms", "dmp")


async def _world(source: str, target: str, disk: FakeDisk) -> World:
    world = await World.open(await open_store(disk, SMALL))
    for end, name in ((source, NAMES[source]), (target, "out")):
        world.make("dmp" if end == "exchange" else end, name)
    if target == "exchange":
        broker = world.services["dmp"].broker
        broker.topology.bind(b"amq.topic", broker.queues[b"out"], b"out")
    return world


def _send(world: World, source: str, *bodies: bytes) -> None:
    if source == "exchange":
        world.send("dmp", NAMES[source], *bodies, exchange="amq.topic")
    else:
        world.send(source, NAMES[source], *bodies)


@pytest.mark.parametrize(("source", "target"), [*itertools.product(SOURCES, TARGETS)])
async def test_a_bridge_carries_each_message_once_in_order(source: str, target: str) -> None:
    world = await _world(source, target, FakeDisk())
    await world.bridges.change([bridge(SOURCES[source], TARGETS[target])])
    world.carry()
    bodies = [b"%05d" % number for number in range(300)]
    for start in range(0, 300, 100):
        _send(world, source, *bodies[start : start + 100])
        world.carry()
    to = "dmp" if target == "exchange" else target
    assert await world.found(to, "out") == bodies
    only = world.only
    assert (only.state, only.counts.carried, only.inbox.bytes) == ("running", 300, 0)
    exactly = {"exchange": "at least once"}.get(
        target, "exactly once" if target in DURABLE else "at least once"
    )
    assert only.guarantee == (exactly if source in DURABLE else "at most once")
    assert only.lag == 0


def _declare(world: World, *, durable: bool) -> None:
    broker = world.services["dmp"].broker
    broker.topology.declare_queue(b"out", QueueKind(durable=durable), broker.new_application(""))
    world.store.commit_pending()


@pytest.mark.parametrize("target", ["dmp:out", "dmp:/out", "dmp:{name.2}"])
async def test_the_guarantee_into_a_dmp_queue_is_that_of_the_queue_as_it_is_declared(target: str) -> None:
    world = await World.open(None)
    _declare(world, durable=False)
    await world.bridges.change([bridge("logmq:in.out", target)])
    world.carry()
    world.send("logmq", "in.out", b"a")
    world.carry()
    assert world.only.guarantee == "at least once"
    broker = world.services["dmp"].broker
    broker.topology.delete_queue(broker.queues[b"out"])
    assert world.only.guarantee == "at least once", "nobody knows what comes"
    _declare(world, durable=True)
    world.send("logmq", "in.out", b"b")
    world.later()
    assert await world.found("dmp", "out") == [b"b"]
    assert world.only.guarantee == ("at least once" if "{" in target else "exactly once")


@pytest.mark.parametrize(("source", "target"), [*itertools.product(DURABLE, DURABLE)])
async def test_what_is_written_and_what_is_confirmed_are_one_entry(source: str, target: str) -> None:
    disk = FakeDisk()
    world = await _world(source, target, disk)
    settings = bridge(SOURCES[source], TARGETS[target])
    await world.bridges.change([settings])
    world.carry()
    bodies = [b"%05d" % number for number in range(20)]
    _send(world, source, *bodies)
    batches = world.store.statistics().journal_batches
    world.only.step()
    assert world.store.statistics().journal_batches == batches + 1
    store, _ = await reopen(world.store, disk)
    world = await World.open(store, settings)
    world.carry()
    assert await world.found(target, "out") == bodies
    assert await world.found(source, NAMES[source]) == (bodies if source == "logmq" else [])


async def test_what_a_dmp_queues_bridge_acknowledges_is_one_record_an_entry() -> None:
    world = await _world("dmp", "dms", FakeDisk())
    await world.bridges.change([bridge("dmp:in", "dms:out")])
    world.carry()
    bodies = [b"%05d" % number for number in range(500)]
    world.send("dmp", "in", *bodies)  # each has properties of its own
    before = world.store.statistics().records
    world.carry()
    assert await world.found("dms", "out") == bodies
    assert world.store.statistics().records == before + 2, "what was written, and what was acknowledged"


async def test_a_jobs_key_names_its_target_and_goes_with_it_through_amqp_and_back() -> None:
    world = await World.open(await open_store(FakeDisk(), SMALL))
    engine, broker = world.services["dms"].engine, world.services["dmp"].broker
    for name, options in (("in", {}), ("out", {"per_key": 1}), ("plain", {})):
        engine.create(name, options)
    kind = QueueKind(durable=True, arguments=QueueArguments(fair=True))
    for name in (b"by-ann", b"by-bob", b"by-"):
        broker.topology.declare_queue(name, kind, broker.new_application(""))
    for key in ("ann", "bob", ""):
        engine.queues[b"in"].made_for_jobs().produce(JobRequest(key=key), key.encode())
    world.store.commit_pending()
    await world.bridges.change([bridge("dms:in", "dmp:by-{key}")])
    world.carry()
    for name in (b"by-ann", b"by-bob", b"by-"):
        (run,) = broker.queues[name].ready
        assert (b"by-" + run.bodies[0], run.head.text_in(b"x-key").encode()) == (name, run.bodies[0])
    for target in ("out", "plain"):
        name = b"by-ann" if target == "out" else b"by-bob"
        await world.bridges.change([bridge(f"dmp:{name.decode()}", f"dms:{target}", name="back")])
        world.carry()
    out, plain = (engine.queues[name] for name in (b"out", b"plain"))
    (run,) = map(out.jobs.copy_of, out.jobs.sequences)
    assert run is not None
    assert (run.head.key, run.bodies) == ("ann", [b"ann"])
    assert (plain.depth, plain.jobs) == (1, None), "it does not look at keys"
