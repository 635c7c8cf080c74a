"""From what was said to settings objects: strictly, and naming what is wrong."""

import enum
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
from attrs import validators

from brokers.errors import Problem
from brokers.settings.structure import (
    GivenValue,
    Key,
    build,
    flatten,
)


class Policy(enum.Enum):
    WAIT = "wait"
    DROP = "drop"


@attrs.frozen
class Mode:
    name: str

    @classmethod
    def parse(cls, text: str) -> "Mode":
        if text not in ("always", "none"):
            raise ValueError(f"{text!r} is no mode")
        return cls(text)

    def __str__(self) -> str:
        return self.name


@attrs.frozen
class Tls:
    certificate: Path | None = None


@attrs.frozen
class Topic:
    mode: Mode | None = None
    retention_bytes: int | None = None


@attrs.frozen
class Settings:
    port: int = attrs.field(default=8080, validator=[validators.ge(0), validators.le(65535)])
    wait_seconds: float = 30.0
    line_bytes_max: int = 2**20
    quiet: bool = False
    names: tuple[str, ...] = ()
    level: Literal["low", "high"] = "low"
    policy: Policy = Policy.WAIT
    mode: Mode = Mode("always")
    tls: Tls = Tls()
    topics: Mapping[str, Topic] = attrs.field(factory=dict)
    labels: Mapping[str, str] = attrs.field(factory=dict)
    weights: dict[str, int] | None = None


SECTIONS: Mapping[str, type[Any]] = {"logmq": Settings, "net": Tls}


def from_toml(text: str) -> tuple[Settings, list[Problem]]:
    problems: list[Problem] = []
    given: dict[Key, GivenValue] = {}
    for leaf in flatten(tomllib.loads(text), SECTIONS, "b.toml"):
        if isinstance(leaf, Problem):
            problems.append(leaf)
        else:
            given[leaf[0]] = leaf[1]
    return build(Settings, ("logmq",), given, problems), problems


def from_words(**words: str) -> tuple[Settings, list[Problem]]:
    problems: list[Problem] = []
    given = {("logmq", name): GivenValue(value, "--" + name, words=True) for name, value in words.items()}
    return build(Settings, ("logmq",), given, problems), problems


def complaint(text: str) -> str:
    _, problems = from_toml(text)
    assert len(problems) == 1
    return str(problems[0])


def test_every_kind_of_setting_is_read_from_a_file() -> None:
    settings, problems = from_toml(
        """
        [logmq]
        port = 1
        wait_seconds = "50ms"
        line_bytes_max = "64MiB"
        quiet = true
        names = ["a", "b"]
        level = "high"
        policy = "drop"
        mode = "none"
        tls.certificate = "c.pem"
        [logmq.topics."orders.*"]
        mode = "none"
        retention_bytes = "1GiB"
        """
    )
    assert problems == []
    assert settings == Settings(
        port=1,
        wait_seconds=0.05,
        line_bytes_max=2**26,
        quiet=True,
        names=("a", "b"),
        level="high",
        policy=Policy.DROP,
        mode=Mode("none"),
        tls=Tls(Path("c.pem")),
        topics={"orders.*": Topic(Mode("none"), 2**30)},
    )


def test_every_kind_of_setting_is_read_from_words() -> None:
    settings, problems = from_words(
        port="1",
        wait_seconds="2",
        line_bytes_max="1KiB",
        quiet="yes",
        names="a, b,",
        policy="drop",
        mode="none",
    )
    assert problems == []
    assert settings == Settings(1, 2.0, 1024, True, ("a", "b"), "low", Policy.DROP, Mode("none"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[logmq]\nprot = 1", "logmq.prot: unknown key; did you mean logmq.port? (b.toml)"),
        ('[logmq.tls]\ncertificat = "x"', "did you mean logmq.tls.certificate?"),
        (
            '[logmq.topics."a.*"]\nretention_byte = 1',
            'retention_byte: unknown key; did you mean logmq.topics."a.*".retention_bytes?',
        ),
        ("[net]\nport = 1", "did you mean logmq.port?"),  # in the wrong place
        ("port = 1", "did you mean logmq.port?"),
        ("[lgomq]\nport = 1", "unknown section; did you mean [logmq]?"),
        ("[x]\nport = 1", "unknown section; there are logmq, net"),
        ("logmq = 1", "is a section"),
        ('[logmq.tls]\ncertificate = "a\\u0000b"', "logmq.tls.certificate: expected a path"),
    ],
)
def test_what_no_setting_is_called_names_itself_and_what_was_meant(text: str, says: str) -> None:
    assert says in complaint(text)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('port = "x"', "expected a whole number, got 'x'"),
        ("port = 1.0", "expected a whole number, got 1.0"),
        ("port = true", "expected a whole number, got True"),
        ("port = 65536", "must be <= 65535"),
        ('quiet = "yes"', "expected true or false"),
        ("names = [1]", "expected text, got 1"),
        ("names = 1", "expected a list, got 1"),
        ('level = "hgih"', "did you mean high?"),
        ('policy = "x"', "'x' is none of wait, drop"),
        ('mode = "x"', "'x' is no mode"),
        ("mode = 1", "expected text"),
        ('wait_seconds = "soon"', "is not an amount"),
        ("tls = 1", "is a table"),
        ("topics.x = 1", "is a table of settings"),
        ("topics = 1", "is a table: write [logmq.topics] and its keys below it"),
    ],
)
def test_a_bad_value_names_its_key_and_what_was_expected(line: str, says: str) -> None:
    text = complaint(f"[logmq]\n{line}")
    assert text.startswith(f"logmq.{line.partition(' =')[0]}: ")
    assert says in text
    assert text.endswith("(b.toml)")


@pytest.mark.parametrize(
    "words",
    [
        {"port": "x"},
        {"quiet": "maybe"},
        {"level": "middle"},
        {"line_bytes_max": "1 foot"},
        {"names": '["a"'},
        {"names": "[1]"},
    ],
)
def test_bad_words_name_the_flag_they_came_from(words: dict[str, str]) -> None:
    _, problems = from_words(**words)
    assert [problem.source for problem in problems] == ["--" + next(iter(words))]


def test_a_table_of_plain_values_is_read_from_a_file_and_from_words() -> None:
    settings, problems = from_toml('[logmq]\nlabels = {zone = "a", rack = "7"}\nweights = {one = 1}')
    assert problems == []
    assert (settings.labels, settings.weights) == ({"zone": "a", "rack": "7"}, {"one": 1})
    settings, problems = from_words(labels="zone=a, rack = 7=8,", weights="one=1,two=2")
    assert problems == []
    assert (settings.labels, settings.weights) == ({"zone": "a", "rack": "7=8"}, {"one": 1, "two": 2})
    settings, problems = from_words(labels="", weights="")
    assert problems == []
    assert (settings.labels, settings.weights) == ({}, None)


@pytest.mark.parametrize("words", ["zone", "=a", "zone=a,zone=b", "zone:a"])
def test_words_that_are_no_table_are_a_problem_that_names_their_source(words: str) -> None:
    _, problems = from_words(labels=words)
    assert [(problem.key, problem.source) for problem in problems] == [("logmq.labels", "--labels")]
    assert "NAME=VALUE" in str(problems[0])


def test_all_problems_are_found_at_once() -> None:
    _, problems = from_toml("[logmq]\nport = 70000\nquiet = 3\nprot = 1")
    assert [problem.key for problem in problems] == ["logmq.prot", "logmq.port", "logmq.quiet"]
