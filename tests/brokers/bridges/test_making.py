"""Bridges that the API makes: in the data folder, beside those of the settings, and over a kill."""

from pathlib import Path

from tests.brokers.asking import Api
from tests.support.server import Server, until


def test_a_bridge_is_made_changed_and_deleted_and_is_there_after_a_kill(tmp_path: Path) -> None:
    config = tmp_path / "brokers.toml"
    config.write_text('[[bridge]]\nname = "set"\nfrom = "dms:set"\nto = "logmq:set"\n')
    with Server(tmp_path, "--config", str(config)) as server:
        api = Api(server)
        for queue in ("in", "set"):
            api.post("queues", {"protocol": "dms", "name": queue})
        body = {"name": "made", "from": "dms:in", "to": "logmq:out"}
        assert api.post("bridges?dry_run=1", body) == {"created": 1}
        assert [row["name"] for row in api.get("bridges")["items"]] == ["set"]
        api.post("bridges", body)
        api.post("queues/dms/in/messages", {"text": "one"})
        until(lambda: api.ask("topics/out/records")[1].get("items"))
        for wrong, says in (
            ({**body, "name": "made"}, "name: there is a bridge"),
            ({**body, "name": "set"}, "name: there is a bridge"),
            ({"name": "x", "from": "dms:in"}, "to: is missing"),
            ({"name": "x", "from": "logmq:out", "to": "dms:in"}, "go round for ever"),
            ({"name": "x", "from": "nothing:in", "to": "dms:in"}, "from: "),
            ({**body, "name": "x", "as": "xml"}, "as: "),
        ):
            status, problem = api.ask("bridges", wrong, "POST")
            assert (status, says in problem["detail"]) == (400, True), problem
        assert api.post("bridges/made/change", {"to": "logmq:other", "as": "json"}) == {"changed": 1}
        for action in ("change", ""):
            status, problem = api.ask(f"bridges/set/{action}".rstrip("/"), {}, "POST" if action else "DELETE")
            assert (status, "stands in the settings" in problem["detail"]) == (400, True)
        for _ in range(2):
            row = api.get("bridges/made")
            assert (row["to"], row["as"], row["state"]) == ("logmq:other", "json", "running")
            assert api.get("bridges/set")["state"] == "running"
            server.kill()
            server.start()
            until(lambda: api.get("bridges/set")["state"] == "running")
            until(lambda: api.get("bridges/made")["state"] == "running")
        assert api.delete("bridges/made?dry_run=1") == {"deleted": 1}
        assert api.delete("bridges/made") == {"deleted": 1}
        assert [row["name"] for row in api.get("bridges")["items"]] == ["set"]
        assert api.post("settings")["changed"] == 0
        assert [row["name"] for row in api.get("bridges")["items"]] == ["set"]
