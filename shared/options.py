"""The options that commands of several protocols take. Nothing heavy is imported: commands start with it."""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Parameter, Token


def flag(help_: str, *names: str) -> Parameter:
    """A switch: given or not."""
    return Parameter(name=names or None, help=help_, negative="", show_default=False)


def at_least_one(_: type, number: int | None) -> None:
    """A validator, for numbers of things."""
    if number is not None and number < 1:
        raise ValueError("1 at least")


def _a_port(_: type, number: int | None) -> None:
    if number is not None and not 1 <= number <= 65535:
        raise ValueError("a port is 1 to 65535")


def _bindable(_: type, number: int) -> None:
    if not 0 <= number <= 65535:
        raise ValueError("a port is 1 to 65535; 0 picks one")


def a_path(_: type, tokens: Sequence[Token]) -> Path:
    """A converter, for folders: of nothing (`--data-dir "$UNSET"`) pathlib would make the current one."""
    if not tokens[0].value:
        raise ValueError("a path is needed")
    return Path(tokens[0].value)


Json = Annotated[bool, flag("JSON, one object a line, instead of text.")]
Port = Annotated[int, Parameter(help="Its port.", validator=_a_port)]
"""Of a server that is asked. A protocol's own says more: its variable, its usual port."""
MaybePort = Annotated[int | None, Parameter(help="Its port.", validator=_a_port, show_default=False)]
BoundPort = Annotated[int, Parameter(help="Listen on this port; 0 picks one.", validator=_bindable)]
"""Of a server that is started, where no settings check it."""
DataDir = Annotated[
    Path | None, Parameter(help="The server's data folder.", show_default=False, converter=a_path)
]
Max = Annotated[
    int | None, Parameter(name="--max", help="Stop after so many messages.", validator=at_least_one)
]
Messages = Annotated[
    tuple[str, ...],
    Parameter(
        name=("--message", "-m"),
        help="A message; repeatable. Without any, each line of standard input is one.",
        negative="",
        show_default=False,
        allow_leading_hyphen=True,
    ),
]
Whole = Annotated[bool, flag("All of standard input is one message.")]
Raw = Annotated[bool, flag("The messages' bytes as they are, nothing between.")]
Tls = Annotated[bool, flag("Speak TLS.")]
Ca = Annotated[Path | None, Parameter(help="PEM: trust this authority; implies --tls.")]
Certificate = Annotated[Path | None, Parameter(help="PEM: our own certificate, for mutual TLS.")]
KeyFile = Annotated[Path | None, Parameter(help="PEM: its key, if not in the same file.")]


@attrs.frozen(kw_only=True)
class Server:
    """Where a server is, and how it is spoken to. A protocol's own adds its `port`."""

    host: Annotated[str, Parameter(help="The server's address.")] = "127.0.0.1"
    tls: Tls = False
    ca: Ca = None
    certificate: Certificate = None
    key_file: KeyFile = None

    def ssl_context(self) -> ssl.SSLContext | None:
        """None: no TLS. Raises UsageError for a file that cannot be read."""
        from shared.net.dial import tls_context

        return tls_context(wanted=self.tls, ca=self.ca, certificate=self.certificate, key=self.key_file)
