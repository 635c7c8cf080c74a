"""A message's properties as the API has them: in JSON, by AMQP's own names."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pamqp import commands

from dmp.data_types import check_table, field_table
from dmp.properties import FIELDS, UNREADABLE, note_untrusted, unpack, with_headers
from shared.objects import BadArgument, time_text

_NAMES: Mapping[str, str] = {
    name.replace("message_type", "type"): name
    for _, _, name in FIELDS
    if name not in ("user_id", "cluster_id")
}
"""The names of the properties that a message may be given, and pamqp's names. `user_id` is the login's."""


UNPACKABLE = (RecursionError, *UNREADABLE)
"""What pamqp and we raise for values that the wire cannot have."""


def show(properties: bytes) -> dict[str, Any]:
    """What a message has, in values of JSON: times as RFC 3339, bytes and decimals as texts."""
    try:
        found = unpack(properties)
    except UNREADABLE:
        return {}  # it stands there well formed, and Python has no such time or text
    names = {**_NAMES, "user_id": "user_id"}
    given = {name: getattr(found, theirs, None) for name, theirs in names.items()}
    return {name: show_value(value) for name, value in given.items() if value is not None}


def show_value(value: Any) -> Any:
    """A value of a table, in values of JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="backslashreplace")
    if isinstance(value, datetime):
        return time_text(value.timestamp() * 1000)
    if isinstance(value, Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    if isinstance(value, dict):
        return {str(name): show_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [show_value(each) for each in value]
    return value


def read(arguments: Mapping[str, Any], *, persistent: bool) -> bytes:
    """The properties that JSON asks for, on the wire. Without a `delivery_mode` the message is persistent, or
    not, as said. Raises BadArgument."""
    given = arguments.get("properties", {})
    if not isinstance(given, dict):
        raise BadArgument("properties are an object")
    if unknown := sorted(set(given) - set(_NAMES)):
        raise BadArgument(f"properties: there is no {unknown[0]}; there are {', '.join(_NAMES)}")
    values = {_NAMES[name]: value for name, value in given.items() if value is not None}
    if persistent:
        values.setdefault("delivery_mode", 2)
    for name in ("delivery_mode", "priority"):
        if type(values.get(name, 0)) is not int:
            raise BadArgument(f"properties: {name} is a number")
    try:
        if "timestamp" in values:
            values["timestamp"] = _moment(values["timestamp"])
        headers = values.pop("headers", None)
        if not isinstance(headers, dict | None):
            raise BadArgument("properties: headers are an object")
        packed = commands.Basic.Properties(**values).marshal()
        if headers is not None:
            packed = with_headers(packed, field_table(headers))
        noted = note_untrusted(packed)
        if noted.headers is not None:
            check_table(packed, *noted.headers)
    except UNPACKABLE as error:
        raise BadArgument(f"properties: {error}") from None
    return packed


def _moment(value: Any) -> datetime:
    """RFC 3339, or Unix seconds."""
    if type(value) is int:
        return datetime.fromtimestamp(value, UTC)
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("timestamp has no zone")
    return moment
