"""Payloads that name who wrote them, and otherwise hold whatever may upset a reader of lines or lengths."""

import random

_POOL_BYTES = 1 << 21
_LINE_SAFE = bytes(b for b in range(256) if b not in b"\r\n")


class Payloads:
    """Drawn from a seed; each is given out once."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._raw = source.randbytes(_POOL_BYTES)
        table = bytes(_LINE_SAFE[b % len(_LINE_SAFE)] for b in range(256))
        self._line = self._raw.translate(table)
        self._tag = source.getrandbits(40)
        self._made = 0

    def line(self, writer: str) -> bytes:
        """For PRODUCE: any bytes but the line's end."""
        return self._make(writer, self._line)

    def raw(self, writer: str) -> bytes:
        """For APPEND and BATCH: any bytes, now and then another request or a record's header."""
        payload = self._make(writer, self._raw)
        draw = self._source.random()
        if draw < 0.1:
            return payload + b"\nPRODUCE nobody wrote-this\n"
        if draw < 0.2:
            return payload + len(payload).to_bytes(4, "big") + payload
        return payload

    def _make(self, writer: str, pool: bytes) -> bytes:
        self._made += 1
        draw = self._source.random()
        if draw < 0.9:
            size = self._source.randrange(0, 250)
        elif draw < 0.995:
            size = self._source.randrange(0, 9000)  # over a page or two
        else:
            size = self._source.randrange(0, 200_000)  # over an index entry or three
        at = self._source.randrange(_POOL_BYTES - size)
        return b"%s.%010x.%d " % (writer.encode(), self._tag, self._made) + pool[at : at + size]
