"""What is scraped: histograms, a series for each object, and that promtool finds nothing wrong with it."""

import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from brokers.admin import detailed, metrics
from dms.client import connect
from shared.metrics import Histogram, ack_sample, counter
from shared.objects import QUEUES, BadArgument, Objects
from tests.brokers.asking import Asking, scrape
from tests.brokers.turns import counted_turns, end_turns_early
from tests.support.server import Server, speak

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def test_a_histogram_has_buckets_that_add_up_a_count_and_a_sum() -> None:
    histogram = Histogram((0.1, 1))
    histogram.observe(0.1, 2)
    histogram.observe(0.5)
    histogram.observe(30, 4)
    text = metrics.render([ack_sample("a", histogram)]).decode()
    (family,) = [
        each for each in text_string_to_metric_families(text) if each.name == "brokers_publish_ack_seconds"
    ]
    found = {(each.name[len(family.name) :], each.labels.get("le")): each.value for each in family.samples}
    assert found == {
        ("_bucket", "0.1"): 2,
        ("_bucket", "1.0"): 3,
        ("_bucket", "+Inf"): 7,
        ("_count", None): 7,
        ("_sum", None): pytest.approx(120.7),
    }
    assert all(each.labels["protocol"] == "a" for each in family.samples)


def queues_of(count: int) -> list[tuple[str, Objects]]:
    def row(number: int) -> Mapping[str, Any] | None:
        return (
            None
            if number == 1
            else {
                "name": f'q"{number}',
                "ready": number,
                "paused": True,
                "bytes": None,
                "redelivered": {"2": 5, "10+": 1} if number == 2 else {},
            }
        )

    items = list(range(count))
    return [("a", Objects(QUEUES, lambda: items, lambda number: f"q{number}", lambda parts: None, row))]


async def scraped(families: str, everything: Sequence[tuple[str, Objects]], glob: str = "*") -> str:
    asked = detailed.chosen([("family", families), ("name", glob)])
    return b"".join([part async for part in detailed.text(asked[0], everything, asked[1])]).decode()


async def test_every_object_has_its_series_where_it_has_the_number() -> None:
    text = await scraped("queues,queues", queues_of(3))
    families = {each.name: each for each in text_string_to_metric_families(text)}
    ready = families["brokers_queue_ready"]
    assert ready.documentation
    assert [(each.labels, each.value) for each in ready.samples] == [
        ({"protocol": "a", "name": 'q"0'}, 0),
        ({"protocol": "a", "name": 'q"2'}, 2),
    ]
    assert families["brokers_queue_paused"].samples[0].value == 1
    assert [(each.labels, each.value) for each in families["brokers_queue_redelivered"].samples] == [
        ({"protocol": "a", "name": 'q"2', "delivery": "10+"}, 1),
        ({"protocol": "a", "name": 'q"2', "delivery": "2"}, 5),
    ]
    assert "brokers_queue_bytes" not in families
    assert "brokers_queue_settings" not in families
    narrow = await scraped("queues", queues_of(30), "q2?")
    assert narrow.count("brokers_queue_ready{") == 10
    family = ("family", "queues")
    for wrong in ([], [("family", "colours")], [family, ("nmae", "q*")], [family, *2 * [("name", "q*")]]):
        with pytest.raises(BadArgument):
            detailed.chosen(wrong)
    kinds, glob = detailed.chosen([family, ("family", "groups,queues")])  # as Prometheus sends a list
    assert ([kind.name for kind in kinds], glob) == (["queues", "groups"], "*")


async def test_too_many_series_are_left_out_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detailed, "SERIES_MAX", 200 * 13)
    text = await scraped("queues", queues_of(500))
    assert text.startswith("# queues: some are left out")
    assert 0 < text.count("brokers_queue_ready{") < 500
    assert text.count("\nbrokers_") <= 200 * 13


async def test_a_scrape_of_50_000_queues_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    end_turns_early(monkeypatch)
    async with counted_turns() as turns:
        text = await scraped("queues", queues_of(50_000))
    assert text.count("brokers_queue_ready{") == 49_999
    assert turns.count > 1000


@attrs.define(eq=False)
class Counted:
    produced: int = counter("messages_produced_total", "In.")


@pytest.fixture(scope="module")
def busy(shared_server: Server) -> Server:
    """The server, after it has done something."""

    async def use_a_queue() -> None:
        async with connect(*shared_server.address("dms")) as client:
            await client.create("measured")
            await client.produce("measured", b"hello")
            async with client.consume("measured") as messages:
                async for message in messages:
                    await message.ack()
                    break

    speak(shared_server.address("logmq"), b"PRODUCE measured one\nCOMMIT group measured 0\n")
    trio.run(use_a_queue)
    return shared_server


def test_a_server_times_syncs_acknowledgements_and_queues(busy: Server) -> None:
    found = {
        (sample.name, sample.labels.get("protocol")): sample.value
        for family in text_string_to_metric_families(scrape(busy))
        for sample in family.samples
        if sample.name.endswith("_count")
    }
    assert found["brokers_store_sync_seconds_count", None] > 0
    assert found["brokers_publish_ack_seconds_count", "logmq"] >= 1
    assert found["brokers_publish_ack_seconds_count", "dms"] >= 1
    assert found["brokers_queue_wait_seconds_count", "dms"] >= 1  # others have used queues, too


def test_a_series_for_each_object_needs_a_login(busy: Server) -> None:
    text = scrape(busy, "/metrics/detailed?family=queues,topics,groups,connections&name=*measured*")
    assert 'brokers_queue_ready{protocol="dms",name="measured"} 0' in text
    assert 'brokers_topic_end{protocol="logmq",name="measured"}' in text
    assert 'brokers_group_lag_bytes{protocol="logmq",group="group",topic="measured"}' in text
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{busy.ready['page']}metrics/detailed?family=queues", timeout=20)
    with Asking(busy, "/metrics/detailed?family=colours") as asking:
        assert asking.answer.status == 400


def test_a_scrape_by_who_reads_to_the_end_of_the_connection_ends(busy: Server) -> None:
    with socket.socket(socket.AF_UNIX) as ours:
        ours.settimeout(10)
        ours.connect(str(busy.data / "control.sock"))
        ours.sendall(b"GET /metrics/detailed?family=queues HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n")
        with ours.makefile("rb") as answer:
            assert answer.read().endswith(b"0\r\n\r\n")


@needs_promtool
@pytest.mark.parametrize("path", ["/metrics", "/metrics/detailed?family=queues,topics,groups,connections"])
def test_promtool_finds_nothing_wrong(busy: Server, path: str) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=scrape(busy, path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
