"""Users and settings by the API: who may change whom, and what is in force."""

import base64
from pathlib import Path
from typing import Any

import pytest

from shared.access import Rule, Secret, User
from tests.brokers.asking import Api
from tests.e2e.users import write_users
from tests.support.server import Server


def user(name: str, *rules: str) -> User:
    return User(name, tuple(map(Rule.parse, rules)), Secret.make(b"secret", b"s" * 16))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("users")
    ann = user("ann", "admin:read", "admin:manage", "admin:users", "logmq:*:a*")
    ben = user("ben", "admin:read", "admin:manage")
    write_users(folder / "data", {"ann": ann, "ben": ben, "root": user("root", "*:*:*")})
    with Server(folder) as server:
        yield Api(server)


def asked(served: Api, name: str, path: str, body: Any, method: str = "POST") -> int:
    basic = base64.b64encode(f"{name}:secret".encode()).decode()
    return served.answer(path, body, method, Authorization=f"Basic {basic}")[0]


def test_nobody_gives_or_takes_over_what_he_has_not(served: Api) -> None:
    for path, body, method, status in (
        ("users", {"name": "new", "allow": ["logmq:read:b"]}, "POST", 403),
        ("users", {"name": "new", "allow": ["logmq:read:a1"], "user_share": 1}, "POST", 200),
        ("users/new/allow", {"rules": ["dms:read:x"]}, "POST", 403),
        ("users/root/passwd", {"password": "mine"}, "POST", 403),
        ("users/root", {}, "DELETE", 403),
        ("users/new/passwd", {"password": "its"}, "POST", 200),
        ("users/new", {}, "DELETE", 200),
    ):
        if "new" not in path:
            assert asked(served, "ben", path, body, method) == 403, (path, "without admin:users")
        assert asked(served, "ann", path, body, method) == status, path


def test_rules_are_given_and_taken_and_a_dry_run_does_neither(served: Api) -> None:
    served.post("users", {"name": "cleo", "allow": ["dms:read:x"]})
    assert served.post("users/cleo/allow?dry_run=1", {"rules": ["dms:write:x"]}) == {"rules": 2}
    assert served.get("users/cleo")["allow"] == ["dms:read:x"]
    served.post("users/cleo/allow", {"rules": ["dms:write:x"]})
    served.post("users/cleo/deny", {"rules": ["dms:read:x"]})
    assert served.get("users/cleo")["allow"] == ["dms:write:x"]
    assert "dms:write:x" in (served.server.data / "users.toml").read_text()
    for path, body in (
        ("deny", {"rules": ["no"]}),
        ("allow", {"rules": "all"}),
        ("allow", {}),
        ("passwd", {"password": ""}),
    ):
        assert served.ask(f"users/cleo/{path}", body, "POST")[0] == 400
    assert served.delete("users/cleo") == {"deleted": 1}
    assert served.ask("users/cleo")[0] == 404


def test_a_file_that_was_edited_meanwhile_is_not_overwritten(served: Api) -> None:
    served.post("users", {"name": "dora", "allow": ["dms:read:x"]})
    path = served.server.data / "users.toml"
    path.write_text(path.read_text().replace("dms:read:x", "dms:read:y"))
    status, problem = served.ask("users/dora/allow", {"rules": ["dms:write:x"]}, "POST")
    assert (status, "meanwhile" in problem["detail"]) == (403, True)


def test_settings_say_where_they_come_from_and_are_read_again(tmp_path: Path) -> None:
    config = tmp_path / "brokers.toml"
    config.write_text("[logmq]\ntopics_max = 5\n")
    with Server(tmp_path, "--config", str(config)) as server:
        api = Api(server)
        row = api.get("settings/logmq.topics_max")
        assert (row["value"], row["source"]) == ("5", str(config))
        assert row["meaning"].startswith("The most topics")
        assert api.get("settings/logmq.commits_max")["source"] == "default"
        config.write_text("[logmq]\ntopics_max = 6\n")
        assert api.post("settings?dry_run=1")["settings"] == "logmq.topics_max"
        assert api.get("settings/logmq.topics_max")["value"] == "5"
        assert api.post("settings")["changed"] == 1
        assert api.get("settings/logmq.topics_max")["value"] == "6"
        config.write_text("[logmq]\ntopics_max = 0\n")
        status, problem = api.ask("settings?dry_run=1", {}, "POST")
        assert (status, "topics_max" in problem["detail"]) == (409, True)
