"""The API over a real server: every list, one object, and what can be done with it."""

import gc
import http.client
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlsplit

import pytest
import trio
from starlette.exceptions import HTTPException

from brokers.admin import listing
from brokers.commands.control import name_in, path_part
from shared.objects import KINDS, QUEUES, Objects, key_of
from shared.turns import CLOCK
from tests.brokers.asking import Api, login, scrape
from tests.support.server import Server, run, speak, until


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with Server(tmp_path_factory.mktemp("api")) as server:
        yield Api(server)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_is_a_list_with_the_columns_that_are_described(served: Api, kind: str) -> None:
    found = served.get(kind)
    assert set(found) == {"items", "next"}
    columns = [column.name for column in KINDS[kind].columns]
    assert all(list(row) == columns for row in found["items"])


def test_the_overview_says_how_it_is_and_what_it_did(served: Api) -> None:
    speak(served.server.address("logmq"), b"PRODUCE overview hello\n")
    found = served.get("overview")
    assert found["state"] == "ready"
    assert {each["protocol"] for each in found["protocols"]} >= {"dms", "logmq"}
    assert found["resident_bytes"] > 10 << 20
    assert found["store"]["free_bytes"] > 0
    assert 0 < found["store"]["sync_seconds_median"] <= found["store"]["sync_seconds_p99"]
    assert found["budget"][0]["account"] == "process"
    assert set(found) >= {"rates", "totals", "seconds", "loop"}


@pytest.mark.parametrize(("method", "action"), [("DELETE", ""), ("POST", "/pause"), ("POST", "/purge")])
def test_what_is_made_anew_while_a_slow_body_comes_is_what_the_action_is_on(
    served: Api, method: str, action: str
) -> None:
    def make() -> None:
        served.command("dms", "create", "-q", "anew")
        served.command("dms", "produce", "anew", "kept")

    make()
    asking = http.client.HTTPConnection(urlsplit(served.server.ready["page"]).netloc, timeout=30)
    asking.putrequest(method, f"/api/v1/queues/dms/anew{action}")
    for name, value in {**login(served.server), "Content-Type": "application/json"}.items():
        asking.putheader(name, value)
    asking.putheader("Content-Length", "2")
    asking.endheaders(b"{")
    until(lambda: served.get("queues/dms/anew")["ready"] == 1)  # that was asked behind it
    served.command("dms", "delete", "anew")
    make()
    asking.send(b"}")
    assert asking.getresponse().status == 200
    asking.close()
    if action:
        row = served.get("queues/dms/anew")
        assert (row["ready"], row["paused"]) == ((1, True) if action == "/pause" else (0, False))
        served.delete("queues/dms/anew")
    assert served.ask("queues/dms/anew")[0] == 404
    make()  # and again
    served.command("dms", "delete", "anew")


def test_a_dms_queue_is_seen_peeked_filled_and_purged(served: Api) -> None:
    served.command("dms", "create", "-q", "jobs")
    path = "queues/dms/jobs"
    assert served.post(f"{path}/messages", {"text": "one"}) == {"published": 1}
    assert served.post(f"{path}/messages", {"base64": "/w=="}) == {"published": 1}
    row = served.get(path)
    assert (row["protocol"], row["name"], row["ready"], row["durable"]) == ("dms", "jobs", 2, True)
    assert row["bytes"] == 4
    one, two = served.post(f"{path}/peek", {"limit": 5})["items"]
    assert (one["text"], one["bytes"], two["base64"]) == ("one", 3, "/w==")
    assert one["time"].endswith("Z")
    assert served.post(f"{path}/purge?dry_run=1") == {"purged": 2, "held": 0}
    assert served.get(path)["ready"] == 2
    assert served.post(f"{path}/purge") == {"purged": 2, "held": 0}
    row = served.get(path)
    assert (row["ready"], row["bytes"]) == (0, 0), "of what the log keeps nobody sees a message"
    assert "audit" in served.server.said
    assert served.post(f"{path}/redrive") == {"moved": 0, "left": 0}
    served.post(f"{path}/messages", {"text": "last"})
    assert served.ask(f"{path}?dry_run=1", method="DELETE") == (200, {"deleted": 1, "messages": 1})
    assert served.delete(path) == {"deleted": 1, "messages": 1}
    assert served.ask(path)[0] == 404


@pytest.mark.parametrize("protocol", ["dms", "dmp"])
def test_a_queue_is_paused_and_resumed(served: Api, protocol: str) -> None:
    served.command(protocol, *(("create", "-q") if protocol == "dms" else ("declare", "queue")), "still")
    path = f"queues/{protocol}/still"
    assert served.get(path)["paused"] is False
    assert served.post(f"{path}/pause?dry_run=1") == {"paused": 1}
    assert served.get(path)["paused"] is False
    assert served.post(f"{path}/pause") == {"paused": 1}
    assert served.post(f"{path}/pause") == {"paused": 0}
    assert served.get(path)["paused"] is True
    assert f"brokers_{protocol}_queues_paused 1" in scrape(served.server)
    assert served.post(f"{path}/resume") == {"resumed": 1}
    assert served.get(path)["paused"] is False
    assert "a queue is paused" in served.server.said


def test_what_is_wrong_with_a_request_is_a_problem_in_words(served: Api) -> None:
    served.post("queues", {"protocol": "dms", "name": "spanned"})
    for path, body, status in (
        ("queues/dms/none", None, 404),
        ("queues/dms", None, 404),
        ("nothing", None, 404),
        ("queues?limit=0", None, 400),
        ("queues?limit=1001", None, 400),
        ("queues?limit=0000000011001", None, 400),
        (f"queues?limit={'9' * 5000}", None, 400),
        (f"queues?limit={'0' * 8}1{'0' * 5000}", None, 400),
        ("queues?colour=red", None, 400),
        ("queues?limit=1&limit=2", None, 400),
        ("queues/dms/spanned/history?span=9h", None, 400),
        ("subscriptions?topic=%FF%FE/q", None, 400),
        ("queues?match=%C3", None, 400),
        ("queues", {}, 400),
        ("groups", {}, 405),
        ("topics", {}, 400),
        ("topics/none/trim", {}, 404),
    ):
        code, found = served.ask(path, body)
        assert (code, found["status"]) == (status, status), path
        assert found["detail"]
    served.command("dms", "create", "-q", "wrong")
    for path, body, status in (
        ("queues/dms/wrong/peek", {"limit": 0}, 400),
        ("queues/dms/wrong/peek", {"most": 1}, 400),
        ("queues/dms/wrong/messages", {}, 400),
        ("queues/dms/wrong/messages", {"text": "x" * 5000}, 400),
        ("queues/dms/wrong/messages", {"text": "x", "properties": {"colour": 1}}, 400),
        ("queues/dms/wrong/messages?dry_run=1", {"text": "x", "properties": {}}, 200),
        ("queues/dms/wrong?colour=red", None, 400),
        ("queues/dms/wrong/purge?dry_run=maybe", {}, 400),
        ("queues/dms/wrong/purge?dryrun=1", {}, 400),
        ("queues/dms/wrong/purge?dry_run=1&dry_run=0", {}, 400),
        ("drain?dry_run=maybe", {}, 400),
        ("backup?dry_run=1", {"target": "none"}, 400),
        ("backup", {"target": "none", "to": "none"}, 400),
        ("logs?colour=red", None, 400),
        ("queues/dms/wrong", {}, 405),
        ("queues/dms/wrong/move", {}, 400),
        ("queues/dms/wrong/explode", {}, 404),
    ):
        assert served.ask(path, body)[0] == status, path
    assert served.ask("queues/dms/wrong/purge")[0] == 405


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("overview", "GET, HEAD"),
        ("openapi.json", "GET, HEAD"),
        ("history", "GET, HEAD"),
        ("logs", "GET, HEAD"),
        ("definitions", "GET, HEAD, POST"),
        ("drain", "POST"),
        ("backup", "POST"),
        ("groups", "GET, HEAD"),
        ("topics", "GET, HEAD, POST"),
        ("queues", "GET, HEAD, POST"),
        ("exchanges", "GET, HEAD, POST"),
        ("queues/dms/methods", "DELETE, GET, HEAD"),
        ("queues/dms/methods/peek", "GET, HEAD, POST"),
        ("queues/dms/methods/purge", "POST"),
        ("topics/methods/records", "GET, HEAD, POST"),
        ("groups/g/methods", "DELETE, GET, HEAD"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_405_with_those_that_it_has(
    served: Api, path: str, allowed: str
) -> None:
    if served.ask("queues/dms/methods")[0] != 200:
        served.command("dms", "create", "-q", "methods")
        speak(served.server.address("logmq"), b"PRODUCE methods one\nCOMMIT g methods 0\n")
    for method in {"GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS", "QUERY"} - set(allowed.split(", ")):
        assert served.allowed(path, method) == allowed, method


def test_a_topics_records_are_read_and_trimmed(served: Api) -> None:
    said = speak(served.server.address("logmq"), b"PRODUCE orders hello\nPRODUCE orders hello, world\n")
    assert said == b"OK 0\nOK 9\n"
    row = served.get("topics/orders")
    assert (row["first"], row["end"], row["bytes"], row["records"]) == (0, 25, 25, 2)
    assert row["first_time"] <= row["last_time"]
    found = served.get("topics/orders/records?from=9")
    assert [(each["position"], each["text"]) for each in found["items"]] == [(9, "hello, world")]
    assert found["items"][0]["time"].endswith("Z")
    assert served.ask("topics/orders/records?from=25") == (200, {"items": [], "next": None})
    assert served.ask("topics/orders/records?from=26")[0] == 400  # no empty page: it is of another log
    assert served.get("topics/orders/records?limit=1")["next"] == 9
    assert served.ask("topics/orders/trim", {"offset": 3})[0] == 409
    assert served.post("topics/orders/trim?dry_run=1", {"offset": 9})["dropped"] == 9
    assert served.get("topics/orders")["first"] == 0
    assert served.post("topics/orders/trim", {"offset": 9})["dropped"] == 9
    assert served.get("topics/orders")["first"] == 9


def test_a_groups_lag_is_seen_and_its_offset_reset(served: Api) -> None:
    speak(served.server.address("logmq"), b"PRODUCE read one\nPRODUCE read two\nCOMMIT g read 7\n")
    row = served.get("groups/g/read")
    assert (row["offset"], row["end"], row["lag_bytes"], row["lag_records"]) == (7, 14, 7, 1)
    assert 0 < row["lag_seconds"] < 60
    assert served.post("groups/g/read/reset?dry_run=1", {"records_back": 2})["offset"] == 0
    assert served.post("groups/g/read/reset?dry_run=1", {"records_back": 1})["offset"] == 7
    assert served.ask("groups/g/read/reset", {"records_back": -1})[0] == 400
    assert served.post("groups/g/read/reset?dry_run=1", {"offset": 0})["offset"] == 0
    assert served.get("groups/g/read")["offset"] == 7
    assert served.post("groups/g/read/reset", {"offset": 0}) == {"reset": 1, "before": 7, "offset": 0}
    assert served.get("groups?topic=read")["items"][0]["lag_bytes"] == 14
    assert served.post("topics/read/trim", {"offset": 7})["dropped"] == 7
    assert 0 < served.get("groups/g/read")["lag_seconds"] < 60, "of what is kept, where it has lost the rest"
    assert served.ask("groups/g/read/reset", {"offset": 99})[0] == 400
    assert served.ask("groups/g/read/reset", {"time": "yesterday"})[0] == 400
    assert served.ask("groups/g/read/reset", {"time": "2026-01-01T00:00:00Z", "offset": 0})[0] == 400
    assert served.post("groups/g/read/reset", {"time": "2026-01-01T00:00:00Z"})["offset"] == 7
    assert served.post("groups/g/read/reset", {"time": "2100-01-01T00:00:00Z"})["offset"] == 14
    assert served.ask("groups/g/read?dry_run=1", method="DELETE") == (200, {"deleted": 1})
    assert served.get("groups/g/read")["offset"] == 14
    assert served.delete("groups/g/read") == {"deleted": 1}
    assert served.ask("groups/g/read")[0] == 404
    assert speak(served.server.address("logmq"), b"COMMIT g read 7\n") == b"OK 7\n"


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_clients_take_out_of_a_path_have_a_spelling_that_stays(served: Api, name: str) -> None:
    served.command("dms", "create", "-q", name)
    served.command("dms", "produce", "-q", name, "hello")
    for spelt in (name, name.replace(".", "%2E"), path_part(name)):
        assert served.get(f"queues/dms/{spelt}")["name"] == name
    path = f"queues/dms/{path_part(name)}"
    assert served.post(f"{path}/purge")["purged"] == 1
    assert served.delete(path)
    assert served.ask(path)[0] == 404
    assert served.ask("queues/dms/%FFa")[0] == 400


@pytest.mark.parametrize("name", ["a\nb", "\n", "\r", "\0", "a/b\n", "é", "?#%", " "])
def test_an_amqp_name_of_any_characters_is_reached(served: Api, name: str) -> None:
    path = f"exchanges/{path_part(name)}"
    served.post("exchanges", {"name": name, "type": "topic", "durable": True})
    assert served.get(path)["name"] == name
    assert served.answer(f"/{path}")[0] == 200
    refused = served.ask(f"{path}/purge", {}, "POST")[1]["detail"]
    assert refused == "no such action here; there is delete, messages"
    assert served.delete(path)
    assert served.ask(path)[0] == 404


@pytest.mark.parametrize("name", ["", ".", "..", "...", "a/.", "%2E", "%FF.", "\xff.", "é ü", "\0"])
def test_a_part_of_a_path_is_read_as_it_was_written(name: str) -> None:
    part = path_part(name)
    assert name_in(part) == name
    assert unquote_to_bytes(part) not in (b".", b"..")
    assert name_in(quote(name, safe="")) == name


def test_exchanges_and_bindings_are_made_and_ended(served: Api) -> None:
    served.command("dmp", "declare", "queue", "mail")
    assert served.post("exchanges", {"name": "a/b", "type": "topic", "durable": True}) == {"declared": 1}
    assert served.get(f"exchanges/{quote('a/b', safe='')}")["type"] == "topic"
    assert served.post("bindings?dry_run=1", {"exchange": "a/b", "queue": "mail", "key": "x.#"})["bound"] == 1
    assert served.get("bindings?exchange=a/b")["items"] == []
    assert served.post("bindings", {"exchange": "a/b", "queue": "mail", "key": "x.#"}) == {"bound": 1}
    (row,) = served.get("bindings?exchange=a%2Fb")["items"]
    assert (row["queue"], row["key"], row["to_exchange"]) == ("mail", "x.#", None)
    assert served.delete(f"bindings/{quote(row['id'], safe='')}") == {"unbound": 1}
    with_table = {"exchange": "amq.headers", "queue": "mail", "arguments": {"x-match": "any", "a": 1}}
    assert served.post("bindings", with_table) == {"bound": 1}
    (row,) = served.get("bindings?exchange=amq.headers")["items"]
    assert row["arguments"] == {"x-match": "any", "a": 1}
    assert served.delete(f"bindings/{quote(row['id'], safe='')}") == {"unbound": 1}
    assert served.ask("bindings", {**with_table, "arguments": [1]})[0] == 400
    assert served.delete(f"exchanges/{quote('a/b', safe='')}") == {"deleted": 1, "bindings": 0}
    assert served.ask("exchanges/amq.direct", method="DELETE")[0] == 409
    assert served.ask("bindings", {"exchange": "none", "queue": "mail"})[0] == 404
    assert served.get("exchanges/amq.default")["type"] == "direct"
    assert served.post("queues/dmp/mail/messages", {"text": "hi", "properties": {"type": "note"}})
    assert served.get("queues/dmp/mail")["ready"] == 1
    (found,) = served.post("queues/dmp/mail/peek")["items"]
    assert (found["text"], found["properties"]) == ("hi", {"type": "note", "delivery_mode": 2})
    assert served.post("queues/dmp/mail/redrive?dry_run=1") == {"moved": 0, "left": 1}
    assert served.post("queues/dmp/mail/purge") == {"purged": 1, "held": 0}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("exchanges", {"name": "amq.direct", "type": "topic"}, 409),
        ("exchanges", {"name": "amq.mine"}, 409),
        ("exchanges", {"name": "odd", "type": "odd"}, 400),
        ("exchanges/amq.direct", None, 409),
        ("bindings", {"exchange": "amq.default", "queue": "asked"}, 409),
        ("bindings", {"exchange": "amq.headers", "queue": "asked", "arguments": {"x-match": "odd"}}, 409),
    ],
)
def test_a_dry_run_refuses_what_would_be_refused(served: Api, path: str, body: Any, status: int) -> None:
    served.command("dmp", "declare", "queue", "asked")
    method = "DELETE" if body is None else "POST"
    refused = served.ask(path, body, method)
    assert refused[0] == status
    assert served.ask(f"{path}?dry_run=1", body, method) == refused


def audited(api: Api) -> list[str]:
    return [line for line in api.server.said.splitlines() if " audit " in line]


def test_a_connection_is_listed_and_closed(served: Api) -> None:
    with socket.create_connection(served.server.address("logmq"), timeout=30) as ours:
        ours.sendall(b"PRODUCE seen x\n")
        assert ours.recv(100) == b"OK 0\n"
        own = "{}:{}".format(*ours.getsockname())
        (row,) = (row for row in served.get("connections?protocol=logmq")["items"] if row["peer"] == own)
        assert (row["user"], row["tls"], row["bytes_in"], row["bytes_out"]) == ("anonymous", False, 15, 5)
        assert (row["messages_in"], row["messages_out"], row["held"]) == (1, None, None)
        assert row["since"].endswith("Z")
        assert served.get(f"connections/{row['id']}")["state"] == "open"
        assert served.delete(f"connections/{row['id']}") == {"closed": 1}
        assert ours.recv(100) == b""
        assert served.ask(f"connections/{row['id']}")[0] == 404
    until(lambda: any(f"action=kick name={row['id']}" in line for line in audited(served)))


@pytest.mark.parametrize("target", ["/tmp/away", "../away", "", ".", "a/../../away", "link/away", "a\0b"])
def test_over_tcp_no_file_is_written_or_read_but_among_the_backups(served: Api, target: str) -> None:
    backups = served.server.data / "backups"
    backups.mkdir(exist_ok=True)
    if not (backups / "link").exists():
        (backups / "link").symlink_to(served.server.data)
        served.command("dms", "create", "-q", "files")
    for path, arguments in (
        ("backup", {"target": target}),
        ("/backup", {"target": target}),
        ("queues/dms/files/export", {"target": target}),
        ("queues", {"queue": "files", "source": target}),
    ):
        assert served.ask(path, arguments)[0] in (400, 403), path
    assert not Path("/tmp/away").exists()
    assert not list(served.server.data.rglob("away"))


def test_the_audit_log_names_what_was_made_and_a_reload_takes_no_words(served: Api) -> None:
    served.command("dmp", "declare", "queue", "q/1")
    assert served.ask("exchanges", {"name": "made"})[0] == 200
    assert served.ask("bindings", {"exchange": "made", "queue": "q/1", "key": "k"})[0] == 200
    assert served.ask("bindings", {"exchange": "made", "queue": "none"})[0] == 404
    for name, result in (("made", "done"), ("made/q%2F1/k", "done"), ("made/none/", "refused")):
        until(lambda end=f"name={name} result={result}": any(end in line for line in audited(served)))
    assert served.ask("reload", {"action": "user-rm", "name": "nobody"})[0] == 400
    assert served.ask("reload", {})[0] == 200
    until(lambda: any("action=reload" in line for line in audited(served)))
    assert not any("nobody" in line for line in audited(served))


def test_a_backup_over_tcp_is_found_among_the_backups_and_in_the_audit_log(served: Api) -> None:
    served.command("dms", "create", "-q", "kept")
    assert served.post("backup", {"target": "today"})["bytes"] > 0
    target = served.server.data / "backups" / "today"
    assert (target / "BACKUP").exists()
    assert served.post("backup", {"target": "tomorrow"})["bytes"] > 0
    assert not (target.with_name("tomorrow") / "backups").exists(), "no backup holds another"
    assert served.post("queues/dms/kept/export", {"target": "kept.dmsq"}) == {"messages": 0}
    assert target.with_name("kept.dmsq").exists()
    until(lambda: any("action=export name=kept" in line for line in audited(served)))
    assert any("backup" in line and str(target) in line and "(token)" in line for line in audited(served))
    done = run("fsck", "--data-dir", str(target))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_document_of_the_api_names_what_there_is(served: Api) -> None:
    found = served.get("openapi.json")
    assert found["openapi"].startswith("3.1")
    paths = found["paths"]
    assert {"get", "delete"} <= set(paths["/api/v1/connections/{id}"])
    assert "post" in paths["/api/v1/queues/{protocol}/{name}/purge"]
    assert set(found["components"]["schemas"]) == {"Problem", "message", *KINDS}
    for path, methods in paths.items():
        asked = [each["name"] for each in next(iter(methods.values()))["parameters"] if each["in"] == "path"]
        assert asked == [part[1:-1] for part in path.split("/") if part.startswith("{")]
    body = paths["/api/v1/bindings"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["exchange"]


# Lists, without a server.


def many(count: int) -> Objects:
    rows = {f"q{n:06}": n for n in range(count)}

    def row(n: int) -> Mapping[str, Any]:
        return {"name": f"q{n:06}", "ready": n % 2}

    items = list(reversed(rows.values()))
    return Objects(
        QUEUES, lambda: list(items), lambda n: key_of(f"q{n:06}"), lambda parts: rows.get(parts[0]), row
    )


async def test_pages_follow_each_other_to_the_end_and_hold_each_object_once() -> None:
    those = [("b", many(250)), ("a", many(250))]
    seen: list[tuple[str, str]] = []
    after = ""
    while after is not None:
        page = await listing.listed(QUEUES, those, {"limit": "99", "after": after})
        seen += [(row["protocol"], row["name"]) for row in page["items"]]
        after = page["next"]
    assert seen == sorted(seen)
    assert len(set(seen)) == len(seen) == 500


async def test_a_list_is_narrowed_by_a_part_of_the_name_and_sorted_by_a_column() -> None:
    those = [("a", many(300)), ("b", many(300))]

    async def names(**query: str) -> list[str]:
        found = await listing.listed(QUEUES, those, query)
        return [f"{row['protocol']}/{row['name']}" for row in found["items"]]

    assert await names(match="Q0002", limit="2") == ["a/q000200", "a/q000201"]
    assert await names(match="00029?") == []
    assert await names(match="*99", protocol="b") == ["b/q000099", "b/q000199", "b/q000299"]
    assert await names(sort="-name", limit="3") == ["a/q000299", "b/q000299", "a/q000298"]
    for wrong in ({"sort": "settings"}, {"sort": "name", "after": "a"}, {"match": "x" * 300}):
        with pytest.raises(HTTPException):
            await listing.listed(QUEUES, those, wrong)


async def test_a_selection_says_how_many_there_are_and_begins_anywhere() -> None:
    those = [("a", many(700)), ("b", many(800))]
    for wanted in (listing.ListQuery(), listing.ListQuery(descending=True), listing.ListQuery(sort="name")):
        found = await listing.selected(QUEUES, those, wanted, 1490, 100)
        assert (len(found.items), found.total) == (10, 1500)
        assert (await listing.selected(QUEUES, those, wanted, 1500, 100)).items == []
    first = await listing.selected(QUEUES, those, listing.ListQuery(descending=True), 0, 1)
    assert (first.items[0]["protocol"], first.items[0]["name"]) == ("b", "q000799")


async def test_a_list_of_20_000_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the processor's time: others may have the processor meanwhile."""
    monkeypatch.setattr(CLOCK, "now", time.perf_counter)
    longest, last = 0.0, time.thread_time()

    async def watch() -> None:
        nonlocal longest, last
        last = time.thread_time()
        while True:
            await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone
            now = time.thread_time()
            longest, last = max(longest, now - last), now

    those = [("dms", many(20_000))]
    last_page = {"limit": "1000", "after": "dms/q019000"}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.sleep(0.01)
        gc.disable()  # a server has a collector of its own, and not the objects of all tests
        try:
            for query in ({"limit": "1000"}, {"sort": "-ready", "limit": "1000"}, last_page):
                page = await listing.listed(QUEUES, those, query)
        finally:
            gc.enable()
        nursery.cancel_scope.cancel()
    assert len(page["items"]) == 999
    assert longest < 0.1, "some 20 ms of the processor"
