"""What is known of a message beside its body: its times, its key, what its producer and a NACK said.

A message that PRODUCE_WITH has brought is a *job*. Its sequence is `JOB_FIRST` or above: jobs have sequences
of their own, because they leave in another order than they come, and the row is all sequences from its head
on. A message of the row has a head only once a NACK has said why it came back.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Self

import attrs

from shared.queues.runs import Run

JOB_FIRST = 1 << 52
"""The first sequence of a queue's jobs. Sequences of the row never come so far; JSON numbers hold both."""
JOB_BYTES = 600
"""Memory of a job that may be delivered, beside its body and its JSON: 520 bytes by tracemalloc."""
KEY_BYTES = 300
"""What a key adds, which may be its own; 400 bytes by tracemalloc, and 30 where many have it."""

_FORM = struct.Struct(">IQII")
"""Deliveries, due age, lengths of JSON and body: a message as records have it, without its sequence."""
_TIMES = struct.Struct(">IQ")
_NAMES = {
    "produced_ms": "produced",
    "behind": "behind",
    "expires": "expires",
    "at_ms": "at",
    "priority": "priority",
    "key": "key",
    "dedup": "dedup",
    "known_until": "known_until",
    "headers": "headers",
    "text": "text",
}
"""Fields that records have, and their names there; 0 and "" are left out."""
_SAID = (*_NAMES.values(),)
_NAME_OF = {said: name for name, said in _NAMES.items()}
_values_of: Callable[[JobHead], tuple[Any, ...]] = attrgetter(*_NAMES)


@attrs.define(eq=False)
class JobHead:
    """Ages are of the engine, in milliseconds. `due`: the age before which it is not delivered. `expires`:
    the age at which it is too old; 0: never. `known_until`: the age at which its `dedup` key may come again,
    if it has left by then. `at_ms`: the Unix time before which it is not delivered at first, if that was
    said. `behind`: messages of the row below this sequence came before it. `text`: what the last NACK said.
    """

    produced_ms: int = 0
    behind: int = 0
    expires: int = 0
    at_ms: int = 0
    priority: int = 0
    key: str = ""
    dedup: str = ""
    known_until: int = 0
    headers: Mapping[str, Any] = attrs.Factory(dict)
    text: str = ""
    due: int = 0
    cost_bytes: int = 0
    """Memory of its message."""
    cold: bool = False
    """Only what decides about the job is here; the rest, and the body, are in its record."""

    @property
    def about(self) -> dict[str, Any]:
        """Its fields, as records have them."""
        values = _values_of(self)
        return {said: value for said, value in zip(_SAID, values, strict=True) if value}

    @classmethod
    def of(cls, about: Mapping[str, Any], due: int = 0) -> Self:
        return cls(due=due, **{_NAME_OF[said]: value for said, value in about.items() if said in _NAME_OF})

    @property
    def shown(self) -> dict[str, Any]:
        """What a consumer and the API are told of it."""
        shown: dict[str, Any] = {"produced_ms": self.produced_ms} if self.produced_ms else {}
        if self.key:
            shown["key"] = self.key
        shown["priority"] = self.priority
        if self.headers:
            shown["headers"] = self.headers
        if self.dedup:
            shown["dedup"] = self.dedup
        return shown


def said(run: Run, text: str) -> None:
    """What a NACK of these messages said. Nobody holds them, and their memory is not counted."""
    if run.head is None:
        run.head = JobHead()
    run.head.text = text
    run.head.cost_bytes = JOB_BYTES + len(text) + max(map(len, run.bodies))


# -- a waiting message as bytes: less than half of the memory of objects


def pack_form(tries: int, due: int, about: bytes, body: bytes) -> bytes:
    return _FORM.pack(tries, due, len(about), len(body)) + about + body


def pack_about(**fields: Any) -> bytes:
    """The JSON of some fields of a head, without braces."""
    return json.dumps({_NAMES[name]: value for name, value in fields.items() if value}).encode()[1:-1]


def pack_new_job(
    about: bytes, produced_ms: int, behind: int, expires: int, known_until: int, due: int, body: bytes
) -> bytes:
    """As `pack_job`, of one that comes; `about`: what `pack_about` makes of its other fields."""
    head = b'{"head": {"produced": %d, "behind": %d' % (produced_ms, behind)
    if expires:
        head += b', "expires": %d' % expires
    if known_until:
        head += b', "known_until": %d' % known_until
    head += b", %b}}" % about if about else b"}}"
    return pack_form(0, due, head, body)


def pack_job(tries: int, head: JobHead, body: bytes) -> bytes:
    """A job without its sequence, as records have it."""
    return pack_form(tries, head.due, json.dumps({"head": head.about}).encode(), body)


def times_of(form: bytes) -> tuple[int, int]:
    """Deliveries, and the age at which it is due."""
    tries, due = _TIMES.unpack_from(form)
    return tries, due


def about_of(form: bytes) -> bytes:
    """The JSON of a message."""
    return form[_FORM.size : _FORM.size + int.from_bytes(form[_TIMES.size : _TIMES.size + 4])]


def unpack_job(form: bytes) -> tuple[int, JobHead, bytes]:
    """Deliveries, head and body of a job. Raises ValueError, KeyError, struct.error."""
    tries, due, about, size = _FORM.unpack_from(form)
    at = _FORM.size
    head = JobHead.of(json.loads(form[at : at + about])["head"], due)
    head.cost_bytes = JOB_BYTES + len(form) + KEY_BYTES * bool(head.key)
    return tries, head, form[at + about : at + about + size]


def form_bytes(data: bytes, at: int) -> int:
    """The size of the message without its sequence that begins at `at`."""
    _, _, about, size = _FORM.unpack_from(data, at)
    return _FORM.size + int(about) + int(size)
