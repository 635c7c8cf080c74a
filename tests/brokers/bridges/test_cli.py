"""`brokers bridge ...`: what its words become for the API, and what a server then has."""

import json
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pytest

from brokers.commands.cli import run
from brokers.commands.control import AdminClient
from brokers.errors import ExitCode
from tests.brokers.conftest import Run
from tests.support.server import Server


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each request; nothing is sent."""
    found: list[dict[str, Any]] = []

    def post(_: AdminClient, *path: str, **arguments: Any) -> dict[str, int]:
        found.append(arguments)
        return {"reset": 1}

    monkeypatch.setattr(AdminClient, "post", post)
    return found


@pytest.mark.parametrize("to", ["first", "end", "0", "1048576"])
def test_a_position_goes_as_it_is(asked: Sequence[dict[str, Any]], to: str) -> None:
    assert run(("bridge", "reset", "jobs", "--to", to)) == ExitCode.OK
    assert asked == [{"to": to}]


@pytest.mark.parametrize(
    ("to", "ago"), [("1h", 3600), ("30m ago", 1800), ("2d", 172_800), ("2026-01-31T12:00", None)]
)
def test_a_time_is_said_as_everywhere(asked: Sequence[dict[str, Any]], to: str, ago: int | None) -> None:
    now = time.time()
    assert run(("bridge", "reset", "jobs", "--to", to)) == ExitCode.OK
    ((found,),) = [each.values() for each in asked]
    at = datetime.fromisoformat(found)
    assert at.tzinfo is not None
    meant = datetime.fromisoformat(to).timestamp() if ago is None else now - ago
    assert at.timestamp() == pytest.approx(meant, abs=5)


def test_what_is_no_position_is_a_mistake_on_the_command_line(
    asked: Sequence[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(("bridge", "reset", "jobs", "--to", "soon")) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert said.startswith("brokers: --to: 'soon' is no time")
    assert "an offset" in said
    assert "milliseconds" not in said, "a number alone is an offset"
    assert asked == []


def test_a_bridge_is_made_changed_and_deleted_by_commands(
    command: Run, new_server: Callable[..., Server]
) -> None:
    server = new_server().start()

    def said(*words: str, code: int = 0) -> str:
        done, out, error = command("bridge", *words, "--data-dir", str(server.data))
        assert done == code, error
        return error if code else out

    make = ("create", "sensors", "--from", "pubsub:home/*", "--to", "logmq:readings", "--as", "json")
    assert said(*make, "--filter", "max_bytes=10", "--dry-run", "--json") == (
        '{"bridge": "sensors", "created": 1}\n'
    )
    assert said("list", "--json") == ""
    said(*make, "--filter", "max_bytes=10")
    own = json.loads((server.data / "bridges.json").read_text())
    assert own == [
        {
            "name": "sensors",
            "from": "pubsub:home/*",
            "to": "logmq:readings",
            "as": "json",
            "filter": {"max_bytes": 10},
        }
    ]
    assert "there is a bridge sensors already" in said(*make, code=ExitCode.FAILED)
    assert "is not KEY=VALUE" in said(*make, "--filter", "x", code=ExitCode.USAGE)
    said("change", "sensors", "--rate", "5/s", "--unset", "filter")
    (row,) = json.loads((server.data / "bridges.json").read_text())
    assert (row.get("filter"), row["rate"]) == (None, "5/s")
    said("pause", "sensors")
    assert json.loads(said("list", "--json"))["state"] == "paused"
    said("resume", "sensors")
    assert said("delete", "sensors", "--json") == '{"bridge": "sensors", "deleted": 1}\n'
    assert said("list", "--json") == ""
    assert said("delete", "sensors", code=ExitCode.MISSING) == "brokers: there is no bridge sensors\n"
