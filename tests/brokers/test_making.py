"""What the API makes, changes and deletes, and that a dry run does none of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.asking import Api
from tests.support.server import Server, until


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with Server(tmp_path_factory.mktemp("making")) as server:
        yield Api(server)


def names(served: Api, kind: str) -> set[str]:
    return {row["name"] for row in served.get(f"{kind}?limit=1000")["items"]}


MADE: list[tuple[str, dict[str, Any]]] = [
    ("queues", {"protocol": "dms", "name": "made", "max_deliveries": 3, "dead_letter": "made-dead"}),
    ("queues", {"protocol": "dmp", "name": "declared", "x-max-length": 9, "arguments": {"x-expires": 99999}}),
    ("topics", {"name": "created", "durability": "none", "retention_bytes": 1 << 20}),
    ("exchanges", {"name": "routed", "type": "fanout"}),
]


OPTIONS = {"max_deliveries", "x-max-length"}


@pytest.mark.parametrize(("kind", "body"), MADE)
def test_a_dry_run_makes_nothing_and_the_same_request_makes_it(
    served: Api, kind: str, body: dict[str, Any]
) -> None:
    assert served.post(f"{kind}?dry_run=1", body)
    assert body["name"] not in names(served, kind)
    served.post(kind, body)
    assert body["name"] in names(served, kind)
    if kind == "queues":
        settings = served.get(f"queues/{body['protocol']}/{body['name']}")["settings"]
        assert settings.items() >= {key: body[key] for key in body.keys() & OPTIONS}.items()


@pytest.mark.parametrize(
    ("kind", "body", "status", "says"),
    [
        ("queues", {"name": "whose"}, 400, "protocol is missing: one of dmp, dms"),
        ("queues", {"protocol": "logmq", "name": "whose"}, 400, "protocol is one of dmp, dms"),
        ("queues", {"protocol": "dms"}, 400, "name is missing"),
        ("queues", {"protocol": "dms", "name": "x", "ttl_ms": -1}, 409, "ttl_ms"),
        ("queues", {"protocol": "dms", "name": "x", "ttl_ms": 5, "colour": "red"}, 400, "colour: no such"),
        ("queues", {"protocol": "dmp", "name": "x", "x-expires": 0}, 409, "x-expires"),
        ("queues/dmp/limited/change", {"x-max-priority": 3}, 400, "x-max-priority: no such"),
        ("queues/dmp/limited/change", {"x-retry-max-ms": 5}, 409, "x-retry-max-ms"),
        (
            "queues/dmp/limited/change",
            {"x-overflow": "burn"},
            400,
            "x-overflow: it is one of",
        ),
        ("queues", {"protocol": "dmp", "name": "x", "arguments": []}, 400, "arguments is an object"),
        ("topics", {"name": ".x"}, 409, "a name is 1 to 200"),
        ("topics", {"name": "x", "durability": "maybe"}, 400, "durability"),
        ("topics", {"name": "x", "retention_bytes": -1}, 400, "retention_bytes"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(
    served: Api, kind: str, body: dict[str, Any], status: int, says: str
) -> None:
    if kind.endswith("/change"):
        served.post("queues", {"protocol": "dmp", "name": "limited"})
    for query in ("?dry_run=1", ""):
        found, problem = served.ask(f"{kind}{query}", body, "POST")
        assert (found, says in problem["detail"]) == (status, True), problem
    if kind in ("queues", "topics"):
        assert "x" not in names(served, kind)


def test_a_queue_is_given_other_options_and_has_them_after_a_kill(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        api = Api(server)
        api.post("queues", {"protocol": "dms", "name": "jobs", "ttl_ms": 60_000, "retry_ms": 50})
        api.post("queues/dms/jobs/messages", {"text": "stays"})
        declared = {"x-max-length": 9, "x-delivery-limit": 3}
        api.post("queues", {"protocol": "dmp", "name": "tasks", **declared})
        changes = {"x-max-length": 2, "x-rate": "5/s"}
        assert api.post("queues/dmp/tasks/change?dry_run=1", changes) == {"changed": 2, "dropped": 0}
        assert api.post("queues/dmp/tasks/change", changes) == {"changed": 2, "dropped": 0}
        assert api.post("queues/dmp/tasks/change", {"x-rate": None}) == {"changed": 1, "dropped": 0}
        assert api.post("queues/dms/jobs/change?dry_run=1", {"max_deliveries": 4}) == {"changed": 1}
        assert api.get("queues/dms/jobs")["settings"]["max_deliveries"] == 0
        assert api.post("queues/dms/jobs/change", {"max_deliveries": 4, "ttl_ms": None}) == {"changed": 2}
        for _ in range(2):
            row = api.get("queues/dms/jobs")
            kept = {name: row["settings"][name] for name in ("ttl_ms", "max_deliveries", "retry_ms")}
            assert kept == {"ttl_ms": 0, "max_deliveries": 4, "retry_ms": 50}
            assert row["ready"] == 1
            settings = api.get("queues/dmp/tasks")["settings"]
            assert (settings["x-max-length"], settings["x-delivery-limit"]) == (2, 3)
            assert "x-rate" not in settings
            api.post("queues", {"protocol": "dmp", "name": "tasks", **declared})
            server.kill()
            server.start()
        (exported,) = [row for row in api.get("definitions")["queues"] if row["name"] == "tasks"]
        assert exported["changes"] == {"x-max-length": 2}
        api.delete("queues/dmp/tasks")
        assert api.post("definitions", {"queues": [exported]})["made"] == 1
        assert api.get("queues/dmp/tasks")["settings"]["x-max-length"] == 2
        assert api.post("definitions", {"queues": [exported]})["same"] == 1


def test_a_topics_retention_outlives_a_kill_and_goes_with_it(tmp_path: Path) -> None:
    with Server(tmp_path, environ={"BROKERS_LOGMQ_RETENTION_MS": "5000"}) as server:
        api = Api(server)
        api.post("topics", {"name": "kept", "retention_seconds": 0})
        api.post("topics", {"name": "usual"})
        assert api.post("topics/kept/change", {"retention_bytes": 1 << 20}) == {"changed": 1}
        for _ in range(2):
            kept, usual = api.get("topics/kept"), api.get("topics/usual")
            assert (kept["retention_bytes"], kept["retention_seconds"]) == (1 << 20, None)
            assert (usual["retention_bytes"], usual["retention_seconds"]) == (None, 5)
            server.kill()
            server.start()
        api.post("topics/kept/change", {"retention_bytes": None, "retention_seconds": None})
        assert api.get("topics/kept")["retention_seconds"] == 5
        api.post("topics/kept/change", {"retention_seconds": 9})
        api.delete("topics/kept")
        api.post("topics", {"name": "kept"})
        assert api.get("topics/kept")["retention_seconds"] == 5


def test_a_record_is_written_and_a_topic_deleted(served: Api) -> None:
    served.post("topics", {"name": "written"})
    assert served.post("topics/written/messages?dry_run=1", {"text": "one"}) == {"published": 1, "offset": 0}
    assert served.get("topics/written/records")["items"] == []
    served.post("topics/written/messages", {"text": "one"})
    assert served.post("topics/written/messages", {"base64": "/w=="})["offset"] == 7
    items = served.get("topics/written/records")["items"]
    assert [row.get("text", row.get("base64")) for row in items] == ["one", "/w=="]
    assert served.delete("topics/written?dry_run=1") == {"deleted": 1, "bytes": 12}
    assert "written" in names(served, "topics")
    served.delete("topics/written")
    assert "written" not in names(served, "topics")


@pytest.mark.parametrize("protocol", ["dms", "dmp"])
def test_a_message_is_given_a_time_a_key_and_a_priority(served: Api, protocol: str) -> None:
    path = f"queues/{protocol}/timed"
    served.post("queues", {"protocol": protocol, "name": "timed"})
    said = {"delay_ms": 60_000, "key": "ann", "priority": 3, "properties": {"headers": {"a": 1}}}
    assert served.post(f"{path}/messages", {"text": "later", **said}) == {"published": 1}
    row = served.get(path)
    assert (row["ready"], row["delayed"]) == (0, 1)
    (found,) = served.get(f"{path}/peek")["items"]
    properties = found["properties"]
    assert properties["priority"] == 3
    headers = {"a": 1, "x-key": "ann", "x-delay": 60_000}
    assert properties["headers"] == (headers if protocol == "dmp" else {"a": 1})
    assert "ann" in (properties.get("key"), properties["headers"].get("x-key"))
    for wrong in (
        {"delay_ms": -1},
        {"delay_ms": "soon"},
        {"priority": "high"},
        {"key": 5},
        {"properties": []},
    ):
        assert served.ask(f"{path}/messages", {"text": "x", **wrong}, "POST")[0] in (400, 409), wrong
    assert served.post(f"{path}/requeue", {"position": found["position"]}) == {"requeued": 1}
    until(lambda: served.get(path)["ready"] == 1)


def test_what_is_published_to_an_exchange_goes_where_it_routes(served: Api) -> None:
    served.post("queues", {"protocol": "dmp", "name": "letters"})
    served.post("bindings", {"exchange": "amq.topic", "queue": "letters", "key": "mail.#"})
    body = {"text": "dear", "key": "mail.a"}
    assert served.post("exchanges/amq.topic/messages?dry_run=1", body) == {"published": 1, "queues": 1}
    assert served.post("exchanges/amq.topic/messages", body) == {"published": 1, "queues": 1}
    assert served.post("exchanges/amq.topic/messages", {**body, "key": "no"})["queues"] == 0
    (found,) = served.get("queues/dmp/letters/peek")["items"]
    assert (found["text"], found["exchange"], found["key"]) == ("dear", "amq.topic", "mail.a")
