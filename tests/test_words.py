"""One word, one meaning: the glossary of ARCHITECTURE.md, names of classes, and the steps of its ways."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest

from tests.test_arrows import PACKAGES, ROOT, Module, modules, nodes

WORDS_MAX = 50

SAME_EVERYWHERE = frozenset(
    # What a protocol's rooms are made of.
    {"Admin", "Broker", "Client", "Counts", "Event", "Refusal", "Session", "State"}
    # The field's nouns. A client's class and the server's stand for the two ends of one thing.
    | {"Consumer", "Feed", "Message", "Messages", "Producer", "Queue", "QueueLog", "Record", "Sink", "Tail"}
    # For blocking code a client's class has the same name again.
    | {"Deliveries", "Delivery", "GroupReader", "Publisher", "Records", "Subscriber"}
    # Why an answer says no: a code of the wire, and what is wrong with a message that gets no answer.
    | {"Code", "Fault", "NotThere"}
    # An answer that is waited for, a client's connection, a list of a folder's files, what a check has found.
    | {"Answer", "Finding", "Link", "Manifest"}
    # Where a server is, filled in; what a user may write to.
    | {"Server", "_Writable"}
)
"""Classes that stand in several files and mean the same in each."""


def glossary() -> list[str]:
    """The words of the table, `ack, nack` being two."""
    text = (ROOT / "shared/ARCHITECTURE.md").read_text().partition("## Glossary")[2]
    rows = re.findall(r"^\| (?!word |---)([^|]+) \|", text, re.MULTILINE)
    return [word for row in rows for word in row.split(", ")]


def doublets(all_modules: Iterable[Module]) -> Iterator[str]:
    """Classes that stand in several files."""
    homes: dict[str, set[str]] = defaultdict(set)
    for module in all_modules:
        for node in nodes(module.source, module.path):
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(module.path)
    yield from (f"{name}: {', '.join(sorted(paths))}" for name, paths in homes.items() if len(paths) > 1)


def test_the_glossary_is_short_and_has_no_word_twice() -> None:
    words = glossary()
    assert 30 < len(words) <= WORDS_MAX
    assert sorted(words) == sorted(set(words))


def test_every_word_of_the_glossary_is_used_by_the_source() -> None:
    source = "\n".join(module.source for module in modules(*PACKAGES)).lower().replace("_", " ")
    assert [word for word in glossary() if not re.search(rf"\b{word}", source)] == []


def test_a_class_name_stands_once_unless_it_means_the_same() -> None:
    found = [each for each in doublets(modules(*PACKAGES)) if each.partition(":")[0] not in SAME_EVERYWHERE]
    assert found == [], "one word, one meaning: give the one that is less the field's word another name"


def test_the_list_of_names_that_mean_the_same_has_none_too_many() -> None:
    assert {each.partition(":")[0] for each in doublets(modules(*PACKAGES))} >= SAME_EVERYWHERE


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ("class Place: ...", ["Place: dmp/b.py, dms/a.py"]),
        ("def f():\n    class Place: ...", ["Place: dmp/b.py, dms/a.py"]),
        ("class Places: ...", []),
        ("class _Place: ...", []),
        ("Place = 1", []),
    ],
)
def test_a_class_that_stands_twice_is_found(other: str, found: list[str]) -> None:
    assert list(doublets([Module("dms/a.py", "class Place: ..."), Module("dmp/b.py", other)])) == found


def definitions(source: str) -> set[str]:
    """The names of classes and functions at the top of a module, and of methods as `Class.method`."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.ClassDef, *functions)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, functions)}
    return names


def test_every_step_of_a_message_is_a_function_of_its_file() -> None:
    text = (ROOT / "shared/ARCHITECTURE.md").read_text()
    ways = text.partition("## The way of one message")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```\n(.*?)^```", ways, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    known: dict[str, set[str]] = {}
    missing = []
    for block in blocks:
        file = ""
        for step in re.findall(r"[\w/]*\.[\w.]+", block):
            path, _, name = step.partition(".")
            file = path or file
            if file not in known:
                known[file] = definitions((ROOT / f"{file}.py").read_text())
            if name not in known[file]:
                missing.append(f"{file}.{name}")
    assert missing == []
