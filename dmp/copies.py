"""`CC` and `BCC`, RabbitMQ's: headers that name further routing keys of a message.

Both are arrays of long strings. A message goes to each queue once, however many of its keys lead there. Who
gets it sees `CC` and not `BCC`, which leaves the headers before the message goes anywhere.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from dmp.data_types import read_table, without_field
from dmp.properties import Noted
from dmp.refusals import Code, Refusal

CC, BCC = "CC", "BCC"
KEYS_MAX = 256
"""Of one message, besides its own; RabbitMQ sets no bound. What they cost together has one of its own, where
an exchange looks for its bindings."""
_KEY_BYTES_MAX = 255
"""As of a routing key in basic.publish: no binding has a longer one."""


def without_bcc(properties: bytes, noted: Noted) -> tuple[bytes, tuple[bytes, ...]]:
    """The properties as they are delivered, and the further routing keys. Raises Refusal."""
    if noted.headers is None:
        return properties, ()
    start, end = noted.headers
    table = properties[start:end]
    if b"\x02CC" not in table and b"\x03BCC" not in table:  # nearly all: nothing is decoded
        return properties, ()
    headers = read_table(table)
    keys = (*keys_in(headers, CC), *keys_in(headers, BCC))
    if len(keys) > KEYS_MAX:
        text = f"{len(keys)} routing keys in CC and BCC, at most {KEYS_MAX}"
        raise Refusal(Code.PRECONDITION_FAILED, text)
    if BCC in headers:
        properties = b"".join((properties[:start], without_field(table, BCC.encode()), properties[end:]))
    return properties, tuple(dict.fromkeys(keys))


def keys_in(headers: Mapping[str, Any], name: str) -> Iterable[bytes]:
    """Raises Refusal where it is no array; what in it is no string is not looked at, as RabbitMQ has it."""
    values = headers.get(name, [])
    if not isinstance(values, list):
        text = f"invalid message: unacceptable type in header {name}, it is an array of long strings"
        raise Refusal(Code.PRECONDITION_FAILED, text)
    keys = [value.encode() if isinstance(value, str) else value for value in values]
    keys = [key for key in keys if type(key) is bytes]
    if any(len(key) > _KEY_BYTES_MAX for key in keys):
        raise Refusal(Code.PRECONDITION_FAILED, f"a routing key in {name} is above {_KEY_BYTES_MAX} bytes")
    return keys
