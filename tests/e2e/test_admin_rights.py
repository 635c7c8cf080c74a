"""What rights on the admin port give, and what they do not: nobody makes himself more than he is."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from shared.access import Rule, Secret, User
from tests.brokers.asking import Api
from tests.e2e.users import write_users
from tests.support.server import Server, until

PASSWORD = "a secret of the test"
SECRET = Secret.make(PASSWORD.encode(), b"s" * 16)
RULES = {
    "reader": ("admin:read",),
    "manager": ("admin:manage",),
    "clerk": ("admin:manage", "admin:users", "dms:read:*"),
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("rights")
    users = {name: User(name, tuple(map(Rule.parse, rules)), SECRET) for name, rules in RULES.items()}
    write_users(folder / "data", users)
    with Server(folder, environ={"BROKERS_SERVE_ENABLE": "dms"}) as server:
        yield Api(server)


def ask(api: Api, user: str, path: str, body: Any = None) -> tuple[int, Any]:
    login = "Basic " + base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    status, _, answer = api.answer(path, body, Authorization=login)
    return status, json.loads(answer)


def audited(api: Api, *words: str) -> bool:
    lines = [line for line in api.server.said.splitlines() if " audit " in line]
    return any(all(word in line for word in words) for line in lines)


def test_who_may_manage_and_not_administer_users_makes_none(api: Api) -> None:
    eve = {"name": "eve", "allow": ["*:*:*", "admin:*"], "certificate": True}
    queue = {"protocol": "dms", "name": "unmade", "options": {}}
    for path in ("definitions", "definitions?dry_run=1"):
        status, problem = ask(api, "manager", path, {"queues": [queue], "users": [eve]})
        assert (status, "admin:users" in problem["detail"]) == (403, True)
    assert ask(api, "reader", "queues/dms/unmade")[0] == 404, "nothing of the document is made"
    there = {"name": "reader", "allow": [*RULES["reader"]], "certificate": False}
    assert ask(api, "manager", "definitions", {"users": [there]})[1]["same"] == 1


def test_who_administers_users_gives_only_what_he_has(api: Api) -> None:
    for rule in ("*:*:*", "dms:*:jobs", "admin:read", "admin:*"):
        status, problem = ask(api, "clerk", "definitions", {"users": [{"name": "new", "allow": [rule]}]})
        assert (status, rule in problem["detail"]) == (403, True)
    made = {"name": "new", "allow": ["dms:read:jobs", "admin:users"]}
    assert ask(api, "clerk", "definitions", {"users": [made]})[1]["made"] == 1
    found = ask(api, "reader", "definitions")[1]["users"]
    assert {"name": "new", "allow": made["allow"], "certificate": False} in found


def test_messages_are_shown_to_who_may_read_and_are_a_line_of_the_audit_log(api: Api) -> None:
    made = {"queues": [{"protocol": "dms", "name": "jobs", "options": {}}]}
    assert api.ask("definitions", made)[0] == 200
    assert api.ask("queues/dms/jobs/messages", {"text": "hello"})[0] == 200
    assert ask(api, "manager", "queues/dms/jobs/peek", {})[0] == 403
    assert ask(api, "reader", "queues/dms/jobs/peek")[1]["items"][0]["text"] == "hello"
    until(lambda: audited(api, "user=reader", "protocol=dms action=peek name=jobs"))
    assert ask(api, "clerk", "queues/dms/jobs/peek", {})[0] == 403
    assert ask(api, "reader", "trace?name=jobs&after=0")[0] == 200
    until(lambda: audited(api, "user=reader", "action=trace", "name=jobs"))


def test_one_user_leaves_others_room_to_trace_and_to_follow(api: Api) -> None:
    assert [ask(api, "reader", f"trace?name=t{n}")[0] for n in range(5)][-1] == 409
    assert api.ask("trace?name=other")[0] == 200
