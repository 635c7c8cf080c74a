"""The units for systemd, the StatefulSet, and the manual pages say what the code says."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from ruamel.yaml import YAML

from brokers.commands.cli import root
from brokers.commands.flags import ServeCommand
from brokers.packaging.wheel import manual
from brokers.plugins import load_all
from brokers.settings.config import load
from brokers.settings.sections import AdminSettings, ServeSettings
from tests.support.server import Server

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "brokers" / "packaging"
VERSION = importlib.metadata.version("brokers")


def ports() -> set[int]:
    return {plugin.settings().port for plugin in load_all()[0]}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_units_are_such_for_systemd_and_leave_the_service_little_of_the_machine(tmp_path: Path) -> None:
    unit, sockets = tmp_path / "brokers.service", tmp_path / "brokers.socket"
    text = (FOLDER / unit.name).read_text()
    assert "ExecStart=/opt/brokers/bin/brokers serve" in text
    unit.write_text(text.replace("/opt/brokers/bin/brokers", sys.executable))
    shutil.copy(FOLDER / sockets.name, sockets)
    installing = (ROOT / "brokers" / "docs" / "install.md").read_text()
    dropped_in = re.findall(r"```ini\n(.*?)```", installing, re.DOTALL)
    assert len(dropped_in) == 2
    (tmp_path / "brokers.service.d").mkdir()

    def analyze(*words: str | Path) -> str:
        asked = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=60)
        assert asked.returncode == 0, asked.stdout + asked.stderr
        return asked.stdout + asked.stderr

    for each in dropped_in:
        (tmp_path / "brokers.service.d" / "tls.conf").write_text(each)
        assert analyze("verify", unit, sockets) == ""
    analyze("security", "--offline=true", "--threshold=20", unit)  # tenths: the document says 1.4


def test_the_sockets_are_those_that_a_server_binds_unless_set() -> None:
    unit = (FOLDER / "brokers.socket").read_text()
    bound = re.findall(r"^Listen(?:Stream|Datagram)=(\S+):(\d+)$", unit, re.M)
    assert {host for host, _ in bound} == {ServeSettings().host, AdminSettings().host}
    assert {int(port) for _, port in bound} == {*ports(), AdminSettings().port}


@pytest.fixture(scope="module")
def service_and_set() -> list[Any]:
    return list(YAML(typ="safe", pure=True).load_all((FOLDER / "kubernetes.yaml").read_text()))


@pytest.fixture
def container(service_and_set: list[Any]) -> Mapping[str, Any]:
    (only,) = service_and_set[1]["spec"]["template"]["spec"]["containers"]
    return only  # type: ignore[no-any-return]


def test_the_service_leads_to_every_port_of_the_container(
    service_and_set: list[Any], container: Mapping[str, Any]
) -> None:
    service, set_ = service_and_set
    named = {port["name"]: port for port in container["ports"]}
    assert {port["containerPort"] for port in named.values()} == ports()
    for port in service["spec"]["ports"]:
        target = named.pop(port["targetPort"])
        assert (port["port"], port.get("protocol")) == (target["containerPort"], target.get("protocol"))
    assert named == {}
    labels = set_["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == set_["spec"]["selector"]["matchLabels"] == labels
    assert set_["spec"]["serviceName"] == service["metadata"]["name"]


def test_one_container_serves_with_settings_that_exist_and_has_time_to_stop(
    service_and_set: list[Any], container: Mapping[str, Any]
) -> None:
    spec = service_and_set[1]["spec"]
    assert spec["replicas"] == 1
    assert container["image"] == f"brokers:{VERSION}"
    words = container["args"]
    command, bound, _ = root().parse_args(words, print_error=False, exit_on_error=False)
    result = command(*bound.args, **bound.kwargs)
    assert isinstance(result, ServeCommand)
    environ = {each["name"]: each["value"] for each in container["env"]}
    config = load(load_all()[0], file=None, environ=environ, flags=result.flags)
    assert config.serve.host == "0.0.0.0"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > config.serve.drain_seconds
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert config.serve.data_dir.is_relative_to(mounted["data"])
    assert {each["metadata"]["name"] for each in spec["volumeClaimTemplates"]} == {"data"}


def test_the_probes_pass_on_a_server_that_serves_and_fail_on_none(
    container: Mapping[str, Any], tmp_path: Path
) -> None:
    with Server(tmp_path) as server:
        (port, usual) = urlsplit(server.ready["page"]).port, str(AdminSettings().port)
        assert container["startupProbe"]["exec"] == container["readinessProbe"]["exec"]
        for probe, there, passes in (
            ("readinessProbe", str(port), True),
            ("livenessProbe", str(port), True),
            ("livenessProbe", "1", False),
        ):
            program, *words = container[probe]["exec"]["command"]
            assert program == "python"
            assert any(usual in word for word in words)
            asked = [sys.executable, *(word.replace(usual, there) for word in words)]
            done = subprocess.run(asked, capture_output=True, timeout=60, check=False)
            assert (done.returncode == 0) is passes, done.stderr


def test_every_command_has_a_manual_page_with_what_is_below_it() -> None:
    reference = (ROOT / "brokers" / "docs" / "reference" / "commands.md").read_text()
    pages = manual(reference, VERSION)
    names = [name for name in root() if not name.startswith("-")]
    assert len(names) > 20
    assert set(pages) == {"brokers.1", *(f"brokers-{name}.1" for name in names)}
    assert all(f"\n.TP\n\\fB{name}\\fR\n" in pages["brokers.1"] for name in names)
    dms = pages["brokers-dms.1"]
    assert dms.startswith('.TH "BROKERS-DMS" 1 "" "brokers ')
    assert ".SH NAME\nbrokers\\-dms \\- DMS: work queues" in dms
    below = [name for name in root(["dms"])["dms"] if not name.startswith("-")]
    assert [f'.SH "brokers dms {name}"' in dms for name in below] == [True] * len(below)
    assert ".TP\n\\fB\\-\\-max, \\-n INT\\fR\nTake this many (1 without \\-c).\n" in dms
    assert not re.search(r"[`*]|\]\(", dms)


def test_no_line_of_a_manual_page_is_taken_for_a_request() -> None:
    text = "## brokers x\n\nAbout x.\n\n.dot and \\back and 'quote'\n\n'first\n"
    head = "# Commands\n\nThis page is made from the code by `make reference`.\n\nAbout.\n"
    page = manual(head + text, "1")["brokers-x.1"]
    assert "\n\\&.dot and \\eback and 'quote'\n" in page
    assert "\n\\&'first\n" in page
