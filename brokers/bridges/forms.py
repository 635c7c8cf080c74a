"""The forms of a message on a bridge: its bytes, the line that its protocol's command prints, or JSON.

The JSON object names the bridges that the message has passed, so that none carries it twice. It ends with a
mark, a keyed hash of all before it: a list that somebody else wrote is not believed.
"""

import hashlib
import hmac
import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from brokers.bridges.settings import Form
from shared.bridging import MessageRun
from shared.objects import time_text

JSON_START = b'{"protocol":"'
"""The first bytes of a bridge's JSON."""
_PASSED, _MARK, _END = b',"bridges":', b',"mark":"', b'"}'
_MARK_BYTES = 16
"""Half of its characters."""
DEAD_VALUE_BYTES_MAX = 64 << 10
"""How much is kept of a dead message that is too large for its target."""
DEAD_WHOLE_BYTES_MAX = 1 << 20
"""A larger one is never kept whole: no log has a record for it, and 14 MB as JSON take 0.13 s of the loop."""


def bodies_of(
    form: Form, run: MessageRun, trail: Sequence[str], now_ms: float, key: bytes
) -> Sequence[bytes]:
    """The bodies to write. `trail`: the bridges that they have passed, with this one. `key`: of marks."""
    if form == "raw":
        return run.bodies
    if form == "text":
        return run.bodies if run.text is None else list(map(run.text, run.bodies))
    return [_object(run, at, body, trail, now_ms, key) for at, body in enumerate(run.bodies)]


def dead_letter_of(
    run: MessageRun,
    at: int,
    trail: Sequence[str],
    now_ms: float,
    key: bytes,
    reason: str,
    text: str,
    *,
    cut: bool,
) -> bytes:
    """The body of a dead message. `cut`: only its first bytes, because the whole is too large."""
    body = run.bodies[at]
    more: dict[str, Any] = {"reason": reason, "error": text}
    if run.too_large:
        more["lost_value"] = True
    if cut:
        more["cut_from_bytes"] = len(body)
        body = body[:DEAD_VALUE_BYTES_MAX]
    return _object(run, at, body, trail, now_ms, key, more)


def bridges_passed(body: bytes, key: bytes) -> tuple[str, ...]:
    """The bridges that a message has passed, read from the end of its JSON. Empty for bodies that no bridge
    with this key has made."""
    if not (body.startswith(JSON_START) and body.endswith(_END)):
        return ()
    at = len(body) - len(_MARK) - 2 * _MARK_BYTES - len(_END)
    said, mark = body[: max(at, 0)], body[at : -len(_END)]
    if not hmac.compare_digest(_marked(said, key), mark):
        return ()
    return tuple(json.loads(said.rpartition(_PASSED)[2]))


def _marked(said: bytes, key: bytes) -> bytes:
    """The mark of what is said, as it stands behind that."""
    return _MARK + hashlib.blake2b(said, digest_size=_MARK_BYTES, key=key).hexdigest().encode()


def _object(
    run: MessageRun,
    at: int,
    body: bytes,
    trail: Sequence[str],
    now_ms: float,
    key: bytes,
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
    if more:
        found |= more
    said = b"".join((_json(found)[:-1], _PASSED, _json(list(trail))))
    return b"".join((said, _marked(said, key), _END))


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=str).encode()


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
