"""Which entries this process has checked: a bit each, so that bytes are held against their CRC once."""


class Verified:
    """By log id and an entry's number. A number below 0 is no entry's of its own, and is never verified."""

    __slots__ = ("_bits",)

    def __init__(self) -> None:
        self._bits: dict[int, bytearray] = {}

    def has(self, log_id: int, number: int) -> bool:
        bits = self._bits.get(log_id)
        return (
            bits is not None and 0 <= number >> 3 < len(bits) and bool(bits[number >> 3] & 1 << (number & 7))
        )

    def add(self, log_id: int, number: int) -> None:
        if number < 0:
            return
        bits = self._bits.setdefault(log_id, bytearray())
        if number >> 3 >= len(bits):
            bits.extend(bytes((number >> 3) + 64 - len(bits)))
        bits[number >> 3] |= 1 << (number & 7)

    def forget(self, log_id: int) -> None:
        self._bits.pop(log_id, None)
