"""Folders that an older version left are opened, and all that was acknowledged is in them.

`golden/folders.tar.xz` is of commit f4ec795, once stopped and once killed. Since then log files are written
late, large records once, and what goes to very many queues in one entry.
"""

import socket
import tarfile
from pathlib import Path

import pika
import pytest

from pubsub.wire import FRAME_BYTES, Kind, datagram, encode_id
from tests.support.server import Server, run, run_here, speak

FOLDERS = Path(__file__).parent.parent / "golden" / "folders.tar.xz"


@pytest.fixture(params=["stopped", "killed"])
def older(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    with tarfile.open(FOLDERS) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # before 3.11.4 there is none
        packed.extractall(tmp_path)
    return tmp_path / str(request.param) / "data"


def test_all_that_an_older_version_acknowledged_is_there(older: Path, tmp_path: Path) -> None:
    assert run_here("fsck", "--data-dir", str(older)).returncode == 0
    with Server(tmp_path, data=older) as server:
        # LogMQ: fifty messages, a batch of two that is sent again, a group's offset, a deleted topic.
        asked = b"CONSUME orders 676\nBATCH orders writer 1 14\n\0\0\0\3one\0\0\0\3twoCONSUME orders 697\n"
        asked += (
            b"OFFSETS orders\nCOMMITTED workers orders\nOFFSETS gone\nCONSUME last 0\nCONSUME orders.eu 0\n"
        )
        answers = speak(server.address("logmq"), asked).split(b"\n")
        assert answers[0] == b"MESSAGE 676 10 message 49"
        assert answers[1:3] == [b"OK 690", b"MESSAGE 697 3 two"]
        assert answers[3:5] == [b"OFFSETS 0 704", b"OK 13"]
        assert answers[5].startswith(b"ERR NO_TOPIC")
        assert answers[6:8] == [b"MESSAGE 0 10 at the end", b"MESSAGE 0 3000 " + b"x" * 3000]

        # DMS: three of ten jobs are done, one failed three times and is a dead letter.
        host, port = server.address("dms")
        at = ("--host", host, "--port", str(port))
        assert run("dms", "consume", "-q", "jobs", "-n", "6", *at).stdout == "".join(
            f"job {number}\n" for number in range(4, 10)
        )
        assert run("dms", "consume", "-q", "failed", *at).stdout.endswith("job 3\n")

        # AMQP: by priority, but for the one that was acknowledged; a dead letter behind a large message.
        with pika.BlockingConnection(pika.ConnectionParameters(*server.address("dmp"))) as connection:
            channel = connection.channel()
            work = [channel.basic_get("work", auto_ack=True) for _ in range(8)]
            assert [body for _, _, body in work] == [
                *[b"task 5", b"task 1", b"task 4", b"task 7", b"task 0", b"task 3", b"task 6"],
                None,
            ]
            assert work[0][1].headers == {"n": 5}
            dead = [channel.basic_get("dead", auto_ack=True) for _ in range(3)]
            assert [body for _, _, body in dead] == [b"y" * 70_000, b"task 0", None]
            assert channel.queue_declare("rest", passive=True).method.message_count == 7

        # Pub/sub: the subscription is there before its client is, and what it kept for that.
        with (
            socket.create_connection(server.address("pubsub", "pubsub")) as reader,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        ):
            reader.settimeout(30)
            reader.sendall(encode_id(b"reader"))
            for topic in (b"other", b"home/kitchen/t"):
                sender.sendto(datagram(topic, Kind.STRING, b"hot"), server.address("pubsub", "pubsub-udp"))
            assert b"home/kitchen/t" in reader.recv(FRAME_BYTES)
        assert server.stop() == 0
