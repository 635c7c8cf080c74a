"""UDP in bulk: order, bounds, filters, and what was lost on the way."""

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import ClassVar

import attrs
import pytest
import trio

from shared.errors import ConfigError
from shared.net import datagrams
from shared.net.connection import Connection
from shared.net.datagram_sink import Frames, Layout, SlotSink
from shared.net.datagrams import allowed_networks, bind_udp
from shared.net.listeners import CannotListen
from shared.net.network import Group, Network
from shared.net.settings import NetSettings
from tests.shared.net.served import PATIENCE_SECONDS, Recorder, Sessions, make_group, read_all


@attrs.define(eq=False)
class Sink:
    """Collects datagrams."""

    layout: ClassVar[Layout] = Layout(frame_bytes=1640, parts=((0, 1600),), sender=(1600, 40))
    batches: list[list[tuple[bytes, bytes]]] = attrs.field(factory=list)
    changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def receive_frames(self, frames: bytes, lengths: Sequence[int]) -> Frames | None:
        batch = [frames[place * 1640 :][:1640] for place in range(len(lengths))]
        self.take(
            [
                (frame[:length], frame[1600:].rstrip(b"\0"))
                for frame, length in zip(batch, lengths, strict=True)
            ]
        )
        return None

    def take(self, datagrams: list[tuple[bytes, bytes]]) -> None:
        self.batches.append(datagrams)
        self.changed.unpark_all()

    @property
    def payloads(self) -> list[bytes]:
        return [data for batch in self.batches for data, _ in batch]

    async def wait_for(self, count: int) -> None:
        while len(self.payloads) < count:
            await self.changed.park()


@attrs.frozen
class Endpoint:
    group: Group
    address: tuple[str, int]
    sender: socket.socket

    def send(self, data: bytes) -> None:
        self.sender.sendto(data, self.address)


@asynccontextmanager
async def receiving(
    sink: SlotSink, *, allow: Sequence[str] = (), started: bool = True, buffer_bytes: int = 1 << 20
) -> AsyncIterator[Endpoint]:
    group = make_group(Network(NetSettings(udp_receive_buffer_bytes=buffer_bytes)))
    (address,) = group.bind_udp("127.0.0.1", 0, sink, allowed_networks("test.allow", "127.0.0.1", allow))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind(("127.0.0.1", 0))
        endpoint = Endpoint(group, address, sender)
        if not started:
            yield endpoint
            return
        async with trio.open_nursery() as nursery:
            await nursery.start(group.serve)
            with trio.fail_after(PATIENCE_SECONDS):
                yield endpoint
            nursery.cancel_scope.cancel()


async def test_datagrams_come_in_order_with_their_sender() -> None:
    sink = Sink()
    async with receiving(sink) as endpoint:
        texts = [b"", b"x", b"y" * 1551, *[b"%d" % number for number in range(100)]]
        for text in texts:
            endpoint.send(text)
        await sink.wait_for(len(texts))
        assert sink.payloads == texts
        address = b"%s:%d" % (b"127.0.0.1", endpoint.sender.getsockname()[1])
        assert {sender for batch in sink.batches for _, sender in batch} == {address}
        assert endpoint.group.counters.datagrams_in == len(texts)
        assert endpoint.group.counters.bytes_in == sum(map(len, texts))


async def test_a_flood_comes_in_batches_that_are_bounded_and_others_get_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datagrams, "TURN_DATAGRAMS", 64)  # few enough for any system's buffer
    sink = Sink()
    async with receiving(sink) as endpoint:
        count = 4 * 64
        for number in range(count):
            endpoint.send(b"%d" % number)
        seen = [0]
        while len(sink.payloads) < count:
            await trio.lowlevel.checkpoint()
            seen.append(len(sink.batches))
        assert max(len(batch) for batch in sink.batches) <= 64
        # Twice is possible: trio shuffles who goes first in a turn.
        assert max(after - before for before, after in pairwise(seen)) <= 2
        assert len(sink.batches) < count / 4, "they were taken one by one"


async def test_what_a_sink_puts_off_comes_next_and_others_have_their_turn_before() -> None:
    class OneByOne:
        layout = Layout(frame_bytes=40, parts=((0, 8),), sender=(8, 32))

        def __init__(self) -> None:
            self.frames: list[bytes] = []

        def receive_frames(self, frames: bytes, lengths: Sequence[int]) -> Frames | None:
            self.frames.append(frames[:8].rstrip(b"\0"))
            return (frames[40:], lengths[1:]) if len(lengths) > 1 else None

    sink = OneByOne()
    async with receiving(sink) as endpoint:
        texts = [b"%d" % number for number in range(40)]
        for text in texts:
            endpoint.send(text)
        turns = 0
        while len(sink.frames) < len(texts):
            await trio.lowlevel.checkpoint()
            turns += 1
        assert sink.frames == texts
        assert turns >= len(texts) / 2  # twice is possible: trio shuffles who goes first in a turn
        assert endpoint.group.counters.datagrams_in == len(texts)
        assert endpoint.group.counters.bytes_in == sum(map(len, texts))


async def test_what_the_system_drops_is_counted() -> None:
    sink = Sink()
    async with receiving(sink, buffer_bytes=4096) as endpoint:
        for _ in range(500):  # nobody takes them meanwhile: there is no await here
            endpoint.send(b"x" * 1000)

        def counted(name: str) -> float:
            (value,) = (each.value for each in endpoint.group.samples() if each.name == name)
            return value

        drops, received = "net_datagrams_kernel_drops_total", "net_datagrams_in_total"
        while counted(drops) + counted(received) < 500:
            await trio.lowlevel.checkpoint()
        assert counted(drops) > 0
        assert counted(drops) + counted(received) == 500, "they were counted twice"


async def test_senders_that_are_not_allowed_are_counted_and_not_heard() -> None:
    sink = Sink()
    async with receiving(sink, allow=["127.0.0.5/32"]) as endpoint:
        endpoint.send(b"stranger")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as friend:
            friend.bind(("127.0.0.5", 0))
            friend.sendto(b"friend", endpoint.address)
        await sink.wait_for(1)
        assert sink.payloads == [b"friend"]
        assert endpoint.group.counters.datagrams_filtered == 1


async def test_a_sink_that_crashes_loses_its_batch_and_no_more() -> None:
    class Crashing(Sink):
        def take(self, datagrams: list[tuple[bytes, bytes]]) -> None:
            super().take(datagrams)
            if datagrams[0][0] == b"crash":
                raise ZeroDivisionError

    sink = Crashing()
    async with receiving(sink) as endpoint:
        endpoint.send(b"crash")
        await sink.wait_for(1)
        endpoint.send(b"on")
        await sink.wait_for(2)
        assert endpoint.group.counters.crashes == 1


async def test_what_a_sink_writes_to_connections_leaves_with_its_batch() -> None:
    subscribers: list[Connection] = []

    class Publishing(Sink):
        def take(self, datagrams: list[tuple[bytes, bytes]]) -> None:
            for data, _ in datagrams:
                for subscriber in subscribers:
                    subscriber.write(data)

    def subscribe(session: Recorder) -> None:
        subscribers.append(session.connection)

    sessions = Sessions(subscribe)
    async with receiving(Publishing(), started=False) as endpoint, trio.open_nursery() as nursery:
        (address,) = endpoint.group.bind_tcp("test", "127.0.0.1", 0, sessions)
        await nursery.start(endpoint.group.serve)
        client = await trio.open_tcp_stream(*address)
        await sessions.next()
        for number in range(3):
            endpoint.send(b"<%d>" % number)
        assert await read_all(client, 9) == b"<0><1><2>"
        await client.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("host", ["0.0.0.0", "", "192.0.2.1"])
def test_beyond_loopback_senders_must_be_named(host: str) -> None:
    with pytest.raises(ConfigError, match="name the networks") as error:
        allowed_networks("pubsub.allow", host, [])
    assert error.value.key == "pubsub.allow"
    assert len(allowed_networks("pubsub.allow", host, ["10.0.0.0/8", "fd00::/8"])) == 2


def test_a_network_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match=r"10\.0\.0\.0/99"):
        allowed_networks("pubsub.allow", "127.0.0.1", ["10.0.0.0/99"])


def test_a_taken_udp_port_is_one_clear_line() -> None:
    (taken,) = bind_udp("127.0.0.1", 0, NetSettings())
    with taken, pytest.raises(CannotListen, match="Address already in use"):
        bind_udp("127.0.0.1", taken.getsockname()[1], NetSettings())
