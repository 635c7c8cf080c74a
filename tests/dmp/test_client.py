"""DMP's client against a real server: principal, lease and dialog behind one call."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

import dmp
from dmp.amqp_client import open_amqp
from dmp.client import Disconnected, Feed, Message, Refused
from dmp.principal import Dialog, LoginDialog
from dmp.settings import DmpSettings
from shared.client.dial import Unreachable
from shared.client.trio_loop import trio_loop
from tests.dmp.served import Served, served

PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("dmp"), DmpSettings(message_bytes_max=4 << 20)) as server:
        yield server


async def within(feed: Feed, count: int) -> list[Message]:
    """So many messages, and no more."""
    found: list[Message] = []
    with trio.fail_after(PATIENCE_SECONDS):
        while len(found) < count:
            found += await feed.batch()
    assert len(found) == count
    return found


async def test_refusals_are_the_servers(server: Served) -> None:
    with pytest.raises(Refused, match="no exchange") as missing:
        async with dmp.open_sink("not there", port=server.port):
            raise AssertionError("it is not there")
    assert (missing.value.code, missing.value.exit_code) == (404, 66)
    async with dmp.open_feed([], port=server.port, queue="taken"):
        with pytest.raises(Refused) as locked:
            async with dmp.open_feed([], port=server.port, queue="taken"):
                raise AssertionError("it is another's")
        assert locked.value.code == 405
    with pytest.raises(Refused) as wrong:
        async with dmp.open_sink("amq.topic", port=server.port, password="wrong"):
            raise AssertionError("that is no password")
    assert wrong.value.code == 403


async def test_a_feed_whose_queue_is_deleted_is_disconnected(server: Served) -> None:
    broker = server.broker
    async with dmp.open_feed([("amq.topic", "#")], port=server.port, queue="doomed") as feed:
        server.token.run_sync_soon(lambda: broker.topology.delete_unused(broker.queues[b"doomed"]))
        with pytest.raises(Disconnected), trio.fail_after(PATIENCE_SECONDS):
            await feed.batch()


@pytest.mark.parametrize(("opens", "kind"), [(partial(dmp.open_sink, "x"), "DMP"), (open_amqp, "AMQP")])
@pytest.mark.parametrize(
    ("said", "why"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak AMQP"), (b"", "")]
)
async def test_nobody_there_and_somebody_else_are_told_apart(
    opens: Callable[..., Any], kind: str, said: bytes, why: str
) -> None:
    async def other(stream: trio.SocketStream) -> None:
        if said:
            await stream.receive_some(8)
            await stream.send_all(said)
        await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, other, [listener])
        with pytest.raises(Unreachable, match=f"no {kind} server answers .*{why}"):
            async with opens(port=port):
                raise AssertionError("it is none")
        nursery.cancel_scope.cancel()
    with pytest.raises(ConnectionRefusedError, match=f"no {kind} server answers"):
        async with opens(port=port):
            raise AssertionError("it is gone")


async def test_a_server_that_says_nothing_to_the_amqp_header_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    near, _far = trio.testing.memory_stream_pair()
    async with trio_loop() as loop:
        dialog = Dialog(loop)
        loop.attach(near, dialog)
        with trio.fail_after(15), pytest.raises(Disconnected, match="no answer to the AMQP header in 3 s"):
            await LoginDialog(dialog).greet()
