"""A protocol's commands: a cyclopts App, and examples below the help of each. Nothing heavy is imported."""

from collections.abc import Callable
from typing import Any

from cyclopts import App


def examples(prefix: str, *lines: str) -> str:
    """Example command lines for the end of a help text. `prefix` is put before a line that lacks it."""
    return "Examples:\n\n" + "\n".join(
        f"    {line if prefix in line else f'{prefix} {line}'}" for line in lines
    )


def protocol_app(
    name: str, help_: str, *lines: str, before: str = ""
) -> tuple[App, Callable[..., Callable[[Any], Any]]]:
    """The app, and a decorator for its commands: `@command("serve 8000", ...)`, each with its examples.

    `before`: the app's help text above its examples.
    """
    prefix = f"brokers {name}"
    app = App(name=name, help=help_, help_epilogue=before + examples(prefix, *lines), help_format="plaintext")

    def command(*lines: str, name: str | None = None) -> Callable[[Any], Any]:
        return app.command(name=name, help_epilogue=examples(prefix, *lines))

    return app, command
