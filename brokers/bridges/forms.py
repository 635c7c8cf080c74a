"""The forms of a message on a bridge: its bytes, the line that its protocol's command prints, or JSON.

The JSON object names the bridges that the message has passed, so that none carries it twice.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from brokers.bridges.settings import Form
from shared.bridging import MessageRun
from shared.objects import time_text

JSON_START = b'{"protocol":"'
"""The first bytes of a bridge's JSON."""
DEAD_VALUE_BYTES_MAX = 64 << 10
"""How much is kept of a dead message that is too large for its target."""


def bodies_of(form: Form, run: MessageRun, trail: Sequence[str], now_ms: float) -> Sequence[bytes]:
    """The bodies to write. `trail`: the bridges that they have passed, with this one."""
    if form == "raw":
        return run.bodies
    if form == "text":
        return run.bodies if run.text is None else list(map(run.text, run.bodies))
    return [_object(run, at, body, trail, now_ms) for at, body in enumerate(run.bodies)]


def dead_letter_of(
    run: MessageRun, at: int, trail: Sequence[str], now_ms: float, reason: str, text: str, *, cut: bool
) -> bytes:
    """The body of a dead message. `cut`: only its first bytes, because the whole is too large."""
    body = run.bodies[at]
    more: dict[str, Any] = {"reason": reason, "error": text}
    if run.too_large:
        more["lost_value"] = True
    if cut:
        more["cut_from_bytes"] = len(body)
        body = body[:DEAD_VALUE_BYTES_MAX]
    return _object(run, at, body, trail, now_ms, more)


def bridges_passed(body: bytes) -> tuple[str, ...]:
    """The bridges that a message has passed, read from its JSON; empty for other bodies."""
    if not body.startswith(JSON_START):
        return ()
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return ()
    names = found.get("bridges")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _object(
    run: MessageRun,
    at: int,
    body: bytes,
    trail: Sequence[str],
    now_ms: float,
    more: dict[str, Any] | None = None,
) -> bytes:
    origin = run.origin
    found: dict[str, Any] = {
        "protocol": origin.protocol,
        "name": _text(origin.name),
        "time": time_text(origin.time * 1000 if origin.time else now_ms),
        "sender": _text(origin.sender) or None,
        "type": run.kind or None,
    }
    if run.value is not None:
        found["value"] = run.value(body)
    else:
        try:
            found["value"] = body.decode()
        except UnicodeDecodeError:
            found["value"] = b64encode(body).decode()
            found["encoding"] = "base64"
    if run.properties is not None:
        found["properties"] = run.properties()
    if run.positions is not None:
        found["position"] = run.positions[at]
    found["bridges"] = list(trail)
    if more:
        found |= more
    return json.dumps(found, separators=(",", ":"), default=str).encode()


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
