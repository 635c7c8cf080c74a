"""The user of the load: nobody on a server that was started for it, else `BROKERS_USER`."""

from shared.client.login import NOBODY, Login

_who = NOBODY


def login() -> Login:
    """The user of every connection of the load."""
    return _who


def log_in_as(who: Login) -> None:
    """From now on every connection logs in as this user."""
    global _who
    _who = who
