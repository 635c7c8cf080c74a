"""Real servers: one ships and is killed, one follows and is promoted; a bucket is restored."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from brokers.commands import cli, control
from brokers.ship.formats import SHIP_PATH
from shared.access import parse_users
from tests.brokers.conftest import Run
from tests.support.server import NotReadyError, Server, until

LOGMQ = ("--enable", "logmq", "--port", "logmq=0")


def shipping(url: str, **more: str) -> dict[str, str]:
    return {"BROKERS_SHIP_URL": url, "BROKERS_SHIP_INTERVAL": "0.05", "BROKERS_SHIP_FOLD": "1", **more}


def until_there(command: Run, server: Server, topic: str, messages: list[str]) -> None:
    """A server has these messages, soon."""
    port = str(server.address("logmq")[1])
    give_up = time.monotonic() + 30
    while True:
        code, out, said = command("logmq", "consume", topic, "--port", port)
        if (code, out.splitlines()) == (0, messages):
            return
        assert time.monotonic() < give_up, (code, out, said)


def queues(command: Run, server: Server) -> dict[str, int]:
    """The queues that a server lists, with how much is ready in each."""
    out = command("queues", "--json", "--data-dir", str(server.data))[1]
    return {row["name"]: row["ready"] for row in map(json.loads, out.splitlines())}


def figure(server: Server, name: str) -> float:
    """A metric without labels."""
    lines = str(control.request(server.data, "GET", "/metrics")).splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


def ready(server: Server) -> dict[str, Any]:
    """What the ready file says; nothing while there is none."""
    try:
        return dict(json.loads(server.ready_file.read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def test_a_follower_has_what_is_shipped_and_takes_over(tmp_path: Path, command: Run) -> None:
    url = f"file://{tmp_path}/bucket"
    first = Server(
        tmp_path / "first",
        *("--enable", "logmq,dms,dmp", "--port", "logmq=0"),
        environ=shipping(url, BROKERS_SHIP_ACK="bucket"),
    )
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
    with first:
        at = str(first.address("logmq")[1])
        assert command("logmq", "produce", "orders", "one", "two", "--port", at)[0] == 0
        second = Server(
            tmp_path / "second",
            url,
            *("--enable", "logmq,dms,dmp,pubsub", "--port", "logmq=0", "--port", "dms=0"),
            command=("follow",),
            environ={"BROKERS_SHIP_INTERVAL": "0.05", "BROKERS_SHIP_FOLD": "1"},
        )
        with second:
            until_there(command, second, "orders", ["one", "two"])
            assert "not served here" in second.said
            assert command("logmq", "produce", "orders", "three", "--port", at)[0] == 0
            assert command("logmq", "produce", "new", "topic", "--port", at)[0] == 0
            until_there(command, second, "orders", ["one", "two", "three"])
            until_there(command, second, "new", ["topic"])
            where = ("--data-dir", str(first.data))
            assert command("dms", "create", "jobs", *where)[0] == 0
            jobs = ("jobs", "1", "2", "3", "--port", str(first.address("dms")[1]))
            assert command("dms", "produce", *jobs)[0] == 0
            assert command("dmp", "declare", "queue", "work", *where)[0] == 0
            assert command("logmq", "create", "kept", "--retention-bytes", "5", *where)[0] == 0
            until(lambda: queues(command, second) == {"jobs": 3, "work": 0})
            figures = (figure(second, "brokers_dms_messages_ready"), figure(second, "brokers_dmp_queues"))
            assert figures == (3, 1)
            assert figure(second, "brokers_dms_messages_produced_total") == 0, "here, by clients"
            assert command("dms", "purge", "jobs", *where)[0] == 0
            until(lambda: queues(command, second) == {"jobs": 0, "work": 0})
            topics = command("topics", "kept", "--json", "--data-dir", str(second.data))[1]
            assert '"retention_bytes": 5' in topics
            there = str(second.address("logmq")[1])
            ends = ("--from", "logmq:orders", "--to", "logmq:copy")
            assert command("bridge", "create", "copied", *ends, *where)[0] == 0
            assert command("user", "add", "ann", "--allow", "*:*:*", "--certificate", *where)[0] == 0
            code, _, said = command("logmq", "produce", "orders", "no", "--port", there)
            assert code != 0
            assert "read-only" in said
            first.kill()
            before = second.ready["addresses"]
            code, out, said = command("promote", "--data-dir", str(second.data))
            assert code == 0, said
            assert "epoch" in out
            until(lambda: ready(second).get("addresses", before) != before)
            second.ready = ready(second)
            assert {each["protocol"] for each in second.ready["addresses"]} >= {"logmq", "dms"}
            bridges = json.loads((second.data / "bridges.json").read_text())
            assert [each["name"] for each in bridges] == ["copied"]
            there = str(second.address("logmq")[1])
            assert command("logmq", "produce", "orders", "four", "--port", there)[0] == 0
            until_there(command, second, "orders", ["one", "two", "three", "four"])
            assert second.stop() == 0
    code, out, said = command("restore", url, "--data-dir", str(tmp_path / "back"), "--verify", "full")
    assert (code, "in order" in out, "bridges.json, users.toml" in out) == (0, True, True), (out, said)
    assert list(parse_users((tmp_path / "back/users.toml").read_text())) == ["ann"]
    with Server(tmp_path / "third", *LOGMQ, data=tmp_path / "back") as third:
        until_there(command, third, "orders", ["one", "two", "three", "four"])
    assert cli.run(["ship", "verify", url]) == 0
    # The first is behind the bucket: it must not ship over it.
    assert (first.data / SHIP_PATH).exists()
    with pytest.raises(NotReadyError) as refused:
        first.start()
    assert refused.value.code == 78


def test_a_folder_that_was_restored_follows_nothing_and_takes_no_bucket(tmp_path: Path, command: Run) -> None:
    url, back = f"file://{tmp_path}/bucket", tmp_path / "back"
    with Server(tmp_path, *LOGMQ, environ=shipping(url)) as server:
        at = str(server.address("logmq")[1])
        assert command("logmq", "produce", "orders", "one", "--port", at)[0] == 0
        until(lambda: command("restore", url, "--data-dir", str(back), "--dry-run")[0] == 0)
        assert command("restore", url, "--data-dir", str(back))[0] == 0
        before = (tmp_path / "bucket/manifest.json").read_bytes()
        (tmp_path / "other").mkdir()
        follower = Server(tmp_path / "other", url, *LOGMQ, data=back, command=("follow",))
        with pytest.raises(NotReadyError, match="begins with an empty folder") as refused:
            follower.start()
        assert refused.value.code == 73
        manifest = json.loads((tmp_path / "bucket/manifest.json").read_bytes())
        assert manifest["epoch"] == json.loads(before)["epoch"]


def test_a_follower_gives_out_nothing_that_another_server_gives_out(tmp_path: Path, command: Run) -> None:
    url = f"file://{tmp_path}/bucket"
    queues = ("--enable", "dms,dmp", "--port", "dms=0", "--port", "dmp=0")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with Server(tmp_path / "first", *queues, environ=shipping(url, BROKERS_SHIP_ACK="bucket")) as first:
        where = ("--data-dir", str(first.data))
        assert command("dms", "create", "jobs", *where)[0] == 0
        assert command("dms", "produce", "jobs", "one", *where)[0] == 0
        assert command("dmp", "declare", "queue", "work", *where)[0] == 0
        assert command("dmp", "put", "amq.default", "two", "--key", "work", *where)[0] == 0
        careless = {"BROKERS_SHIP_INTERVAL": "0.05", "BROKERS_DMS_DISK_FAILED": "best-effort"}
        second = Server(tmp_path / "second", url, *queues, command=("follow",), environ=careless)
        with second:
            there = ("--data-dir", str(second.data))
            for protocol, queue in (("dms", "jobs"), ("dmp", "work")):
                code, out, said = command(protocol, "consume", queue, "-n", "1", "--timeout", "0.3", *there)
                assert (code, out) == (75, ""), said
            code, _, said = command("dms", "produce", "jobs", "lost", *there)
            assert (code != 0, "read-only" in said) == (True, True), said
            code, _, said = command("ship", "status", *there)
            assert (code, f"follows {url} and ships nothing: it is following" in said) == (78, True), said
            first.kill()
            before = second.ready["addresses"]
            assert command("promote", *there)[0] == 0
            until(lambda: ready(second).get("addresses", before) != before)
            assert command("dms", "consume", "jobs", *there)[:2] == (0, "one\n")
            assert command("dmp", "consume", "work", "-n", "1", *there)[:2] == (0, "two\n")


def test_an_empty_folder_is_made_from_the_bucket_where_a_start_is_told_so(
    tmp_path: Path, command: Run
) -> None:
    environ, told = shipping(f"file://{tmp_path}/bucket", BROKERS_SHIP_ACK="bucket"), "--restore-if-empty"
    with Server(tmp_path, *LOGMQ, told, environ=environ) as first:  # nor is there a bucket
        port = str(first.address("logmq")[1])
        assert command("logmq", "produce", "orders", "one", "--port", port)[0] == 0
        first.kill()
        shutil.rmtree(first.data)
        first.start()
        until_there(command, first, "orders", ["one"])
        assert first.stop() == 0
        first.start()  # it is not empty
        until_there(command, first, "orders", ["one"])


def test_a_start_waits_for_no_bucket(tmp_path: Path, command: Run) -> None:
    """Also where the bucket is to have a file of the folder before it is acknowledged."""
    bucket = tmp_path / "bucket"
    environ = shipping(f"file://{bucket}", BROKERS_SHIP_ACK="bucket")
    server = Server(tmp_path, "--enable", "dms", environ=environ)
    with server:
        where = ("--data-dir", str(server.data))
        assert command("user", "add", "ann", "--certificate", *where)[0] == 0
        assert server.stop() == 0, server.said
    assert command("user", "allow", "ann", "*:*:*", *where)[0] == 0
    bucket.rename(tmp_path / "away")
    bucket.write_text("no folder")
    with Server(tmp_path, "--enable", "dms", environ=environ) as again:
        assert again.address("dms")
        assert command("user", "list", *where)[0] == 0
        again.kill()
