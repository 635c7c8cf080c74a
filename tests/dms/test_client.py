"""The client against a peer that knows the specification alone: no socket, no clock."""

from collections import deque
from collections.abc import AsyncIterator

import pytest
import trio
import trio.lowlevel
import trio.testing

from dms import client as dms
from dms.client import Client, Disconnected, DmsError, Queue, QueueOptions, Unreachable, connect
from dms.wire import Status
from shared.errors import BrokerError
from tests.dms.peer import Peer, error, peer, read_frame
from tests.support import dms_spec as spec

__all__ = ["peer"]  # a fixture
FULL = error(0, spec.INTERNAL, b"256 clients are here")


@pytest.fixture
async def client(peer: Peer) -> AsyncIterator[Client]:
    """It has made the queue `jobs`."""
    async with connect() as client:
        await client.create("jobs")
        yield client


async def test_every_status_is_an_exception_of_its_name() -> None:
    for status in Status:
        if status is Status.OK:
            continue
        name = "".join(word.capitalize() for word in status.name.split("_"))
        kind = getattr(dms, name)
        error = DmsError.of(status, "why")
        assert type(error) is kind
        assert isinstance(error, BrokerError)
        assert (error.status, str(error)) == (status, f"{status.name}: why")
    unknown = DmsError.of(77, "")
    assert (type(unknown), str(unknown)) == (DmsError, "status 77")


async def test_refusals_are_raised_where_they_belong(peer: Peer, client: Client) -> None:
    with pytest.raises(dms.QueueExists):
        await client.create("jobs")
    with pytest.raises(dms.QueueNotFound):
        await client.produce("elsewhere", b"x")
    with pytest.raises(dms.QueueNotFound):
        await client.delete("elsewhere")
    async with client.consume("elsewhere") as messages:
        with pytest.raises(dms.QueueNotFound):
            await anext(messages)
    for name in ("", "x" * 65, "a\nb"):
        with pytest.raises(dms.ProtocolError):
            await client.create(name)
    with pytest.raises(TypeError, match="text, not by bytes"):
        await client.produce(b"jobs", b"x")  # type: ignore[arg-type]
    with pytest.raises(dms.PayloadTooLarge, match="at most 4090 in a queue"):
        await client.produce("jobs", b"x" * 4091)
    assert spec.PRODUCE not in peer.requests[-1:], "what no server would take is not sent"


async def test_of_many_messages_one_that_is_too_large_is_refused_alone(peer: Peer, client: Client) -> None:
    with pytest.raises(dms.PayloadTooLarge) as caught:
        await client.produce_many("jobs", [b"one", b"x" * 4091, b"two", b"x" * 5000, b"three"])
    assert caught.value.refused == (1, 3)
    assert [body for _, body in peer.queues["jobs"]] == [b"one", b"two", b"three"]


async def test_options_go_as_json_and_only_where_there_are_any() -> None:
    assert QueueOptions().encoded() == b""
    options = QueueOptions(ttl_ms=60_000, dead_letter="tot-é")
    assert options.encoded() == '{"ttl_ms":60000,"dead_letter":"tot-é"}'.encode()


async def test_messages_are_asked_for_ahead_and_never_more_than_said(peer: Peer, client: Client) -> None:
    await client.produce_many("jobs", [b"%d" % number for number in range(20)])
    async with client.consume("jobs", prefetch=8) as messages:
        first = await anext(messages)
        await trio.testing.wait_all_tasks_blocked()
        assert len(peer.queues["jobs"]) == 20 - 8
        got = [first.body] + [(await anext(messages)).body for _ in range(19)]
        assert got == [b"%d" % number for number in range(20)]
    await trio.testing.wait_all_tasks_blocked()
    assert len(peer.queues["jobs"]) == 20, "the end of the block gives back what is not acknowledged"


async def test_no_more_is_asked_for_than_is_wanted_in_all(peer: Peer, client: Client) -> None:
    await client.produce_many("jobs", [b"%d" % number for number in range(20)])
    async with client.consume("jobs", prefetch=4, at_most=10) as messages:
        got = []
        async for message in messages:
            got.append(message.body)
            await message.ack()
            await trio.testing.wait_all_tasks_blocked()
        assert got == [b"%d" % number for number in range(10)]
        assert len(peer.queues["jobs"]) == 10
    assert peer.requests.count(spec.CONSUME) == 10


async def test_the_iterator_outlasts_timeouts_and_receive_tells_them(
    client: Client, autojump_clock: trio.testing.MockClock
) -> None:
    async with client.consume("jobs", prefetch=3) as messages, trio.open_nursery() as nursery:
        with pytest.raises(dms.Timeout):
            await messages.receive()
        assert 30 <= trio.current_time() < 31

        async def later() -> None:
            await trio.sleep(500)
            await client.produce("jobs", b"late")

        nursery.start_soon(later)
        assert (await anext(messages)).body == b"late"
        assert 500 < trio.current_time() < 540


async def test_a_queue_that_is_deleted_ends_the_wait(client: Client) -> None:
    async with client.consume("jobs") as messages, trio.open_nursery() as nursery:

        async def delete() -> None:
            await trio.testing.wait_all_tasks_blocked()
            await client.delete("jobs")

        nursery.start_soon(delete)
        with pytest.raises(dms.QueueNotFound):
            await anext(messages)


async def test_a_consumer_goes_on_over_a_new_connection(
    peer: Peer, client: Client, autojump_clock: trio.testing.MockClock
) -> None:
    await client.produce_many("jobs", [b"one", b"two", b"three"])
    async with client.consume("jobs", prefetch=2) as messages:
        held = await anext(messages)
        peer.cut()
        await trio.testing.wait_all_tasks_blocked()
        peer.refusing = 3
        assert not await held.ack()
        assert not await messages.nack(held)
        again = [await anext(messages) for _ in range(3)]
        assert [message.body for message in again] == [b"one", b"two", b"three"]
        assert await messages.ack(*again)


async def test_a_worker_as_it_is_documented_goes_on_where_an_ack_finds_its_connection_lost(
    peer: Peer, client: Client, autojump_clock: trio.testing.MockClock
) -> None:
    await client.produce_many("jobs", [b"one", b"two", b"three"])
    handled = []
    async with client.consume("jobs", prefetch=2, at_most=5) as messages:
        async for message in messages:
            handled.append(message.body)
            if len(handled) == 1:
                peer.cut()
            if not await message.ack():
                assert len(handled) <= 2
            if not peer.queues["jobs"] and handled[-1] == b"three":
                break
    assert handled[0] == b"one"
    assert handled[-3:] == [b"one", b"two", b"three"]


@pytest.mark.parametrize("how", ["ends", "breaks", "is cancelled"])
async def test_a_consumer_that_ends_says_so(peer: Peer, client: Client, how: str) -> None:
    await client.produce_many("jobs", [b"one", b"two"])
    try:
        with trio.CancelScope() as scope:
            async with client.consume("jobs", prefetch=4) as messages:
                await anext(messages)
                if how == "is cancelled":
                    scope.cancel()
                    await trio.sleep_forever()
                if how == "breaks":
                    raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert peer.requests[-1] == spec.DISCONNECT
    await trio.testing.wait_all_tasks_blocked()  # the peer puts back what was held
    assert [body for _, body in peer.queues["jobs"]] == [b"one", b"two"]


async def test_a_client_that_is_cancelled_whole_says_goodbye_for_its_consumers_too(peer: Peer) -> None:
    peer.queues["jobs"] = deque([(peer.new_id(), b"one")])
    with trio.CancelScope() as scope:
        async with connect() as client, client.consume("jobs", prefetch=4) as messages:
            await anext(messages)
            scope.cancel()
            await trio.sleep_forever()
    assert peer.requests.count(spec.DISCONNECT) == 2


@pytest.mark.parametrize(
    "refusal", [error(0, spec.INTERNAL, b"256 clients are here"), error(1, spec.INTERNAL, b"")]
)
async def test_a_server_with_clients_enough_says_so(peer: Peer, refusal: bytes) -> None:
    async def full(stream: trio.StapledStream) -> None:
        await stream.send_all(refusal)

    peer.scripts = [full]
    with pytest.raises(dms.Internal):
        async with connect():
            raise AssertionError("connected")


async def test_while_a_server_has_clients_enough_coming_back_is_tried_again(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    async def full(stream: trio.StapledStream) -> None:
        await stream.send_all(FULL)

    peer.scripts = [peer.serve, full, full]
    async with connect() as client:
        await client.create("jobs")
        peer.cut()
        await trio.testing.wait_all_tasks_blocked()
        assert await client.queues() == [Queue("jobs", 0)]
    assert peer.connections == 4


async def test_another_version_is_told(peer: Peer) -> None:
    async def other(stream: trio.StapledStream) -> None:
        await stream.send_all(
            spec.frame(spec.HANDSHAKE_NACK, 1, b"version 2 is spoken here", status=spec.VERSION)
        )

    peer.scripts = [other]
    with pytest.raises(dms.VersionMismatch, match="spoken here"):
        async with connect():
            raise AssertionError("connected")


@pytest.mark.parametrize(
    ("said", "why"),
    [(b"", "says nothing"), (b"ERR SYNTAX\n" * 2, "not DMS's"), (None, "closed the connection")],
)
async def test_one_who_does_not_greet_as_dms_does_is_no_server_and_was_asked_nothing(
    peer: Peer, said: bytes | None, why: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def other(stream: trio.StapledStream) -> None:
        await read_frame(stream)
        if said is None:
            return
        if said:
            await stream.send_all(said)
        await read_frame(stream)

    peer.scripts = [other]
    with pytest.raises(Unreachable, match=f"no DMS server answers .*{why}"):
        async with connect():
            raise AssertionError("connected")
    assert trio.current_time() <= 3


async def test_a_server_that_stops_says_goodbye_first(peer: Peer) -> None:
    async def stops(stream: trio.StapledStream) -> None:
        await peer.greet(stream)
        await read_frame(stream)
        await stream.send_all(spec.frame(spec.DISCONNECT, 0))

    peer.scripts = [stops]
    async with connect() as client:
        with pytest.raises(Disconnected, match="stopping"):
            await client.produce("jobs", b"x")


async def test_a_closed_client_says_so(peer: Peer) -> None:
    async with connect() as client:
        pass
    with pytest.raises(Unreachable, match="closed"):
        await client.produce("jobs", b"x")
    with pytest.raises(Unreachable, match="closed"):
        async with client.consume("jobs"):
            raise AssertionError("consuming")


async def test_refusals_keep_their_places_when_the_rest_is_sent_again(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    async def refuses_one(stream: trio.StapledStream) -> None:
        await peer.greet(stream)
        for answer in (spec.frame(spec.PRODUCE + 1, 2), error(3, spec.FULL, b"full")):
            await read_frame(stream)
            await stream.send_all(answer)

    peer.scripts = [refuses_one]
    peer.queues["jobs"] = deque()
    async with connect() as client:
        with pytest.raises(dms.QueueFull) as caught:
            await client.produce_many("jobs", [b"0", b"1", b"2", b"3"], again=True)
        assert caught.value.refused == (1,)
        assert [body for _, body in peer.queues["jobs"]] == [b"2", b"3"]
