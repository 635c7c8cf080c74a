"""Short strings, as AMQP and DMP have them: a byte that counts, and so many bytes."""

SHORT_BYTES_MAX = 255


def short(data: bytes) -> bytes:
    """`data`, at most SHORT_BYTES_MAX bytes, as a short string."""
    return bytes((len(data),)) + data


def take_short(data: bytes | bytearray, at: int = 0) -> bytes | None:
    """The short string at `at`; None while it is not all there."""
    if at >= len(data) or at + 1 + data[at] > len(data):
        return None
    return bytes(data[at + 1 : at + 1 + data[at]])
