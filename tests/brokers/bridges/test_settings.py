"""`[[bridge]]`: what is wrong is named with file, line and reason; circles that names show are refused."""

from pathlib import Path
from typing import Any

import pytest

from brokers.bridges.settings import BridgeFilter, BridgeSettings, parse_bridges
from brokers.errors import InvalidSettings
from brokers.plugins import load_working
from brokers.settings.config import load
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
        rate=1000.0,
    )
    assert (jobs.start, jobs.dead, sensors.dead) == ("@1782864000000", "logmq:refused", "logmq:dead.sensors")


@pytest.mark.parametrize(
    ("before", "after", "line", "said"),
    [
        ('as = "json"', 'as = "xml"', 8, "'xml' is none of raw, text and json"),
        ('rate = "1000/s"', "rate = 1000", 9, "is a text"),
        ('rate = "1000/s"', 'rate = "fast"', 9, "so many messages a second"),
        ('to = "dms:readings"', 'too = "dms:readings"', 7, "unknown key; did you mean to?"),
        ('to = "dms:jobs"', "", 12, "is missing"),
        ('to = "dms:jobs"', 'to = "dms:{nam}"', 15, "{nam} is no field"),
        ('from = "logmq:jobs"', 'from = "kafka:jobs"', 14, "no protocol 'kafka'"),
        ('from = "logmq:jobs"', 'from = "jobs"', 14, "is no address"),
        ('from = "logmq:jobs"', 'from = "logmq:jobs-[ab]"', 14, "no topic has [ in its name"),
        ('name = "jobs"', 'name = "sensors"', 13, "there are two bridges 'sensors'"),
        ('"dead:logmq:refused"', '"never"', 17, "none of wait, drop and dead:<address>"),
        ("min_bytes", "min_bites", 10, "min_bites: unknown key"),
        ("min_bytes = 1", "min_bytes = 2, max_bytes = 1", 10, "nothing would pass"),
        ('from = "logmq:jobs"', 'from = "dmp:/jobs"', 14, "the default exchange has no bindings"),
        ('from = "logmq:jobs"', 'from = "dms:old"', 16, "dms:old has no places to begin at"),
        ("start = 2026-07-01T00:00:00Z", 'start = "soon"', 16, "none of first, end, an offset and a time"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    tmp_path: Path, before: str, after: str, line: int, said: str
) -> None:
    with pytest.raises(InvalidSettings) as caught:
        _load(tmp_path, FILE.replace(before, after))
    problems = caught.value.problems
    where = f"brokers.toml:{line}"
    assert any(said in each.text and each.source.endswith(where) for each in problems), problems


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
