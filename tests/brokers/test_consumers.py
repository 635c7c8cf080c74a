"""Who takes messages, and by which connection; what KqueueMsgQ has; messages that are sent to subscribers."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing

import pika
import pytest

from brokers.commands.control import path_part
from dms.wire import Type, pack, pack_name
from kqmsgq.wire import CONSUME, subscribe
from pubsub.wire import Command, encode_command, encode_id
from tests.brokers.asking import Api
from tests.support.server import Server, until


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with Server(tmp_path_factory.mktemp("consumers")) as server:
        yield Api(server)


def test_consumers_of_a_dms_queue_have_their_connection_and_the_clients_name(served: Api) -> None:
    for name in ("taken", "idle"):
        served.post("queues", {"protocol": "dms", "name": name})
    with closing(socket.create_connection(served.server.address("dms"))) as client:
        hello = json.dumps({"client": "worker\n7"}).encode()
        client.sendall(pack(Type.HANDSHAKE, 1, hello) + pack(Type.CONSUME, 2, pack_name("taken")) * 3)
        until(lambda: served.get("queues/dms/taken")["consumers"] == 1)
        for _ in range(2):
            served.post("queues/dms/taken/messages", {"text": "x"})
        until(lambda: served.get("queues/dms/taken")["held"] == 2)
        (row,) = served.get("consumers?queue=taken")["items"]
        assert {name: row[name] for name in ("queue", "client", "held", "room", "delivered")} == {
            "queue": "taken",
            "client": "worker7",
            "held": 2,
            "room": 1,
            "delivered": 2,
        }
        connection = served.get(f"connections/{row['connection']}")
        assert (connection["peer"], connection["client"]) == (row["peer"], "worker7")
        assert served.get(f"consumers/{row['id']}")["queue"] == "taken"
        assert served.get("consumers?queue=idle")["items"] == []
    until(lambda: not served.get("consumers?queue=taken")["items"])


def test_consumers_of_an_amqp_queue_are_told_apart(served: Api) -> None:
    host, port = served.server.address("dmp")
    served.post("queues", {"protocol": "dmp", "name": "mails"})
    parameters = pika.ConnectionParameters(host, port, client_properties={"connection_name": "mailer"})
    with closing(pika.BlockingConnection(parameters)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=5)
        for tag in ("one", "two~"):
            channel.basic_consume("mails", lambda *_: None, consumer_tag=tag)
        for _ in range(4):
            served.post("queues/dmp/mails/messages", {"text": "x"})
        connection.process_data_events(0.1)
        rows = served.get("consumers?queue=mails&protocol=dmp")["items"]
        assert [(row["client"], row["held"], row["room"], row["delivered"]) for row in rows] == [
            ("mailer", 2, 3, 2),
            ("mailer", 2, 3, 2),
        ]
        assert len({row["id"] for row in rows}) == 2
        for row in rows:
            assert served.get(f"consumers/{path_part(row['id'])}")["id"] == row["id"]


def test_kqmsgqs_queues_are_the_names_that_consumers_subscribe_to(served: Api) -> None:
    with closing(socket.create_connection(served.server.address("kqmsgq"))) as consumer:
        consumer.sendall(CONSUME + subscribe(b"news") + subscribe())
        until(lambda: served.get("subscriptions?protocol=kqmsgq&topic=news")["items"])
        assert served.get("queues/kqmsgq/news")["consumers"] == 1
        patterns = {row["pattern"] for row in served.get("subscriptions?protocol=kqmsgq")["items"]}
        assert patterns == {"news", "*"}
        assert served.post("queues/kqmsgq/news/messages?dry_run=1", {"text": "hello"}) == {"published": 1}
        served.post("queues/kqmsgq/news/messages", {"text": "hello"})
        assert b"hello" in consumer.recv(1000)
    until(lambda: served.ask("queues/kqmsgq/news")[0] == 404)


def test_a_message_is_sent_to_who_has_subscribed(served: Api) -> None:
    with closing(socket.create_connection(served.server.address("pubsub"))) as client:
        client.sendall(encode_id(b"reader") + encode_command(Command.SUBSCRIBE, b"home/+"))
        until(lambda: served.get("subscriptions?topic=home/a")["items"])
        body = {"topic": "home/a", "type": "FLOAT", "value": "21.5"}
        assert served.post("subscriptions?dry_run=1", body) == {"published": 1, "receivers": 1}
        assert served.post("subscriptions", body) == {"published": 1, "receivers": 1}
        assert b"home/a" in client.recv(4000)
        assert served.post("subscriptions", {**body, "topic": "away"})["receivers"] == 0
        for wrong in ({"value": "warm"}, {"type": "LONG"}, {"topic": "t" * 51}):
            status, problem = served.ask("subscriptions", {**body, **wrong}, "POST")
            assert (status, next(iter(wrong)) in problem["detail"]) == (400, True)
