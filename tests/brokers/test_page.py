"""The page in a real browser, on a real server: what it shows, what it does, and who else may not."""

import json
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest
import trio
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from brokers.page.shown import cell
from dms.client import connect
from shared.access import Rule, Secret, User
from shared.objects import KINDS
from tests.brokers.asking import Api
from tests.e2e.users import write_users
from tests.support.server import Server, run_here, speak, until

SEEN_BY_NAME = ("queues", "topics", "groups", "exchanges")
VIEWS = (*(f"/{name}" for name in KINDS), "/", "/store", "/logs", "/find?contains=o", "/trace?name=jobs")
DETAILS = ("/queues/dms/jobs", "/topics/orders", "/groups/billing/orders", "/exchanges/amq.topic")
EVIL = "<img src=x onerror='document.title=1'>"

AXE = {"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("page")
    ann = User("ann", (Rule.parse("admin:read"),), Secret.make(b"secret", b"s" * 16))
    write_users(folder / "data", {"ann": ann})
    with Server(folder, environ={"BROKERS_SERVE_DURABILITY": "none"}) as server:
        api = Api(server)
        make_queues(api, "jobs")
        for text in ("one", EVIL, "three"):
            api.post("queues/dms/jobs/messages", {"text": text})
        speak(server.address("logmq"), b"PRODUCE orders hello\nCOMMIT billing orders 0\n")
        yield api


def make_queues(api: Api, *names: str) -> None:
    async def make() -> None:
        async with connect(*api.server.address("dms")) as client:
            for name in names:
                await client.create(name)

    trio.run(make)


@attrs.define(eq=False, slots=False)
class Visit:
    """A browser's window that is logged in, and what it asked, did not get, and complained of."""

    context: BrowserContext
    page: Page
    root: str
    elsewhere: list[str] = attrs.field(factory=list)
    complaints: list[str] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.page.on("request", self._asked)
        self.page.on("console", lambda said: self._said(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def go(self, path: str) -> None:
        self.page.goto(self.root + path)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.root, "data:")):
            self.elsewhere.append(request.url)

    def _said(self, text: str) -> None:
        if not re.search("status of (400|404|409)", text):  # what is asked for on purpose
            self.complaints.append(text)


@pytest.fixture(scope="module")
def login(served: Api, browser: Browser) -> Iterator[BrowserContext]:
    """Where somebody has logged in, by the address that a terminal shows."""
    with closing(browser.new_context()) as context:
        page = logged_in(served.server, context)
        assert "token" not in page.url
        page.goto(f"{served.server.ready['page']}livez")  # and stays there
        yield context


@pytest.fixture
def visits(served: Api, browser: Browser, login: BrowserContext) -> Iterator[Callable[..., Visit]]:
    """Opens windows that are logged in. Each has asked nobody else, and has found nothing to complain of.

    `own`: with cookies and a clock of its own, which costs a process.
    """
    opened: list[Visit] = []

    def visit(*, own: bool = False) -> Visit:
        context = browser.new_context(storage_state=login.storage_state()) if own else login
        made = Visit(context, context.new_page(), served.server.ready["page"].rstrip("/"))
        made.page.set_default_timeout(15_000)
        opened.append(made)
        return made

    yield visit
    for each in opened:
        each.page.close()
        if each.context is not login:
            each.context.close()
        assert (each.elsewhere, each.complaints) == ([], [])


def test_who_has_not_logged_in_gets_the_form_logs_in_where_he_wanted_and_out_and_in_as_another(
    served: Api, browser: Browser
) -> None:
    root = served.server.ready["page"].rstrip("/")
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{root}/queues?sort=-ready")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Log in with the token").click()
        expect(page.get_by_role("alert")).to_contain_text("not the token")
        page.get_by_label("Token").fill((served.server.data / "admin.token").read_text().strip())
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Queues")).to_be_visible()
        assert page.url == f"{root}/queues?sort=-ready"
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Password")).to_be_visible()
        assert context.cookies() == []
        may_only_look(page, root)


def may_only_look(page: Page, root: str) -> None:
    """Who may only look is shown no button that changes something, and could not do it without one."""
    page.goto(f"{root}/queues/dms/jobs")
    page.get_by_label("User").fill("ann")
    page.get_by_label("Password").fill("secret")
    page.get_by_role("button", name="Log in", exact=True).click()
    expect(page.locator(".actions")).to_contain_text("admin:manage")
    expect(page.get_by_role("button", name="Purge")).to_have_count(0)
    headers = {"Content-Type": "application/json", "Origin": root}
    answer = page.request.post(f"{root}/api/v1/queues/dms/jobs/purge", headers=headers, data="{}")
    assert answer.status == 403


def test_each_view_shows_what_the_api_says(served: Api, visits: Callable[..., Visit]) -> None:
    visit = visits()
    for kind in SEEN_BY_NAME:
        visit.go(f"/{kind}")
        names = [row[KINDS[kind].parts[0]] for row in served.get(kind)["items"]]
        assert names
        links = visit.page.locator("main tbody bdi a").all_inner_texts()
        assert set(names) <= set(links), kind
    visit.go("/queues/dms/jobs")
    facts = visit.page.locator("dl.facts div").all_inner_texts()
    assert "Ready\n3" in facts
    assert visit.page.locator(".messages pre").all_inner_texts() == ["one", EVIL, "three"]
    assert visit.page.title().startswith("jobs")
    visit.go("/topics/orders")
    expect(visit.page.locator(".messages pre")).to_have_text("hello")
    expect(visit.page.get_by_role("link", name="billing")).to_be_visible()
    visit.go("/logs")
    expect(visit.page.locator("[data-stream] tbody tr").first).to_be_visible()


def test_lists_are_filtered_and_sorted_and_their_address_says_how(
    served: Api, visits: Callable[..., Visit]
) -> None:
    make_queues(served, "many-a", "many-b")
    served.post("queues/dms/many-b/messages", {"text": "x"})
    visit = visits()
    visit.go("/queues")
    visit.page.keyboard.press("/")
    visit.page.keyboard.type("MANY")
    visit.page.keyboard.press("Enter")
    names = visit.page.locator("main tbody bdi a")
    expect(names).to_have_text(["many-a", "many-b"])
    visit.page.get_by_role("link", name="Ready").click()
    expect(names).to_have_text(["many-b", "many-a"])
    assert "match=MANY" in visit.page.url
    assert "sort=-ready" in visit.page.url
    expect(visit.page.locator("th[aria-sort=descending]")).to_have_text("Ready")
    visit.go("/queues?match=nowhere")
    expect(visit.page.locator(".empty")).to_contain_text("fits this filter")


def test_figures_and_charts_follow_what_happens_without_a_reload(
    served: Api, visits: Callable[..., Visit]
) -> None:
    visit = visits(own=True)
    visit.page.clock.install()
    visit.go("/")
    tiles = [tile.split()[0] for tile in visit.page.locator(".tiles div").all_inner_texts()]
    assert {"Memory", "Held"} <= set(tiles)
    line = visit.page.locator("[data-line=messages_in] path[data-owner=logmq]")
    before = line.get_attribute("d")
    assert before is not None
    speak(served.server.address("logmq"), b"PRODUCE orders more\n" * 50)

    def is_drawn_anew() -> bool:
        """The server counts, and the page asks, every five seconds: of those the page's go by at once."""
        visit.page.clock.fast_forward(5000)
        visit.page.wait_for_timeout(200)
        return line.get_attribute("d") != before

    until(is_drawn_anew)
    visit.go("/queues/dms/jobs")
    visit.page.evaluate("document.body.dataset.mark = 'the same document'")
    served.post("queues/dms/jobs/messages", {"text": "four"})
    visit.page.clock.fast_forward(6000)
    expect(visit.page.locator(".messages pre")).to_have_count(4)
    assert visit.page.evaluate("document.body.dataset.mark") == "the same document"


def logged_in(server: Server, context: BrowserContext) -> Page:
    page = context.new_page()
    page.goto(f"{server.ready['page']}?token={(server.data / 'admin.token').read_text().strip()}")
    return page


def test_commands_that_the_page_shows_reach_this_server_and_no_other(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They went to the usual ports, where another server may listen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BROKERS_SERVE_DATA_DIR", raising=False)
    with (
        Server(tmp_path, data=tmp_path / "own") as server,
        closing(browser.new_context()) as context,
    ):
        page = logged_in(server, context)
        shown = page.locator("main pre code").all_inner_texts()
        commands = [line for text in shown for line in text.splitlines()]
        assert len(commands) == 3
        for command in commands:
            assert run_here(*shlex.split(command)[1:]).returncode == 0, command
        page.goto(f"{server.ready['page']}topics")
        expect(page.locator("tbody")).to_contain_text("orders")


def test_a_server_that_is_gone_is_not_ready_and_who_is_logged_in_stays_so_until_the_token_is_another(
    browser: Browser, tmp_path: Path
) -> None:
    with Server(tmp_path) as server, closing(browser.new_context()) as context:
        page = logged_in(server, context)
        page.clock.install()
        page.reload()
        state = page.locator("[data-state]")
        expect(state).to_have_text("Ready")
        port = urlsplit(server.ready["page"]).port
        server.kill()
        page.clock.fast_forward(6000)
        expect(state).to_have_text("No answer", timeout=30_000)
        expect(state).to_have_class("bad")
        server.start("--admin-port", str(port))
        page.goto(f"{server.ready['page']}queues")
        expect(page.get_by_role("heading", name="Queues")).to_be_visible()
        server.kill()
        (server.data / "admin.token").write_text("another\n")
        server.start("--admin-port", str(port))
        page.goto(server.ready["page"])
        expect(page.locator(".why")).to_contain_text("its login was changed")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Log in with the token").click()
        told = page.locator("#told")
        expect(told).not_to_be_empty()
        above, form = told.bounding_box(), page.locator("form").first.bounding_box()
        assert above is not None
        assert form is not None
        assert above["y"] < form["y"]


def test_a_user_is_added_from_a_form_and_may_do_what_its_rules_say(browser: Browser, tmp_path: Path) -> None:
    with Server(tmp_path) as server, closing(browser.new_context()) as context:
        page = logged_in(server, context)
        page.goto(f"{server.ready['page']}users")
        page.get_by_role("button", name="Add").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("ann")
        dialog.get_by_label("Password").fill("secret")
        dialog.get_by_label("Allow").fill("admin:reed")
        dialog.get_by_role("button", name="Add").click()
        expect(dialog.locator(".wrong:visible")).to_contain_text("allow")
        dialog.get_by_label("Allow").fill("admin:read\ndms:*:jobs")
        dialog.get_by_role("button", name="Add").click()
        expect(page.locator("#told")).to_contain_text("1 added")
        expect(page.locator("tbody")).to_contain_text("admin:read, dms:*:jobs")
        assert "secret" not in (server.data / "users.toml").read_text()
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("User", exact=True).fill("ann")
        page.get_by_label("Password", exact=True).fill("secret")
        page.get_by_role("button", name="Log in", exact=True).click()
        expect(page.locator(".user")).to_have_text("ann")
        expect(page.get_by_role("button", name="Add")).to_have_count(0)


def test_a_form_asks_what_a_person_can_answer(visits: Callable[..., Visit]) -> None:
    visit = visits()
    visit.go("/exchanges")
    visit.page.get_by_role("button", name="Declare").click()
    dialog = visit.page.locator("dialog[open]")
    types = dialog.get_by_label("Type").locator("option").all_inner_texts()
    assert types == ["direct", "topic", "fanout", "headers"]
    expect(dialog.get_by_label("Durable")).to_be_checked()
    visit.go("/queues/dms/jobs")
    visit.page.get_by_role("button", name="Publish").click()
    expect(visit.page.locator("dialog[open]").get_by_label("Properties")).to_have_count(1)
    buttons = visit.page.locator(".actions button").all()
    classes = [each.get_attribute("class") or "" for each in buttons]
    assert classes == sorted(classes), "what destroys stands last"


def test_a_queue_is_made_and_changed_from_forms_that_say_at_the_field_what_is_wrong(
    served: Api, visits: Callable[..., Visit]
) -> None:
    visit = visits()
    visit.go("/queues")
    page = visit.page
    page.get_by_role("button", name="Create (dms)").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("formed")
    ages = dialog.get_by_label("TTL")
    ages.fill("99999999999999")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.locator(".wrong:visible")).to_contain_text("ttl_ms")
    expect(ages).to_have_attribute("aria-invalid", "true")
    expect(ages).to_be_focused()
    ages.fill("60000")
    expect(dialog.locator(".wrong:visible")).to_have_count(0)
    dialog.get_by_role("button", name="Try").click()
    expect(dialog.get_by_role("status")).to_contain_text("1 created")
    assert served.ask("queues/dms/formed")[0] == 404
    dialog.get_by_role("button", name="Create").click()
    expect(page.locator("#told")).to_contain_text("1 created")
    visit.go("/queues/dms/formed")
    page.get_by_role("button", name="Change").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("TTL")).to_have_value("60000")
    dialog.get_by_label("TTL").fill("")
    dialog.get_by_label("Max deliveries").fill("3")
    dialog.get_by_role("button", name="Change").click()
    expect(page.locator("#told")).to_contain_text("2 changed")
    settings = served.get("queues/dms/formed")["settings"]
    assert (settings["ttl_ms"], settings["max_deliveries"]) == (0, 3)


def test_a_long_message_is_folded_and_stays_open_while_the_view_is_asked_for_again(
    served: Api, visits: Callable[..., Visit]
) -> None:
    make_queues(served, "long")
    for text in ("short", "a word " * 550, "line\n" * 20):
        served.post("queues/dms/long/messages", {"text": text})
    visit = visits(own=True)
    visit.page.clock.install()
    visit.go("/queues/dms/long")
    bodies = visit.page.locator(".messages pre")
    expect(bodies).to_have_count(3)
    assert [each.is_visible() for each in bodies.all()] == [True, False, False]
    assert visit.page.locator(".messages").evaluate("each => each.offsetHeight") < 400
    folded = visit.page.locator(".messages summary").first
    expect(folded).to_contain_text("a word a word")
    folded.focus()
    visit.page.keyboard.press("Enter")
    expect(bodies.nth(1)).to_be_visible()
    for _ in range(2):
        with visit.page.expect_response(lambda answer: "queues/dms/long" in answer.url):
            visit.page.clock.fast_forward(6000)
    expect(bodies.nth(1)).to_be_visible()


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_a_browser_takes_out_of_a_url_is_reached(
    served: Api, visits: Callable[..., Visit], name: str
) -> None:
    make_queues(served, name)
    served.command("dms", "produce", "-q", name, "x")
    visit = visits()
    visit.go("/queues?protocol=dms")
    visit.page.get_by_role("link", name=name, exact=True).click()
    page = visit.page
    expect(page.locator("h1")).to_contain_text(name)
    page.get_by_role("button", name="Purge", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Purge").click()
    expect(page.locator(".messages pre")).to_have_count(0)
    assert page.url.endswith(f"/queues/dms/%FF{name}")


def test_a_purge_says_what_it_will_do_and_does_it_when_told_with_the_keyboard_alone(
    served: Api, visits: Callable[..., Visit]
) -> None:
    make_queues(served, "waste")
    for _ in range(3):
        served.post("queues/dms/waste/messages", {"text": "x"})
    visit = visits()
    visit.go("/queues/dms/waste")
    page = visit.page
    for answer in ("Cancel", "Purge"):
        tab_to(page, "Purge")
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("status")).to_contain_text("3 purged")
        assert served.get("queues/dms/waste")["ready"] == 3
        expect(dialog.get_by_role("button", name="Purge")).to_be_enabled()
        tab_to(page, answer)
        page.keyboard.press("Enter")
        expect(dialog).to_have_count(0)
    expect(page.locator("#told")).to_contain_text("3 purged")
    assert served.get("queues/dms/waste")["ready"] == 0
    expect(page.locator(".facts")).to_contain_text("Ready0")


def tab_to(page: Page, name: str) -> None:
    """Press Tab until what has this name has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText?.trim()") == name:
            return
    raise AssertionError(f"{name} is not reached with the keyboard")


def test_a_group_is_reset_after_it_is_said_where_to(served: Api, visits: Callable[..., Visit]) -> None:
    visit = visits()
    visit.go("/groups/billing/orders")
    expect(visit.page.locator("dl a[href='/topics/orders']")).to_be_visible()
    end = served.get("topics/orders")["end"]
    visit.page.get_by_role("button", name="Reset").click()
    dialog = visit.page.get_by_role("dialog")
    dialog.get_by_label("Offset").fill(str(end))
    dialog.get_by_role("button", name="Say what would happen").click()
    expect(dialog.get_by_role("status")).to_contain_text(f"offset {end}")
    assert served.get("groups/billing/orders")["offset"] == 0
    dialog.get_by_role("button", name="Reset").click()
    expect(visit.page.locator("#told")).to_contain_text("1 reset")
    assert served.get("groups/billing/orders")["offset"] == end


@pytest.mark.parametrize(
    ("scheme", "width", "paths"),
    [
        ("light", 1400, ("/", "/queues", "/queues/dms/jobs")),
        ("dark", 400, ("/find?contains=one", "/topics/orders", "/logs")),
    ],
)
def test_axe_finds_nothing_serious_and_no_view_is_wider_than_the_window(
    visits: Callable[..., Visit], scheme: Any, width: int, paths: Sequence[str]
) -> None:
    visit = visits()
    visit.page.emulate_media(color_scheme=scheme)
    visit.page.set_viewport_size({"width": width, "height": 800})
    axe = Axe()
    for path in paths:
        visit.go(path)
        found = axe.run(visit.page, options=AXE).response["violations"]
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        assert not serious, f"{path}: {json.dumps(serious, indent=1)[:3000]}"
        assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        expect(visit.page.locator("nav [aria-current]")).to_be_in_viewport(ratio=1)
    if width == 1400:
        visit.page.get_by_role("button", name="Publish").click()
        found = axe.run(visit.page, options=AXE).response["violations"]
        assert not found, json.dumps(found, indent=1)[:3000]


def test_everything_that_can_be_clicked_is_reached_with_the_keyboard(visits: Callable[..., Visit]) -> None:
    visit = visits()
    visit.go("/queues/dms/jobs")
    page = visit.page
    count = page.evaluate(
        "[...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea')]"
        ".filter(each => each.checkVisibility()).length"
    )
    reached = set()
    for number in range(count + 10):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.outerHTML"))
        if number == 0:
            assert "Skip to the content" in page.evaluate("document.activeElement.outerHTML")
    assert len([each for each in reached if each.startswith(("<a", "<button", "<input", "<select"))]) >= count


FOREIGN = """<!doctype html><title>elsewhere</title><iframe name=frame></iframe>
<form method=post action="{admin}/api/v1/queues/dms/target/purge" target=frame enctype=text/plain>
<input name='{{"a":"' value='"}}'></form>
<script>
const log = [];
const tries = [
  fetch("{admin}/api/v1/queues/dms/target/purge",
    {{method: "POST", mode: "no-cors", credentials: "include", body: "{{}}"}}),
  fetch("{admin}/api/v1/queues/dms/target/purge", {{method: "POST", credentials: "include",
    headers: {{"Content-Type": "application/json"}}, body: "{{}}"}}),
  fetch("{admin}/api/v1/queues", {{credentials: "include"}}).then(each => each.text()).then(
    text => {{ log.push("read " + text); }}),
  fetch("http://{logmq}/", {{method: "POST", mode: "no-cors", body: "PRODUCE driven hello\\nPING\\n"}}),
  fetch("http://{logmq}/", {{mode: "no-cors"}}),
].map(each => each.catch(() => "refused"));
const socket = new Promise(done => {{
  const one = new WebSocket("ws://{host}/api/v1/trace");
  one.onopen = () => {{ log.push("websocket"); done(); }};
  one.onerror = done;
}});
const events = new Promise(done => {{
  const one = new EventSource("{admin}/api/v1/logs?follow=1", {{withCredentials: true}});
  one.onopen = () => {{ log.push("events"); done(); }};
  one.onerror = () => {{ one.close(); done(); }};
}});
document.forms[0].submit();
Promise.all([...tries, socket, events]).then(() => {{ document.title = "tried " + log.join(); }});
</script>"""


@pytest.fixture
def foreign_page(served: Api) -> Iterator[str]:
    """The address of a page of another origin, which tries what it can."""
    admin = served.server.ready["page"].rstrip("/")
    host, port = served.server.address("logmq")
    text = FOREIGN.format(admin=admin, host=admin.partition("//")[2], logmq=f"{host}:{port}").encode()

    class ForeignPage(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), ForeignPage) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f":{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_page_of_another_origin_drives_neither_the_admin_port_nor_logmq(
    served: Api, visits: Callable[..., Visit], foreign_page: str, name: str
) -> None:
    if "target" not in [row["name"] for row in served.get("queues")["items"]]:
        make_queues(served, "target")
        served.post("queues/dms/target/messages", {"text": "stays"})
    visit = visits()
    page = visit.context.new_page()  # with the cookie of who is logged in
    page.goto(f"http://{name}{foreign_page}")
    page.wait_for_function("document.title.startsWith('tried')")
    assert page.title() == "tried"
    assert served.get("queues/dms/target")["ready"] == 1
    assert "driven" not in [row["name"] for row in served.get("topics")["items"]]


def test_every_view_is_made_without_a_browser(served: Api) -> None:
    for path in (*VIEWS, *DETAILS):
        status, _, body = served.answer(path, Accept="text/html")
        assert status == 200, path
        assert b" style=" not in body, f"{path}: the policy allows no style in a tag"
        assert b" on" + b"click=" not in body


def test_every_heading_that_is_a_link_leads_to_a_list(served: Api) -> None:
    followed = 0
    for kind in KINDS:
        body = served.answer(f"/{kind}", Accept="text/html")[2].decode()
        for query in re.findall(r'<th [^>]*><a href="(\?[^"]*)"', body):
            followed += 1
            assert served.answer(f"/{kind}{unescape(query)}", Accept="text/html")[0] == 200, (kind, query)
    assert followed > 20


def test_names_and_numbers_that_a_publisher_has_chosen_break_no_view() -> None:
    headers = {
        "ms": 1,
        "": 2,
        "far_seconds": 1e308,
        "late_ms": 10**30,
        "\u202eodd": 3,
        "deep": {"ms": [{"ms": 1}]},
    }
    assert cell({"headers": headers}, "table") == (
        "headers ms 1,  2, far time 1e+308, late 1,000,000,000,000,000,000,000,000,000,000, \\u202eodd 3, "
        'deep ms {"ms": 1}'
    )


def test_what_is_not_there_is_told_on_a_page_to_browsers_alone(served: Api) -> None:
    wrong = ("/queues?colour=red", "/queues?page=0", f"/queues?page={'9' * 5000}")
    for path in ("/nothing", "/queues/dms/none", *wrong):
        for accept, kind in (("text/html", "text/html"), ("*/*", "application/problem+json")):
            status, headers, body = served.answer(path, Accept=accept)
            assert status == (400 if "?" in path else 404), path
            assert headers["content-type"].startswith(kind)
            assert b"<script>" not in body


def test_the_scripts_are_plain_and_load_nothing_from_elsewhere() -> None:
    folder = Path(__file__).parents[2] / "brokers" / "page"
    for path in (*folder.glob("static/*"), *folder.glob("templates/*")):
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, path
        assert "innerHTML" not in text, path


def test_one_message_is_deleted_and_moved_from_its_row(served: Api, visits: Callable[..., Visit]) -> None:
    make_queues(served, "rows", "rows-too")
    for text in ("one", "two", "three"):
        served.post("queues/dms/rows/messages", {"text": text})
    visit = visits()
    visit.go("/queues/dms/rows")
    page = visit.page
    page.get_by_role("button", name="Delete message: 2").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("status")).to_contain_text("1 discarded")
    dialog.get_by_role("button", name="Delete message").click()
    expect(page.locator(".messages pre")).to_have_text(["one", "three"])
    page.get_by_role("button", name="Move: 3").click()
    expect(dialog.get_by_label("Position")).to_have_value("3")
    dialog.get_by_label("To", exact=True).fill("rows-too")
    dialog.get_by_role("button", name="Move").click()
    expect(page.locator(".messages pre")).to_have_text(["one"])
    expect(page.get_by_role("button", name="Redrive: 1")).to_have_count(0)


def test_a_job_is_published_looked_at_and_delivered_at_once_and_dead_letters_go_back_by_their_key(
    served: Api, visits: Callable[..., Visit]
) -> None:
    make_queues(served, "work")
    served.post("queues", {"protocol": "dms", "name": "ends", "ttl_ms": 1, "dead_letter": "work"})
    for key in ("ann", "bob"):
        served.post("queues/dms/ends/messages", {"text": f"of {key}", "key": key})
    until(lambda: served.get("queues/dms/work")["ready"] == 2)
    visit = visits()
    visit.go("/queues/dms/work")
    page, dialog, told = visit.page, visit.page.get_by_role("dialog"), visit.page.locator("#told")

    def fill(button: str, **fields: str) -> None:
        page.locator(".actions").get_by_role("button", name=button, exact=True).click()
        for name, value in fields.items():
            dialog.get_by_label(name, exact=True).fill(value)

    fill("Publish", Text="a job", Delay="3600000", Priority="12", Key="eve")
    dialog.get_by_role("button", name="Publish").click()
    expect(dialog.locator(".wrong:visible")).to_contain_text("priority")
    dialog.get_by_label("Priority").fill("2")
    dialog.get_by_role("button", name="Publish").click()
    row = page.locator(".messages tr", has_text="a job")
    expect(row).to_contain_text("key eve")
    expect(row).to_contain_text("due in 59 min")
    assert served.get("queues/dms/work")["delayed"] == 1
    row.get_by_role("button", name=re.compile("Requeue")).click()
    dialog.get_by_role("button", name="Try").click()
    expect(dialog.get_by_role("status")).to_contain_text("1 requeued")
    dialog.get_by_role("button", name="Requeue").click()
    expect(told).to_contain_text("1 requeued")
    until(lambda: served.get("queues/dms/work")["delayed"] == 0)
    served.post("queues/dms/ends/change", {"ttl_ms": 0})
    fill("Redrive", Key="bob", Reason="ttl", Age="1ms", Rate="x")
    dialog.get_by_role("button", name="Try").click()
    expect(dialog.locator(".wrong:visible")).to_contain_text("rate")
    dialog.get_by_label("Rate").fill("10/s")
    dialog.get_by_role("button", name="Try").click()
    expect(dialog.get_by_role("status")).to_contain_text("1 moved")
    dialog.get_by_role("button", name="Redrive").click()
    expect(told).to_contain_text("1 moved")
    expect(page.locator(".messages pre")).to_have_text(["of ann", "a job"])
    assert served.get("queues/dms/ends")["ready"] == 1


def test_a_topic_begins_with_its_newest_records_and_is_followed_downloaded_and_searched(
    served: Api, visits: Callable[..., Visit]
) -> None:
    speak(served.server.address("logmq"), b"".join(b"PRODUCE lately r%d\n" % n for n in range(30)))
    visit = visits(own=True)
    page = visit.page
    page.clock.install()
    visit.go("/topics/lately")
    bodies = page.locator(".messages pre")
    expect(bodies).to_have_text([f"r{n}" for n in range(29, 9, -1)])
    page.get_by_role("link", name="Next").click()
    expect(bodies).to_have_text([f"r{n}" for n in range(9, -1, -1)])
    visit.go("/topics/lately")
    page.get_by_label("Live").check()
    page.get_by_role("button", name="Show").click()
    expect(bodies.first).to_have_text("r29")
    speak(served.server.address("logmq"), b"PRODUCE lately now\n")
    page.clock.fast_forward(1500)
    expect(bodies.first).to_have_text("now")
    page.get_by_label("Contains").fill("r1")
    page.get_by_label("Newest").uncheck()
    page.get_by_role("button", name="Show").click()
    expect(bodies).to_have_text(["r1", *(f"r1{n}" for n in range(10))])
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "lately.json"
    found = json.loads(download.value.path().read_text())["items"]
    assert [row["text"] for row in found] == bodies.all_inner_texts()


def test_an_object_has_charts_of_several_spans(served: Api, visits: Callable[..., Visit]) -> None:
    make_queues(served, "charted")
    served.post("queues/dms/charted/messages", {"text": "x"})
    until(lambda: 1 in served.get("queues/dms/charted/history")["lines"]["ready"][""])
    visit = visits()
    visit.go("/queues/dms/charted")
    ready = visit.page.locator("[data-line=ready]")
    expect(ready.locator("path")).to_have_count(1)
    expect(ready.locator(".legend")).to_have_text("1")
    visit.page.get_by_role("link", name="24h").click()
    expect(visit.page.get_by_role("link", name="24h")).to_have_attribute("aria-current", "true")
    assert "span=24h" in visit.page.url
