"""Protocols are found by entry point; a broken one costs one clear line."""

from typing import Any

import attrs
import pytest

from brokers import config, plugs
from brokers.cli import root
from brokers.errors import ExitCode, InvalidSettings, Refusal
from shared.plug import ENTRY_POINT_GROUP
from tests.support.installed import install, plug


@attrs.frozen
class NoDefault:
    port: int


@attrs.frozen
class NoPort:
    name: str = ""


def test_installed_protocols_are_known_and_loaded_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"b": {"plug": plug("b")}, "a": {"plug": plug("a")}})
    assert plugs.names() == ["a", "b"]
    assert plugs.load("a").name == "a"
    assert plugs.summary("a") == "Protocol a."
    assert [found.name for found in plugs.load_all()[0]] == ["a", "b"]


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        (ImportError("no module\nnamed x"), "ImportError: no module named x"),
        (SyntaxError("bad"), "SyntaxError: bad"),
        ({}, "AttributeError"),
        ({"plug": 5}, "names a int, not a Plug"),
        ({"plug": plug("other")}, "its entry point is called 'a', its Plug 'other'"),
        ({"plug": plug("a", settings=dict)}, "settings are not an attrs class"),
        ({"plug": plug("a", settings=NoDefault)}, "its setting 'port' has no default"),
        ({"plug": plug("a", settings=NoPort)}, "its settings have no port"),
    ],
)
def test_a_broken_plug_is_one_clear_line_and_the_others_work(
    monkeypatch: pytest.MonkeyPatch, contents: Any, says: str
) -> None:
    install(monkeypatch, {"a": contents, "b": {"plug": plug("b")}})
    working, broken = plugs.load_all()
    assert [found.name for found in working] == ["b"]
    (line,) = broken.values()
    assert "protocol 'a' of a_plug:plug cannot be used: " in str(line)
    assert says in str(line)
    assert "\n" not in str(line)
    assert line.code == ExitCode.CONFIGURATION


def test_a_plug_cannot_take_a_name_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"serve": {"plug": plug("serve")}})
    with pytest.raises(Refusal, match="taken by the host"):
        plugs.load("serve")


def test_the_hosts_names_are_those_it_has() -> None:
    assert set(config.OWN_SECTIONS) == plugs.OWN_SECTIONS
    own = {name for name in root() if not name.startswith("-")} - set(plugs.names())
    assert own == plugs.OWN_VERBS


def test_the_groups_name_is_that_of_the_contract() -> None:
    assert plugs.GROUP == ENTRY_POINT_GROUP


def test_a_protocol_offered_twice_is_refused_by_the_packages_names(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"a": {"plug": plug("a")}, "b": {"plug": plug("b")}})
    points = plugs.entry_points(group=plugs.GROUP)
    second = type(points[0])("a", "b_plug:plug", plugs.GROUP)
    monkeypatch.setattr(plugs, "entry_points", lambda group: [*points, second, points[0]])
    with pytest.raises(Refusal, match="offered twice, by a_plug:plug and b_plug:plug"):
        plugs.load("a")


def test_enable_takes_all_that_work_or_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"a": {"plug": plug("a")}, "b": {"plug": plug("b")}, "c": ImportError("x")})
    working, _ = plugs.load_all()
    assert [found.name for found in plugs.enabled(["all"], working, "")] == ["a", "b"]
    assert [found.name for found in plugs.enabled(["b", "b"], working, "")] == ["b"]


def test_enable_refuses_what_is_unknown_or_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"logmq": {"plug": plug("logmq")}, "c": ImportError("x")})
    working, _ = plugs.load_all()
    with pytest.raises(InvalidSettings, match="did you mean logmq") as error:
        plugs.enabled(["lgomq"], working, "--enable")
    assert error.value.code == ExitCode.USAGE
    with pytest.raises(InvalidSettings, match="cannot be used: ImportError: x") as error:
        plugs.enabled(["c"], working, "b.toml")
    assert error.value.code == ExitCode.CONFIGURATION
