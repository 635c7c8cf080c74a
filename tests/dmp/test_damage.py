"""A damaged or half-copied folder: only what stood there is lost, it is said, and nothing is taken for
deleted."""

import attrs
import pytest
from pamqp import commands

from dmp.declarations import ExchangeKind, QueueArguments, QueueKind
from dmp.queues import Queue
from dmp.settings import DmpSettings
from dmp.topology_table import TopologyTable
from shared.errors import StoreError
from shared.storage import catalog
from shared.storage.disk import replace_file
from shared.storage.settings import Durability
from tests.dmp.amqp_peer import Peer
from tests.dmp.world import PERSISTENT, World, ready
from tests.support.fake_disk import FakeDisk

DEFINITIONS = "dmp-tables/definitions"


async def filled(count: int = 300, settings: DmpSettings | None = None) -> World:
    """Two durable queues bound to a durable exchange, with so many messages of a kilobyte."""
    world = await World.open(settings)
    world.topology.declare_exchange(b"e", ExchangeKind("fanout", durable=True))
    for name in (b"q", b"other"):
        world.topology.bind(b"e", world.queue(name, durable=True))
    for number in range(count):
        world.publish(b"e", b"", body(number), properties=PERSISTENT)
        if number % 50 == 49:
            world.settle()
    world.settle()
    return world


def body(number: int) -> bytes:
    return b"%06d" % number + bytes(1000)


async def closed(world: World) -> FakeDisk:
    await world.store.close()
    return world.disk.kill()


def numbers(queue: Queue) -> list[int]:
    return [int(message.bodies[0][:6]) for message in iter(lambda: queue.get(no_ack=True), None)]


def without_log(disk: FakeDisk, name: str) -> FakeDisk:
    """As a copy is in which a log is missing and the catalog knows nothing of it."""
    found = catalog.read(disk)
    assert found is not None
    found = attrs.evolve(found, logs=[line for line in found.logs if line.name != name])
    replace_file(disk, catalog.PATH, found.pack())
    for line in (f"{name}.log", f"{name}.idx"):
        folder = "dmp-tables" if name == "definitions" else "dmp-queues"
        disk.unlink(f"{folder}/{line}")
    return disk


async def test_a_log_whose_definition_is_lost_is_a_queue_again_with_all_its_messages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = without_log(await closed(await filled()), "definitions")
    world = await World.open(disk=disk)
    assert "a queue's log has no definition" in capsys.readouterr().out
    for _ in range(2):  # and so it stays
        assert set(world.broker.queues) == {b"q", b"other"}
        assert all(queue.adopted and queue.depth == 300 for queue in world.broker.queues.values())
        world = await world.again()
    assert numbers(world.broker.queues[b"q"]) == list(range(300))


async def test_the_first_declaration_says_what_a_queue_without_a_definition_is() -> None:
    disk = without_log(await closed(await filled()), "definitions")
    world = await World.open(disk=disk)
    table = b"\0\0\0\x12" + b"\x0cx-max-lengthI\0\0\0\x0a"
    kind = QueueKind(durable=True, table=table, arguments=QueueArguments(messages_max=10))
    for _ in range(2):
        queue, _ = world.topology.declare_queue(b"q", kind, world.owner)
        assert not queue.adopted
        world.settle()
    queue = (await world.again()).broker.queues[b"q"]
    assert (queue.adopted, queue.kind.arguments.messages_max, queue.depth) == (False, 10, 10)


async def test_a_definition_whose_log_is_lost_is_an_error_and_no_empty_queue_until_it_is_purged() -> None:
    world = await World.open(disk=without_log(await closed(await filled()), "q"))
    for _ in range(2):
        peer = Peer(world).login()
        assert peer.say(commands.Basic.Get(0, "q", True))[0][1].reply_code == 541
        world = await world.again()
    assert numbers(world.broker.queues[b"other"]) == list(range(300))
    world.publish(b"e", b"", b"000300", properties=PERSISTENT)
    world.settle()
    peer = Peer(world).login()
    assert peer.ask_get("q") == b"000300"
    assert peer.ask(commands.Queue.Purge(queue="q")).message_count == 0
    assert peer.ask(commands.Basic.Get(0, "q", True)).name == "Basic.GetEmpty"
    world = await world.again()
    assert Peer(world).login().ask(commands.Basic.Get(0, "q", True)).name == "Basic.GetEmpty"


@pytest.mark.parametrize("hot_bytes", [0, 1 << 27], ids=["on disk", "in memory"])
async def test_a_flipped_bit_of_a_queue_costs_what_stood_there_and_nothing_else(hot_bytes: int) -> None:
    settings = DmpSettings(hot_bytes=hot_bytes)
    disk = await closed(await filled(settings=settings))
    disk.flip("dmp-queues/q.log", 100_000 * 8)
    world = await World.open(settings, disk)
    queue = world.broker.queues[b"q"]
    assert queue.lost
    found = numbers(queue)
    assert 200 <= len(found) < 300
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, 299)
    assert queue.damaged
    assert numbers(world.broker.queues[b"other"]) == list(range(300))
    world.settle()
    peer = Peer(world).login()
    assert peer.say(commands.Basic.Get(0, "q", True))[0][1].reply_code == 541
    peer = Peer(world).login()
    peer.ask(commands.Queue.Purge(queue="q"))
    world = await world.again()
    assert not world.broker.queues[b"q"].lost
    assert world.broker.counts.crashes == 0


async def test_a_queue_whose_log_file_is_gone_serves_what_comes() -> None:
    disk = await closed(await filled())
    disk.unlink("dmp-queues/q.log")
    world = await World.open(disk=disk)
    queue = world.broker.queues[b"q"]
    assert (queue.depth, queue.damaged) == (0, True)
    world.publish(b"e", b"", b"000300", properties=PERSISTENT)
    world.settle()
    world = await world.again()
    assert numbers(world.broker.queues[b"q"]) == [300]
    assert numbers(world.broker.queues[b"other"]) == [*range(300), 300]


async def test_damaged_definitions_cost_neither_messages_nor_the_start() -> None:
    disk = await closed(await filled())
    disk.flip(f"{DEFINITIONS}.log", 8 * 8)
    world = await World.open(disk=disk)
    assert numbers(world.broker.queues[b"q"]) == list(range(300))


async def without_exchange() -> World:
    """The definition of `e` is lost: damage leaves no record of what goes with it."""
    world = await filled(0)
    world.broker.topology_table.table.delete(b"ee")
    world.settle()
    return await world.again()


async def test_bindings_wait_for_an_exchange_whose_definition_is_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = await without_exchange()
    assert "bindings name exchanges or queues that are not there" in capsys.readouterr().out
    assert len(world.topology.waiting) == 2
    world = await world.again()
    world.topology.declare_exchange(b"e", ExchangeKind("fanout", durable=True))
    world.publish(b"e", b"", body(7), properties=PERSISTENT)
    world.settle()
    assert [numbers(queue) for queue in world.broker.queues.values()] == [[7], [7]]
    assert not len(world.topology.waiting)
    world.settle()
    world = await world.again()
    assert world.broker.bindings == 2


async def test_bindings_that_wait_go_with_the_queue_that_they_lead_to() -> None:
    world = await without_exchange()
    world.topology.delete_queue(world.broker.queues[b"q"])
    world.settle()
    world = await world.again()
    assert [binding.destination for binding in world.topology.waiting] == [b"other"]


@pytest.mark.parametrize("what", ["queue", "exchange"])
async def test_a_delete_that_a_crash_cuts_short_is_finished_at_the_next_start(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def crash(*_: object) -> None:
        raise StoreError("killed")

    world = await filled(0)
    queue = world.broker.queues[b"q"]
    for number in range(20):
        world.topology.bind(b"e", queue, b"%d" % number)
    monkeypatch.setattr(TopologyTable, "drop_bindings", crash)
    if what == "queue":
        world.topology.delete_queue(queue)
    else:
        world.topology.delete_exchange(b"e")
    world.settle()
    monkeypatch.undo()
    for _ in range(2):
        world = await world.again()
        assert not len(world.topology.waiting)
        assert world.broker.bindings == (1 if what == "queue" else 0)
    if what == "exchange":
        world.topology.declare_exchange(b"e", ExchangeKind("fanout", durable=True))
    else:
        world.queue(b"q", durable=True)
    assert world.broker.bindings == (1 if what == "queue" else 0)


@pytest.mark.parametrize("mode", ["always", "none"])
async def test_no_crash_leaves_a_queue_without_its_log_or_a_log_without_its_queue(mode: str) -> None:
    world = await World.open(DmpSettings(durability=Durability.parse(mode)))
    table = world.broker.topology_table.table.log
    batches = world.store.statistics().journal_batches
    queue = world.queue(b"q", durable=True)
    world.settle()
    assert world.store.statistics().journal_batches == batches + 1
    assert queue.log is not None
    world.topology.delete_queue(queue)
    world.settle()
    assert world.store.statistics().journal_batches == batches + 2
    assert table.visible == table.end


def fails(*_: object, **__: object) -> None:
    raise StoreError("no room")


async def test_a_dead_letter_that_cannot_be_written_keeps_what_others_acknowledged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.queue(b"dead", durable=True)
    queue = world.queue(durable=True, dead_letter_exchange=b"", dead_letter_key=b"dead")
    taker = world.holder(queue, b"acknowledged", b"rejected", properties=PERSISTENT)
    queue.settle(taker.messages[:1])
    with monkeypatch.context() as patch:
        patch.setattr(world.store, "append_all", fails)
        queue.reject(taker.messages[1:])
    world.settle()
    queue.remove_consumers(taker)
    after = await world.again()
    assert ready(after.broker.queues[b"q"]) == [b"rejected"]
