"""What a command asks on a terminal before it destroys something."""

import io
import sys

import pytest

from shared.cli.confirm import NotConfirmed, confirm


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def answered(monkeypatch: pytest.MonkeyPatch, answer: str) -> Terminal:
    shown = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "nope\n"])
def test_what_is_not_confirmed_on_a_terminal_is_not_done(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = answered(monkeypatch, answer)
    with pytest.raises(NotConfirmed, match="nothing was changed; --yes"):
        confirm("delete queue jobs on the server here")
    assert shown.getvalue() == "delete queue jobs on the server here? [y/N] "


@pytest.mark.parametrize("answer", ["y\n", "Yes\n"])
def test_yes_does_it(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, answer)
    confirm("delete queue jobs")


def test_a_script_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, "n\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    confirm("delete queue jobs")
