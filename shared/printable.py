"""A peer's bytes in a text: fit for a log line or an answer of text."""


def printable(data: bytes | bytearray, most: int = 64) -> str:
    """Quoted, escaped, and cut after `most` bytes: `b"a\\n"` is shown as `'a\\\\n'`."""
    return repr(bytes(data[:most]))[1:] + ("..." if len(data) > most else "")
