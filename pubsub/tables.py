"""Pub/sub's logs as rows: recorded datagrams, also with values (*readings*), subscriptions, kept messages."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pubsub.kept import unpacked
from pubsub.settings import KEPT_LOG, NAMESPACE, SESSIONS_LOG
from pubsub.wire import (
    DATA_AT,
    DATAGRAM_BYTES_MIN,
    PAYLOAD_BYTES_MIN,
    RECORDED_FRAMES,
    SENDER_BYTES,
    TOPIC_AT,
    TOPIC_BYTES_MAX,
    TYPE_AT,
    Kind,
)
from shared.recording.blocks import Block
from shared.recording.rows import Codec, Rows, Runs, texts
from shared.recording.tables import RecordedLog, columns_of
from shared.storage.format import table_change
from shared.tables.table import KEPT, PLACES, LogTable, kept_schema, places_schema, rows_of, schema_of
from shared.tables.vectors import unsigned

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shared.tables.vectors import Bytes, Numbers

READINGS = "readings"
READINGS_SCHEMA = schema_of(
    *("log", "offset", "time", "protocol", "name", "key", "source"),
    ("int_value", pa.int64()),
    ("short_real_value", pa.decimal128(5, 2)),
    ("float_value", pa.float64()),
    ("string_value", pa.string()),
    ("value", pa.float64()),
    "fault",
)
"""`name`: the topic; `key`: the type's name. One of the four is not null; `value` is that of any number."""

_LENGTH_BYTES = 2
_BEFORE_BYTES = DATA_AT - DATAGRAM_BYTES_MIN
_FIELDS = (TOPIC_AT, TOPIC_BYTES_MAX, TYPE_AT, 1, 0, SENDER_BYTES, DATA_AT)
"""The sizes of topic, type and sender, and the offset of the payload."""
_EXACT_DECIMALS = 22
"""Powers of ten up to here are floats without an error, so a division by one is rounded once."""
_POWERS = np.array([10.0**decimals for decimals in range(_EXACT_DECIMALS + 1)])


def walk(data: "Bytes", frames: bytes, base: int, block: Block, runs: Runs) -> str | None:
    """Walk a block: the datagrams' lengths, then frames cut after their payloads."""
    count = block.messages
    begin = _LENGTH_BYTES * count
    if begin > len(frames):
        return "its lengths reach past its end"
    lengths = np.frombuffer(frames, ">u2", count).astype(np.int64)
    sizes = lengths + _BEFORE_BYTES
    ends = begin + np.cumsum(sizes)
    bad = np.flatnonzero((lengths < DATAGRAM_BYTES_MIN) | (ends > len(frames)))
    whole = int(bad[0]) if len(bad) else count
    sizes, places = sizes[:whole], base + (ends - sizes)[:whole]
    if whole and (sizes == sizes[0]).all():
        runs.add((int(places[0]), int(sizes[0]), whole, *_FIELDS, int(sizes[0]) - DATA_AT))
    else:
        each = np.tile(np.array((0, 0, 1, *_FIELDS, 0)), (whole, 1))
        each[:, 0], each[:, 1], each[:, -1] = places, sizes, sizes - DATA_AT
        runs.add_all(each)
    runs.messages += whole
    if whole < count:
        return "a datagram that is too short, or reaches past its end"
    reached = int(ends[-1]) if count else begin
    return None if reached == len(frames) else "bytes behind its frames"


def kind_names(raw: pa.Array) -> pa.Array:
    """Types as text; an unknown type is its number."""
    encoded = raw.dictionary_encode()
    kinds = [each.as_py()[0] for each in encoded.dictionary]
    names = [Kind(kind).name if kind in PAYLOAD_BYTES_MIN else str(kind) for kind in kinds]
    return pa.array(names, pa.string()).take(encoded.indices)


def readings(rows: Rows) -> pa.RecordBatch:
    """A row for each datagram, with its value."""
    values = _Values(rows)
    own = {f"{kind.name.lower()}_value": rows.of_messages(column) for kind, column in values.columns.items()}
    fault = pc.coalesce(rows.fault(), rows.of_messages(values.faults))
    return columns_of(rows, READINGS_SCHEMA, **own, value=rows.of_messages(values.value), fault=fault)


class _Values:
    """The values of a batch's messages: a column for each type, null for messages of other types."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._data = rows, rows.data
        self._at, self._size = rows.places["payload"]
        kinds = self._data[self._at - 1].astype(np.int64)
        least = np.full(256, np.iinfo(np.int64).max)
        for kind, size in PAYLOAD_BYTES_MIN.items():
            least[kind] = size
        good = self._size >= least[kinds]
        self._of = {kind: np.flatnonzero(good & (kinds == kind)) for kind in Kind}
        self.faults = self._faults(np.flatnonzero(~good), kinds)
        ints, floats = self._signed(Kind.INT), self._floats()
        hundredths = self._digits(Kind.SHORT_REAL, 0, 2)
        self.columns = {
            Kind.INT: self._spread(Kind.INT, pa.array(ints)),
            Kind.SHORT_REAL: self._spread(Kind.SHORT_REAL, _as_hundredths(hundredths)),
            Kind.FLOAT: self._spread(Kind.FLOAT, pa.array(floats)),
            Kind.STRING: self._spread(Kind.STRING, self._strings()),
        }
        value = np.full(len(kinds), np.nan)
        value[self._of[Kind.INT]] = ints
        value[self._of[Kind.SHORT_REAL]] = hundredths / 100
        value[self._of[Kind.FLOAT]] = floats
        self.value = pa.array(value, mask=np.isnan(value))

    def _faults(self, bad: "Numbers", kinds: "Numbers") -> pa.Array:
        """Why a message has no value; null for those that have one."""
        if not len(bad):
            return pa.nulls(len(kinds), pa.string())
        found: list[str | None] = [None] * len(kinds)
        for number in bad.tolist():
            kind = int(kinds[number])
            known = kind in PAYLOAD_BYTES_MIN
            found[number] = f"a payload of {self._size[number]} bytes" if known else f"type {kind}"
        return pa.array(found, pa.string())

    def _digits(self, kind: Kind, begin: int, size: int) -> "Numbers":
        return unsigned(self._data, self._at[self._of[kind]] + begin, size)

    def _signed(self, kind: Kind) -> "Numbers":
        negative = self._data[self._at[self._of[kind]]] != 0
        digits = self._digits(kind, 1, 4)
        return np.where(negative, -digits, digits)

    def _floats(self) -> "NDArray[np.float64]":
        """The floats that are nearest to the decimal numbers."""
        digits = self._signed(Kind.FLOAT)
        decimals = self._digits(Kind.FLOAT, 5, 1)
        values: NDArray[np.float64] = digits / _POWERS[np.minimum(decimals, _EXACT_DECIMALS)]
        for number in np.flatnonzero(decimals > _EXACT_DECIMALS).tolist():
            values[number] = float(f"{digits[number]}e-{decimals[number]}")
        return values

    def _strings(self) -> pa.Array:
        of = self._of[Kind.STRING]
        at = self._at[of]
        return texts(self._rows.gather(at, self._rows.to_nul(at, self._size[of])))

    def _spread(self, kind: Kind, column: pa.Array) -> pa.Array:
        """Spread a column over the messages of one type to a column over all messages."""
        place = np.full(len(self._at), -1)
        place[self._of[kind]] = np.arange(len(column))
        return column.take(pa.array(place, mask=place < 0))


def _as_hundredths(numbers: "Numbers") -> pa.Array:
    """Whole numbers as decimals with two places: the same digits, as Arrow keeps them."""
    words = np.zeros((len(numbers), 2), "<i8")
    words[:, 0] = numbers
    return pa.Array.from_buffers(pa.decimal128(5, 2), len(numbers), [None, pa.py_buffer(words)])


def subscriptions(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each subscription made or ended (`sessions.py`). A session has no position in a log."""
    return rows_of(batch, places_schema(), NAMESPACE, "it is no subscription", _subscription)


def _subscription(payload: bytes) -> Mapping[str, Any] | None:
    found = table_change(payload)
    client, nul, topic = found.key.partition(b"\0") if found is not None else (b"", b"", b"")
    if found is None or not nul:
        return None
    reader, name = (each.decode(errors="backslashreplace") for each in (client, topic))
    return {"reader": reader, "name": name, "ended": found.value is None}


def kept(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each client of a message that was kept, and for each end of such messages (`kept.py`)."""
    return rows_of(batch, KEPT_SCHEMA, NAMESPACE, "it is no message of a client", _kept)


def _kept(payload: bytes) -> Sequence[Mapping[str, Any]] | None:
    record = unpacked(payload)
    if record is None:
        return None
    number, clients, frame = record
    bytes_ = None if frame is None else len(frame)
    return [
        {
            "reader": client.decode(errors="backslashreplace"),
            "messages": 1,
            "bytes": bytes_,
            "number": number,
            "gone": frame is None,
        }
        for client in clients
    ]


KEPT_SCHEMA = pa.schema([*kept_schema(), ("number", pa.int64()), ("gone", pa.bool_())])
"""What is decoded. `gone`: the reader has had, or lost, all up to that number."""
_GATHERED = ", ".join(kept_schema().names)
WAITING = f"""
WITH ended AS (SELECT reader AS of, max(number) AS through FROM {{decoded}} WHERE gone GROUP BY reader),
each AS (
  SELECT *, row_number() OVER (PARTITION BY reader, number ORDER BY `offset`) AS copy
  FROM {{decoded}} LEFT JOIN ended ON reader = of
)
SELECT {_GATHERED} FROM each
WHERE fault IS NOT NULL OR (NOT gone AND number > coalesce(through, -1) AND (copy = 1 OR number = 0))
"""
"""What still waits: each message once, though the log may have copies of it."""


LOG = RecordedLog(
    "pubsub",
    Codec((RECORDED_FRAMES,), walk, ends_at_nul=frozenset({"name", "source"}), key=kind_names),
)
TABLES: Sequence[LogTable] = (
    LOG.table(
        READINGS,
        "every datagram with its value: integer, short real, float or string",
        READINGS_SCHEMA,
        readings,
    ),
    *LOG.tables(),
    LogTable(
        PLACES,
        "who is subscribed to what: a row for each subscription made or ended",
        namespace=NAMESPACE,
        logs=SESSIONS_LOG,
        schema=places_schema(),
        decode=subscriptions,
    ),
    LogTable(
        KEPT,
        "what is kept for clients that are away: a row a message and client",
        namespace=NAMESPACE,
        logs=KEPT_LOG,
        schema=KEPT_SCHEMA,
        decode=kept,
        gather=WAITING,
    ),
)
