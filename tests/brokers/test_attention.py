"""What needs a person: each kind of trouble with fakes and a clock of the test's, then on a real server."""

import base64
import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest
import structlog
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from structlog.testing import capture_logs

from brokers.admin.attention import FEW, HOLD_SECONDS, ROWS_MAX, Attention
from brokers.admin.troubles import KINDS, TROUBLES, ObjectTrouble, ServerReading
from brokers.page.shown import label
from brokers.settings.sections import AttentionSettings
from dmp.pacing import OWN_STOP_WORDS, STOP_BODIES, STOP_MEMORY
from shared.net.stops import SHORTAGES, Stop
from shared.objects import BRIDGES, CONNECTIONS, GROUPS, QUEUES, SESSIONS, ObjectKind, Objects, key_of
from shared.storage.store import StoreStatistics
from shared.turns import CLOCK
from tests.brokers.asking import Api, scrape
from tests.brokers.conftest import CHROMIUM, Run
from tests.support.server import Server, speak, until
from tests.support.turns import others_turns

WELL: Mapping[ObjectKind, Mapping[str, Any]] = {
    QUEUES: {"name": "q", "ready": 0, "dead": 0, "dead_obstacle": None, "consumers": 0, "paused": False}
    | {"oldest_seconds": None, "full_percent": None},
    BRIDGES: {"name": "b", "state": "running", "last_error": None, "carried": 7},
    GROUPS: {"group": "g", "topic": "t", "lag_bytes": 0},
    SESSIONS: {"name": "s", "kept_percent": 0},
    CONNECTIONS: {"id": "dmp-1", "state": "open", "waits_for": [], "bytes_in": 9},
}
"""An object of each list that needs nobody."""


def statistics(**figures: Any) -> StoreStatistics:
    nothing = {field.name: 0 for field in attrs.fields(StoreStatistics)}
    return StoreStatistics(**{**nothing, **figures})


def protocol(state: str = "serving", restarts: int = 0) -> Mapping[str, Any]:
    return {"protocol": "dms", "state": state, "restarts": restarts}


@attrs.define(eq=False)
class World:
    """A server of fakes, and its time."""

    rows: dict[ObjectKind, list[dict[str, Any]]] = attrs.Factory(dict)
    now: float = 1000.0
    server: Callable[[], ServerReading] = lambda: ServerReading(store=statistics())
    lag_seconds: float | None = 0.0
    attention: Attention = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.attention = Attention(
            lambda: [("dms", self.objects(kind)) for kind in self.rows],
            lambda: self.server(),
            structlog.get_logger(),
            AttentionSettings(),
            lambda: 1_800_000_000 + self.now,
            lambda: self.now,
        )

    def objects(self, kind: ObjectKind) -> Objects:
        async def look(_: Any, __: float) -> Mapping[str, Any]:
            return {"lag_seconds": self.lag_seconds}

        return Objects(
            kind,
            lambda: [*self.rows[kind]],
            lambda row: key_of(*(row[part] for part in kind.parts)),
            lambda _: None,
            lambda row: row,
            look=look,
        )

    def put(self, kind: ObjectKind, **columns: Any) -> None:
        self.rows[kind] = [{**WELL[kind], **columns}]

    async def pass_seconds(self, seconds: float) -> None:
        """Time passes, with a reading each two seconds."""
        ends = self.now + seconds
        while self.now < ends:
            await self.attention.read()
            self.now += 2
        await self.attention.read()

    @property
    def found(self) -> list[tuple[str, str]]:
        return [(row["kind"], row["object"]) for row in self.attention.rows]

    @property
    def only(self) -> Mapping[str, Any]:
        (row,) = self.attention.rows
        return row


OF_OBJECTS = {
    "bridge": (BRIDGES, {"state": "waiting", "last_error": "queue jobs is full"}, "b", "queue jobs is full"),
    "queue_full": (QUEUES, {"full_percent": 100}, "dms/q", "publishers are refused"),
    "queue_full, nearly": (QUEUES, {"full_percent": 90, "consumers": 1}, "dms/q", "90 % full"),
    "dead_letters": (
        QUEUES,
        {"dead": 24, "dead_obstacle": "queue d is full"},
        "dms/q",
        "24 dead letters",
    ),
    "dead_letters, next": (QUEUES, {"dead_obstacle": "there is no queue d"}, "dms/q", "there is no queue d"),
    "old_message": (QUEUES, {"ready": 2, "oldest_seconds": 3600.0}, "dms/q", "waited 1 h"),
    "paused": (QUEUES, {"paused": True, "ready": 7}, "dms/q", "7 messages wait"),
    "paused, a bridge": (BRIDGES, {"state": "paused"}, "b", "carries nothing"),
    "kept": (SESSIONS, {"kept_percent": 90}, "s", "90 %"),
    "held_back": (CONNECTIONS, {"state": "paused", "waits_for": ["memory for messages"]}, "dmp-1", "memory"),
    "held_back, disk": (CONNECTIONS, {"state": "paused", "waits_for": ["the disk"]}, "dmp-1", "the disk"),
}

COMPARED = ("bridge", "held_back", "held_back, disk")
"""A trouble is that something stands still, which two readings show."""


@pytest.mark.parametrize("case", OF_OBJECTS)
async def test_a_trouble_of_an_object_is_told_once_it_has_lasted_and_gone_when_it_heals(case: str) -> None:
    kind, columns, name, words = OF_OBJECTS[case]
    world = World()
    world.put(kind)
    await world.pass_seconds(20)
    assert world.found == []
    world.put(kind, **columns)
    if case in COMPARED:
        await world.pass_seconds(2)  # the first reading has nothing to compare with
    began = world.now
    await world.pass_seconds(HOLD_SECONDS - 2)
    assert world.found == [], "it may heal by itself"
    await world.pass_seconds(2)
    row = world.only
    assert (row["kind"], row["object"]) == (case.partition(",")[0], name)
    assert words in row["means"]
    assert row["advice"].endswith(".")
    assert row["since"] == time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(1_800_000_000 + began))
    assert row["link"].startswith(f"/{kind.name}/")
    world.put(kind)
    await world.attention.read()
    assert world.found == []


STORE: Mapping[str, Mapping[str, Any]] = {
    "read-only": {"read_only": "a sync failed"},
    "space": {"store": statistics(full=True, scarce=True)},
    "space, nearly": {"store": statistics(scarce=True)},
    "log files": {"store": statistics(unapplied_logs=1)},
    "retention": {"store": statistics(retention_paused=True)},
    "damaged places": {"store": statistics(damaged_ranges=1)},
    "removed files": {"store": statistics(restored_files=1)},
    "dms": {"protocols": [protocol("restarting", 1)]},
    "dms, again": {"protocols": [protocol(restarts=1)]},
    "dms, pubsub": {"certificates": [("dms", 5000.0), ("pubsub", 5000.0)], "wall": 4000.0},
    "admin": {"certificates": [("admin", 3000.0)], "wall": 4000.0},
    "bucket": {"shipping": {"state": "fenced", "reason": "another server ships", "lag_seconds": 0}},
    "lag": {"shipping": {"state": "away", "reason": "503", "lag_seconds": 61, "lag_bytes": 5000}},
    "drill": {"shipping": {"state": "shipping", "reason": "", "lag_seconds": 0, "drill_ok": False}},
}
CRITICAL = {"read-only", "space", "log files", "damaged places", "dms", "admin", "bucket", "lag", "drill"}


@pytest.mark.parametrize("case", STORE)
async def test_a_trouble_of_the_server_is_told_once_it_has_lasted(case: str) -> None:
    world = World()
    world.server = lambda: ServerReading(**{"store": statistics(), **STORE[case]})
    await world.pass_seconds(HOLD_SECONDS - 2)
    assert world.found == []
    await world.pass_seconds(2)
    assert world.only["object"] in (case, case.partition(",")[0])
    assert world.only["severity"] == ("critical" if case in CRITICAL else "warning")
    world.server = lambda: ServerReading(store=statistics(), certificates=[("dms", 3e9)], wall=4000.0)
    await world.attention.read()
    assert world.found == []


AGAIN_AND_AGAIN: Mapping[str, Callable[[int], Mapping[str, Any]]] = {
    "memory": lambda times: {"accounts": {"dms/messages": times}},
    "refused": lambda times: {"refused": {("dms", "ann", "write"): 100 if times else 0}},
    "loop": lambda times: {"stretches": (10 if times else 0, 0.3, "dms.engine:Queue.purge")},
}


@pytest.mark.parametrize("kind", AGAIN_AND_AGAIN)
async def test_what_comes_again_and_again_is_told_and_one_burst_is_not(kind: str) -> None:
    world = World()
    times = 0

    def server() -> ServerReading:
        nonlocal times
        times += bursts > 0
        return ServerReading(store=statistics(), **AGAIN_AND_AGAIN[kind](times if bursts else 0))

    world.server = server
    bursts = 1
    await world.pass_seconds(6)
    bursts = 0
    for _ in range(6):
        await world.pass_seconds(10)
        assert world.found == []
    bursts, times = 1, 100
    await world.pass_seconds(50)
    assert world.only["kind"] == kind
    bursts = 0
    await world.pass_seconds(80)
    assert world.found == []


async def test_a_group_that_lags_and_falls_back_is_told_and_not_one_that_catches_up() -> None:
    world = World()
    world.lag_seconds = 7200.0

    async def minutes(*lags: int) -> list[tuple[str, str]]:
        for lag in lags:
            world.put(GROUPS, lag_bytes=lag)
            await world.pass_seconds(62)
        return world.found

    assert await minutes(1000, 900, 800) == []
    assert await minutes(900, 1100) == [("group_lag", "g/t")]
    assert await minutes(1100) == [("group_lag", "g/t")], "the topic is quiet, and nobody reads"
    world.lag_seconds = 60.0
    assert await minutes(1200) == [], "its next record is young"
    world.lag_seconds = 7200.0
    assert await minutes(1300) == [("group_lag", "g/t")]
    assert await minutes(500, 400) == []
    world.attention.settings = AttentionSettings(lag_seconds=0)
    assert await minutes(600, 700) == []


async def test_an_age_is_no_trouble_where_the_setting_is_0_or_the_queue_is_paused() -> None:
    world = World()
    world.attention.settings = AttentionSettings(oldest_seconds=0)
    world.put(QUEUES, ready=1, oldest_seconds=9e9)
    await world.pass_seconds(20)
    assert world.found == []
    world.attention.settings = AttentionSettings(oldest_seconds=5)
    await world.pass_seconds(20)
    assert world.found == [("old_message", "dms/q")]
    world.put(QUEUES, ready=1, oldest_seconds=9e9, paused=True)
    await world.pass_seconds(20)
    assert world.found == [("paused", "dms/q")], "one thing is told once"


@pytest.mark.parametrize(("case", "column"), [("bridge", "carried"), ("held_back", "bytes_in")])
async def test_what_is_slowed_down_and_goes_on_is_not_told(case: str, column: str) -> None:
    kind, columns, _, _ = OF_OBJECTS[case]
    world = World()
    for passed in range(20):
        world.put(kind, **columns, **{column: passed})
        world.now += 2
        await world.attention.read()
    assert world.found == []
    await world.pass_seconds(HOLD_SECONDS + 2)
    assert [found for found, _ in world.found] == [case]


async def test_what_flickers_is_not_told() -> None:
    world = World()
    for _ in range(10):
        world.put(QUEUES, paused=True)
        await world.pass_seconds(6)
        world.put(QUEUES)
        await world.attention.read()
        assert world.found == []


async def test_very_many_troubles_are_bounded_and_the_worst_stand_first() -> None:
    world = World()
    world.rows[QUEUES] = [
        {**WELL[QUEUES], "name": f"q{n}", "full_percent": 100 if n % 2 else 95} for n in range(ROWS_MAX + 9)
    ]
    world.put(BRIDGES, state="paused")
    await world.pass_seconds(HOLD_SECONDS)
    assert len(world.found) == ROWS_MAX + 1
    severities = [row["severity"] for row in world.attention.rows]
    assert severities == sorted(severities)
    assert world.attention.few["count"] == ROWS_MAX + 1
    assert [row["kind"] for row in world.attention.few["items"]] == ["queue_full"] * FEW + ["paused"]
    counts = {dict(each.labels)["kind"]: each.value for each in world.attention.samples()}
    assert counts == dict.fromkeys(KINDS, 0) | {"queue_full": ROWS_MAX, "paused": 1}


async def test_a_bug_in_one_list_costs_no_other_its_troubles() -> None:
    world = World()
    world.put(BRIDGES, state="paused")
    world.rows[QUEUES] = [{**WELL[QUEUES], "full_percent": "no number"}]
    with capture_logs() as told:
        await world.pass_seconds(HOLD_SECONDS)
    assert world.found == [("paused", "b")]
    assert [line["of"] for line in told] == ["dms/queues"], "once"


async def test_a_reading_of_many_objects_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLOCK, "now", count().__next__)  # each turn is over when somebody looks
    world = World()
    world.rows[QUEUES] = [{**WELL[QUEUES], "name": f"q{n}"} for n in range(5000)]
    async with others_turns() as others:
        await world.attention.read()
    assert others.count > 5000 // 64


def test_a_reason_of_the_server_begins_with_what_it_is_short_of() -> None:
    short = {bit for bit, word in OWN_STOP_WORDS.items() if word.startswith(SHORTAGES)}
    assert short == {Stop.STORE, STOP_MEMORY, STOP_BODIES}


def test_every_kind_says_what_it_is_and_has_a_case_here() -> None:
    assert all(each.help.endswith(".") for each in TROUBLES)
    cases = {case.partition(",")[0] for case in OF_OBJECTS} | {"group_lag"}
    assert cases == {each.name for each in TROUBLES if isinstance(each, ObjectTrouble)}


SETTINGS = """
[attention]
oldest_seconds = 1

[[bridge]]
name = "carrier"
from = "logmq:orders"
to = "dms:full"
"""


@pytest.fixture
def troubled(tmp_path: Path) -> Iterator[Api]:
    """A server with a full queue, a bridge that waits for it, a pause, and no place for dead letters."""
    (tmp_path / "brokers.toml").write_text(SETTINGS)
    with Server(tmp_path, "--config", str(tmp_path / "brokers.toml")) as server:
        api = Api(server)
        api.command("dms", "create", "full", "--depth", "2")
        api.command("dms", "produce", "full", "one", "two")
        api.command("dms", "create", "jobs", "--max-deliveries", "1", "--dead-letter", "jobs-dead")
        api.post("queues/dms/jobs/pause")
        speak(server.address("logmq"), b"PRODUCE orders hello\n")
        yield api


def kinds(api: Api) -> dict[str, str]:
    """What needs a person, asked five times a second."""
    time.sleep(0.2)
    return {row["kind"]: row["object"] for row in api.get("attention")["items"] if row["kind"] != "loop"}


def status(api: Api, command: Run, *words: str) -> tuple[int, Any]:
    code, out, _ = command("status", "--json", "--data-dir", str(api.server.data), *words)
    return code, json.loads(out)


def test_five_troubles_of_a_real_server_are_in_every_view(
    troubled: Api, command: Run, request: pytest.FixtureRequest
) -> None:
    made = {"queue_full": "dms/full", "bridge": "carrier", "paused": "dms/jobs"}
    made |= {"dead_letters": "dms/jobs", "old_message": "dms/full"}
    until(lambda: kinds(troubled) == made)
    (row,) = troubled.get("attention?kind=bridge")["items"]
    assert row["means"] == "It carries nothing: queue full is full: depth = 2."
    assert troubled.get("attention/paused/dms%2Fjobs")["link"] == "/queues/dms/jobs"
    assert [row["kind"] for row in troubled.get("attention?severity=critical")["items"]] == ["queue_full"]
    code, found = status(troubled, command)
    assert (code, found["state"]) == (3, "ready")
    assert {row["kind"] for row in found["attention"]["items"]} >= set(made)
    assert status(troubled, command, "--ready")[0] == 0
    _, out, _ = command("status", "--data-dir", str(troubled.server.data))
    assert "there is no queue jobs-dead" in out
    series = scrape(troubled.server)
    for kind in KINDS:
        assert f'brokers_attention{{kind="{kind}"}} {int(kind in made)}.0' in series or kind == "loop"
    if CHROMIUM is not None:
        on_the_page(troubled, made, request.getfixturevalue("browser"))


def on_the_page(api: Api, made: Mapping[str, str], browser: Browser) -> None:
    root, token = api.server.ready["page"], (api.server.data / "admin.token").read_text().strip()
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{root}?token={token}")
        expect(page.locator("[data-state]")).to_contain_text("need you")
        rows = page.locator(".attention li")
        for kind, name in made.items():
            expect(rows.filter(has_text=name).filter(has_text=label(kind))).to_have_count(1)
        faults = Axe().run(page).response["violations"]
        assert [fault["id"] for fault in faults if fault["impact"] in ("serious", "critical")] == []
        page.goto(f"{root}attention?kind=bridge")
        page.get_by_role("link", name="carrier").click()
        expect(page.get_by_role("heading", name="carrier")).to_be_visible()
        questions(api, page)


def questions(api: Api, page: Page) -> None:
    """A person's first five questions are answered in two clicks each."""
    main = page.locator("main")
    wrong = base64.b64encode(b"ann:wrong").decode()
    assert api.answer("overview", Authorization=f"Basic {wrong}")[0] == 401

    def ask(question: str) -> None:
        page.goto(api.server.ready["page"])
        page.get_by_role("navigation", name="Questions").get_by_role("link", name=question).click()

    ask("What is stuck?")
    main.get_by_role("row").filter(has_text=label("paused")).get_by_role("link").click()
    expect(page.get_by_role("button", name="Resume")).to_be_enabled()
    with socket.create_connection(api.server.address("logmq")):
        ask("Who is slow?")
        main.get_by_role("link", name=re.compile("logmq-")).first.click()
        expect(page.get_by_role("button", name="Kick")).to_be_visible()
    ask("Where is this message?")
    expect(page.get_by_label("Contains")).to_be_focused()
    page.keyboard.type("hello")
    page.get_by_role("button", name="Find").click()
    expect(main.get_by_role("link", name="orders")).to_have_attribute("href", "/topics/orders?contains=hello")
    ask("Why was it refused?")
    expect(page.locator("[data-stream] tbody")).to_contain_text("action=login")
    ask("Is it safe to restart?")
    expect(main).to_contain_text("Yes.")


def test_the_document_names_every_kind() -> None:
    text = (Path(__file__).parents[2] / "brokers" / "docs" / "observe.md").read_text()
    for kind in KINDS:
        helps = " ".join(each.help for each in TROUBLES if each.name == kind)
        assert f"| `{kind}` | {helps} |" in text
