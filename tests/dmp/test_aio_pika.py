"""aio-pika and aiormq, clients of asyncio: the exceptions that they make of our codes, and a worker."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import aiormq.exceptions
import pytest
from aio_pika.abc import AbstractChannel, AbstractConnection

from tests.dmp.served import PATIENCE_SECONDS, Served


def talk(server: Served, dialog: Callable[[AbstractConnection], Awaitable[None]]) -> None:
    async def connected() -> None:
        async with await aio_pika.connect(host="127.0.0.1", port=server.port) as connection:
            await dialog(connection)

    asyncio.run(asyncio.wait_for(connected(), PATIENCE_SECONDS))


@pytest.mark.parametrize(
    ("error", "does"),
    [
        ("ChannelAccessRefused", lambda channel: channel.get_exchange("", ensure=True)),
        ("ChannelNotFoundEntity", lambda channel: channel.get_queue("none")),
        ("ChannelLockedResource", lambda channel: channel.declare_queue("own", exclusive=False)),
        ("ChannelPreconditionFailed", lambda channel: channel.declare_exchange("x", "quantum")),
        ("ChannelPreconditionFailed", lambda channel: channel.declare_queue("new", arguments={"x-delay": 5})),
    ],
)
def test_a_refusal_is_the_exception_that_its_code_stands_for(
    server: Served, error: str, does: Callable[[AbstractChannel], Awaitable[object]]
) -> None:
    async def dialog(connection: AbstractConnection) -> None:
        await (await connection.channel()).declare_queue("own", exclusive=True)
        channel = await connection.channel()
        with pytest.raises(getattr(aiormq.exceptions, error)):
            await does(channel)
        assert channel.is_closed
        assert not connection.is_closed

    talk(server, dialog)


def test_what_a_worker_rejects_is_in_the_quorum_queue_of_its_dead_letters(server: Served) -> None:
    async def dialog(connection: AbstractConnection) -> None:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=1)
        quorum: dict[str, Any] = {"x-queue-type": "quorum"}
        dead = await channel.declare_queue("dead", durable=True, arguments=quorum)
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        jobs = await channel.declare_queue("jobs", durable=True, arguments=quorum | letters)
        for body in (b"good", b"bad"):
            message = aio_pika.Message(body, headers={"n": 5}, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, "jobs")
        async with jobs.iterator() as messages:
            async for job in messages:
                if job.body == b"bad":
                    await job.reject()
                    break
                await job.ack()
        async with dead.iterator() as messages:
            async for letter in messages:
                (death,) = letter.headers["x-death"]
                assert (letter.body, letter.headers["n"]) == (b"bad", 5)
                assert (death["count"], death["reason"], death["queue"]) == (1, "rejected", "jobs")
                await letter.ack()
                break
        for queue in (jobs, dead):
            await queue.delete()

    talk(server, dialog)
