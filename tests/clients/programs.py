"""A program for each protocol that says what it was told, for tests that disturb it anywhere.

A program leaves its queue or topic as it is; `rest` says what is in it, to a client that nobody disturbs.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import attrs


@attrs.define
class Told:
    """Bodies that a program was told to be written, and those that it has acknowledged, or begun to."""

    written: list[bytes] = attrs.Factory(list)
    settling: list[bytes] = attrs.Factory(list)


Run = Callable[[Any, str, Told], Awaitable[None]]


async def dms(client: Any, name: str, told: Told) -> None:
    for body in (b"one", b"two"):
        await client.produce(name, body)
        told.written.append(body)
    await client.produce_many(name, [b"three", b"four"])
    told.written += [b"three", b"four"]
    async with client.consume(name, prefetch=2) as messages:
        first, second = await anext(messages), await anext(messages)
        told.settling.append(first.body)
        await first.ack()
        await second.nack()
        async with await anext(messages) as third:
            told.settling.append(third.body)


async def dmp(client: Any, name: str, told: Told) -> None:
    for body in (b"one", b"two", b"three"):
        await client.publish(name, body)
        told.written.append(body)
    async with client.consume(name, prefetch=2) as deliveries:
        first, second = await anext(deliveries), await anext(deliveries)
        told.settling.append(first.body)
        await first.ack()
        await second.nack()
        third = await anext(deliveries)
        told.settling.append(third.body)
        await third.ack()
    async with client.feed([("amq.topic", name)]) as feed:
        async with client.sink("amq.topic") as sink:
            await sink.send(name, b"x")
        await anext(feed)


async def logmq(client: Any, name: str, told: Told) -> None:
    await client.produce_many(name, [b"one", b"two"])
    told.written += [b"one", b"two"]
    async with client.producer(name) as producer:
        await producer.send(b"three")
        await producer.send(b"four")
        await producer.flush()
        told.written += [b"three", b"four"]
    async with client.read("g", name, follow=False) as records:
        await anext(records)
    async with client.tail(name) as tail:
        await anext(tail)


PROGRAMS: dict[str, Run] = {"dms": dms, "dmp": dmp, "logmq": logmq}


async def begin(client: Any, protocol: str, name: str) -> None:
    if protocol == "dms":
        await client.create(name)
    elif protocol == "dmp":
        await client.declare_queue(name)


async def rest(client: Any, protocol: str, name: str) -> list[bytes]:
    """All that is in the queue or topic, in order. A last message is written behind it."""
    bodies = [b""]
    if protocol == "dms":
        await client.produce(name, b"last")
        async with client.consume(name, prefetch=1) as messages:
            while bodies[-1] != b"last":
                async with await anext(messages) as message:
                    bodies.append(message.body)
    elif protocol == "dmp":
        await client.publish(name, b"last")
        async with client.consume(name) as deliveries:
            while bodies[-1] != b"last":
                delivery = await anext(deliveries)
                bodies.append(delivery.body)
                await delivery.ack()
    else:
        await client.produce(name, b"last")
        bodies += [record.payload async for record in client.records(name)]
    return bodies[1:-1]


def check(protocol: str, told: Told, bodies: list[bytes]) -> None:
    """What was written is there once, unless it was acknowledged."""
    assert len(bodies) == len(set(bodies)), bodies
    assert set(bodies) <= {b"one", b"two", b"three", b"four"}, bodies
    settled = () if protocol == "logmq" else told.settling
    assert set(told.written) - set(settled) <= set(bodies), (told, bodies)
