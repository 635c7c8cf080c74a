"""The clients' own speed: each beside a bare loop over a socket, against one server, in turns.

    python -m tests.bench.clients --rounds 5

The loop sends the same bytes, and only counts what comes back. `ratio` is the client's rate over the loop's
in the same round, the median of all rounds.
"""

import argparse
import asyncio
import json
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import trio
import uvloop
from pamqp import commands

import brokers
from brokers import aio, sync
from brokers.bench.dmp import leased
from brokers.bench.load import STAMP_BYTES
from brokers.bench.servers import serving
from dmp.amqp import wire as amqp
from dmp.wire import AMQP_HEADER, Message
from dms import wire
from dms.link import hello
from dms.wire import Type
from shared.client.login import NOBODY
from tests.support.ends import Plain, run_to_end

ONE_BY_ONE, TOGETHER, ACKNOWLEDGED = 2000, 100_000, 20_000
"""Of a round: requests, each behind the answer to the last; many at once, and from a sink to a feed; AMQP
messages with their acks."""
PIECE = 2000
BODY = b"x" * 99 + b"y"  # it is found at one place
PLAIN = commands.Basic.Properties(delivery_mode=1)
URLS = {"logmq": "logmq://{}:{}", "dms": "dms://{}:{}", "dmp": "dmp://{}:{}"}
ENVIRON = {"BROKERS_DMS_PERSIST": "false", "BROKERS_DMS_DEPTH": "10000000"}


AMQP_BODIES = [Message(b"", b"bench", BODY, PLAIN.marshal())] * PIECE
SINK_BODIES = [(b"bench", BODY)] * PIECE


async def one_by_one(client: Any, protocol: str) -> None:
    for _ in range(ONE_BY_ONE):
        if protocol == "logmq":
            await client.ping()
        elif protocol == "dms":
            await client.produce("bench", BODY)
        else:
            await client.publish("bench", BODY, properties=PLAIN)


async def together(client: Any, protocol: str) -> None:
    for _ in range(TOGETHER // PIECE):
        if protocol == "dmp":
            await client.publish_many(AMQP_BODIES)
        else:
            await client.produce_many("bench", [BODY] * PIECE)


async def acknowledged(client: Any, protocol: str) -> None:
    """What is in the queue, each message acknowledged by itself."""
    async with client.consume("bench", prefetch=PIECE) as deliveries:
        for _ in range(ACKNOWLEDGED):
            await (await anext(deliveries)).ack()


async def sunk(client: Any, protocol: str) -> None:
    """From a sink of DMP to a feed."""
    async with client.feed([("amq.fanout", "")]) as feed, client.sink("amq.fanout") as sink:
        for _ in range(TOGETHER // PIECE):
            await sink.send_many(SINK_BODIES)
            for _ in range(PIECE):
                await anext(feed)


Work = Callable[[Any, str], Awaitable[None]]
WORKS: dict[str, tuple[Work, int]] = {
    "one by one": (one_by_one, ONE_BY_ONE),
    "together": (together, TOGETHER),
    "acknowledged": (acknowledged, ACKNOWLEDGED),
    "sink to feed": (sunk, TOGETHER),
}
OF_AMQP = {acknowledged, sunk}


async def timed(connect: Callable[[str], Any], url: str, work: Work, protocol: str) -> float:
    async with connect(url) as client:
        begun = perf_counter()
        await work(client, protocol)
        return perf_counter() - begun


def on_trio(url: str, work: Work, protocol: str) -> float:
    return trio.run(timed, brokers.connect, url, work, protocol)


def on_asyncio(url: str, work: Work, protocol: str) -> float:
    return asyncio.run(timed(aio.connect, url, work, protocol))


def on_uvloop(url: str, work: Work, protocol: str) -> float:
    return uvloop.run(timed(aio.connect, url, work, protocol))


def blocking(url: str, work: Work, protocol: str) -> float:
    with sync.connect(url) as client:
        begun = perf_counter()
        run_to_end(work(Plain(client), protocol))
        return perf_counter() - begun


def bare(address: tuple[str, int], work: Work, protocol: str) -> float:
    """The same requests from a loop over a socket."""
    if work is sunk:
        return bare_dmp(address)
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if protocol == "dmp":
            return bare_amqp(sock, work)
        if protocol == "dms":
            sock.sendall(wire.pack(Type.HANDSHAKE, 1, hello(NOBODY)))
            sock.recv(1 << 16)
            request, size = wire.pack(Type.PRODUCE, 2, wire.pack_name("bench") + BODY), wire.HEADER_BYTES
            taken: Callable[[bytes], float] = lambda data: len(data) / size  # noqa: E731
        else:
            request = b"PING\n" if work is one_by_one else b"PRODUCE bench %b\n" % BODY
            taken = lambda data: data.count(b"\n")  # noqa: E731
        many, of = (1, ONE_BY_ONE) if work is one_by_one else (PIECE, TOGETHER)
        begun = perf_counter()
        for _ in range(of // many):
            sock.sendall(request * many)
            left = float(many)
            while left > 0.01:
                left -= taken(sock.recv(1 << 18))
        return perf_counter() - begun


def fill(url: str, count: int) -> None:
    with sync.connect(url) as client:
        client.purge("bench")
        client.publish_many(AMQP_BODIES[:1] * count)


def bare_amqp(sock: socket.socket, work: Work) -> float:
    """The server confirms several at once: how far it is, the last frame says."""

    def ask(said: bytes) -> bytes:
        sock.sendall(said)
        return sock.recv(1 << 18)

    ask(AMQP_HEADER)
    ask(amqp.encode(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), 0))
    ask(
        amqp.encode(commands.Connection.TuneOk(10, 1 << 17, 0), 0)
        + amqp.encode(commands.Connection.Open("/"), 0)
    )
    ask(amqp.encode(commands.Channel.Open(), 1))
    message = amqp.publish_frame(1, b"", b"bench", work is one_by_one)
    message += amqp.content_head(1, len(BODY), PLAIN.marshal(), 1 << 16) + BODY + amqp.FRAME_END
    if work is acknowledged:
        ask(amqp.encode(commands.Basic.Qos(0, PIECE, False), 1))
        begun = perf_counter()
        data = ask(amqp.encode(commands.Basic.Consume(queue="bench"), 1))
        seen, acked, rest = data.count(BODY), 0, data[-len(BODY) :]
        while seen < ACKNOWLEDGED:
            sock.sendall(b"".join(amqp.ack_frame(1, tag + 1, False) for tag in range(acked, seen)))
            acked, data = seen, sock.recv(1 << 18)
            seen += (rest + data).count(BODY) - rest.count(BODY)
            rest = (rest + data)[-len(BODY) :]
        sock.sendall(b"".join(amqp.ack_frame(1, tag + 1, False) for tag in range(acked, seen)))
        return perf_counter() - begun
    ask(amqp.encode(commands.Confirm.Select(), 1))
    many, of = (1, ONE_BY_ONE) if work is one_by_one else (PIECE, TOGETHER)
    begun, data = perf_counter(), b""
    for number in range(1, of // many + 1):
        sock.sendall(message * many)
        while not data or int.from_bytes(data[-10:-2], "big") < number * many:
            data = (data + sock.recv(1 << 18))[-21:]
    return perf_counter() - begun


def bare_dmp(address: tuple[str, int]) -> float:
    with leased(address, [b"bench"], len(BODY), 1, 1) as fan:
        feed, sink = (socket.create_connection(address) for _ in "fs")
        with feed, sink:
            feed.sendall(fan.hello_consumer(0))
            sink.sendall(fan.hello_producer(0))
            feed.recv(1 << 16)  # its greeting
            pieces, size = fan.message(0, bytes(STAMP_BYTES)) * PIECE, fan.delivered_bytes * PIECE
            begun = perf_counter()
            for _ in range(TOGETHER // PIECE):
                sink.sendall(pieces)
                left = size
                while left > 0:
                    left -= len(feed.recv(1 << 18))
            return perf_counter() - begun


def bare_at(address: tuple[str, int], _: str, work: Work, protocol: str) -> float:
    return bare(address, work, protocol)


def rows(rounds: int) -> Iterator[dict[str, Any]]:
    clients = {"trio": on_trio, "asyncio": on_asyncio, "blocking": blocking, "uvloop": on_uvloop}
    for protocol, form in URLS.items():
        with tempfile.TemporaryDirectory() as folder, serving(Path(folder), protocol, ENVIRON) as bound:
            (address,) = bound.values()
            url = form.format(*address)
            if protocol == "dms":
                with sync.connect(url) as client:
                    client.create("bench")
            if protocol == "dmp":
                with sync.connect(url) as client:
                    client.declare_queue("bench", durable=False)
            for name, (work, count) in WORKS.items():
                if work in OF_AMQP and protocol != "dmp":
                    continue
                seconds: dict[str, list[float]] = {}
                runs: dict[str, Callable[[str, Work, str], float]]
                runs = {"bare": partial(bare_at, address), **clients}
                for client_name, run in list(runs.items()) * rounds:
                    if protocol == "dmp":
                        fill(url, ACKNOWLEDGED if work is acknowledged else 0)
                    seconds.setdefault(client_name, []).append(run(url, work, protocol))
                for client_name, taken in seconds.items():
                    ratio = median(base / each for base, each in zip(seconds["bare"], taken, strict=True))
                    yield {
                        "protocol": protocol,
                        "work": name,
                        "client": client_name,
                        "per_second": round(count / median(taken)),
                        "ratio": round(ratio, 2),
                    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    for row in rows(parser.parse_args().rounds):
        print(json.dumps(row), flush=True)
