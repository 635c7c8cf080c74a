"""Definitions: written from one server, taken in by another; twice is as good as once; a conflict is told."""

import json
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pika
import pytest
import trio

from brokers.admin import definitions
from brokers.admin.definitions import Document
from dms.client import QueueOptions, connect
from shared.definitions import SECTIONS, Conflict, DefinitionSection, LeftOut, Made, Promised, Row
from shared.objects import BadArgument
from shared.storage.store import Ticket
from tests.brokers.asking import Api
from tests.brokers.turns import counted_turns, end_turns_early
from tests.support.server import NotReadyError, Server, speak, until


async def test_a_document_is_read_and_what_is_none_is_refused() -> None:
    text = ' {"queues" : [ {"name": "a]}", "x": [1, {"y": 2}]} ,{"name":"b"}], "users":[]\n}\n'
    assert await definitions.parsed(text.encode()) == {
        "queues": [{"name": "a]}", "x": [1, {"y": 2}]}, {"name": "b"}],
        "users": [],
    }
    assert await definitions.parsed(b"{}") == {}
    unfinished = ("", "[]", "{", '{"queues"}', '{"queues": 1}', '{"queues": [1]}', '{"queues": [{}', "{} x")
    twice, surrogate = '{"queues": [], "queues": []}', '{"queues": [{"a": "\\ud800"}]}'
    deep = '{"queues": [' + "[" * 100_000
    for wrong in (*unfinished, "{'a': []}", '{"colours": []}', twice, surrogate, deep, "{[]: []}"):
        with pytest.raises(BadArgument):
            await definitions.parsed(wrong.encode())


class Shelf:
    """Objects with a name and a colour, in one section; those whose colour is `away` cannot be here."""

    def __init__(self, section: str) -> None:
        self.there: dict[str, str] = {}
        self.section = section

    def definitions(self) -> DefinitionSection:
        def rows(_: object) -> Iterator[Row]:
            return iter([{"name": name, "colour": colour} for name, colour in self.there.items()])

        async def make(row: Row, dry_run: bool, promised: Promised) -> Made:
            name, colour = row["name"], row["colour"]
            if colour == "away":
                raise LeftOut("it is away")
            if colour.startswith("of ") and not (dry_run and promised("queues", colour[3:])):
                raise Conflict("what it is of is not there")
            if self.there.setdefault(name, colour) != colour:
                raise Conflict(f"it is {self.there[name]} here")
            if dry_run:
                del self.there[name]
                return Made(new=True)
            return Made(new=True, ticket=Ticket())

        return DefinitionSection(
            self.section,
            ("name", "colour"),
            rows,
            lambda row: str(row.get("name")),
            make,
            lambda: ("names_max", len(self.there), 5000),
        )


class Disk:
    """In place of a store."""

    waited = 0

    async def wait(self, _: Ticket) -> None:
        self.waited += 1


async def test_one_conflict_is_named_and_nothing_is_made() -> None:
    shelf, disk = Shelf("queues"), Disk()
    shelf.there["b"] = "blue"
    document = Document([("a", shelf.definitions())], (), disk)  # type: ignore[arg-type]
    rows = {
        "queues": [
            {"protocol": "a", "name": "one", "colour": "red"},
            {"protocol": "a", "name": "b", "colour": "red"},
            {"protocol": "x", "name": "other", "colour": "red"},
            {"name": "plain", "colour": "red"},
        ]
    }
    with pytest.raises(Conflict, match=r"^queues a/b: it is blue here$"):
        await document.take(rows, dry_run=False)
    assert (shelf.there, disk.waited) == ({"b": "blue"}, 0)
    rows["queues"][1] = {"protocol": "a", "name": "c", "colour": "away"}
    dry = await document.take(rows, dry_run=True)
    assert (dry.made, dry.same, dry.left_out, shelf.there) == (1, 0, 3, {"b": "blue"})
    taken = await document.take(rows, dry_run=False)
    assert attrs.asdict(taken) == {
        "made": 1,
        "same": 0,
        "left_out": 3,
        "told": [
            "queues a/c: it is away",
            "queues x/other: no protocol that is served here has these",
            "queues: row 4 names no protocol",
        ],
    }
    assert (shelf.there["one"], disk.waited) == ("red", 1)


async def test_each_of_a_large_document_is_on_disk_before_the_answer_and_as_many_as_there_is_room() -> None:
    shelf, disk = Shelf("queues"), Disk()
    document = Document([("a", shelf.definitions())], (), disk)  # type: ignore[arg-type]
    rows = [{"protocol": "a", "name": f"q{number}", "colour": "red"} for number in range(5001)]
    for dry_run in (True, False):
        with pytest.raises(Conflict, match=r"^queues a: 5001 more than the 0 there: names_max = 5000$"):
            await document.take({"queues": rows}, dry_run=dry_run)
    assert (len(shelf.there), disk.waited) == (0, 0)
    assert (await document.take({"queues": rows[1:]}, dry_run=False)).made == disk.waited == 5000


async def test_a_key_that_nobody_reads_is_refused_by_name_and_nothing_is_made() -> None:
    shelf = Shelf("queues")
    document = Document([("a", shelf.definitions())], (), Disk())  # type: ignore[arg-type]
    good = {"protocol": "a", "name": "one", "colour": "red"}
    for more, said in (
        ({"color": 1}, "color: unknown key; did you mean colour?"),
        ({"x" * 100: 1}, "x" * 40 + ": unknown key; there are name, colour"),
        ({"": 1}, ": unknown key; there are name, colour"),
    ):
        rows = {"queues": [good, {**good, "name": "two", **more}]}
        for dry_run in (True, False):
            with pytest.raises(Conflict) as refused:
                await document.take(rows, dry_run=dry_run)
            assert str(refused.value) == f"queues a/two: row 2: {said}"
    assert shelf.there == {}


async def test_a_document_that_has_a_name_twice_and_not_alike_makes_nothing() -> None:
    shelf = Shelf("queues")
    document = Document([("a", shelf.definitions())], (), Disk())  # type: ignore[arg-type]
    one = {"protocol": "a", "name": "one", "colour": "red"}
    with pytest.raises(Conflict, match=r"^queues a/one: it stands there twice, and differs$"):
        await document.take({"queues": [one, {**one, "colour": "blue"}]}, dry_run=False)
    assert shelf.there == {}
    await document.take({"queues": [one, one]}, dry_run=False)
    assert shelf.there == {"one": "red"}


async def test_what_a_document_makes_itself_is_promised_to_what_needs_it() -> None:
    shelf, other = Shelf("bindings"), Shelf("queues")
    document = Document([("a", shelf.definitions()), ("a", other.definitions())], (), Disk())  # type: ignore[arg-type]
    binding = {"protocol": "a", "name": "x", "colour": "of q"}
    queue = {"protocol": "a", "name": "q", "colour": "red"}
    with pytest.raises(Conflict, match="what it is of is not there"):
        await document.take({"bindings": [binding]}, dry_run=True)
    assert (await document.take({"bindings": [binding], "queues": [queue]}, dry_run=True)).made == 2


async def test_a_large_document_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    end_turns_early(monkeypatch)
    shelf = Shelf("queues")
    shelf.there = {f"q{number}": "red" for number in range(5000)}
    async with counted_turns() as turns:
        document = Document([("a", shelf.definitions())], (), Disk())  # type: ignore[arg-type]
        text = b"".join([part async for part in document.text()])
        rows = await definitions.parsed(text)
        assert turns.count > 20
        await document.take(rows, dry_run=True)
        assert turns.count > 100
    assert len(rows["queues"]) == 5000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server that has one of everything."""
    with Server(tmp_path_factory.mktemp("definitions")) as server:
        said = speak(server.address("logmq"), b"PRODUCE orders one\nPRODUCE orders two\n")
        offset = said.split()[-1].decode()
        speak(server.address("logmq"), f"COMMIT billing orders {offset}\n".encode())

        async def make_a_queue() -> None:
            async with connect(*server.address("dms")) as client:
                await client.create("jobs", QueueOptions(max_deliveries=5, dead_letter="dead"))

        trio.run(make_a_queue)
        with pika.BlockingConnection(pika.ConnectionParameters(*server.address("dmp"))) as connection:
            channel = connection.channel()
            channel.exchange_declare("shop", "topic", durable=True)
            channel.exchange_declare("passing", "topic")
            channel.queue_declare("mails", durable=True, arguments={"x-max-length": 9, "mine": "é"})
            channel.queue_declare("own", durable=True, exclusive=True)
            channel.queue_bind("mails", "shop", "orders.#")
            channel.queue_bind("mails", "passing", "orders.#")
            channel.exchange_bind("shop", "amq.topic", "shop.*", {"a": 1})
            users = [{"name": "ann", "allow": ["dms:*:jobs"], "certificate": False}]
            assert Api(server).ask("definitions", {"users": users})[0] == 200
            yield Api(server)


@pytest.fixture(scope="module")
def found(source: Api) -> dict[str, list[dict[str, Any]]]:
    """What it says of itself."""
    document: dict[str, list[dict[str, Any]]] = source.ask("definitions")[1]
    return document


def test_a_document_has_what_is_durable_and_nobodys_own(found: dict[str, list[dict[str, Any]]]) -> None:
    assert list(found) == list(SECTIONS[:-1])
    assert found["users"] == [{"name": "ann", "allow": ["dms:*:jobs"], "certificate": False}]
    assert found["topics"] == [{"protocol": "logmq", "name": "orders", "durability": "always"}]
    (group,) = found["groups"]
    assert (group["group"], group["topic"], group["offset"] > 0) == ("billing", "orders", True)
    assert [each["name"] for each in found["exchanges"]] == ["shop"]
    queues = {each["name"]: each for each in found["queues"]}
    assert queues.keys() == {"jobs", "mails"}
    assert queues["jobs"]["options"] == {"max_deliveries": 5, "dead_letter": "dead"}
    assert queues["mails"]["arguments"] == {"x-max-length": 9, "mine": "é"}
    bindings = {(each["exchange"], each.get("queue"), each.get("to_exchange")) for each in found["bindings"]}
    assert bindings == {("shop", "mails", None), ("amq.topic", None, "shop")}


def test_a_document_taken_in_again_changes_nothing(
    source: Api, found: dict[str, list[dict[str, Any]]]
) -> None:
    count = sum(map(len, found.values()))
    assert source.ask("definitions", found) == (200, {"made": 0, "same": count, "left_out": 0, "told": []})


def test_a_conflict_is_refused_with_its_object(source: Api) -> None:
    for section, row, text in (
        (
            "queues",
            {"protocol": "dms", "name": "jobs", "options": {"ttl_ms": 9}},
            "queues dms/jobs: it has other",
        ),
        ("queues", {"protocol": "dmp", "name": "mails"}, "queues dmp/mails: it is another here"),
        (
            "queues",
            {"protocol": "dmp", "name": "x", "durable": 0},
            "dmp/x: row 1: durable: unknown key",
        ),
        ("queues", {"protocol": "dms", "name": "x", "option": {}}, "did you mean options?"),
        ("topics", {"protocol": "logmq", "name": "x", "retention": 1}, "logmq/x: row 2: retention: unknown"),
        (
            "bindings",
            {"protocol": "dmp", "exchange": "shop", "queue": "mails", "to_exchange": "amq.topic"},
            "not to both",
        ),
        ("exchanges", {"protocol": "dmp", "name": "shop", "type": "fanout"}, "exchanges dmp/shop"),
        ("topics", {"protocol": "logmq", "name": "orders", "durability": "none"}, "topics logmq/orders: its"),
        ("bindings", {"protocol": "dmp", "exchange": "shop", "queue": "none"}, "there is no queue"),
        ("users", {"name": "ann", "allow": []}, "ann has other rules"),
        ("users", {"name": "eve", "password": "secret"}, "users: "),
        ("users", {"name": None, "allow": []}, "users: name is a text"),
        ("queues", {"protocol": "dms", "name": "new", "options": {"colour": 1}}, "unknown option"),
    ):
        new = {"protocol": "logmq", "name": "unmade", "durability": "always"}
        rows = [new, row] if section == "topics" else [row]
        status, problem = source.ask("definitions", {section: rows})
        assert (status, text in problem["detail"]) == (409, True), problem
    assert source.ask("definitions?dry_run=1", {"topics": [new]})[1]["made"] == 1
    assert source.ask("definitions", [])[0] == 400


def test_what_was_taken_in_is_there_after_a_kill(
    found: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    with Server(tmp_path) as server:
        for section in found:
            assert Api(server).ask("definitions", {section: found[section]})[0] == 200
            before = Api(server).ask("definitions")[1]
            server.kill()
            server.start()
            assert Api(server).ask("definitions")[1] == before
        assert {**before, "groups": found["groups"]} == found


def _has_joined(server: Server, name: str) -> bool:
    return f"New client {name}" in server.said


def test_a_limit_below_what_there_is_is_told_at_the_start_and_loses_nothing(tmp_path: Path) -> None:
    queues = [{"protocol": protocol, "name": name} for protocol in ("dms", "dmp") for name in "abc"]
    with Server(tmp_path) as server:
        assert Api(server).ask("definitions", {"queues": queues})[1]["made"] == 6
        for name in ("one", "two"):
            with socket.create_connection(server.address("pubsub")) as subscriber:
                subscriber.sendall(name.encode().ljust(11, b"\0") + b"\0" + b"a".ljust(51, b"\0"))
                until(partial(_has_joined, server, name))
    environ = {"BROKERS_DMS_QUEUES_MAX": "2", "BROKERS_PUBSUB_SESSIONS_MAX": "1"}
    with Server(tmp_path, environ=environ) as server:
        assert len(Api(server).ask("queues")[1]["items"]) == 6
        told = [line for line in server.said.splitlines() if "a limit is below" in line]
        assert [line.partition("protocol=")[2] for line in told] == [
            "pubsub setting=sessions_max limit=1 there=2",
            "dms setting=queues_max limit=2 there=3",
        ]


def test_what_a_server_would_refuse_of_a_document_leaves_all_as_it_is(tmp_path: Path) -> None:
    limits = {"DMS_QUEUES": 1, "DMS_DEPTH": 5, "DMP_QUEUES": 1, "DMP_EXCHANGES": 16, "DMP_BINDINGS": 1}
    environ = {f"BROKERS_{name}_MAX": str(most) for name, most in {**limits, "LOGMQ_TOPICS": 1}.items()}
    headers = {"protocol": "dmp", "exchange": "amq.headers", "queue": "q", "arguments": {"x-match": "some"}}
    bindings = [{"protocol": "dmp", "exchange": "amq.direct", "queue": "q", "key": key} for key in "ab"]
    queue = {"protocol": "dmp", "name": "q"}
    faulty: list[dict[str, Any]] = [
        {"topics": [{"protocol": "logmq", "name": name} for name in "ab"]},
        {"queues": [queue, {"protocol": "dmp", "name": "p"}]},
        {"queues": [{"protocol": "dms", "name": name} for name in "ab"]},
        {"queues": [queue, {"protocol": "dms", "name": "q", "options": {"depth": 6}}]},
        {"queues": [queue, {"protocol": "dmp", "name": "amq.mine"}]},
        {"exchanges": [{"protocol": "dmp", "name": name} for name in "abcdefghijklmnop"]},
        {"queues": [queue], "exchanges": [{"protocol": "dmp", "name": "x", "type": "shout"}]},
        {"queues": [queue], "exchanges": [{"protocol": "dmp", "name": "amq.mine"}]},
        {"queues": [queue], "bindings": bindings},
        {"queues": [queue], "bindings": [headers]},
        {
            "queues": [queue],
            "exchanges": [{"protocol": "dmp", "name": "h", "type": "headers"}],
            "bindings": [{**headers, "exchange": "h"}],
        },
    ]
    with Server(tmp_path, environ=environ) as server:
        before = Api(server).ask("definitions")
        for document in faulty:
            for dry_run in (1, 0):
                status, problem = Api(server).ask(f"definitions?dry_run={dry_run}", document)
                assert (status, "were made" in problem["detail"]) == (409, False), (document, problem)
                assert Api(server).ask("definitions") == before
        made = {"topics": [{"protocol": "logmq", "name": "a"}], "queues": [queue], "bindings": bindings[:1]}
        assert Api(server).ask("definitions", made)[1]["made"] == 3
        assert Api(server).ask("definitions", {"queues": [queue], "bindings": [headers]})[0] == 409


def test_a_start_takes_in_a_document_without_what_cannot_be_there_and_drains_when_told(
    found: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(found))
    environ = {"BROKERS_SERVE_DEFINITIONS": str(path)}
    with Server(tmp_path, environ=environ) as server:
        own = Api(server).ask("definitions")[1]
        assert {**own, "groups": found["groups"]} == found
        assert own["groups"] == []
        assert "groups logmq/billing/orders: its topic has no records here" in server.said
        assert Api(server).ask("drain", {}) == (200, {"draining": 1})
        assert server.wait() == 0
        assert "action=drain" in server.said
        path.write_text(json.dumps({"queues": [{"protocol": "dms", "name": "jobs"}]}))
        with pytest.raises(NotReadyError, match="queues dms/jobs: it has other options here") as refused:
            server.start()
        assert refused.value.code == 78
