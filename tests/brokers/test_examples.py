"""The examples under a command's help can be copied: a terminal's width, 80, does not cut them in two."""

from collections.abc import Iterator

from cyclopts import App

from brokers import plugs
from brokers.cli import root


def examples(app: App, *path: str) -> Iterator[tuple[str, str]]:
    for line in (app.help_epilogue or "").splitlines():
        yield " ".join(path), line
    for name in app:
        if not name.startswith("-"):
            yield from examples(app[name], *path, name)


def test_no_example_is_wider_than_a_terminal() -> None:
    there = dict.fromkeys(examples(root(), "brokers"))
    assert len({command for command, _ in there}) > 10 * len(plugs.names())
    assert [each for each in there if len(each[1]) > 80] == []
