"""How the page formats values: rounded with a unit, and the plain value in a tooltip."""

import json
import math
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from brokers.commands.render import NUMBERS, PLACES
from brokers.escape import escape
from brokers.page import files
from shared.objects import time_text
from shared.units import named_unit, readable

TEXT_MAX = 256
"""Characters of a value that a table shows."""
NARROW = 24
"""A value of so many characters fits any cell."""
SECONDS_MAX = 600
"""From here on an age is shown in minutes."""
MS_MOMENT, MS_MAX = 1e12, 1e13
"""From the first on milliseconds are a time (since 2001), from the second on a number that a publisher has
chosen."""
BODY_MAX = 4096
"""Characters of a message that a list shows."""
NOTHING = Markup('<span class="nothing">&ndash;</span>')


def cell(value: Any, unit: str, name: str = "") -> str | Markup:
    """A value of a column with this unit (`shared.objects.Unit`), as HTML."""
    if value is None or value == "" or value == [] or value == {}:
        return NOTHING
    if unit == "flag" or isinstance(value, bool):
        return "yes" if value else "no"
    if unit == "time" and isinstance(value, str):
        return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(value, age(value))
    if unit == "bytes" and _is_number(value):
        return Markup('<span title="{}">{}</span>').format(f"{value:,} bytes", readable(value, "bytes"))
    if unit == "seconds" and _is_number(value):
        return readable(value, "seconds")
    if unit == "rate" and _is_number(value):
        return f"{rate(value)}/s"
    if unit == "bytes_rate" and _is_number(value):
        return f"{size(value)}/s"
    if _is_number(value):
        return number(value, name)
    if isinstance(value, list | tuple):
        return ", ".join(text(each) for each in value)
    if isinstance(value, Mapping):
        values = {key: each for key, each in value.items() if each}  # an unset flag shows nothing
        parts = [f"{text(label(key).lower())} {statistic(each, key)}" for key, each in values.items()]
        return ", ".join(parts) if parts else NOTHING
    return text(value)


def whole(value: Any, unit: str) -> str:
    """The whole value, for a cell that may be too narrow for it; "" where the cell suffices."""
    if isinstance(value, str):
        return text(value) if len(value) > NARROW else ""
    return str(cell(value, unit)) if value and isinstance(value, list | dict) else ""


def right(unit: str) -> str:
    """The CSS class of a right-aligned cell."""
    return "right" if unit in NUMBERS else ""


def text(value: Any) -> str:
    """A text, cut if it is long, without invisible or misleading characters."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=str)
    return escape(value[:TEXT_MAX]) + ("…" if len(value) > TEXT_MAX else "")


def number(value: float, name: str = "") -> str:
    """A number with grouped digits; offsets and ids, which users copy, are not grouped."""
    if not PLACES.isdisjoint(name.split("_")):
        return str(value)
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def rate(value: float | None) -> str | Markup:
    """A rate per second; None: nobody counts it."""
    if value is None:
        return NOTHING
    if not value:
        return "0"
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def size(value: float) -> str:
    return readable(round(value) if value >= 10 else value, "bytes")


def duration(seconds: float | None) -> str | Markup:
    return NOTHING if seconds is None else readable(seconds, "seconds")


def age(moment: str) -> str:
    """How long ago a time of the API was, or how far ahead it is."""
    try:
        seconds = datetime.now(UTC).timestamp() - datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return text(moment)
    if abs(seconds) < 1:
        return "now"
    grain = 60 if abs(seconds) >= SECONDS_MAX else 1
    whole = readable(math.floor(abs(seconds) / grain) * grain, "seconds")
    return f"{whole} ago" if seconds > 0 else f"in {whole}"


def statistic(value: Any, name: str) -> str | Markup:
    """A figure whose name gives its unit."""
    if _is_number(value) and MS_MOMENT <= value < MS_MAX and (name == "time" or name.endswith("_ms")):
        return age(time_text(value))
    if _is_number(value) and name.endswith("_ms") and abs(value) < MS_MAX:
        return cell(value / 1000, "seconds", name)
    if _is_number(value) and (unit := named_unit(name)) in ("bytes", "seconds"):
        return cell(value, unit, name)
    return cell(value, "", name)


def body(message: Mapping[str, Any]) -> str:
    """A message's body: text, or base64."""
    whole = str(message.get("text", message.get("base64", "")))
    lines = "\n".join(escape(line) for line in whole[:BODY_MAX].split("\n"))
    return lines + ("…" if len(whole) > BODY_MAX else "")


def filled(value: Any) -> str:
    """A value as a form's field has it."""
    if value is None:
        return ""
    rows = isinstance(value, list | tuple)
    if rows and not any(isinstance(each, dict) for each in value):
        return "\n".join(map(str, value))
    return json.dumps(value, ensure_ascii=False) if rows or isinstance(value, dict) else str(value)


def label(name: str) -> str:
    """An API name as a heading: cells show units themselves, so `lag_bytes` becomes `Lag size`."""
    if name in _LABELS:
        return _LABELS[name]
    if name.startswith("x-"):  # AMQP's own words
        return name
    *first, last = [_WORDS.get(word, word) for word in name.split("_") if word != "ms"] or [name]
    words = [*(word for word in first if word != "seconds"), _UNITS.get(last, last)]
    return " ".join(words)[:1].upper() + " ".join(words)[1:]


def here(commands: str, data_dir: str) -> str:
    """Commands for the server's machine. They name its data folder, because other servers may run there."""
    lines = commands.split("\n")
    return "\n".join(
        f"{line} -D {shlex.quote(data_dir)}" if line.startswith("brokers ") else line for line in lines
    )


def prose(words: str) -> Markup:
    """A help text, whose code stands between backticks."""
    parts = words.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts)
    )


_UNITS = {"bytes": "size", "seconds": "time"}
_LABELS = {"oldest_seconds": "Oldest age", "job": "One by its name"}
_WORDS = {"ttl": "TTL", "tls": "TLS", "id": "ID"}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_templates = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_templates.globals["file"] = files.url
_templates.filters.update(
    {
        each.__name__: each
        for each in (
            cell,
            whole,
            right,
            text,
            number,
            rate,
            size,
            duration,
            age,
            statistic,
            body,
            filled,
            label,
            here,
            prose,
        )
    }
)
for _name in _templates.list_templates():  # compiled at import, so that no request waits for it
    _templates.get_template(_name)


def render(template: str, **values: Any) -> str:
    return _templates.get_template(template).render(values)
