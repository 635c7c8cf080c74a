"""A queue's options: CREATE_QUEUE's JSON object, laid over the settings for the queue's name."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Self

import attrs

from dms.settings import LossCounts, QueueSettings, contradiction
from dms.wire import Refusal, malformed, name_untrusted
from shared.rates import Rate
from shared.schedules import Schedule, Schedules

_KEYS = {field.name: field for field in attrs.fields(QueueSettings) if field.name != "durability"}
_PARSED: Mapping[str, Callable[[Any], object]] = {"rate": Rate.parse, "schedule": Schedules.parse}
"""Options that are values of classes."""


@attrs.frozen
class Options:
    """A queue's complete options. 0 and "": none. Times are in milliseconds."""

    depth: int
    ttl_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str = ""
    delay_ms: int = 0
    retry_ms: int = 0
    retry_max_ms: int = 0
    ack_ms: int = 0
    dedup_ms: int = 0
    loss_counts: LossCounts = "oldest"
    priorities: int = 0
    per_key: int = 0
    fair: bool = False
    rate: Rate | None = None
    schedule: tuple[Schedule, ...] = ()

    @classmethod
    def of(cls, asked: Mapping[str, Any], settings: QueueSettings, name: str) -> Self:
        """CREATE_QUEUE's options; those left out come from the settings for `name`."""
        found: dict[str, Any] = {}
        for key in _KEYS:
            value = asked.get(key, getattr(settings, key))
            if key in asked and key in _PARSED:
                value = _PARSED[key](value) if value else None
            if value is not None:
                found[key] = value
        if "schedule" in found:
            found["schedule"] = found["schedule"].all
        if found.get("dead_letter") == name:  # the settings' pattern matches it, too: nothing dies in it
            for key in ("dead_letter", "ttl_ms", "max_deliveries"):
                found.pop(key, None)
        return cls(**found)

    @property
    def contradiction(self) -> str:
        """Why no queue can have these options; "": one can."""
        return contradiction(self.ttl_ms, self.delay_ms, self.retry_ms, self.retry_max_ms)

    @property
    def timed(self) -> bool:
        """Whether its messages expire or are delayed."""
        return bool(self.ttl_ms or self.delay_ms)

    def retry_delay_ms(self, deliveries: int) -> int:
        """The delay after a NACK of a message that has been delivered `deliveries` times."""
        if not self.retry_ms:
            return 0
        # A queue that an earlier version made may have the second below the first.
        most = max(self.retry_max_ms, self.retry_ms)
        return int(min(self.retry_ms << min(deliveries - 1, 40), most))


def options_untrusted(text: bytes, name: str) -> dict[str, Any]:
    """The JSON object behind the name in CREATE_QUEUE, checked; {} if there is none. Raises Refusal."""
    if not text:
        return {}
    try:
        asked = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        raise malformed("what follows the name is a JSON object of options") from None
    if not isinstance(asked, dict):
        raise malformed("what follows the name is a JSON object of options")
    return check_options(asked, name)


def check_options(asked: dict[str, Any], name: str) -> dict[str, Any]:
    """Check options of the queue `name`, and return them. Raises Refusal that names the bad one."""
    for key, value in asked.items():
        if key not in _KEYS:
            shown = key[:64].encode("unicode_escape").decode()
            raise malformed(f"unknown option {shown}; there are {', '.join(_KEYS)}")
        if key == "dead_letter":
            _check_dead_letter(value, name)
        elif key in ("loss_counts", "rate"):
            if not isinstance(value, str):
                raise malformed(f"option {key} is a text")
        elif key == "schedule":
            if not isinstance(value, list):
                raise malformed("option schedule is a list of objects")
        elif key == "fair":
            if type(value) is not bool:
                raise malformed("option fair is true or false")
        elif type(value) is not int:
            raise malformed(f"option {key} is a whole number")
    for key, parse in _PARSED.items():
        try:
            if asked.get(key):
                parse(asked[key])
        except ValueError as error:
            raise malformed(f"option {key}: {error}") from None
    try:
        "".join(schedule.get("body", "") for schedule in asked.get("schedule") or ()).encode()
    except UnicodeEncodeError:  # not in `Schedule.parse`: a queue that has such a body already opens
        raise malformed("option schedule: body is a text in UTF-8") from None
    try:
        QueueSettings(**{key: value for key, value in asked.items() if key not in _PARSED})
    except (TypeError, ValueError) as error:
        raise malformed(f"an option is out of range: {error.args[0]}") from None
    return asked


def _check_dead_letter(value: object, name: str) -> None:
    if not isinstance(value, str):
        raise malformed("option dead_letter is the name of a queue")
    if value == name:
        raise malformed("option dead_letter is another queue than the queue itself")
    if value:
        try:
            name_untrusted(value.encode("utf-8", "surrogatepass"))
        except Refusal as refusal:
            raise malformed(f"option dead_letter: {refusal.text}") from None
