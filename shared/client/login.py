"""Who a client is: a user and a password that no text shows. Also the URL of a server.

A URL is `logmq+tls://ann@host:8080?password-file=...&ca=...&certificate=...&key=...`: the protocol's name,
`+tls` for TLS, the user, the server, and files by the names of the flags. It never holds a password.

Commands start with this module, so it imports nothing heavy.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs

USER_VARIABLE, PASSWORD_FILE_VARIABLE = "BROKERS_USER", "BROKERS_PASSWORD_FILE"
CONTEXT_VARIABLE = "BROKERS_CONTEXT"
VARIABLES = (USER_VARIABLE, PASSWORD_FILE_VARIABLE, CONTEXT_VARIABLE)
"""Environment variables that clients and commands fall back to. They are no settings of a server."""
PASSWORD_BYTES_MAX = 4096
"""The longest first line of a password's file: no protocol takes a longer password."""
HIDDEN = "***"


class Password:
    """A text that `repr`, errors and tracebacks do not show, not even those with the values of variables."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text, for the bytes of a login."""
        return self._text

    def __repr__(self) -> str:
        return "<password>"

    def __reduce__(self) -> Any:
        raise TypeError("a password is not pickled: pass the name of its file")


@attrs.frozen
class Login:
    """A user and its password. Without a password a client logs in by its certificate, or not at all."""

    user: str = ""
    password: Password | None = None

    def __bool__(self) -> bool:
        """Whether there is a user or a password."""
        return self.password is not None

    @property
    def secret(self) -> str:
        """The password's text; "" for none."""
        return "" if self.password is None else self.password.reveal()

    def hide(self, text: str) -> str:
        """A server's text without the password: servers may quote what they did not understand."""
        return text.replace(self.secret, HIDDEN) if self.secret else text

    def hide_bytes(self, said: bytes) -> bytes:
        secret = self.secret.encode()
        return said.replace(secret, HIDDEN.encode()) if secret else said


NOBODY = Login()


def login_of(
    user: str | None = None,
    password: "str | Password | None" = None,
    password_file: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Login:
    """The login from the arguments, else from the variables. Raises ValueError, whose text holds no
    password."""
    environ = os.environ if environ is None else environ
    user = user or environ.get(USER_VARIABLE) or ""
    if password is None:
        file = password_file or environ.get(PASSWORD_FILE_VARIABLE) or None
        password = None if file is None or not user else read_password(file)
    elif not user:
        raise ValueError("a password is given, and no user")
    return Login(user, Password(password) if isinstance(password, str) else password)


def read_password(file: str | Path, what: str = "password") -> Password:
    """The first line of a file, without its end. Raises ValueError."""
    try:
        with open(file, "rb") as opened:
            line = opened.readline(PASSWORD_BYTES_MAX + 2)
        text = line.rstrip(b"\r\n").decode()
    except OSError as error:
        raise ValueError(f"cannot read the {what} file {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the {what} file {file} is not UTF-8 text") from None
    if not text:
        raise ValueError(f"the {what} file {file} has no {what} in its first line")
    if len(text.encode()) > PASSWORD_BYTES_MAX:
        raise ValueError(f"the {what} file {file}: {PASSWORD_BYTES_MAX} bytes at most")
    return Password(text)


@attrs.frozen(kw_only=True)
class Url:
    """The parts of a URL; None and "" for missing ones.

    `files`: keyword (a value of `FILES`) to path. `options`: a client's other keywords to their values.
    """

    host: str
    port: int | None
    tls: bool
    user: str
    files: Mapping[str, str]
    options: Mapping[str, Any]


FILES = {"password-file": "password_file", "ca": "ca", "certificate": "certificate", "key": "key"}
"""The parameters of a URL, and the keywords of clients that they set."""


OPTIONS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "retry-seconds": ("retry_seconds", float),
    "server-hostname": ("server_hostname", str),
}
"""More parameters of a client's URL: their keywords, and what makes the value of the text."""
_NAME = re.compile(r"[a-z][a-z-]{0,31}")


def url_of(text: str, protocol: str, *, options: bool = False) -> Url | None:
    """Parse the URL of a server of `protocol`; None for the plain name of a host.

    `options`: it may have those of `OPTIONS`, too. Raises ValueError. Its text names a parameter that is
    unknown, and quotes nothing else of the URL, which may hold a password by mistake.
    """
    form = f"{protocol}://user@host:port, or {protocol}+tls://user@host:port"
    if "://" not in text:
        if "@" in text:
            raise ValueError(f"a host's name has no @; a URL is {form}")
        return None
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(f"not the URL of a server: {form} is expected") from None
    scheme, plus, tls = parts.scheme.partition("+")
    if scheme != protocol or (plus and tls != "tls"):
        raise ValueError(f"not the URL of a server of {protocol}: {form} is expected")
    if parts.password is not None:
        raise ValueError(
            "a URL holds no password: name a file with password-file, or with the variable "
            f"{PASSWORD_FILE_VARIABLE}"
        )
    if not parts.hostname or parts.path not in ("", "/") or parts.fragment or port == 0:
        raise ValueError(f"not the URL of a server: {form} is expected")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = [*FILES, *(OPTIONS if options else ())]
    unknown = [name for name, value in query.items() if name not in known and value and _NAME.fullmatch(name)]
    if unknown:
        raise ValueError(f"a URL has no parameter {unknown[0]}; it has {', '.join(known)}")
    if not set(query) <= set(known) or not all(query.values()):
        raise ValueError(f"behind the ? of a URL may stand {', '.join(known)}, each with = and its value")
    values: dict[str, Any] = {}
    for name in set(query) & set(OPTIONS):
        keyword, convert = OPTIONS[name]
        try:
            values[keyword] = convert(query.pop(name))
        except ValueError:
            raise ValueError(f"{name} of a URL is a number") from None
    return Url(
        host=parts.hostname,
        port=port,
        tls=bool(plus),
        user=unquote(parts.username or ""),
        files={FILES[name]: value for name, value in query.items()},
        options=values,
    )
