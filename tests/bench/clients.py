"""The clients' own speed: each beside a bare loop over a socket, against one server, in turns.

    python -m tests.bench.clients --rounds 5

The loop sends the same bytes, and only counts what comes back. `ratio` is the client's rate over the loop's
in the same round, the median of all rounds.
"""

import argparse
import asyncio
import importlib.util
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

import brokers
from brokers import aio, sync
from brokers.bench.servers import serving
from dms import wire
from dms.link import hello
from dms.wire import Type
from shared.client.login import NOBODY

ONE_BY_ONE, TOGETHER = 2000, 100_000
"""Requests of a round: each behind the answer to the last; and many at once."""
PIECE = 2000
BODY = b"x" * 100
URLS = {"logmq": "logmq://{}:{}", "dms": "dms://{}:{}"}
ENVIRON = {"BROKERS_DMS_PERSIST": "false", "BROKERS_DMS_DEPTH": "10000000"}


async def one_by_one(client: Any, protocol: str) -> None:
    for _ in range(ONE_BY_ONE):
        await (client.ping() if protocol == "logmq" else client.produce("bench", BODY))


async def together(client: Any, protocol: str) -> None:
    for _ in range(TOGETHER // PIECE):
        await client.produce_many("bench", [BODY] * PIECE)


Work = Callable[[Any, str], Awaitable[None]]
WORKS: dict[str, tuple[Work, int]] = {
    "one by one": (one_by_one, ONE_BY_ONE),
    "together": (together, TOGETHER),
}


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
    import uvloop  # type: ignore[import-not-found, unused-ignore]

    seconds: float = uvloop.run(timed(aio.connect, url, work, protocol))
    return seconds


def blocking(url: str, work: Work, protocol: str) -> float:
    with sync.connect(url) as client:
        begun = perf_counter()
        if work is together:
            for _ in range(TOGETHER // PIECE):
                client.produce_many("bench", [BODY] * PIECE)
        else:
            for _ in range(ONE_BY_ONE):
                client.ping() if protocol == "logmq" else client.produce("bench", BODY)
        return perf_counter() - begun


def bare(address: tuple[str, int], work: Work, protocol: str) -> float:
    """The same requests from a loop over a socket."""
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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


def rows(rounds: int) -> Iterator[dict[str, Any]]:
    clients = {"trio": on_trio, "asyncio": on_asyncio, "blocking": blocking}
    if importlib.util.find_spec("uvloop") is not None:
        clients["uvloop"] = on_uvloop
    for protocol, form in URLS.items():
        with tempfile.TemporaryDirectory() as folder, serving(Path(folder), protocol, ENVIRON) as bound:
            (address,) = bound.values()
            url = form.format(*address)
            if protocol == "dms":
                with sync.connect(url) as client:
                    client.create("bench")
            for name, (work, count) in WORKS.items():
                seconds: dict[str, list[float]] = {}
                for _ in range(rounds):
                    seconds.setdefault("bare", []).append(bare(address, work, protocol))
                    for client_name, run in clients.items():
                        seconds.setdefault(client_name, []).append(partial(run, url, work, protocol)())
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
