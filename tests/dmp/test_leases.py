"""Leases: forged, reused, lapsed, foreign; what they keep alive and what they do not. No sockets."""

import pytest

from dmp.data_types import short
from dmp.refusals import Code, Refusal
from dmp.settings import DmpSettings
from dmp.wire import DMP_HEADER
from tests.dmp.peers import GREETING, Application, Peer, opened, texts
from tests.dmp.world import World

BAD = "402 BAD-LEASE not valid for this client"


def answers(world: World, lease: bytes) -> tuple[Peer, list[str]]:
    peer = Peer(world)
    return peer, list(texts(peer.say(DMP_HEADER + short(lease))))


async def test_the_dialog_is_the_specifications(world: World, app: Application) -> None:
    peer = Peer(world)
    assert peer.say(DMP_HEADER[:5]) == b""
    assert peer.say(DMP_HEADER[5:]) == GREETING == b"\x0e200 OK DMP/0.1"
    said = short(app.sink_lease(b"quotes"))
    for at in range(len(said) - 1):
        assert peer.say(said[at : at + 1]) == b""
        assert peer.connection.rests_awaited == at + 2, "also of the greeting"
    assert texts(peer.say(said[-1:])) == ['200 OK Ready to write to "quotes"']


async def test_a_lease_has_enough_chance_and_fits_a_short_string(world: World, app: Application) -> None:
    words = {app.sink_lease(b"quotes") for _ in range(100)}
    assert len(words) == 100, "a sink may have any number of leases"
    assert all(22 <= len(word) <= 255 for word in words), "22 characters of base 64 are 132 bits"
    assert not any(word in repr(list(world.broker.leases)).encode() for word in words)


async def test_forged_used_lapsed_foreign_and_empty_leases_get_one_answer(
    world: World, app: Application
) -> None:
    _, other = await opened()
    used, lapsed = app.sink_lease(b"quotes"), app.sink_lease(b"quotes")
    app.open(used)
    world.advance(60)
    good = app.sink_lease(b"quotes")
    for lease in (
        used,
        lapsed,
        other.sink_lease(b"quotes"),
        b"",
        b"x",
        good[:-1],
        good + b"x",
        b"\xff" * 255,
    ):
        peer, said = answers(world, lease)
        assert said[1:] == [BAD]
        assert peer.connection.finished
    assert answers(world, good)[1][1].startswith("200 OK")


async def test_a_lease_lapses_after_sixty_seconds_and_not_before(world: World, app: Application) -> None:
    early, late = app.sink_lease(b"quotes"), app.sink_lease(b"quotes")
    world.advance(59.9)
    assert answers(world, early)[1][1].startswith("200 OK")
    world.clock.now += 0.1  # the timers have not run yet
    assert answers(world, late)[1][1:] == [BAD]
    assert len(world.broker.leases) == 0
    assert world.broker.counts.leases_lapsed == 1


async def test_the_same_work_is_done_for_every_bad_lease(
    world: World, app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = world.broker.leases
    compared: list[int] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(len(one))
        assert len(one) == len(other)
        return one == other

    monkeypatch.setattr("dmp.leases.hmac.compare_digest", compare)
    used = app.sink_lease(b"quotes")
    assert book.take(used) is not None
    for word in (used, b"forged", b""):
        assert book.take(word) is None
    assert compared == [32] * 4


async def test_a_feed_is_leased_once_and_anew_when_the_lease_has_lapsed(
    world: World, app: Application
) -> None:
    queue = app.queue(b"mine", b"quotes")
    app.feed_lease(b"mine")
    assert queue.feed_lease is not None
    world.advance(60)
    assert queue.feed_lease is None
    lease = app.feed_lease(b"mine")
    assert answers(world, lease)[1][1] == '200 OK Ready to read from "mine"'


async def test_a_feed_that_is_gone_is_not_found_nor_is_its_successor_taken_for_it(
    world: World, app: Application
) -> None:
    queue = app.queue(b"mine")
    deleted = app.feed_lease(b"mine")
    world.topology.delete_queue(queue)
    app.queue(b"mine")
    other = Application(world)
    other.queue(b"theirs")
    abandoned = other.feed_lease(b"theirs")
    other.close()
    for lease in (deleted, abandoned):
        assert answers(world, lease)[1][1] == "404 NOT-FOUND the queue is gone"
    assert app.feed(b"mine").fault is None


async def test_there_is_a_bound_on_unused_leases() -> None:
    world, app = await opened(DmpSettings(leases_max=2))
    app.sink_lease(b"quotes")
    app.sink_lease(b"quotes")
    with pytest.raises(Refusal, match="leases_max = 2") as refused:
        app.sink_lease(b"quotes")
    assert refused.value.code is Code.PRECONDITION_FAILED
    world.advance(60)
    app.sink_lease(b"quotes")


async def test_a_client_that_says_no_lease_is_closed_in_time() -> None:
    world, _ = await opened()
    peer = Peer(world)
    peer.say(DMP_HEADER[:4])
    assert peer.wait(20) == b""
    peer.say(DMP_HEADER[4:] + b"\x05abc")
    assert peer.wait(9) == b""
    assert texts(peer.wait(1)) == ["503 INVALID no lease came in time"]
    assert peer.connection.finished
    assert world.broker.counts.too_late == 1


async def test_a_feed_is_leased_anew_when_its_connection_has_closed(app: Application) -> None:
    queue = app.queue(b"mine", b"quotes")
    feed = app.feed(b"mine")
    assert queue.feed_lease is not None
    feed.close()
    assert queue.feed_lease is None
    app.feed(b"mine")


async def test_a_sink_that_is_gone_is_not_found(world: World, app: Application) -> None:
    lease = app.sink_lease(b"quotes")
    world.topology.delete_exchange(b"quotes")
    assert answers(world, lease)[1][1] == "404 NOT-FOUND the exchange is gone"
    app.exchange(b"quotes")
    lease = app.sink_lease(b"quotes")
    world.topology.delete_exchange(b"quotes")
    app.exchange(b"quotes")  # another one of that name
    assert answers(world, lease)[1][1] == "404 NOT-FOUND the exchange is gone"
