"""The control socket: what it answers, who may ask, and what a caller is told."""

import http.client
import json
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from brokers.admin import api, application
from brokers.commands import control
from brokers.errors import ExitCode, Failure
from shared.access import ASKER
from shared.actions import action
from shared.errors import BrokerError, LogMissing
from shared.metrics import Sample
from shared.objects import QUEUES, Action, Objects, key_of
from tests.support.installed import quiet_log


def acting(*actions: Action) -> Objects:
    """One queue, `q`, on which these actions can be done."""
    found = {"q": "q"}
    return Objects(QUEUES, lambda: ["q"], key_of, lambda parts: found.get(parts[0]), lambda _: {}, actions)


QUEUE = "/api/v1/queues/a/q"


class Host:
    """A host that is whatever the test says."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.but: str | None = None
        self.calls: list[Mapping[str, Any]] = []
        self.askers: list[str] = []
        self.backed_up: Path | None = None
        actions = (self.echo, self.strict, self.refuse, self.miss, self.crash)
        self.has: list[tuple[str, Objects]] = [("a", acting(*actions))]

    @action("echo", "Say it again.", takes={"x": "anything"}, looks=True)
    async def echo(self, _: Any, arguments: Mapping[str, Any], __: bool) -> Any:
        self.calls.append(arguments)
        self.askers.append(ASKER.get())
        return {"echo": arguments}

    @action("strict", "Say it again.", takes={"one": "1", "two": "2"}, looks=True)
    async def strict(self, _: Any, arguments: Mapping[str, Any], __: bool) -> Any:
        self.calls.append(arguments)
        return {"echo": arguments}

    @action("refuse", "Say no.", takes={"three": "3"}, looks=True)
    async def refuse(self, *_: Any) -> Any:
        raise BrokerError("not today")

    @action("miss", "Find none.", takes={"three": "3"}, looks=True)
    async def miss(self, *_: Any) -> Any:
        raise LogMissing("there is none")

    @action("crash", "Break.", takes={"three": "3"}, looks=True)
    async def crash(self, *_: Any) -> Any:
        raise KeyError("a bug")

    def unready(self) -> str | None:
        return self.reason

    def status(self) -> Mapping[str, Any]:
        return {"state": "ready"}

    def samples(self) -> Sequence[Sample]:
        return [
            Sample("frames_total", 3, "Frames.", labels=(("protocol", "a"),)),
            Sample("frames_total", 4, "Frames.", labels=(("protocol", 'b"\n'),)),
            Sample("waiting_bytes", 1.5, "Bytes that wait.", "gauge"),
        ]

    def objects(self) -> Sequence[tuple[str, Objects]]:
        return self.has

    def overview(self) -> Mapping[str, Any]:
        return {"state": "ready"}

    async def cost_of_stop(self) -> Mapping[str, Any]:
        return {"safe": True, "reasons": []}

    backups = Path("/nowhere/backups")

    def share_of(self, user: str) -> int:
        return 100

    def ready_but(self) -> str | None:
        return self.but

    async def backup(self, target: Path) -> Any:
        if target.name == "full":
            raise OSError(28, "No space left on device", str(target))
        self.backed_up = target
        return {"bytes": 5}


@asynccontextmanager
async def serving(folder: Path, log: structlog.stdlib.BoundLogger | None = None) -> AsyncIterator[Host]:
    host = Host()
    listener = control.listen(folder)
    async with trio.open_nursery() as nursery:
        await nursery.start(application.serve, host, listener, log or quiet_log())
        yield host
        nursery.cancel_scope.cancel()


async def ask(folder: Path, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    return await trio.to_thread.run_sync(control.request, folder, method, path, body)


async def test_health_is_two_questions(tmp_path: Path) -> None:
    async with serving(tmp_path) as host:
        assert await ask(tmp_path, "GET", "/livez") == "ok\n"
        assert await ask(tmp_path, "GET", "/readyz") == "ok\n"
        host.but = "fenced: nothing is shipped"
        assert await ask(tmp_path, "GET", "/readyz") == "ok; fenced: nothing is shipped\n"
        host.reason = "the store is read-only: a sync failed"
        assert await ask(tmp_path, "GET", "/livez") == "ok\n"
        with pytest.raises(Failure, match="503"):
            await ask(tmp_path, "GET", "/readyz")


async def test_a_scraper_can_read_the_metrics(tmp_path: Path) -> None:
    async with serving(tmp_path):
        text = await ask(tmp_path, "GET", "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    frames = families["brokers_frames"]
    assert frames.type == "counter"
    assert {(s.name, s.labels["protocol"], s.value) for s in frames.samples} == {
        ("brokers_frames_total", "a", 3.0),
        ("brokers_frames_total", 'b"\n', 4.0),
    }
    assert families["brokers_waiting_bytes"].samples[0].value == 1.5
    assert "process_resident_memory_bytes" in families


async def test_an_action_is_called_with_its_arguments(tmp_path: Path) -> None:
    async with serving(tmp_path) as host:
        assert await ask(tmp_path, "POST", f"{QUEUE}/echo", {"x": 1}) == {"echo": {"x": 1}}
        assert await ask(tmp_path, "POST", f"{QUEUE}/echo") == {"echo": {}}
        assert host.calls == [{"x": 1}, {}]


@pytest.mark.parametrize(("method", "path"), [("POST", "/dms/purge"), ("POST", "/a/b"), ("GET", "/verbs")])
async def test_a_path_of_the_verbs_that_were_says_what_to_use_instead(
    tmp_path: Path, method: str, path: str
) -> None:
    async with serving(tmp_path):
        with pytest.raises(Failure, match=r"verbs were removed.*/api/v1/openapi\.json"):
            await ask(tmp_path, method, path)


async def test_an_argument_that_an_action_does_not_take_is_refused_before_the_call(tmp_path: Path) -> None:
    async with serving(tmp_path) as host:
        with pytest.raises(Failure, match="tow: no such argument; strict takes one, two"):
            await ask(tmp_path, "POST", f"{QUEUE}/strict", {"one": 1, "tow": 2})
        assert host.calls == []
        assert await ask(tmp_path, "POST", f"{QUEUE}/strict", {"two": 2}) == {"echo": {"two": 2}}


async def test_a_refusal_reaches_the_caller_in_its_own_words(tmp_path: Path) -> None:
    async with serving(tmp_path):
        with pytest.raises(Failure, match="not today") as refusal:
            await ask(tmp_path, "POST", f"{QUEUE}/refuse")
        assert refusal.value.code == ExitCode.FAILED
        with pytest.raises(Failure, match="there is no queue q in b"):
            await ask(tmp_path, "POST", "/api/v1/queues/b/q/echo")


async def test_an_action_that_crashes_harms_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path):
        with pytest.raises(Failure, match="500"):
            await ask(tmp_path, "POST", f"{QUEUE}/crash")
        assert await ask(tmp_path, "GET", "/livez") == "ok\n"


async def test_a_backup_needs_a_place_and_room(tmp_path: Path) -> None:
    async with serving(tmp_path) as host:
        assert await ask(tmp_path, "POST", "/backup", {"target": "/b"}) == {"bytes": 5}
        assert host.backed_up == Path("/b")
        with pytest.raises(Failure, match="absolute"):
            await ask(tmp_path, "POST", "/backup", {"target": "b"})
        with pytest.raises(Failure, match=r"^backup /full: No space left on device: free some"):
            await ask(tmp_path, "POST", "/backup", {"target": "/full"})


async def test_what_is_no_request_is_refused(near_path: Path) -> None:
    async with serving(near_path):
        too_large = b" " * (api.BODY_BYTES_MAX + 1)
        deep = b"[" * 50_000
        for body, status in (
            (b"[1]", 400),
            (b"{", 400),
            (deep, 400),
            (b'{"a": "\\udcff"}', 400),
            (too_large, 413),
        ):
            async with await trio.open_unix_socket(str(near_path / control.NAME)) as stream:
                head = f"POST {QUEUE}/echo HTTP/1.1\r\nHost: b\r\nContent-Length: {len(body)}\r\n\r\n"
                with suppress(trio.BrokenResourceError):  # it may have answered
                    await stream.send_all(head.encode() + body)
                answer = bytes(await stream.receive_some(65536))
                assert answer.startswith(b"HTTP/1.1 %d" % status)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", f"{QUEUE}/refuse", 409),
        ("POST", f"{QUEUE}/strict", 400),
        ("POST", f"{QUEUE}/crash", 500),
        ("POST", f"{QUEUE}/miss", 409),
        ("POST", "/api/v1/queues/b/q/echo", 404),
        ("POST", "/b/echo", 410),
        ("POST", "/metrics", 405),
        ("GET", "/nowhere", 404),
        ("GET", "/api/v1/nothing", 404),
        ("POST", "/backup", 403),
    ],
)
async def test_every_error_of_the_control_socket_is_a_problem_document(
    near_path: Path, method: str, path: str, status: int
) -> None:
    def heard() -> tuple[int, str, Mapping[str, Any]]:
        with closing(control.ControlConnection(near_path)) as connection:
            more = {"Origin": "http://page"} if status == 403 else {}
            with suppress(BrokenPipeError):  # it may have answered before the body
                connection.request(method, path, b'{"three": 3}' if method == "POST" else None, more)
            answer = connection.getresponse()
            return answer.status, answer.headers.get_content_type(), json.loads(answer.read())

    async with serving(near_path):
        code, kind, found = await trio.to_thread.run_sync(heard)
    assert (code, kind, found["status"]) == (status, "application/problem+json", status)
    assert found["title"]
    assert isinstance(found["detail"], str)
    assert found.get("exit_code") == (66 if path == f"{QUEUE}/miss" else 2 if status == 400 else None)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", [f"{QUEUE}/echo", "/backup", "/nowhere"])
async def test_a_web_page_changes_nothing_wherever_it_is_from(
    near_path: Path, method: str, path: str
) -> None:
    async def status(method: str, path: str, *, origin: str = "", header: str = "Origin") -> int:
        async with await trio.open_unix_socket(str(near_path / control.NAME)) as stream:
            said = f"{header}: {origin}\r\n" if origin else ""
            head = f"{method} {path} HTTP/1.1\r\nHost: b\r\n{said}Content-Length: 2\r\n\r\n{{}}"
            await stream.send_all(head.encode())
            return int((await stream.receive_some(65536)).split()[1])

    with capture_logs() as logged:
        async with serving(near_path, structlog.stdlib.get_logger()) as host:
            for origin in ("http://b", "https://evil.example", "null"):
                assert await status(method, path, origin=origin) == 403
            assert await status(method, path, origin="cross-site", header="Sec-Fetch-Site") == 403
            assert (host.calls, host.backed_up) == ([], None)
            assert await status("GET", "/metrics", origin="http://grafana") == 200
            assert await status("POST", f"{QUEUE}/echo") == 200
    assert {line["path"] for line in logged} == {repr(path)}
    assert [line["origin"] for line in logged] == ["'http://b'", "'https://evil.example'", "'null'", "''"]


@pytest.mark.parametrize(
    "data",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(200),
        b"GET / HTTP/1.1\r\nHost: b\r\nUpgrade: h2c\r\nConnection: upgrade\r\nHTTP2-Settings: AAAA\r\n\r\n",
        b"POST /api/v1/queues/a/q/echo HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"x" * 70_000,
        b"POST /api/v1/queues/a/q/echo HTTP/1.1\r\nHost: b\r\nContent-Length: 100\r\n\r\nabc",
        b"\xff\x00" * 100,
    ],
)
async def test_a_caller_who_talks_nonsense_harms_nobody(near_path: Path, data: bytes) -> None:
    async with serving(near_path):
        async with await trio.open_unix_socket(str(near_path / control.NAME)) as stream:
            await stream.send_all(data)
            await stream.send_eof()
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass
        assert await ask(near_path, "GET", "/livez") == "ok\n"


async def test_a_socket_left_by_a_killed_server_is_replaced(near_path: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(near_path / control.NAME))
    stale.close()
    with pytest.raises(Failure) as refusal:
        await ask(near_path, "GET", "/livez")
    assert refusal.value.code == ExitCode.UNAVAILABLE
    async with serving(near_path):
        assert await ask(near_path, "GET", "/livez") == "ok\n"


async def test_a_data_folder_with_a_long_path_has_a_control_socket_too(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    folder.mkdir(parents=True)
    async with serving(folder):
        assert (folder / control.NAME).is_socket()
        assert stat.S_IMODE((folder / control.NAME).stat().st_mode) == 0o600
        assert await ask(folder, "GET", "/livez") == "ok\n"
    control.remove(folder, os.lstat(folder / control.NAME))
    assert not (folder / control.NAME).exists()


def test_a_server_that_hangs_does_not_hang_who_asks_how_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "ANSWER_SECONDS", 0.05)
    with closing(control.listen(tmp_path)), pytest.raises(Failure, match="does not answer") as refused:
        control.request(tmp_path, "GET", "/status")
    assert refused.value.code == ExitCode.FAILED


@contextmanager
def a_server_that_says(said: bytes, folder: Path, *, heard_bytes: int) -> Iterator[None]:
    """At a control socket: it hears so many bytes of one request, answers that, and closes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / control.NAME))
        listener.listen()

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(heard_bytes)
                connection.sendall(said)

        answering = threading.Thread(target=answer)
        answering.start()
        yield
        answering.join()


def test_an_answer_that_comes_before_all_was_asked_is_heard(near_path: Path) -> None:
    """A server that knows no such verb says so, and closes, on seeing the first line."""
    said = b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\n"
    with (
        a_server_that_says(said + b'{"detail": "none"}', near_path, heard_bytes=10),
        pytest.raises(Failure, match="none") as refused,
    ):
        control.request(near_path, "POST", "/logmq/nix", {"topic": "t" * 5_000_000})
    assert refused.value.code == ExitCode.FAILED


def test_only_what_asks_has_a_time_to_be_answered_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float | None] = []

    class Connection(control.ControlConnection):
        def connect(self) -> None:
            self.sock, other = socket.socketpair()
            self.sock.settimeout(self.timeout)
            other.close()

        def getresponse(self) -> http.client.HTTPResponse:
            given.append(self.sock.gettimeout())
            raise ConnectionResetError

    monkeypatch.setattr(control, "ControlConnection", Connection)
    for method in ("GET", "POST"):
        with pytest.raises(Failure):
            control.request(tmp_path, method, "/backup", {})
    assert given == [control.ANSWER_SECONDS, None]  # a backup takes as long as it takes


@pytest.mark.parametrize("left_out", ["fchmod", "chmod"])
def test_the_socket_is_its_owners_by_either_way_to_say_so(
    near_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    """By the first from the moment that it has a name; others than Linux know the second alone."""
    monkeypatch.setattr(control.os, left_out, lambda *_: None)
    with closing(control.listen(near_path)):
        assert stat.S_IMODE((near_path / control.NAME).stat().st_mode) == 0o600
