"""The question that a command asks on a terminal before it destroys something. Scripts are not asked."""

import sys
from collections.abc import Callable
from typing import Annotated

from shared.cli.options import Command, flag
from shared.errors import BrokerError

DryRun = Annotated[bool, flag("Say what would change, and change nothing.")]
Yes = Annotated[bool, flag("Do not ask on a terminal whether it is to be done.", "--yes", "-y")]


class NotConfirmed(BrokerError):
    """The answer was not yes."""


def destroys(question: str) -> Callable[[Command], Command]:
    """Declare that a command destroys something: `@destroys("delete queue {queue}")`.

    The names in `question` are the command's arguments. The host adds `--yes`, asks, and adds the server to
    the result.
    """

    def declare(command: Command) -> Command:
        command.destroys = question  # type: ignore[attr-defined]
        return command

    return declare


def confirm(question: str) -> None:
    """Ask on the terminal. Raises NotConfirmed."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    print(f"{question}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotConfirmed("nothing was changed; --yes does it without a question")
