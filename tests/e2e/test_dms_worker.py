"""A DMS worker as CLIENTS.md shows it, beside a real server that it outlives and leaves in order."""

import signal
import subprocess
import sys
from typing import Any

import pytest
import trio

from brokers.commands import control
from dms.client import connect
from tests.support.server import Server, until

WORKER = """
import sys
import trio
from dms.client import connect

async def main():
    async with connect(port=int(sys.argv[1])) as client, client.consume("jobs", prefetch=8) as messages:
        async for message in messages:
            await trio.sleep_forever()

trio.run(main)
"""
BODIES = [b"%02d" % number for number in range(20)]


def jobs(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = control.request(server.data, "GET", "/api/v1/queues/dms/jobs")
    return found


def deliveries(server: Server) -> list[int]:
    found = control.request(server.data, "GET", "/api/v1/queues/dms/jobs/peek")
    return [row["properties"]["deliveries"] for row in found["items"]]


async def produce(port: int, count: int) -> None:
    async with connect(port=port) as client:
        if not await client.queues():
            await client.create("jobs")
        await client.produce_many("jobs", BODIES[:count])


async def test_a_worker_goes_on_over_a_server_that_is_killed_and_started_anew(server: Server) -> None:
    port = server.address("dms")[1]

    def replaced() -> None:
        server.kill()
        server.start("--port", f"dms={port}")

    await produce(port, 20)
    handled: list[bytes] = []
    told: list[bool] = []
    with trio.fail_after(60):
        async with connect(port=port) as client, client.consume("jobs", prefetch=8) as messages:
            async for message in messages:
                handled.append(message.body)
                if len(handled) == 5:
                    await trio.to_thread.run_sync(replaced)
                told.append(await message.ack())
                if set(handled) == set(BODIES) and not sum(jobs(server)[name] for name in ("ready", "held")):
                    break
    assert told.count(False) == 1
    assert handled == [*BODIES[:5], *BODIES[4:]], "what could not be acknowledged comes again, and no other"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_worker_that_has_ended_is_given_nothing_and_burns_no_try(
    server: Server, how: signal.Signals
) -> None:
    port = server.address("dms")[1]
    trio.run(produce, port, 0)
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(port)], stderr=subprocess.DEVNULL)
    until(lambda: jobs(server)["consumers"] == 1)
    worker.send_signal(how)
    worker.wait()
    trio.run(produce, port, 8)
    until(lambda: jobs(server)["held"] == 0)
    assert deliveries(server) == [0] * 8


def test_a_worker_that_leaves_in_order_burns_one_try_and_not_its_prefetched(server: Server) -> None:
    port = server.address("dms")[1]
    trio.run(produce, port, 8)
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(port)], stderr=subprocess.DEVNULL)
    until(lambda: jobs(server)["held"] == 8)
    worker.send_signal(signal.SIGINT)
    worker.wait()
    until(lambda: jobs(server)["held"] == 0)
    assert deliveries(server) == [1] + [0] * 7
