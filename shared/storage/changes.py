"""The records of a table's log, for those that read logs and open no store (STORAGE.md, Tables)."""

from typing import NamedTuple

_HEAD_BYTES = 3
_PUT, _DELETE = 1, 2


class Change(NamedTuple):
    """A key and its new value; None: it is gone."""

    key: bytes
    value: bytes | None


def change(payload: bytes) -> Change | None:
    """What a record says; None where it is no record of a table."""
    key_bytes = int.from_bytes(payload[1:_HEAD_BYTES], "big")
    end = _HEAD_BYTES + key_bytes
    if len(payload) < max(end, _HEAD_BYTES) or payload[0] not in (_PUT, _DELETE):
        return None
    return Change(payload[_HEAD_BYTES:end], payload[end:] if payload[0] == _PUT else None)
