"""Messages of queues and topics: looked for, moved, deleted one by one, and shown the newest first."""

import re
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from brokers.admin.searching import search
from shared.actions import PEEK
from shared.objects import QUEUES, Objects, key_of
from shared.turns import CLOCK
from tests.brokers.asking import Api
from tests.support.server import Server, speak, until
from tests.support.turns import others_turns


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with Server(tmp_path_factory.mktemp("messages")) as server:
        yield Api(server)


def make(served: Api, protocol: str, name: str, *texts: str, **options: Any) -> str:
    """A queue with messages; its path."""
    served.post("queues", {"protocol": protocol, "name": name, **options})
    for text in texts:
        served.post(f"queues/{protocol}/{name}/messages", {"text": text})
    return f"queues/{protocol}/{name}"


def texts(served: Api, path: str, query: str = "") -> list[str]:
    return [row["text"] for row in served.get(f"{path}/peek?limit=100{query}")["items"]]


def positions(served: Api, path: str) -> list[int]:
    return [row["position"] for row in served.get(f"{path}/peek?limit=100")["items"]]


@pytest.mark.parametrize("protocol", ["dms", "dmp"])
def test_messages_move_to_another_queue_and_a_dry_run_says_how_many(served: Api, protocol: str) -> None:
    source = make(served, protocol, "from", "a", "b", "c", "d")
    target = make(served, protocol, "to", "z")
    assert served.post(f"{source}/move?dry_run=1", {"to": "to"}) == {"moved": 4, "left": 0}
    assert texts(served, source) == ["a", "b", "c", "d"]
    assert served.post(f"{source}/move", {"to": "to", "limit": 2}) == {"moved": 2, "left": 2}
    assert (texts(served, source), texts(served, target)) == (["c", "d"], ["z", "a", "b"])
    last = positions(served, source)[-1]
    assert served.post(f"{source}/move?dry_run=1", {"to": "to", "position": last})["moved"] == 1
    assert served.post(f"{source}/move", {"to": "to", "position": last}) == {"moved": 1, "left": 1}
    assert (texts(served, source), texts(served, target)) == (["c"], ["z", "a", "b", "d"])
    for body, says in (({"to": "from"}, "to: there is no other"), ({"to": "no"}, "to: there is no other")):
        status, problem = served.ask(f"{source}/move", body, "POST")
        assert (status, says in problem["detail"]) == (400, True)


@pytest.mark.parametrize("protocol", ["dms", "dmp"])
def test_one_message_is_deleted_and_its_neighbours_keep_their_order_over_a_kill(
    tmp_path: Path, protocol: str
) -> None:
    with Server(tmp_path) as server:
        api = Api(server)
        path = make(api, protocol, "jobs", *"abcde")
        found = {row["text"]: row["position"] for row in api.get(f"{path}/peek")["items"]}
        for letter in "bd":
            assert api.post(f"{path}/discard?dry_run=1", {"position": found[letter]}) == {"discarded": 1}
            assert api.post(f"{path}/discard", {"position": found[letter]}) == {"discarded": 1}
        assert texts(api, path) == ["a", "c", "e"]
        status, problem = api.ask(f"{path}/discard", {"position": found["b"]}, "POST")
        assert (status, problem["detail"][:9]) == (400, "position:")
        server.kill()
        server.start()
        assert texts(api, path) == ["a", "c", "e"]


def test_one_dead_letter_goes_back_where_it_came_from(served: Api) -> None:
    dead = make(served, "dms", "letters-dead")
    path = make(served, "dms", "letters", "one", "two", "three", ttl_ms=1, dead_letter="letters-dead")
    until(lambda: served.get(dead)["ready"] == 3)
    served.post(f"{path}/change", {"ttl_ms": 0})
    second = positions(served, dead)[1]
    assert served.post(f"{dead}/redrive?dry_run=1", {"position": second})["moved"] == 1
    assert served.post(f"{dead}/redrive", {"position": second}) == {"moved": 1, "left": 2}
    until(lambda: texts(served, path) == ["two"])
    assert served.ask(f"{path}/redrive", {"position": 1}, "POST")[0] == 400
    redrive = ("dms", "redrive", "letters-dead", "--reason")
    served.command(*redrive, "max_deliveries")
    assert texts(served, dead) == ["one", "three"]
    served.command(*redrive, "ttl", "--age", "1ms", "--rate", "100/s")
    assert (texts(served, dead), texts(served, path)) == ([], ["two", "one", "three"])
    status, problem = served.ask(f"{dead}/redrive", {"age": "old"}, "POST")
    assert (status, problem["detail"][:4]) == (400, "age:")


@pytest.mark.parametrize("protocol", ["dms", "dmp"])
def test_a_queue_is_searched_and_gone_through_by_position(served: Api, protocol: str) -> None:
    path = make(served, protocol, "searched", *(f"order {number}" for number in range(30)))
    assert texts(served, path, "&contains=order%201") == ["order 1", *(f"order 1{n}" for n in range(10))]
    assert texts(served, path, "&contains=nothing") == []
    first = served.get(f"{path}/peek?limit=20")
    assert len(first["items"]) == 20
    rest = served.get(f"{path}/peek?limit=20&from={first['next']}")
    assert [row["text"] for row in rest["items"]] == [f"order {number}" for number in range(20, 30)]
    assert rest["next"] is None
    some = served.get(f"{path}/peek?limit=2&contains=5")
    assert [row["text"] for row in some["items"]] == ["order 5", "order 15"]
    assert texts(served, path, f"&contains=5&from={some['next']}") == ["order 25"]


def test_a_topic_is_searched_and_shown_the_newest_first(served: Api) -> None:
    speak(served.server.address("logmq"), b"".join(b"PRODUCE many r%d\n" % n for n in range(30)))

    def shown(query: str) -> list[str]:
        return [row["text"] for row in served.get(f"topics/many/records?{query}")["items"]]

    assert shown("newest=1&limit=3") == ["r29", "r28", "r27"]
    assert shown("newest=1&limit=3&records_back=6") == ["r26", "r25", "r24"]
    assert shown("contains=r1") == ["r1", *(f"r1{n}" for n in range(10))]
    assert shown("limit=2") == ["r0", "r1"]


def test_a_message_is_found_wherever_it_is(served: Api) -> None:
    make(served, "dms", "f1", "a needle", "hay")
    make(served, "dmp", "f2", "hay", "needle " + "x" * 5000, "a needle")
    speak(served.server.address("logmq"), b"PRODUCE f3 hay\nPRODUCE f3 needle\n")
    made = [
        ("queues", "dmp", "f2", "/queues/dmp/f2"),
        ("queues", "dmp", "f2", "/queues/dmp/f2"),
        ("queues", "dms", "f1", "/queues/dms/f1"),
        ("topics", "logmq", "f3", "/topics/f3"),
    ]

    def found(query: str) -> tuple[list[Any], str | None]:
        answer = served.get(f"search?contains=needle{query}")
        rows = answer["items"]
        assert all("needle" in row["text"] and len(row["text"]) <= 1000 for row in rows)
        return [(row["kind"], row["protocol"], row["name"], row["link"]) for row in rows], answer["next"]

    assert found("") == (made, None)
    rows, after = found("&limit=2")
    assert (rows, after) == (made[:2], "queues/dmp/f2")
    assert found(f"&after={after}") == (made[2:], None)
    assert served.get("search?contains=needles")["items"] == []
    for query in ("contains=", "", "contains=a&limit=0", "contains=a&limit=x", "colour=red"):
        assert served.ask(f"search?{query}")[0] == 400, query
    assert served.command("find", "a needle").count("needle") == 2
    make(served, "dms", "f4", *["stack needle"] * 11)
    answer = served.get("search?contains=stack&limit=1000")
    assert (len(answer["items"]), answer["partly"], answer["next"]) == (10, ["/queues/dms/f4"], None)
    view = served.answer("/find?contains=needle&limit=3", Accept="text/html")[2].decode()
    assert len(re.findall('<td><bdi><a href="/queues/dm', view)) == 3
    assert "after=queues%2Fdms%2Ff1" in view


async def test_a_search_of_many_queues_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLOCK, "now", count().__next__)  # each turn is over when somebody looks

    async def peek(name: str, arguments: Mapping[str, Any], _: bool) -> Mapping[str, Any]:
        return {"items": [], "next": None}

    names = [f"q{number}" for number in range(1000)]
    queues = Objects(
        QUEUES,
        lambda: names,
        key_of,
        lambda parts: parts[0],
        lambda name: {"name": name},
        (PEEK.done_by(peek),),
    )
    async with others_turns() as others:
        assert await search([("dms", queues)], {"contains": "x"}) == {"items": [], "next": None, "partly": []}
    assert others.count > 500


def test_commands_do_the_same(served: Api) -> None:
    path = make(served, "dms", "by-hand", "a", "b", "c")
    make(served, "dms", "by-hand-too")
    served.command("dms", "peek", "by-hand", "--contains", "b", "--from", "2")
    served.command("dms", "discard", "by-hand", "--position", str(positions(served, path)[1]))
    served.command("dms", "move", "by-hand", "--to", "by-hand-too", "--max", "1")
    assert texts(served, path) == ["c"]
