"""The real server, killed while times of a schedule pass, and started on a wall clock that has gone on."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.support import dms_spec as spec
from tests.support.server import Server, until
from tests.trials.planted import WALL

QUEUE = "clock"
SCHEDULE = [{"every": "1h", "body": "hour"}, {"cron": "*/5 * * * *", "body": "five"}]


@contextmanager
def killed_at_its_end(folder: Path, text: str) -> Iterator[spec.SpecClient]:
    """A client of a server that begins at that time of 2030-01-01."""
    moment = datetime.fromisoformat(f"2030-01-01T{text}").replace(tzinfo=UTC).timestamp()
    with (
        Server(folder, "--enable", "dms", bug=f"{WALL}{moment:.0f}") as server,
        spec.SpecClient(server.address("dms"), bytes_max=spec.WITH_BYTES_MAX) as client,
    ):
        yield client
        server.kill()


def take(client: spec.SpecClient, count: int) -> dict[tuple[str, str], int]:
    """All that comes, of which there must be so many: body and time, with the delivery."""
    until(lambda: client.queues()[QUEUE] == count)
    found: dict[tuple[str, str], int] = {}
    for _ in range(count):
        type_, _, delivery, payload = client.ask(spec.CONSUME_WITH, spec.name(QUEUE))
        assert type_ == spec.DELIVER_WITH
        about, body = spec.split_object(payload)
        time = about["headers"]["scheduled"] / 1000
        found[body.decode(), f"{datetime.fromtimestamp(time, UTC):%H:%M}"] = delivery
    return found


def test_what_a_killed_server_missed_comes_once_and_never_again(tmp_path: Path) -> None:
    with killed_at_its_end(tmp_path, "10:17:30") as client:
        client.create(QUEUE, json.dumps({"schedule": SCHEDULE}).encode())
    with killed_at_its_end(tmp_path, "13:47:30") as client:
        found = take(client, 2)
        assert found.keys() == {("hour", "13:00"), ("five", "13:45")}
        client.ack(found["hour", "13:00"])
    with killed_at_its_end(tmp_path, "13:53:30") as client:
        found = take(client, 2)
        assert found.keys() == {("five", "13:45"), ("five", "13:50")}
        for delivery in found.values():
            client.ack(delivery)
    with killed_at_its_end(tmp_path, "14:00:30") as client:  # both schedules are looked at together
        assert take(client, 2).keys() == {("hour", "14:00"), ("five", "14:00")}
