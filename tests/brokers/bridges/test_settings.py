"""`[[bridge]]`: what is wrong is named with its key and a reason; circles that names show are refused."""

from pathlib import Path
from typing import Any

import pytest

from brokers.bridges.settings import BridgeFilter, BridgeSettings, parse_bridges
from brokers.errors import InvalidSettings
from brokers.plugins import load_working
from brokers.settings.config import load
from shared.rates import Rate
from tests.brokers.bridges.world import ends

FILE = """\
[serve]
log_level = "info"

[[bridge]]
name = "sensors"
from = "pubsub:home/+/temperature"
to = "dms:readings"
as = "json"
rate = "1000/s"
filter = { key = "home*", min_bytes = 1 }

[[bridge]]
name = "jobs"
from = "logmq:jobs"
to = "dms:jobs"
start = 2026-07-01T00:00:00Z
on_refused = "dead:logmq:refused"
"""


def _load(tmp_path: Path, text: str) -> tuple[BridgeSettings, ...]:
    file = tmp_path / "brokers.toml"
    file.write_text(text)
    working, _ = load_working()
    return load(working, file=file, environ={}).bridges


def test_a_file_has_bridges(tmp_path: Path) -> None:
    sensors, jobs = _load(tmp_path, FILE)
    assert sensors == BridgeSettings(
        "sensors",
        "pubsub:home/+/temperature",
        "dms:readings",
        "json",
        filter=BridgeFilter("home*", 1),
        rate=Rate(1000),
    )
    assert (jobs.start, jobs.dead, sensors.dead) == ("@1782864000000", "logmq:refused", "logmq:dead.sensors")


@pytest.mark.parametrize(
    ("before", "after", "key", "said"),
    [
        ('as = "json"', 'as = "xml"', "sensors.as", "'xml' is none of raw, text, json"),
        ('rate = "1000/s"', "rate = 1000", "sensors.rate", "expected text, got 1000"),
        ('rate = "1000/s"', 'rate = "fast"', "sensors.rate", "so many messages a second"),
        ('to = "dms:readings"', 'too = "dms:readings"', "sensors.too", "did you mean bridge.sensors.to?"),
        ('to = "dms:jobs"', "", "jobs.to", "is missing"),
        ('name = "jobs"', "", "2.name", "is missing"),
        ('name = "jobs"', 'name = "a b"', '"a b".name', "a name is 1 to 64 of"),
        ('to = "dms:jobs"', 'to = "dms:{nam}"', "jobs.to", "{nam} is no field"),
        ('from = "logmq:jobs"', 'from = "kafka:jobs"', "jobs.from", "no protocol 'kafka'"),
        ('from = "logmq:jobs"', 'from = "jobs"', "jobs.from", "is no address"),
        ('from = "logmq:jobs"', 'source = "logmq:jobs"', "jobs.source", "unknown key"),
        ('from = "logmq:jobs"', 'from = "logmq:jobs-[ab]"', "jobs.from", "no topic has [ in its name"),
        ('name = "jobs"', 'name = "sensors"', "sensors.name", "two bridges have it"),
        ('"dead:logmq:refused"', '"never"', "jobs.on_refused", "none of wait, drop and dead:<address>"),
        ("min_bytes", "min_bites", "sensors.filter.min_bites", "unknown key"),
        ("min_bytes = 1", "min_bytes = 2, max_bytes = 1", "sensors.filter", "nothing would pass"),
        ("min_bytes = 1", "min_bytes = -1", "sensors.filter.min_bytes", ">= 0"),
        ('from = "logmq:jobs"', 'from = "dmp:/jobs"', "jobs.from", "the default exchange has no bindings"),
        ('from = "logmq:jobs"', 'from = "dms:old"', "jobs.start", "dms:old has no places to begin at"),
        ("start = 2026-07-01T00:00:00Z", 'start = "soon"', "jobs.start", "none of first, end, an offset"),
        ("start = 2026-07-01T00:00:00Z", "start = -1", "jobs.start", "none of first, end, an offset"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(
    tmp_path: Path, before: str, after: str, key: str, said: str
) -> None:
    with pytest.raises(InvalidSettings) as caught:
        _load(tmp_path, FILE.replace(before, after))
    problems = caught.value.problems
    assert any(said in each.text and each.key == f"bridge.{key}" for each in problems), problems


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ("12", "12"),
        ('"12"', "12"),
        ('"first"', "first"),
        ("2026-07-01T00:00:00", "@1782864000000"),
        ('"2026-07-01T02:00:00+02:00"', "@1782864000000"),
    ],
)
def test_a_start_is_a_word_a_number_or_a_time(tmp_path: Path, written: str, start: str) -> None:
    _, jobs = _load(tmp_path, FILE.replace("2026-07-01T00:00:00Z", written))
    assert jobs.start == start


def test_a_table_in_place_of_a_list_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"write \[\[bridge\]\]"):
        _load(tmp_path, '[bridge]\nname = "x"\n')


@pytest.mark.parametrize(
    "bridges",
    [
        [("logmq:a", "logmq:a")],
        [("logmq:a*", "logmq:abc")],
        [("logmq:a", "dms:b"), ("dms:b", "logmq:a")],
        [("pubsub:a/+", "kqmsgq:x"), ("kqmsgq:*", "dms:y"), ("dms:y", "pubsub:a/b")],
        [("logmq:a", "logmq:{name}")],
        [("dmp:amq.topic/a.#", "dmp:amq.topic/a.{name.2}")],
        [("dmp:q", "dmp:q")],
    ],
)
def test_a_circle_that_names_show_is_refused_unless_it_is_meant(bridges: list[tuple[str, str]]) -> None:
    def tables(**more: Any) -> list[dict[str, Any]]:
        return [
            {"name": f"b{at}", "from": source, "to": target, **more}
            for at, (source, target) in enumerate(bridges)
        ]

    _, problems = parse_bridges(tables(), ends)
    assert "messages would go round for ever (b0" in problems[0].text
    assert parse_bridges(tables(may_circle=True), ends)[1] == []


@pytest.mark.parametrize(
    ("source", "dead", "refused"),
    [
        ("dms:a", "dms:a", True),
        ("dms:a", "dms:{name}", True),
        ("dmp:a", "dmp:a", True),
        ("dms:a", "dms:dead", False),
        ("dms:a", "dmp:a", False),
        ("dmp:amq.topic/a.#", "dmp:amq.topic/a.dead", False),
        ("logmq:*", "logmq:dead", False),
    ],
)
def test_what_is_set_apart_does_not_come_back_to_the_queue_it_is_taken_from(
    source: str, dead: str, refused: bool
) -> None:
    """It has passed the bridge, which would confirm it and carry it nowhere."""
    table = {"name": "b", "from": source, "to": "kqmsgq:x", "on_refused": f"dead:{dead}", "may_circle": True}
    _, problems = parse_bridges([table], ends)
    assert ["be lost" in each.text for each in problems] == [True] * refused


@pytest.mark.parametrize(
    ("source", "target", "form"),
    [
        ("logmq:a", "logmq:b", "raw"),
        ("logmq:jobs*", "logmq:log-{name}", "raw"),
        ("logmq:*", "logmq:{name}", "json"),
        ("pubsub:a/+", "pubsub:a/b/c", "raw"),
        ("dmp:amq.topic/a.*", "dmp:amq.direct/a.b", "raw"),
        ("dmp:q", "dmp:amq.topic/q", "raw"),
        ("kqmsgq:a", "kqmsgq:b", "raw"),
        ("dms:a", "dms:a%2Fb", "raw"),
        ("kqmsgq:[ab]", "kqmsgq:a", "raw"),
    ],
)
def test_what_cannot_go_round_is_no_circle(source: str, target: str, form: str) -> None:
    _, problems = parse_bridges([{"name": "b", "from": source, "to": target, "as": form}], ends)
    assert problems == []
