"""Who may log in: names and passwords, which are compared and never shown."""

import hmac
from collections.abc import Mapping
from typing import ClassVar, Self

import attrs

LOCAL = "guest"  # whose password everybody knows at first. Comes from loopback only, as with RabbitMQ.


@attrs.frozen
class Users:
    """As text: `NAME:PASSWORD`, with commas between. Shown, it is the names."""

    secret: ClassVar[bool] = True  # what is wrong with such a setting is said without it
    _passwords: Mapping[str, str] = attrs.field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError, which repeats nothing of the text."""
        if text.lstrip()[:1] in ("[", "{"):  # as other settings may be given in a variable; not these
            raise ValueError("users are text, not a list: NAME:PASSWORD with commas between")
        passwords: dict[str, str] = {}
        for part in text.split(","):
            name, colon, password = part.strip().partition(":")
            if not name or not colon or name in passwords:
                raise ValueError("users are NAME:PASSWORD with commas between, each name once")
            passwords[name] = password
        return cls(passwords)

    def allow(self, name: str, password: bytes, *, near: bool) -> bool:
        """Whether that is right, and the place is, too: `near` is this machine. A name that nobody has takes
        as long as a wrong password."""
        known = self._passwords.get(name)
        right = hmac.compare_digest(password, (known or "").encode()) and known is not None
        return right and (near or name != LOCAL)

    @property
    def from_afar(self) -> bool:
        """Whether anybody may log in from other machines."""
        return any(name != LOCAL for name in self._passwords)

    def __str__(self) -> str:
        return ", ".join(f"{name}:***" for name in self._passwords)
