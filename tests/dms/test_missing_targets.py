"""A dead-letter queue that is not there is told: when a queue names it, when it goes, while messages wait."""

from structlog.testing import capture_logs

from dms.settings import DmsSettings
from tests.dms.world import Peer, World

DEAD = b'{"max_deliveries":1,"dead_letter":"dead"}'
MEMORY = DmsSettings(persist=False)


def dies(peer: Peer, name: str) -> None:
    peer.produce(name, b"poison")
    peer.nack(*(held for held, _ in peer.consume(name)))


def test_a_queue_that_names_a_missing_one_is_told_at_its_creation() -> None:
    with capture_logs() as logged:
        peer = World(MEMORY).connect()
        peer.create("orders", DEAD)
        peer.create("dead")
        peer.create("bills", DEAD)
    assert [(each["queue"], each["dead_letter"]) for each in logged] == [("orders", "dead")]


def test_a_dead_letter_queue_that_is_deleted_is_told_with_the_number_of_queues_that_name_it() -> None:
    with capture_logs() as logged:
        peer = World(MEMORY).connect()
        for name, options in (
            ("dead", b""),
            ("orders", DEAD),
            ("bills", DEAD),
            ("gone", DEAD),
            ("other", b""),
        ):
            peer.create(name, options)
        for name in ("gone", "other", "dead"):
            peer.delete(name)
    assert [(each["dead_letter"], each["queues"]) for each in logged] == [("dead", 2)]


def test_dead_messages_that_are_held_back_are_told_once_a_minute_and_measured() -> None:
    from dms.metrics import GAUGES

    held_back = next(gauge for gauge in GAUGES if gauge.name == "messages_dead")
    with capture_logs() as logged:
        world = World(MEMORY)
        peer = world.connect()
        for name in ("orders", "bills"):
            peer.create(name, DEAD)
        logged.clear()
        for name in ("orders", "bills"):
            dies(peer, name)
        world.advance(59)
        assert [(each["queue"], each["why"]) for each in logged] == [("orders", "there is no queue dead")]
        world.advance(130)
        assert len(logged) == 3 + 1
        assert logged[-1]["queues"] == 2
        assert held_back.read(world.engine) == 2
        peer.create("dead")
        world.advance(5)
        assert held_back.read(world.engine) == 0
