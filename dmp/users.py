"""Who may log in: names and passwords, which are compared and never shown."""

import hmac
from collections.abc import Mapping
from typing import ClassVar, Self

import attrs


@attrs.frozen
class Users:
    """As text: `NAME:PASSWORD`, with commas between. Shown, it is the names."""

    secret: ClassVar[bool] = True
    """What is wrong with such a setting is said without it."""
    _passwords: Mapping[str, str] = attrs.field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError, which repeats nothing of the text."""
        passwords: dict[str, str] = {}
        for part in text.split(","):
            name, colon, password = part.strip().partition(":")
            if not name or not colon or name in passwords:
                raise ValueError("users are NAME:PASSWORD with commas between, each name once")
            passwords[name] = password
        return cls(passwords)

    def allow(self, name: str, password: bytes) -> bool:
        """Whether that is right; a name that nobody has takes as long as a wrong password."""
        known = self._passwords.get(name)
        return hmac.compare_digest(password, (known or "").encode()) and known is not None

    def __str__(self) -> str:
        return ", ".join(f"{name}:***" for name in self._passwords)
