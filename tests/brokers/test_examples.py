"""The examples under a command's help can be copied: a terminal's width, 80, does not cut them in two."""

from collections.abc import Iterator
from inspect import cleandoc

from cyclopts import App

from brokers import plugins
from brokers.commands.cli import root


def examples(app: App, *path: str) -> Iterator[tuple[str, str]]:
    for line in (app.help_epilogue or "").splitlines():
        yield " ".join(path), line
    for name in app:
        if not name.startswith("-"):
            yield from examples(app[name], *path, name)


def paragraphs(app: App, *path: str) -> Iterator[tuple[str, str]]:
    for paragraph in cleandoc(app.help or "").split("\n\n"):
        yield " ".join(path), paragraph
    for name in app:
        if not name.startswith("-"):
            yield from paragraphs(app[name], *path, name)


def test_no_text_of_several_lines_is_wider_than_a_terminal_which_would_break_each_in_two() -> None:
    there = [(name, text.splitlines()) for name, text in paragraphs(root(), "brokers") if "\n" in text]
    assert len(there) > 10
    assert [name for name, lines in there if max(map(len, lines)) > 80] == []


def test_no_example_is_wider_than_a_terminal() -> None:
    there = dict.fromkeys(examples(root(), "brokers"))
    assert len({command for command, _ in there}) > 10 * len(plugins.names())
    assert [each for each in there if len(each[1]) > 80] == []
