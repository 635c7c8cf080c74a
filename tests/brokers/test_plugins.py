"""Protocols are found by entry point; a broken one costs one clear line."""

from typing import Any

import attrs
import pytest

from brokers import plugins
from brokers.errors import ExitCode, Failure, InvalidSettings
from brokers.settings import config
from tests.support.installed import install, plugin


@attrs.frozen
class NoDefault:
    port: int


@attrs.frozen
class NoPort:
    name: str = ""


def test_installed_protocols_are_known_and_loaded_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"b": {"plugin": plugin("b")}, "a": {"plugin": plugin("a")}})
    assert plugins.names() == ["a", "b"]
    assert plugins.load("a").name == "a"
    assert plugins.summary("a") == "Protocol a."
    assert [found.name for found in plugins.load_all()[0]] == ["a", "b"]


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        (ImportError("no module\nnamed x"), "ImportError: no module named x"),
        (SyntaxError("bad"), "SyntaxError: bad"),
        ({}, "AttributeError"),
        ({"plugin": 5}, "names a int, not a Plugin"),
        ({"plugin": plugin("other")}, "its entry point is called 'a', its Plugin 'other'"),
        ({"plugin": plugin("a", settings=dict)}, "settings are not an attrs class"),
        ({"plugin": plugin("a", settings=NoDefault)}, "its setting 'port' has no default"),
        ({"plugin": plugin("a", settings=NoPort)}, "its settings have no port"),
    ],
)
def test_a_broken_plugin_is_one_clear_line_and_the_others_work(
    monkeypatch: pytest.MonkeyPatch, contents: Any, says: str
) -> None:
    install(monkeypatch, {"a": contents, "b": {"plugin": plugin("b")}})
    working, broken = plugins.load_all()
    assert [found.name for found in working] == ["b"]
    (line,) = broken.values()
    assert "protocol 'a' of a_plugin:plugin cannot be used: " in str(line)
    assert says in str(line)
    assert "\n" not in str(line)
    assert line.code == ExitCode.CONFIGURATION


def test_a_plugin_cannot_take_a_name_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"serve": {"plugin": plugin("serve")}})
    with pytest.raises(Failure, match="taken by the host"):
        plugins.load("serve")


def test_the_hosts_sections_are_those_it_has() -> None:
    assert set(config.OWN_SECTIONS) == plugins.OWN_SECTIONS


def test_a_protocol_offered_twice_is_refused_by_the_packages_names(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"a": {"plugin": plugin("a")}, "b": {"plugin": plugin("b")}})
    points = plugins.entry_points(group=plugins.GROUP)
    second = type(points[0])("a", "b_plugin:plugin", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [*points, second, points[0]])
    with pytest.raises(Failure, match="offered twice, by a_plugin:plugin and b_plugin:plugin"):
        plugins.load("a")


def test_enable_takes_all_that_work_or_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"a": {"plugin": plugin("a")}, "b": {"plugin": plugin("b")}, "c": ImportError("x")})
    working, _ = plugins.load_all()
    assert [found.name for found in plugins.enabled(["all"], working, "")] == ["a", "b"]
    assert [found.name for found in plugins.enabled(["b", "b"], working, "")] == ["b"]


def test_enable_refuses_what_is_unknown_or_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"logmq": {"plugin": plugin("logmq")}, "c": ImportError("x")})
    working, _ = plugins.load_all()
    with pytest.raises(InvalidSettings, match="did you mean logmq") as error:
        plugins.enabled(["lgomq"], working, "--enable")
    with pytest.raises(InvalidSettings, match="did you mean logmq"):
        plugins.enabled(["all", "lgomq"], working, "--enable")
    assert error.value.code == ExitCode.USAGE
    with pytest.raises(InvalidSettings, match="cannot be used: ImportError: x") as error:
        plugins.enabled(["c"], working, "b.toml")
    assert error.value.code == ExitCode.CONFIGURATION
