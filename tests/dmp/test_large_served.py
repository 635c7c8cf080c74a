"""Large bodies through a real process and a real client, which is killed in between."""

import hashlib
from contextlib import suppress
from pathlib import Path

import pika

from tests.support.server import Server, until

BODY_BYTES = 100 << 20
RESIDENT_GROWTH_MAX = 96 << 20
"""Less than one body: what waits for the disk, and what the process takes for its work."""


def resident_bytes(server: Server) -> int:
    """The most that it has ever had."""
    assert server.process is not None
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def test_a_hundred_mebibytes_survive_kill_9_and_are_never_in_memory(tmp_path: Path) -> None:
    sent = hashlib.sha256(b"large").digest() * (BODY_BYTES // 32)
    with Server(tmp_path, "--enable", "dmp") as server:
        before = resident_bytes(server)
        channel = connected(server)
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", sent, pika.BasicProperties(delivery_mode=2))
        assert channel.basic_get("q")[2] == sent
        assert resident_bytes(server) - before < RESIDENT_GROWTH_MAX
        server.kill()
        with suppress(pika.exceptions.AMQPError):
            channel.connection.close()
        server.start()
        before = resident_bytes(server)
        channel = connected(server)
        method, _, body = channel.basic_get("q")
        assert method.redelivered
        assert body == sent
        channel.basic_ack(method.delivery_tag)
        assert channel.queue_declare("q", durable=True, passive=True).method.message_count == 0
        until(lambda: not list((server.data / "dmp-bodies").glob("*.log")))
        assert resident_bytes(server) - before < RESIDENT_GROWTH_MAX
        channel.connection.close()


def connected(server: Server) -> pika.adapters.blocking_connection.BlockingChannel:
    host, port = server.address("dmp")
    return pika.BlockingConnection(pika.ConnectionParameters(host, port)).channel()
