"""The admin port: who may ask what, and that no flood of connections or slow requests hurts anybody."""

import base64
import errno
import json
import os
import stat
import time
from collections.abc import AsyncIterator, Iterator, Mapping, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from brokers.access.logins import Logins
from brokers.admin import api, application, definitions
from brokers.admin import gate as admin_gate
from brokers.admin import port as admin_port
from brokers.admin.gate import HEADERS, Gate, token_of
from brokers.admin.port import AdminPort, listen
from brokers.page import files
from shared.access import Access, Rule, Secret, User
from shared.net.strangers import Strangers
from shared.objects import Action
from tests.brokers.test_admin import QUEUE, Host, acting
from tests.support.forked import quick_passwords
from tests.support.installed import quiet_log

TOKEN = "a-token-of-the-test"
JSON = {"Content-Type": "application/json"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LOGIN = f"Authorization: Bearer {TOKEN}"
AS_JSON = "Content-Type: application/json"


def user(name: str, *rules: str) -> User:
    return User(name, tuple(map(Rule.parse, rules)), Secret.make(b"secret", b"s" * 16))


def basic(name: str, password: str = "secret") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


@attrs.frozen
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@attrs.define(eq=False)
class Port:
    """An admin port that is served, and what asks it."""

    bound: AdminPort
    access: Access
    host: Host
    audited: list[Mapping[str, str]]
    told: list[Mapping[str, Any]]
    """Its own log."""

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.bound.address[1]}"

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(*self.bound.address)

    def head(self, asked: str, *lines: str) -> bytes:
        """`asked`: method and path."""
        return "\r\n".join([f"{asked} HTTP/1.1", f"Host: {self.name}", *lines, "", ""]).encode()

    async def ask(
        self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET", body: bytes = b""
    ) -> Answer:
        lines = {"Host": self.name, "Connection": "close", "Content-Length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **(headers or {})}.items())
        async with await self.connect() as stream:
            await stream.send_all(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
            return await heard(stream)


async def heard(stream: trio.SocketStream) -> Answer:
    """What comes until the connection ends."""
    return parsed(b"".join([part async for part in stream]))


def parsed(data: bytes) -> Answer:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Answer(int(first.split()[1]), headers, body)


@pytest.fixture(autouse=True)
def _quick_passwords() -> Iterator[None]:
    with quick_passwords():
        yield


@asynccontextmanager
async def admin_port_at(host: str = "127.0.0.1", **options: Any) -> AsyncIterator[Port]:
    audited: list[Mapping[str, str]] = []
    users = {each.name: each for each in (user("ann", "admin:read"), user("bob", "admin:*"), user("eve"))}
    access = Access(users, audit=lambda **line: audited.append(line))
    logins = Logins(access)
    operated = Host()
    told: list[Mapping[str, Any]] = []
    bound = AdminPort(listen("127.0.0.1", 0), quiet_log(told), Strangers())
    gate = Gate(
        application.application(operated),
        access,
        logins,
        token=TOKEN,
        host=host,
        port=bound.address[1],
        **options,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(logins.run)
        await nursery.start(bound.serve, gate)
        yield Port(bound, access, operated, audited, told)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    async with admin_port_at() as port:
        yield port


async def test_health_and_metrics_are_open_on_loopback_and_nothing_else_is(port: Port) -> None:
    for path in ("/livez", "/readyz", "/metrics"):
        assert (await port.ask(path)).status == 200
    for path in ("/", "/status", "/api/v1/overview", "/nothing"):
        answer = await port.ask(path)
        assert (answer.status, answer.headers["content-type"]) == (401, "application/problem+json")
        assert answer.json["status"] == 401
        assert answer.headers["www-authenticate"].startswith("Basic ")


async def test_beyond_loopback_nothing_is_open() -> None:
    async with admin_port_at("0.0.0.0") as port:
        for path in ("/livez", "/readyz", "/metrics", "/status"):
            assert (await port.ask(path)).status == 401
            assert (await port.ask(path, BEARER)).status == 200


async def test_users_do_what_their_admin_rules_allow(port: Port) -> None:
    assert (await port.ask("/status", basic("ann"))).status == 200
    assert (await port.ask(f"{QUEUE}/echo", {**basic("ann"), **JSON}, "POST", b"{}")).status == 403
    assert (await port.ask(f"{QUEUE}/echo", {**basic("bob"), **JSON}, "POST", b"{}")).status == 200
    assert (await port.ask("/status", basic("eve"))).status == 403
    assert (await port.ask("/status", basic("ann", "wrong"))).status == 401
    assert (port.host.calls, port.host.askers) == ([{}], ["bob"])
    assert [line["user"] for line in port.audited] == ["ann"]


async def test_a_token_opens_everything_and_another_nothing(port: Port) -> None:
    assert (await port.ask(f"{QUEUE}/echo", {**BEARER, **JSON}, "POST", b"{}")).status == 200
    assert port.host.askers == [""], "who may do everything"
    for wrong in ("Bearer x", "Bearer", "Basic !!", "Basic " + base64.b64encode(b"none").decode()):
        assert (await port.ask("/status", {"Authorization": wrong})).status == 401
    assert port.access.guards["admin"].logins_failed == 4


async def test_the_token_in_an_address_is_traded_for_a_cookie(port: Port) -> None:
    answer = await port.ask(f"/status?token={TOKEN}&x=1")
    assert (answer.status, answer.headers["location"]) == (303, "/status?x=1")
    said = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(said.split("; "))
    assert TOKEN not in str(answer.headers)
    cookie = {"Cookie": said.partition(";")[0]}
    assert (await port.ask("/status", cookie)).status == 200
    assert (await port.ask(f"{QUEUE}/echo", {**cookie, **JSON}, "POST", b"{}")).status == 200
    assert (await port.ask("/status?token=other")).status == 401
    assert (await port.ask(f"{QUEUE}/echo?token={TOKEN}", JSON, "POST", b"{}")).status == 200
    assert (await port.ask(f"{QUEUE}/echo?token=other", JSON, "POST", b"{}")).status == 401


async def test_the_trade_leads_to_no_other_server(port: Port) -> None:
    for path in ("//example.org/", "/\\example.org/"):
        where = (await port.ask(f"{path}?token={TOKEN}")).headers["location"]
        assert where == "/example.org/"


async def test_a_session_that_somebody_else_chose_is_none(port: Port) -> None:
    chosen = {"Cookie": f"brokers_{port.bound.address[1]}=chosen"}
    assert (await port.ask("/status", chosen)).status == 401
    told = (await port.ask(f"/?token={TOKEN}", chosen)).headers["set-cookie"]
    assert "chosen" not in told


HTML = {"Accept": "text/html,application/xhtml+xml"}


async def log_in(port: Port, given: Any, headers: Mapping[str, str] | None = None) -> Answer:
    return await port.ask("/login", {**JSON, **(headers or {})}, "POST", json.dumps(given).encode())


async def test_a_browser_gets_a_form_and_no_window_of_its_own(port: Port) -> None:
    for path in ("/", "/queues?sort=-ready", "/nothing"):
        answer = await port.ask(path, HTML)
        assert (answer.status, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert b"<form" in answer.body
        assert "www-authenticate" not in answer.headers
        assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
    ended = {"Cookie": f"brokers_{port.bound.address[1]}=ended"}
    assert "www-authenticate" not in (await port.ask("/api/v1/history", ended)).headers


async def test_the_form_begins_a_session_and_logging_out_ends_it(port: Port) -> None:
    for given in ({"user": "ann", "password": "secret"}, {"token": TOKEN}):
        chosen = {"Cookie": f"brokers_{port.bound.address[1]}=chosen"}
        answer = await log_in(port, given, chosen)
        assert answer.status == 200
        said = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(said.split("; "))
        assert "chosen" not in said
        cookie = {"Cookie": said.partition(";")[0]}
        assert (await port.ask("/status", cookie)).status == 200
        ended = await port.ask("/logout", {**cookie, **JSON}, "POST", b"{}")
        assert "Max-Age=0" in ended.headers["set-cookie"]
        assert (await port.ask("/status", cookie)).status == 401


async def test_a_new_login_ends_the_session_before_it(port: Port) -> None:
    cookies = []
    for headers in ({}, {"Cookie": "first"}):
        first = {"Cookie": cookies[0]} if headers else {}
        answer = await log_in(port, {"token": TOKEN}, first)
        cookies.append(answer.headers["set-cookie"].partition(";")[0])
    before, now = [(await port.ask("/status", {"Cookie": each})).status for each in cookies]
    assert (before, now) == (401, 200)


async def test_a_login_that_does_not_fit_is_told_counted_and_no_session(port: Port) -> None:
    for given, status in (
        ({"user": "ann", "password": "wrong"}, 401),
        ({"user": "nobody", "password": "secret"}, 401),
        ({"token": "wrong"}, 401),
        ({"user": "eve", "password": "secret"}, 403),
        ({"user": "ann"}, 400),
        ([], 400),
        ({"user": "ann", "password": "x" * 4000}, 400),
    ):
        answer = await log_in(port, given)
        assert (answer.status, "set-cookie" in answer.headers) == (status, False), given
    assert port.access.guards["admin"].logins_failed == 3
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert (await port.ask("/login", form, "POST", b"token=" + TOKEN.encode())).status == 415
    elsewhere = {"Origin": "http://example.org"}
    assert (await log_in(port, {"token": TOKEN}, elsewhere)).status == 403


async def test_the_files_of_the_form_are_open_and_nothing_beside_them() -> None:
    async with admin_port_at("0.0.0.0") as port:
        for path in files.FILES:
            answer = await port.ask(path)
            assert (answer.status, "immutable" in answer.headers["cache-control"]) == (200, True)
        for path in ("/static/", "/static/../admin.token", "/static/none.css", "/static/%2e%2e/views.py"):
            assert (await port.ask(path)).status == 401


@pytest.mark.parametrize(
    "name", ["example.org", "127.0.0.1.example.org", "10.0.0.1", "", "a:b", "127.0.0.1:x"]
)
async def test_a_name_that_is_not_the_servers_is_refused(port: Port, name: str) -> None:
    for path in ("/metrics", "/status"):
        assert (await port.ask(path, {**BEARER, "Host": name})).status == 421
    assert (await port.ask("/livez", {"Host": name or "x"})).status == 200


async def test_loopback_and_the_settings_give_names() -> None:
    async with admin_port_at(names=("broker.example",)) as port:
        for name in ("localhost:1", "127.0.0.1", "[::1]:5", "LOCALHOST", "broker.example"):
            assert (await port.ask("/status", {**BEARER, "Host": name})).status == 200


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {"Origin": "https://example.org", **JSON}, 403),
        ("POST", {"Origin": "null", **JSON}, 403),
        ("POST", {"Sec-Fetch-Site": "same-site", **JSON}, 403),
        ("POST", {"Sec-Fetch-Site": "same-origin", **JSON}, 200),
        ("POST", JSON, 200),
        ("POST", {}, 415),
        ("POST", {"Content-Type": "text/plain"}, 415),
        ("POST", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ("OPTIONS", {"Origin": "https://example.org"}, 403),
    ],
)
async def test_what_changes_something_is_json_of_the_same_origin(
    port: Port, method: str, headers: dict[str, str], status: int
) -> None:
    assert (await port.ask(f"{QUEUE}/echo", {**BEARER, **headers}, method, b"{}")).status == status
    assert len(port.host.calls) == (status == 200)


async def test_a_page_of_another_site_reads_nothing_but_may_link_here(port: Port) -> None:
    for headers in ({"Origin": "https://example.org"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await port.ask("/status", {**BEARER, **headers})).status == 403
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (await port.ask("/status", {**BEARER, **link})).status == 200
    own = {"Origin": f"http://{port.name}", "Sec-Fetch-Site": "same-origin", **JSON}
    assert (await port.ask(f"{QUEUE}/echo", {**BEARER, **own}, "POST", b"{}")).status == 200


async def test_an_event_source_of_another_site_hears_nothing(port: Port) -> None:
    for path in ("/api/v1/logs?follow=1", "/api/v1/trace?name=x&follow=1"):
        for site in ({"Origin": "https://example.org"}, {"Sec-Fetch-Site": "cross-site"}):
            given = {**BEARER, "Accept": "text/event-stream", **site}
            assert (await port.ask(path, given)).status == 403


async def test_a_token_that_stands_in_a_referer_opens_nothing(port: Port) -> None:
    referer = {"Referer": f"http://{port.name}/?token={TOKEN}"}
    assert (await port.ask("/status", referer)).status == 401
    assert (await port.ask(f"{QUEUE}/echo", {**referer, **JSON}, "POST", b"{}")).status == 401


@pytest.mark.parametrize(
    "path",
    [
        "/livez/../status",
        "/livez/%2e%2e/status",
        "/metrics/..%2fstatus",
        "//status",
        "/./status",
        "/livez%2f..%2fstatus",
        "/metrics%00",
        "/livez;x",
        "http://127.0.0.1/status",
        "/STATUS",
    ],
)
async def test_no_spelling_of_a_path_opens_what_needs_a_login(port: Port, path: str) -> None:
    answer = await port.ask(path)
    assert answer.status in (400, 401, 404, 421), answer


async def test_every_answer_has_the_policy_of_the_page(port: Port) -> None:
    for answer in (
        await port.ask("/livez"),
        await port.ask("/status"),
        await port.ask("/status", BEARER),
    ):
        assert {name.lower() for name in HEADERS} <= set(answer.headers)


async def test_an_upgrade_to_a_web_socket_is_refused(port: Port) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    assert (await port.ask("/status", {**BEARER, **upgrade})).status == 403


async def test_a_session_ends_with_its_user_and_with_the_password_that_it_was_begun_with(port: Port) -> None:
    answer = await log_in(port, {"user": "ann", "password": "secret"})
    cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
    users = dict(port.access.users or {})
    another = attrs.evolve(users["ann"], password=Secret.make(b"another", b"s" * 16))
    gone = {name: user for name, user in users.items() if name != "ann"}
    for now, status in ((users, 200), ({**users, "ann": another}, 401), (users, 200), (gone, 401)):
        port.access.replace(now)
        assert (await port.ask("/status", cookie)).status == status


@pytest.mark.parametrize(
    ("pace_seconds", "count"), [(0, admin_port.CONNECTIONS_MAX + 20), (1000, 2 * admin_port.FEW)]
)
async def test_connections_that_send_nothing_keep_no_administrator_out(
    pace_seconds: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those that hold every place nor those that come in a burst."""
    monkeypatch.setattr(admin_port, "PACE_SECONDS", pace_seconds)
    async with admin_port_at() as port:
        idle = [await port.connect() for _ in range(count)]
        with trio.fail_after(30):
            assert (await port.ask("/status", BEARER)).status == 200
        for stream in idle:
            await stream.aclose()


async def test_a_connection_that_its_client_closes_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_port, "CONNECTIONS_MAX", 8)
    async with admin_port_at() as port:
        with trio.fail_after(4):  # less than what a silent connection is allowed
            for _ in range(24):
                async with await port.connect() as stream:
                    await stream.send_all(port.head("GET /status", LOGIN))
                    data = bytearray()
                    while not data.endswith(b"}"):
                        data += await stream.receive_some()
                    assert parsed(bytes(data)).status == 200
                    await trio.testing.wait_all_tasks_blocked(0.005)  # the server waits for another request


async def test_an_answer_that_is_under_way_comes_whole_to_a_client_that_closes_its_side(port: Port) -> None:
    async with await port.connect() as stream:
        await stream.send_all(port.head("GET /status", LOGIN))
        await stream.send_eof()
        with trio.fail_after(4):
            assert (await heard(stream)).status == 200


async def test_nobody_without_a_login_has_a_body_read(port: Port) -> None:
    async with await port.connect() as stream:
        await stream.send_all(port.head(f"POST {QUEUE}/echo", AS_JSON, "Content-Length: 1000000"))
        assert parsed(await stream.receive_some()).status == 401


async def test_a_body_that_does_not_come_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_port, "BODY_SECONDS", 0.05)
    async with admin_port_at() as port, await port.connect() as stream:
        head = port.head(f"POST {QUEUE}/echo", LOGIN, AS_JSON, "Content-Length: 9")
        await stream.send_all(head + b"{")
        with trio.fail_after(5):
            answer = await heard(stream)
        assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
        assert answer.json["detail"] == "the body did not come whole, or not in time"
        assert port.host.calls == []


@pytest.mark.parametrize(
    ("path", "length", "status"),
    [
        (f"{QUEUE}/echo", api.BODY_BYTES_MAX + 1, 413),
        (f"{QUEUE}/echo", 10**15, 413),
        ("/api/v1/definitions", definitions.BYTES_MAX + 1, 413),
        ("/login", admin_gate.CREDENTIALS_BYTES_MAX + 1, 400),
    ],
)
async def test_a_body_that_is_announced_as_too_large_is_refused_at_once(
    port: Port, path: str, length: int, status: int
) -> None:
    """Also where nothing of it comes: its connection would hold a place until the deadline."""
    async with await port.connect() as stream:
        await stream.send_all(port.head(f"POST {path}", LOGIN, AS_JSON, f"Content-Length: {length}"))
        with trio.fail_after(5):
            assert (await heard(stream)).status == status


@pytest.mark.parametrize(
    ("length", "body"), [("Content-Length: 9", b"{"), ("Transfer-Encoding: chunked", b"no\r\n")]
)
@pytest.mark.parametrize("login", [[LOGIN], []], ids=["login", "none"])
async def test_a_body_that_breaks_off_or_is_none_is_refused_without_a_word_in_the_log(
    length: str,
    body: bytes,
    login: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hypercorn refuses it, and ends its side while the application answers, too."""
    monkeypatch.setattr(admin_port, "PACE_SECONDS", 0.005)  # of the sixty here without a login
    async with admin_port_at() as port:

        async def ask() -> None:
            async with await port.connect() as stream:
                await stream.send_all(port.head("POST /nowhere", *login, AS_JSON, length) + body)
                await stream.send_eof()
                with suppress(trio.BrokenResourceError):
                    async for _ in stream:
                        pass

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(60):
                    nursery.start_soon(ask)
            assert (await port.ask("/status", BEARER)).status == 200
        assert port.told == []
    assert caplog.text == ""


@pytest.mark.parametrize("large", [17_000, 30_000, 40_000])
async def test_a_large_head_is_refused(port: Port, large: int) -> None:
    assert (await port.ask("/livez", {"X": "x" * large})).status in (400, 431)
    assert (await port.ask("/livez?" + "x" * large)).status in (400, 431)


async def test_a_connection_that_is_answered_and_reads_nothing_holds_up_no_stop() -> None:
    with trio.fail_after(5):
        async with admin_port_at() as port:
            stream = await port.connect()
            await stream.send_all(port.head("GET /metrics") * 200)
            await trio.sleep(0.05)
        await stream.aclose()


def test_the_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    token = token_of(tmp_path)
    assert len(token) >= 40
    assert token_of(tmp_path) == token
    assert stat.S_IMODE((tmp_path / "admin.token").stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["admin.token"]


def test_a_full_disk_leaves_nothing_of_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "injected")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="injected"):
        token_of(tmp_path)
    assert not list(tmp_path.iterdir())


async def test_a_connection_without_a_login_has_one_answer_and_one_with_a_login_has_more() -> None:
    async with admin_port_at() as port, await port.connect() as flood, await port.connect() as known:
        await flood.send_all(port.head("GET /metrics") * 80)
        answered = b"".join([part async for part in flood])
        assert answered.count(b"HTTP/1.1 ") == 1
        for _ in range(3):
            await known.send_all(port.head("GET /api/v1/queues", LOGIN))
            answered = b""
            while not answered.endswith(b"}"):
                answered += await known.receive_some()
            assert answered.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("head", "status"),
    [(b"what\r\n\r\n", 400), (b"GET / HTTP/1.1\r\n\r\n", 400), (b"GET /" + b"x" * 40_000, 431)],
)
async def test_what_is_no_request_is_answered_as_all_errors_are(port: Port, head: bytes, status: int) -> None:
    async with await port.connect() as stream:
        await stream.send_all(head)
        answer = await heard(stream)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    assert json.loads(answer.body)["status"] == status


@pytest.mark.parametrize("path", ["/livez", "/metrics"])
async def test_http_2_is_not_spoken(port: Port, path: str) -> None:
    async with await port.connect() as stream:
        await stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        assert (await heard(stream)).status == 505
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    async with await port.connect() as stream:
        await stream.send_all(port.head(f"GET {path}", *upgrade))
        assert (await heard(stream)).status == 200


async def test_one_user_leaves_others_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_gate, "CONNECTIONS_MAX", 8)
    async with admin_port_at() as port, AsyncExitStack() as streams:
        ann = basic("ann")["Authorization"]
        answers = []
        for _ in range(6):
            stream = await streams.enter_async_context(await port.connect())
            await stream.send_all(port.head("GET /status", f"Authorization: {ann}"))
            answers.append(stream)
        statuses = []
        for stream in answers:
            data = b""
            while b"HTTP/1.1 " not in data:
                data += await stream.receive_some()
            statuses.append(int(data.split()[1]))
        assert statuses.count(503) == 2
        assert (await port.ask("/status", basic("bob"))).status == 200


async def test_a_user_has_a_few_requests_served_at_once_and_others_do_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, most, full, go = 0, 0, trio.Event(), trio.Event()

    async def hold(*_: Any) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == admin_gate.AT_ONCE:
            full.set()
        await go.wait()
        now -= 1

    async with admin_port_at() as port, trio.open_nursery() as nursery:
        port.host.has = [("a", acting(Action("hold", "Hold.", call=hold, looks=True)))]
        for _ in range(3 * admin_gate.AT_ONCE):
            nursery.start_soon(port.ask, f"{QUEUE}/hold", {**basic("bob"), **JSON}, "POST", b"{}")
        with trio.fail_after(5):
            await full.wait()
            assert (await port.ask("/status", basic("ann"))).status == 200
        go.set()
    assert most == admin_gate.AT_ONCE


@pytest.mark.parametrize(("secure", "name"), [(False, "brokers_5"), (True, "__Host-brokers_5")])
async def test_a_sessions_cookie_opens_nothing_elsewhere_nor_forged_nor_late(
    secure: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes to servers on other ports of this host's name, and their users may be others."""
    access = Access({})
    app = application.application(Host())
    gate = Gate(app, access, Logins(access), token=TOKEN, host="0.0.0.0", port=5, secure=secure)

    async def ask(peer: str, path: str, **headers: str) -> tuple[int, dict[bytes, bytes]]:
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(key.encode(), value.encode()) for key, value in {"host": "b:5", **headers}.items()],
            "server": ("b", 5),
        }
        await gate(scope, receive, send, admin_gate.Caller(peer))
        return sent[0]["status"], dict(sent[0]["headers"])

    _, said = await ask("10.0.0.1:1", f"/?token={TOKEN}")
    cookie = said[b"set-cookie"].decode().partition(";")[0]
    assert cookie.startswith(f"{name}=")
    for peer, status in (("10.0.0.1:2", 200), ("10.0.0.2:1", 401), ("127.0.0.1:1", 401)):
        assert (await ask(peer, "/status", cookie=cookie))[0] == status
    for forged in (cookie.replace("(token)", "ann"), cookie[:-1], f"{name}=", f"{name}=a.9.ann.b"):
        assert (await ask("10.0.0.1:2", "/status", cookie=forged))[0] == 401
    now = time.time()
    passed = admin_gate.GRAIN_SECONDS + 1
    monkeypatch.setattr(admin_gate.time, "time", lambda: now + passed)
    _, said = await ask("10.0.0.1:1", "/status", cookie=cookie)
    renewed = said[b"set-cookie"].decode().partition(";")[0]
    for passed, kept in ((admin_gate.SESSION_SECONDS + 1, [401, 200]), (-7200.0, [401, 401])):
        each = [(await ask("10.0.0.1:1", "/status", cookie=one))[0] for one in (cookie, renewed)]
        assert each == kept, passed


async def test_an_answer_that_is_not_read_keeps_no_other_request_of_its_user_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def much(*_: Any) -> Any:
        return "x" * (32 << 20)

    async with admin_port_at() as port, AsyncExitStack() as streams:
        port.host.has = [("a", acting(Action("much", "Say much.", call=much, looks=True)))]
        for _ in range(2 * admin_gate.AT_ONCE):
            stream = await streams.enter_async_context(await port.connect())
            head = port.head(f"POST {QUEUE}/much", LOGIN, AS_JSON, "Content-Length: 2")
            await stream.send_all(head + b"{}")
            await stream.receive_some(1)
        with trio.fail_after(5):
            assert (await port.ask("/status", BEARER)).status == 200


async def test_who_asks_whether_the_server_is_alive_waits_for_no_other_stranger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_port, "FEW", 1)
    monkeypatch.setattr(admin_port, "PACE_SECONDS", 1000.0)
    async with admin_port_at() as port, trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(port.ask, "/status")
        await trio.testing.wait_all_tasks_blocked(0.01)
        with trio.fail_after(5):
            assert (await port.ask("/livez")).body == b"ok\n"
        nursery.cancel_scope.cancel()
