"""The JSON of requests about jobs, checked: PRODUCE_WITH, CANCEL, RESCHEDULE, GET_JOB; and NACK's payload.

Each function raises Refusal, with status PROTOCOL_ERROR and a text that names what is wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import attrs

from dms.job_head import pack_about
from dms.settings import MS_MAX, PRIORITY_MAX
from dms.wire import malformed
from shared.queues.naming import MessageName, NewTime

TEXT_BYTES_MAX = 128
"""Of `key` and `dedup`, in UTF-8."""
HEADERS_BYTES_MAX = 2048
"""Of `headers`, as compact JSON."""
SEQ_MAX = (1 << 53) - 1
REQUESTS_KEPT, KEPT_BYTES_MAX = 256, 512
"""Producers mostly say the same of all their jobs: to read 40 bytes of JSON anew takes 4 us. What is longer
than the second is not kept: nobody is charged for it."""
NACK_TEXT_BYTES_MAX = 500
_DELAY_BYTES = 4
_NO_HEADERS = "headers is an object of texts, in UTF-8, and numbers"


@attrs.frozen
class JobRequest:
    """What PRODUCE_WITH asks for; None: the queue's options say. `at_ms`: Unix time, 0: none was said."""

    delay_ms: int | None = None
    at_ms: int = 0
    ttl_ms: int | None = None
    priority: int = 0
    key: str = ""
    dedup: str = ""
    headers: Mapping[str, Any] = attrs.Factory(dict)
    about: bytes = attrs.field(init=False)
    """What a record says of it."""

    @about.default
    def _packed(self) -> bytes:
        return pack_about(
            at_ms=self.at_ms, priority=self.priority, key=self.key, dedup=self.dedup, headers=self.headers
        )


def job_request_untrusted(text: bytes, now_ms: int) -> JobRequest:
    """`now_ms`: the present, in Unix milliseconds."""
    asked = _kept_request(text) if len(text) <= KEPT_BYTES_MAX else _job_request(text)
    _check_time(asked.at_ms, now_ms)
    return asked


def _job_request(text: bytes) -> JobRequest:
    said = _object(text, ("delay_ms", "at", "ttl_ms", "priority", "key", "dedup", "headers"))
    _one_time_at_most(said)
    return JobRequest(
        delay_ms=_number(said, "delay_ms", MS_MAX),
        at_ms=_at_ms(said),
        ttl_ms=_number(said, "ttl_ms", MS_MAX),
        priority=_number(said, "priority", PRIORITY_MAX) or 0,
        key=_text(said, "key"),
        dedup=_text(said, "dedup"),
        headers=_headers(said),
    )


_kept_request = lru_cache(maxsize=REQUESTS_KEPT)(_job_request)


def job_name_untrusted(text: bytes) -> MessageName:
    """Of CANCEL and GET_JOB."""
    return _name(_object(text, ("dedup", "seq")))


def job_time_untrusted(text: bytes, now_ms: int) -> tuple[MessageName, NewTime]:
    """Of RESCHEDULE."""
    said = _object(text, ("dedup", "seq", "at", "delay_ms"))
    _one_time_at_most(said)
    if "at" not in said and "delay_ms" not in said:
        raise malformed("either at or delay_ms says when")
    at_ms = _at_ms(said)
    _check_time(at_ms, now_ms)
    return _name(said), NewTime(_number(said, "delay_ms", MS_MAX), at_ms)


def nack_untrusted(rest: bytes) -> tuple[int, str]:
    """What follows the name in a NACK: the delay in milliseconds, 0 as the queue has it, and a text."""
    if len(rest) < _DELAY_BYTES:
        raise malformed("behind the name is delay_ms in 4 bytes, then a text")
    text = rest[_DELAY_BYTES:]
    if len(text) > NACK_TEXT_BYTES_MAX:
        raise malformed(f"a text of {len(text)} bytes; at most {NACK_TEXT_BYTES_MAX}")
    try:
        return int.from_bytes(rest[:_DELAY_BYTES], "big"), text.decode()
    except UnicodeDecodeError:
        raise malformed("the text is UTF-8") from None


def _name(said: Mapping[str, Any]) -> MessageName:
    if ("dedup" in said) == ("seq" in said):
        raise malformed("either dedup or seq says which job")
    return MessageName(_text(said, "dedup"), _number(said, "seq", SEQ_MAX, 1) or 0)


def _object(text: bytes, keys: tuple[str, ...]) -> Mapping[str, Any]:
    try:
        said = _decoded(text.decode())
    except (ValueError, RecursionError):
        raise malformed("behind the name is a JSON object") from None
    if not isinstance(said, dict):
        raise malformed("behind the name is a JSON object")
    for key in said:
        if key not in keys:
            shown = key[:64].encode("unicode_escape").decode()
            raise malformed(f"unknown key {shown}; there are {', '.join(keys)}")
    return said


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


# Made once: `json.loads` and `json.dumps` make one for each call with options, 3 us together.
_decoded = json.JSONDecoder(parse_constant=_no_number).decode
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _one_time_at_most(said: Mapping[str, Any]) -> None:
    if "at" in said and "delay_ms" in said:
        raise malformed("either at or delay_ms says when, not both")


def _number(said: Mapping[str, Any], key: str, most: int, least: int = 0) -> int | None:
    if key not in said:
        return None
    value = said[key]
    if type(value) is not int or not least <= value <= most:
        raise malformed(f"{key} is a whole number from {least} to {most}")
    return value


def _at_ms(said: Mapping[str, Any]) -> int:
    """0: no time was said. The Unix time 0 was said where it is 1, which has passed as well."""
    at_ms = _number(said, "at", SEQ_MAX)
    return 0 if at_ms is None else max(at_ms, 1)


def _check_time(at_ms: int, now_ms: int) -> None:
    if at_ms > now_ms + MS_MAX:
        raise malformed("at is a Unix time in milliseconds, at most ten years from now")


def _text(said: Mapping[str, Any], key: str) -> str:
    if key not in said:
        return ""
    value = said[key]
    if not isinstance(value, str) or not 1 <= len(_encoded(value)) <= TEXT_BYTES_MAX:
        raise malformed(f"{key} is a text of 1 to {TEXT_BYTES_MAX} bytes")
    if not may_be_text(value):
        raise malformed(f"{key} holds no control characters")
    return value


def may_be_text(value: str) -> bool:
    """Whether a key, of up to `TEXT_BYTES_MAX` bytes, has none of the characters that no key has."""
    return not any(ord(char) < 32 or 127 <= ord(char) < 160 or 0xD800 <= ord(char) < 0xE000 for char in value)


def _headers(said: Mapping[str, Any]) -> Mapping[str, Any]:
    headers = said.get("headers", {})
    if not isinstance(headers, dict) or not all(map(_may_be_header, headers.values())):
        raise malformed(_NO_HEADERS)
    if not headers:
        return headers
    try:
        size = len(_compact(headers).encode())
    except UnicodeEncodeError:
        raise malformed(_NO_HEADERS) from None
    if size > HEADERS_BYTES_MAX:
        raise malformed(f"headers is {size} bytes of JSON; at most {HEADERS_BYTES_MAX}")
    return headers


def _may_be_header(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str) or type(value) is int


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
