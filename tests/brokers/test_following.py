"""Log lines as a list and as server-sent events, in memory and on a real server."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import trio
from starlette.requests import Request

from brokers.admin.following import Followers
from brokers.commands.control import ControlConnection
from brokers.host import logs
from brokers.host.recent import KEPT, Recent
from tests.brokers.asking import Asking
from tests.support.server import Server, speak


def asked(query: str = "", **more: Any) -> Request:
    return Request({"type": "http", "query_string": query.encode(), "headers": [], **more})


async def events(parts: Any, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async for part in parts:
        blocks = [block.split("\n") for block in part.decode().split("\n\n")]
        found += [dict(line.split(": ", 1) for line in block) for block in blocks if len(block) > 1]
        if len(found) >= count:
            break
    return found


def test_the_last_rows_are_a_list_that_goes_on_behind_an_id() -> None:
    recent, followers = Recent(), Followers()
    for number in range(KEPT + 50):
        recent.add({"n": number})

    def listed(query: str) -> Any:
        return json.loads(bytes(followers.answer(asked(query), recent, lambda row: row["n"] % 2 == 0).body))

    assert [row["n"] for row in listed("limit=3")["items"]] == [244, 246, 248]
    page = listed("after=60&limit=2")
    assert ([row["id"] for row in page["items"]], page["next"]) == ([61, 63], "63")
    assert listed("after=247") == {"items": [{"id": 249, "n": 248}], "next": None}


async def test_a_follower_gets_what_is_kept_then_what_comes_and_is_told_what_it_missed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recent, followers = Recent(), Followers()
    recent.add({"n": 1})
    stream = followers.answer(asked("follow=1"), recent, lambda row: True).body_iterator  # type: ignore[attr-defined]
    assert await events(stream, 1) == [{"id": "1", "data": '{"id": 1, "n": 1}'}]
    for number in range(2, KEPT + 7):
        recent.add({"n": number})
    first, second, *_ = await events(stream, 2)
    assert first == {"event": "missed", "data": '{"count": 5}'}
    assert second["id"] == "7"
    assert followers.count == 1
    await stream.aclose()
    assert followers.count == 0


async def test_a_stream_ends_with_the_right_to_it(autojump_clock: trio.testing.MockClock) -> None:
    rights = [True, True, False]
    request = asked("follow=1", **{"brokers.allowed": lambda: rights.pop(0)})
    stream = Followers().answer(request, Recent(), lambda row: True).body_iterator  # type: ignore[attr-defined]
    assert [part async for part in stream] == [b": follows\n\n"]
    assert rights == []


def test_lines_are_chosen_by_level_and_the_audit_log_is_never_above_info() -> None:
    levels = ["debug", "info", "audit", "warning", "error"]

    def chosen(level: str) -> Sequence[str]:
        return [each for each in levels if logs.at_least(level)({"level": each})]

    assert chosen("debug") == levels
    assert chosen("info") == levels[1:]
    assert chosen("warning") == ["warning", "error"]
    assert chosen("audit") == ["audit"]
    refused = logs.at_least("refused")
    said = [{"level": "audit", "fields": {"result": result}} for result in ("done", "refused")]
    assert [refused(row) for row in said] == [False, True]
    assert refused({"level": "warning"})


def test_the_log_of_a_server_is_followed(shared_server: Server) -> None:
    with Asking(shared_server, "/api/v1/logs?follow=1&level=warning") as asking:
        assert asking.answer.headers.get_content_type() == "text/event-stream"
        speak(shared_server.address("logmq"), b"GET / HTTP/1.1\r\n")
        row = next(row for row in asking.events() if row["protocol"] == "logmq")
    assert set(row) == {"id", "time", "level", "protocol", "event", "fields"}
    assert row["level"] == "warning"
    with Asking(shared_server, "/api/v1/logs?level=warning") as asking:
        assert row in json.load(asking.answer)["items"]


def test_a_server_with_followers_on_both_doors_stops(tmp_path: Path) -> None:
    with Server(tmp_path) as server, Asking(server, "/api/v1/logs?follow=1") as asking:
        assert next(asking.events())["event"] == "listening"
        with closing(ControlConnection(server.data)) as connection:
            connection.request("GET", "/api/v1/logs?follow=1")
            with connection.getresponse() as answer:
                assert answer.readline() == b": follows\n"
                assert server.stop() == 0
