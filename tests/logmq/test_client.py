"""The client: pipelined, bounded, and exactly once where it says so."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
import trustme

from logmq import client as client_module
from logmq.client import Client, Disconnected, LogmqError, Topic, Unreachable, connect
from logmq.replay import target
from logmq.wire import Refusal
from shared.net.settings import NetSettings, TlsSettings
from shared.replaying import PastMessage, TargetAddress
from tests.logmq.served import served


class Proxy:
    """Passes bytes on to a server, and cuts connections when told to: before a request reaches the server, or
    before an answer reaches the client."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.connections = 0
        self.cut_after_requests: list[int] = []
        """For each coming connection, how many bytes of requests to pass on before it is cut; answers are not
        passed on once that is near."""
        self._scopes: list[trio.CancelScope] = []
        self._listening = trio.CancelScope()

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        self.port = listener.socket.getsockname()[1]
        with self._listening:
            await trio.serve_listeners(self._connection, [listener], task_status=task_status)
        await listener.aclose()

    def stop(self) -> None:
        self._listening.cancel()

    def cut(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    async def _connection(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        limit = self.cut_after_requests.pop(0) if self.cut_after_requests else -1
        with trio.CancelScope() as scope:
            self._scopes.append(scope)
            async with (
                await trio.open_tcp_stream("127.0.0.1", self.target) as server,
                stream,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self._pass, stream, server, limit, nursery.cancel_scope)
                nursery.start_soon(self._pass, server, stream, -1 if limit < 0 else 0, nursery.cancel_scope)

    async def _pass(
        self, source: trio.SocketStream, target: trio.SocketStream, limit: int, scope: trio.CancelScope
    ) -> None:
        passed = 0
        try:
            async for data in source:
                if limit == 0:
                    continue  # answers that get lost
                if limit > 0 and passed + len(data) >= limit:
                    await target.send_all(data[: limit - passed])
                    await target.send_eof()
                    await trio.sleep_forever()  # the server deals with it and closes, unheard: that ends both
                passed += len(data)
                await target.send_all(data)
        except trio.BrokenResourceError:
            pass
        scope.cancel()


@asynccontextmanager
async def proxied(port: int) -> AsyncIterator[Proxy]:
    proxy = Proxy(port)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        yield proxy
        nursery.cancel_scope.cancel()


async def test_every_request_has_its_method(tmp_path: Path) -> None:
    async with served(tmp_path) as server, connect(port=server.port) as client:
        assert await client.produce("t", b"one") == 0
        assert await client.produce("t", b"two\nlines\r") == 7
        assert await client.append("t", b"three") == 21
        assert await client.produce_many("t", [b"a", b"", b"b\n"]) == [30, 35, 39]
        record = await client.consume("t", 7)
        assert record is not None
        assert (record.offset, record.payload, record.next_offset) == (7, b"two\nlines\r", 21)
        assert await client.consume("t", 45) is None
        fetched = await client.fetch("t", 21)
        assert [each.payload for each in fetched] == [b"three", b"a", b"", b"b\n"]
        assert await client.fetch("t", 45) == []
        assert await client.offsets("t") == Topic("t", 0, 45)
        assert await client.topics() == [Topic("t", 0, 45)]
        assert await client.committed("g", "t") is None
        await client.commit("g", "t", 21)
        assert await client.committed("g", "t") == 21
        assert await client.seek("t", 0) == 0
        assert sum(mark.length for mark in await client.marks("t", 0, 45)) in (0, 45)
        assert await client.batch("t", "w", 1, [b"x", b"y"]) == 45
        assert await client.batch("t", "w", 1, [b"x", b"y"]) == 45
        await client.ping()
        await client.delete("t")
        with pytest.raises(LogmqError, match="NO_TOPIC"):
            await client.offsets("t")
        with pytest.raises(Refusal, match="BAD_TOPIC"):
            await client.produce("a b", b"x")


async def test_many_tasks_share_one_connection(tmp_path: Path) -> None:
    offsets: dict[int, int] = {}
    async with served(tmp_path) as server, connect(port=server.port) as client:

        async def produce(number: int) -> None:
            offsets[number] = await client.produce("t", b"%04d" % number)

        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(produce, number)
        got = {record.offset: record.payload async for record in client.records("t")}
        assert got == {offset: b"%04d" % number for number, offset in offsets.items()}
        assert server.group.connections == 1


async def test_a_task_that_stops_waiting_leaves_the_connection_good(tmp_path: Path) -> None:
    async with served(tmp_path) as server, connect(port=server.port) as client:
        with trio.move_on_after(0) as scope:
            await client.produce("t", b"unheard")
        assert scope.cancelled_caught
        await client.produce("t", b"heard")
        payloads = [record.payload async for record in client.records("t")]
        assert payloads[-1] == b"heard"
        assert len(payloads) <= 2


async def test_records_come_in_order_and_only_once_whatever_the_chunks(tmp_path: Path) -> None:
    async with served(tmp_path) as server, connect(port=server.port) as client:
        payloads = [b"%d" % number * (number % 50) for number in range(2000)]
        await client.produce_many("t", payloads)
        for size in (1, 1000, 1 << 20):
            reader = client.records("t", bytes_max=size)
            assert [record.payload async for record in reader] == payloads
            assert reader.offset == (await client.offsets("t")).end


async def test_following_waits_for_more(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as server,
        connect(port=server.port) as client,
        connect(port=server.port) as writer,
    ):
        reader = client.records("t", follow=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.produce, "t", b"one")
            assert (await anext(reader)).payload == b"one"
            nursery.start_soon(writer.produce, "t", b"two")
            assert (await anext(reader)).payload == b"two"


async def test_a_tail_is_pushed_what_comes_and_ends_with_its_topic(tmp_path: Path) -> None:
    async with served(tmp_path) as server, connect(port=server.port) as client:
        await client.produce_many("t", [b"one", b"two\n"])
        async with client.tail("t") as tail:
            assert [(await anext(tail)).payload for _ in range(2)] == [b"one", b"two\n"]
            await client.produce("t", b"three")
            assert (await anext(tail)).payload == b"three"
            assert tail.offset == (await client.offsets("t")).end
            await client.delete("t")
            with pytest.raises(LogmqError, match="NO_TOPIC"):
                await anext(tail)


async def test_a_refused_write_is_told_and_the_others_stand(tmp_path: Path) -> None:
    async with served(tmp_path) as server, connect(port=server.port) as client:
        with pytest.raises(LogmqError, match="TOO_LARGE"):
            await client.produce_many("t", [b"one", b"x" * 2_000_000, b"two"])
        with pytest.raises(TypeError, match="text, not by bytes"):
            await client.produce(b"t", b"three")  # type: ignore[arg-type]
        assert [record.payload async for record in client.records("t")] == [b"one", b"two"]


async def test_what_may_be_asked_twice_survives_a_lost_connection(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as server,
        proxied(server.port) as proxy,
        connect(port=proxy.port, retry_seconds=5) as client,
    ):
        await client.produce_many("t", [b"one", b"two"])
        proxy.cut()
        reader = client.records("t", bytes_max=1)
        assert (await anext(reader)).payload == b"one"
        proxy.cut()
        assert [record.payload async for record in reader] == [b"two"]
        proxy.cut()
        assert await client.topics() == [Topic("t", 0, 14)]
        assert proxy.connections > 1


async def test_a_plain_write_whose_answer_is_lost_is_not_made_twice(tmp_path: Path) -> None:
    async with served(tmp_path) as server, proxied(server.port) as proxy:
        proxy.cut_after_requests = [len(b"PRODUCE t one\n")]
        async with connect(port=proxy.port, retry_seconds=5) as client:
            with pytest.raises(Disconnected):
                await client.produce("t", b"one")
            assert [record.payload async for record in client.records("t")] == [b"one"]


async def test_a_producer_writes_everything_once_and_in_order_over_lost_connections(tmp_path: Path) -> None:
    async with served(tmp_path) as server, proxied(server.port) as proxy:
        proxy.cut_after_requests = [3000, 1, 20_000, 100_000, 50_000]
        written: list[int] = []
        async with connect(port=proxy.port, retry_seconds=20) as client:
            async with client.producer("t", on_written=lambda _, these: written.extend(these)) as producer:
                for number in range(3000):
                    await producer.send(b"%08d" % number * 10)
                    if number % 100 == 0:
                        await trio.testing.wait_all_tasks_blocked()  # let it be sent in several batches
            assert producer.written == 3000
            got = [record async for record in client.records("t")]
        assert [record.payload for record in got] == [b"%08d" % number * 10 for number in range(3000)]
        assert [record.offset for record in got] == written
        assert proxy.connections == 6


async def test_a_producer_is_bounded(tmp_path: Path) -> None:
    async with served(tmp_path) as server, connect(port=server.port) as client:
        sent = 0
        async with client.producer("t") as producer:
            with trio.move_on_after(0) as scope:
                while True:
                    await producer.send(b"x" * 100_000)
                    sent += 1
            assert scope.cancelled_caught
            assert 32 * 2 <= sent <= 40 * 3
        assert producer.written == sent


async def send_for_ever(client: Client, message: bytes) -> None:
    async with client.producer("t") as producer:
        while True:
            await producer.send(message)
            await client.ping()


@pytest.mark.parametrize("message", [b"GET / HTTP/1.1", b"HTTP/1.0", b"x HTTP/2  "])
async def test_a_first_message_that_ends_as_http_does_is_a_message(tmp_path: Path, message: bytes) -> None:
    async with served(tmp_path) as server, connect(port=server.port) as client:
        assert await client.produce("t", message) == 0
        assert await client.produce("t", message) == 4 + len(message)


async def test_a_producers_refusal_comes_out_where_it_is_used(tmp_path: Path) -> None:
    async with served(tmp_path) as server, connect(port=server.port) as client:
        with pytest.raises(LogmqError, match="TOO_LARGE"):
            async with client.producer("t") as producer:
                await producer.send(b"x" * 2_000_000)  # the end of the block waits for the answer
        with pytest.raises(LogmqError, match="TOO_LARGE"):
            await send_for_ever(client, b"x" * 2_000_000)


async def test_a_server_that_stays_away_is_unreachable_after_a_while(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as server,
        proxied(server.port) as proxy,
        connect(port=proxy.port, retry_seconds=0.1) as client,
    ):
        await client.ping()
        proxy.stop()
        with pytest.raises(Unreachable):
            async with client.producer("t") as producer:
                await producer.send(b"x")
        with pytest.raises(Unreachable):
            await client.ping()


async def test_a_client_speaks_tls_and_checks_the_server_s_name(tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    leaf.cert_chain_pems[0].write_to_path(certificate)
    leaf.private_key_pem.write_to_path(key)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    tls = TlsSettings(certificate=certificate, key=key)
    async with served(tmp_path / "data", tls=tls) as server:
        async with connect(port=server.port, ssl_context=context, server_hostname="localhost") as client:
            assert await client.produce("t", b"one") == 0
            async with client.tail("t") as tail:
                assert (await anext(tail)).payload == b"one"
        with pytest.raises(ssl.SSLError):
            async with connect(port=server.port, ssl_context=context, server_hostname="elsewhere"):
                raise AssertionError("trusted the wrong name")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"PONG\n", None),
        (b"ERR UNKNOWN_COMMAND no such request\n", None),
        (b"", "says nothing in 0.05 s"),
        (b"HTTP/1.1 400 Bad Request\r\n", "not LogMQ's"),
        (None, "closed the connection"),
    ],
)
async def test_who_is_there_can_be_asked_whether_he_is_a_server(
    said: bytes | None, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said == b"":
        monkeypatch.setattr(client_module, "FIRST_ANSWER_SECONDS", 0.05)

    async def answers(stream: trio.SocketStream) -> None:
        assert await stream.receive_some() == b"PING\n"
        if said is not None:
            await stream.send_all(said)
            await stream.receive_some()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, answers, 0, host="127.0.0.1"))
        async with connect(port=listener.socket.getsockname()[1]) as client:
            if why is None:
                await client.check_answers()
            else:
                with pytest.raises(Unreachable, match=f"no LogMQ server answers .*{why}"):
                    await client.check_answers()
        nursery.cancel_scope.cancel()


async def test_a_replay_stays_connected_however_late_its_first_records_come(tmp_path: Path) -> None:
    net = NetSettings(first_request_seconds=0.5)
    async with served(tmp_path, net=net) as server, target(TargetAddress("127.0.0.1", server.port)) as topics:
        await trio.sleep(0.7)
        assert server.group.counters.closed == {}
        await topics.send([(b"orders", PastMessage(b"orders", b"x"))], "replay", 1)
