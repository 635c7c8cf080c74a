"""Tracing: copies of messages that pass a name, of every protocol, and what that costs nobody."""

import json
import socket
from collections.abc import Mapping
from typing import Any

import pika
import pytest
import trio

from brokers.admin import tracing
from brokers.admin.tracing import NAMES_MAX, TooManyTraces, Traces
from brokers.host.service import SupervisedService
from shared.objects import BadArgument
from shared.tracing import COPIES_MAX, Tap
from tests.brokers.asking import Api, Asking
from tests.support.server import Server, speak


async def test_a_tap_takes_so_many_copies_a_second_and_is_unhooked_for_the_rest(
    autojump_clock: trio.testing.MockClock,
) -> None:
    taken: list[Mapping[str, Any]] = []
    tap = Tap("ord*", taken.append)
    hooked: list[bool] = []

    def hook() -> Any:
        hooked.append(True)
        return hooked.clear

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tap.listen, hook)
        await trio.testing.wait_all_tasks_blocked()
        assert hooked
        for _ in range(COPIES_MAX + 10):
            tap.copy("orders", b"x" * 5000, position=7)
        await trio.testing.wait_all_tasks_blocked()
        assert (len(taken), hooked) == (COPIES_MAX, [])
        await trio.sleep(1.5)
        assert hooked
        tap.copy("orders", b"\xff")
        nursery.cancel_scope.cancel()
    assert hooked == []
    assert taken[0] == {"position": 7, "time": None, "bytes": 5000, "name": "orders", "text": "x" * 4096}
    assert (taken[-1]["base64"], tap.room) == ("/w==", COPIES_MAX - 1)
    assert tap.matches(b"no", b"orders")
    assert not tap.matches("none")


class Traced:
    """A service that can be traced."""

    name = "a"
    taps = 0

    async def trace(self, tap: Tap) -> None:
        self.taps += 1
        tap.copy("orders", b"hello")
        try:
            await trio.sleep_forever()
        finally:
            self.taps -= 1


async def test_a_name_is_traced_until_nobody_has_asked_for_half_a_minute(
    autojump_clock: trio.testing.MockClock,
) -> None:
    service: Any = Traced()
    services: list[SupervisedService] = [service]
    traces = Traces(lambda: services, lambda: 0.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(traces.run)
        await trio.testing.wait_all_tasks_blocked()
        recent = traces.of("orders")
        for _ in range(4):
            await trio.sleep(20)
            assert traces.of("orders") is recent
            assert service.taps == 1
        ((number, row),) = recent.after(0)
        assert (number, row["protocol"], row["text"]) == (1, "a", "hello")
        assert row["time"] == "1970-01-01T00:00:00.000Z"
        await trio.sleep(tracing.LINGER_SECONDS + 2)
        assert service.taps == 0
        for number in range(NAMES_MAX):
            traces.of(f"name-{number}")
        with pytest.raises(TooManyTraces):
            traces.of("one more")
        for name in ("", "x" * 300):
            with pytest.raises(BadArgument):
                traces.of(name)
        nursery.cancel_scope.cancel()


def test_messages_of_every_protocol_are_traced_where_they_pass(shared_server: Server) -> None:
    address, name = shared_server.address, "traced"
    command = Api(shared_server).command
    command("dms", "create", "-q", name)
    with Asking(shared_server, f"/api/v1/trace?name={name}&follow=1") as asking:
        rows = asking.events()
        speak(address("logmq"), f"PRODUCE {name} of-logmq\n".encode())
        command("dms", "produce", "-q", name, "-m", "of-dms")
        with socket.create_connection(address("kqmsgq")) as producer:
            producer.sendall(b"produce*\0\0\0\x06traced\0\0\0\x09of-kqmsgq")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(name.encode().ljust(50, b"\0") + b"\x03of-pubsub", address("pubsub"))
        with pika.BlockingConnection(pika.ConnectionParameters(*address("dmp"))) as connection:
            channel = connection.channel()
            channel.basic_publish("", name, b"of-amqp", pika.BasicProperties(app_id="me"))
            channel.queue_declare("holds")  # `dmp put` fails where no queue takes what it puts
            channel.queue_bind("holds", "amq.topic", name)
        command("dmp", "put", "amq.topic", "-k", name, "of-sink")
        found = {row["text"]: row for _, row in zip(range(6), rows, strict=False)}
    assert {text: row["protocol"] for text, row in found.items()} == {
        **{f"of-{protocol}": protocol for protocol in ("logmq", "dms", "kqmsgq", "pubsub")},
        "of-amqp": "dmp",
        "of-sink": "dmp",
    }
    assert (found["of-pubsub"]["type"], found["of-logmq"]["position"]) == ("STRING", 0)
    amqp, sink = found["of-amqp"], found["of-sink"]
    assert (amqp["name"], amqp["key"], amqp["queues"]) == ("amq.default", name, [])
    assert amqp["properties"] == {"app_id": "me"}
    assert (sink["name"], sink["key"]) == ("amq.topic", name)
    with Asking(shared_server, f"/api/v1/trace?name={name}") as asking:
        assert len(json.load(asking.answer)["items"]) == 6
    assert f"action=trace name={name}" in shared_server.said


def test_a_trace_needs_a_name(shared_server: Server) -> None:
    with Asking(shared_server, "/api/v1/trace") as asking:
        assert asking.answer.status == 400
