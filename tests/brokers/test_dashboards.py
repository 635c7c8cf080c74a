"""The dashboard and the alerts that ship: every series they name is one that a server has."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from brokers.admin.troubles import KINDS
from tests.brokers.asking import scrape
from tests.support.server import Server

BROKERS = Path(__file__).parent.parent.parent / "brokers"
DASHBOARD = json.loads((BROKERS / "grafana.json").read_text())
ALERTS = YAML(typ="safe").load((BROKERS / "alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
REDELIVERED = {"brokers_dmp_messages_redelivered_total", "brokers_dms_messages_redelivered_total"}
"""They begin with the first redelivery, which another test of the same server may have had."""
LATER = REDELIVERED | {
    "brokers_logmq_group_lag_bytes",
    "brokers_net_refused_total",
    "brokers_recorded_left_out_messages_total",
}
"""They begin when there is a reason, a gap, a certificate, or have been looked at, which is each 15 s."""


SHIPPED = "brokers_ship_"
"""How the series begin that a server has which ships to a bucket."""


def dashboard_expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")


def series(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:brokers|process)_\w+", expression))


EXPRESSIONS = [*dashboard_expressions(), *(rule["expr"] for rule in RULES)]


def test_every_series_of_the_dashboard_and_of_the_alerts_is_one(shared_server: Server) -> None:
    every = set().union(*map(series, EXPRESSIONS))
    named = {name for name in every if not name.startswith(SHIPPED)}  # tests/brokers/ship knows those
    assert len(named) > 50
    told = set(re.findall(r"^(\w+)[{ ]", scrape(shared_server), re.MULTILINE))
    assert (named - told) | REDELIVERED == LATER
    source = "".join(
        path.read_text()
        for each in ("shared", "logmq", "dms")
        for path in BROKERS.with_name(each).rglob("*.py")
    )
    names = [re.sub("^brokers_(net_|dm[ps]_)?", "", name) for name in LATER]
    assert [name for name in names if f'"{name}"' not in source] == []


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_what_needs_a_person_has_an_alert_and_a_panel(kind: str) -> None:
    named = f'kind="{kind}"'
    assert len([rule for rule in RULES if named in rule["expr"]]) == 1
    assert len([expression for expression in dashboard_expressions() if named in expression]) == 1


def test_labels_that_alerts_and_legends_show_are_there(shared_server: Server) -> None:
    text = scrape(shared_server)
    shown = [(rule["expr"], json.dumps(rule["annotations"])) for rule in RULES]
    for panel in DASHBOARD["panels"]:
        shown += [(target["expr"], target["legendFormat"]) for target in panel.get("targets", ())]
    for expression, legend in shown:
        labels = set(re.findall(r"\{\{ ?(?:\$labels\.)?([a-z]+) ?\}\}", legend)) - {"instance"}
        for name in {each for each in series(expression) if not each.startswith(SHIPPED)} - LATER:
            line = re.search(rf"^{name}(?:{{(.*)}})? ", text, re.MULTILINE)
            assert line is not None, name
            assert labels <= set(re.findall(r'(\w+)="', line[1] or "")), (name, legend)


def test_every_alert_says_what_it_means_and_how_bad_it_is() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) > 15
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert len(rule["annotations"]["summary"]) > 30


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_reads_the_rules_and_every_expression(tmp_path: Path) -> None:
    def check(path: Path) -> None:
        done = subprocess.run(
            ["promtool", "check", "rules", path], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    check(BROKERS / "alerts.yml")
    rules: list[Any] = [
        {"record": f"panel_{number}", "expr": expression}
        for number, expression in enumerate(dashboard_expressions())
    ]
    path = tmp_path / "panels.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    check(path)
