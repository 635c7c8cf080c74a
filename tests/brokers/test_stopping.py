"""Is it safe to restart? What a stop ends and loses, before it is done."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from brokers.admin.stopping import cost_of_stop
from shared.storage.store import StoreStatistics
from tests.brokers.asking import Api
from tests.brokers.conftest import Run
from tests.brokers.test_attention import statistics
from tests.support.server import Server, until


@pytest.mark.parametrize(
    ("store", "words"),
    [
        (statistics(read_only=True), "nothing more is written"),
        (statistics(unapplied_logs=2), "2 log files take no bytes"),
        (statistics(damaged_ranges=1), "1 places are damaged"),
    ],
)
async def test_a_store_in_trouble_is_not_safe_to_restart(store: StoreStatistics, words: str) -> None:
    cost = await cost_of_stop((), store)
    assert not cost["safe"]
    assert words in cost["reasons"][0].lower()


def test_what_a_stop_loses_is_said_before_it_and_drain_does_it(tmp_path: Path, command: Run) -> None:
    with Server(tmp_path, environ={"BROKERS_DMS_DURABILITY": "always"}) as server:
        api = Api(server)

        def asked(*words: str) -> Any:
            code, out, said = command("drain", *words, "--json", "--data-dir", str(server.data))
            assert code == 0, said
            return json.loads(out)

        api.command("dms", "create", "kept")
        with socket.create_connection(server.address("kqmsgq")) as consumer:
            consumer.sendall(b"consume>" + (4).to_bytes(4) + b"seen")  # a queue that keeps nothing
            until(lambda: any(row["name"] == "seen" for row in api.get("queues")["items"]))
            cost = asked("--dry-run")
            assert (cost["safe"], cost["connections"]) == (True, 1)
        until(lambda: not api.get("connections")["items"])
        api.command("dms", "produce", "kept", "one")
        assert asked("--dry-run") == {
            "safe": True,
            "connections": 0,
            "lost": 0,
            "queues": 0,
            "redelivered": 0,
            "reasons": [],
        }
        status, page = api.answer("/restart", Accept="text/html")[::2]
        assert (status, b"A stop loses nothing" in page) == (200, True)
        assert server.process is not None
        assert server.process.poll() is None, "a dry run stops nothing"
        assert asked() == {"draining": 1}
        assert server.wait() == 0


def test_messages_in_memory_are_lost_and_counted(tmp_path: Path) -> None:
    with Server(tmp_path, environ={"BROKERS_DMS_PERSIST": "false"}) as server:
        api = Api(server)
        api.command("dms", "create", "fleeting")
        for text in ("one", "two"):
            api.post("queues/dms/fleeting/messages", {"text": text})
        cost = api.post("drain?dry_run=1")
        assert (cost["safe"], cost["lost"], cost["queues"]) == (False, 2, 1)
        assert cost["reasons"] == ["2 messages of 1 queues are in memory alone, and would be lost."]
